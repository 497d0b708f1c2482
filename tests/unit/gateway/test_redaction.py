"""Secrets are masked in URLs, JSON documents and errors of upstreams."""

from __future__ import annotations

import pytest

from dragoman.errors import Fault
from dragoman.gateway.redaction import Redactor
from dragoman.wire.jsonio import Json

SECRET = "my-own-secret-value"
REDACTOR = Redactor(lambda: [SECRET, "my-own-secret/value"])


@pytest.mark.parametrize(
    ("text", "masked"),
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
def test_a_key_in_a_url_is_masked_by_its_name_in_any_spelling(text: str, masked: str) -> None:
    assert REDACTOR.query(text) == masked


def test_secrets_are_masked_everywhere_in_a_document() -> None:
    document: Json = {"a": [{"why": f"x {SECRET}"}, [SECRET, 1, None]], "b": {"c": {"d": SECRET}}, "e": True}
    masked = {"a": [{"why": "x ***"}, ["***", 1, None]], "b": {"c": {"d": "***"}}, "e": True}
    assert REDACTOR.tree(document) == masked


def test_the_error_code_of_an_upstream_is_masked_like_its_message() -> None:
    masked_fault = REDACTOR.fault(Fault("auth", f"no such key: {SECRET}", 401, code=f"bad:{SECRET}"))
    assert (masked_fault.message, masked_fault.code) == ("no such key: ***", "bad:***")


@pytest.mark.parametrize("escape", [r"\n", r"\t", r"\r", r"\b", r"\f", r"\"", r"\\", " ", "="])
def test_a_key_is_masked_after_a_json_escape(escape: str) -> None:
    assert Redactor().text(f"{{{escape}sk-ant-0123456789abcdefgh}}") == f"{{{escape}***}}"
