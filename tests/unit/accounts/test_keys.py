"""Tests of `dragoman.accounts.keys` and `account`: the form of keys, AWS secrets, and what a key may ask for."""

from __future__ import annotations

import pytest

from dragoman.accounts.account import Account, ReplyLengths
from dragoman.accounts.keys import aws_secret, aws_secrets, create_key, digest_of, is_client_key, rotate_key


def test_a_key_has_a_fixed_form_and_is_stored_as_a_digest() -> None:
    text, key = create_key("laptop", owner="ada")
    assert is_client_key(text) and text.startswith(f"dg_{key.id}_")
    assert key.digest == digest_of(text) and text not in repr(key)
    assert not any(is_client_key(other) for other in ("", text[:-1], text + "x", text.upper(), f" {text}", "dg_a_b"))


def test_two_keys_differ() -> None:
    texts, ids = zip(*((text, key.id) for text, key in (create_key("a") for _ in range(100))), strict=True)
    assert len({*texts}) == len({*ids}) == 100


def test_a_rotated_key_keeps_its_id_and_accepts_the_old_secret_for_a_while() -> None:
    text, key = create_key("laptop", now=1000.0)
    new_text, rotated = rotate_key(key, 60.0, now=2000.0)
    assert rotated.id == key.id and new_text != text
    assert rotated.digest == digest_of(new_text)
    assert (rotated.former_digest, rotated.former_until) == (digest_of(text), 2060.0)
    assert rotate_key(key, 0.0)[1].former_digest == b""


def test_aws_secrets_follow_the_gateway_key_the_id_and_the_revision() -> None:
    _, key = create_key("one")
    _, other = create_key("two")
    _, rotated = rotate_key(key, 60.0, now=1000.0)
    secrets = {aws_secret("gateway-key", key), aws_secret("other-key", key), aws_secret("gateway-key", other)}
    assert len({*secrets, aws_secret("gateway-key", rotated)}) == 4
    before, after = (aws_secret("gateway-key", each).encode() for each in (key, rotated))
    assert aws_secrets("gateway-key", rotated, 1059.0) == (after, before)
    assert aws_secrets("gateway-key", rotated, 1060.0) == (after,)


@pytest.mark.parametrize(
    ("models", "model", "allowed"),
    [
        ((), "anything", True),
        (("claude-*",), "claude-sonnet-4.5", True),
        (("claude-*",), "gpt-5", False),
        (("gpt-5", "claude-*"), "gpt-5", True),
        (("gpt-5",), "gpt-5-mini", False),
        (("GPT-*",), "gpt-5", False),
        (("a[b]",), "ab", False),  # brackets mean themselves
        (("a[b]",), "a[b]", True),
    ],
)
def test_models_that_a_key_may_ask_for(models: tuple[str, ...], model: str, allowed: bool) -> None:
    account = Account(models=models)
    assert [account.allows_model(model) for _ in range(2)] == [allowed, allowed]


def test_the_results_about_models_are_bounded() -> None:
    account = Account(models=("a*",))
    for number in range(10_000):
        assert account.allows_model(f"a{number}") and not account.allows_model(f"b{number}")
        account.reply_lengths(f"a{number}")
    assert len(account._allowed) <= 256 and len(account._replies) <= 256


def test_the_length_of_a_reply_is_estimated_from_the_last_ones() -> None:
    lengths = ReplyLengths()
    for _ in range(7):
        lengths.add(100)
    assert lengths.estimate() is None
    lengths.add(100)
    assert lengths.estimate() == 200
    for _ in range(64):
        lengths.add(1000)
    assert lengths.estimate() == 2000
