"""Secrets are kept out of addresses, documents and what upstreams say."""

from __future__ import annotations

import pytest

from dragoman.errors import Fault
from dragoman.gateway.redaction import Redactor
from dragoman.wire.jsonio import Json

SECRET = "my-own-secret-value"
REDACTOR = Redactor(lambda: [SECRET, "my-own-secret/value"])


@pytest.mark.parametrize(
    ("given", "masked"),
    [
        ("key=abc&alt=sse", "key=***&alt=sse"),
        ("alt=sse&api%5Fkey=abc", "alt=sse&api%5Fkey=***"),
        ("%6bey=abc", "%6bey=***"),
        ("X-Amz-Signature=abc&x=1", "X-Amz-Signature=***&x=1"),
        (f"x={SECRET}", "x=***"),
        ("note=my-own-secret%2Fvalue", "note=***"),
        ("note=my-own-secret%2fvalue", "note=***"),
        ("key=", "key="),
    ],
)
def test_a_key_in_an_address_is_masked_by_its_name_however_that_is_spelt(given: str, masked: str) -> None:
    assert REDACTOR.query(given) == masked


def test_secrets_are_masked_wherever_they_stand_in_a_document() -> None:
    given: Json = {"a": [{"why": f"x {SECRET}"}, [SECRET, 1, None]], "b": {"c": {"d": SECRET}}, "e": True}
    masked = {"a": [{"why": "x ***"}, ["***", 1, None]], "b": {"c": {"d": "***"}}, "e": True}
    assert REDACTOR.tree(given) == masked


def test_an_upstreams_code_is_masked_like_its_words() -> None:
    told = REDACTOR.fault(Fault("auth", f"no such key: {SECRET}", 401, code=f"bad:{SECRET}"))
    assert (told.message, told.code) == ("no such key: ***", "bad:***")


@pytest.mark.parametrize("escape", [r"\n", r"\t", r"\r", r"\b", r"\f", r"\"", r"\\", " ", "="])
def test_a_known_shape_is_seen_behind_an_escape_of_json(escape: str) -> None:
    assert Redactor().text(f"{{{escape}sk-ant-0123456789abcdefgh}}") == f"{{{escape}***}}"
