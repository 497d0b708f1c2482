"""Secrets in recorded bytes become stars: all that the redactor finds, and nothing changes its length."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.gateway.recording import masking
from dragoman.gateway.recording.masking import Masker
from dragoman.gateway.redaction import KEY_PREFIXES, Redactor

KNOWN = ("the-known-secret-of-the-tests-0123", "pa$$ wörd/ü", "shorty7")
KEYS = [
    f"sk-{'ant'}-{'api03-AbCdEfGh' * 2}",
    "AKIAABCDEFGHIJKLMNOP",
    "xoxb-1234567890",
    "xapp-abcdefghij",
    "hf_abcdefghijklmnop1234",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.abc",
    "AIzaSyA-1234567890abcdefghijklmnopqrstu",
    "1//0abcdefghijklmnopqrstuv",
    "-----BEGIN RSA PRIVATE KEY-----\nMIIEowIBAAKCAQEA0123456789abcdef\n-----END RSA PRIVATE KEY-----",
    'api_key = "0123456789abcdefABCDEF"',
    "Authorization: Bearer abcdefghij0123456789",
    "password=correct-horse-battery-staple-1",
    *KNOWN,
]


def masked(text: str, secrets: tuple[str, ...] = KNOWN) -> str:
    data = text.encode()
    result = Masker(secrets).mask(data)
    assert len(result) == len(data)
    return result.decode()


@pytest.mark.parametrize("key", KEYS)
def test_what_the_redactor_masks_becomes_stars(key: str) -> None:
    redactor = Redactor(lambda: KNOWN)
    for around in ('{"text": "%s"}', "use %s now", "%s", "é%sé", '{"a": "x\\n%s"}', "a/%s", "(%s)"):
        text = around % key
        assert redactor.text(text) != text
        result = masked(text)
        assert result != text and redactor.text(result) == result
        assert key not in result and "*" * 7 in result


@pytest.mark.parametrize("secret", KNOWN)
def test_known_secrets_are_found_in_every_encoding(secret: str) -> None:
    for spelling in (
        json.dumps(secret, ensure_ascii=False)[1:-1],
        base64.b64encode(f"user:{secret}".encode()).decode(),
        base64.urlsafe_b64encode(secret.encode() * 2).decode(),
    ):
        assert spelling not in masked(f'{{"a": "{spelling}"}}')


def test_a_text_without_secrets_is_the_same_object() -> None:
    data = json.dumps({"model": "m", "path": "src/dragoman/gateway/recording/masking.py", "id": "call_" + "a1" * 20})
    masker, raw = Masker(KNOWN), data.encode()
    assert masker.mask(raw) is raw and masker.mask(raw) is raw


def test_a_harmless_value_is_masked_under_the_name_of_a_secret() -> None:
    masker = Masker()
    value = "0123456789abcdefABCDEF"
    plain = json.dumps({"id": value}).encode()
    named = json.dumps({"api_key": value}).encode()
    for _ in range(2):  # what was harmless before is remembered
        assert masker.mask(plain) == plain
        assert value.encode() not in masker.mask(named)


def test_json_stays_json() -> None:
    body = {"key": "-----BEGIN PRIVATE KEY-----MIIE and so on", "b": ["sk-" + "a" * 30, {"c": 1}]}
    result = json.loads(masked(json.dumps(body)))
    assert result["b"][0] == "*" * 33 and result["b"][1] == {"c": 1} and "MIIE" not in result["key"]


@given(st.lists(st.sampled_from([*KEYS, "word", " ", '"', "\\n", "é", "=", "key: ", "a" * 14, "b" * 15, "/", "1"])))
def test_after_masking_the_redactor_finds_nothing(parts: list[str]) -> None:
    redactor, text = Redactor(lambda: KNOWN), "".join(parts)
    result = masked(text)
    assert redactor.text(result) == result
    if redactor.text(text) == text:
        assert result == text


@pytest.mark.parametrize("key", [KEYS[0], KEYS[8], KNOWN[0]])
def test_portions_do_not_cut_a_secret(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masking, "_PORTION", 64)
    for before in range(80):
        text = f"{'x ' * 20}{'y' * before} {key} and more {'z' * 200} {key}"
        assert key not in masked(text)


def test_keys_in_a_very_long_run_are_found() -> None:
    noise = base64.b64encode(bytes(range(256)) * 100).decode()
    for key in (f"{KNOWN[0]}", "/sk-" + "a1" * 20):
        assert key.strip("/") not in masked(f'"{noise}{key}{noise}"')
    value = "a1" * 3000
    assert masked(f'"password": "{value}"') == f'"password": "{"*" * 6000}"'


def test_every_prefix_of_a_key_is_in_the_search() -> None:
    assert all(masking._HEAD.match(prefix.encode()) for prefix in KEY_PREFIXES)
