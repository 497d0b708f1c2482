"""Every dialect's list of models is read, also from what compatible services add to it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dragoman.dialects as registry
from dragoman.dialects.base import ApiRequest, ListedModel
from dragoman.errors import DragomanError

READING = [name for name in registry.names() if registry.get(name).model_list is not None]


def page(dialect: str, body: Any) -> tuple[list[ListedModel], str]:
    reader = registry.get(dialect).model_list
    assert reader is not None
    found = reader.parse_page(body if isinstance(body, bytes) else json.dumps(body).encode())
    return list(found.models), found.next_page


def test_every_dialect_with_a_known_list_reads_it() -> None:
    assert set(READING) == {"anthropic", "gemini", "openai", "responses", "kiro", "ollama"}


@pytest.mark.parametrize("dialect", READING)
def test_a_list_that_a_dialect_writes_is_read_again(dialect: str) -> None:
    shape = registry.get(dialect).listing or registry.get("openai").listing
    assert shape is not None
    models = [ListedModel("one", 1000, 100), ListedModel("two/three:4b")]
    entries: list[Any] = [{name: value for name, value in shape.entry(each).items() if value} for each in models]
    found, more = page(dialect, shape.render_list(entries))
    assert ([each.name for each in found], more) == (["one", "two/three:4b"], "")
    if dialect != "ollama":  # what Ollama writes is the length of the training
        assert (found[0].window, found[0].max_output_tokens) == (1000, 100)


@pytest.mark.parametrize(
    ("dialect", "body", "expected"),
    [
        ("openai", {"data": [{"id": "v", "max_model_len": 8192}]}, [ListedModel("v", 8192)]),
        ("openai", [{"id": "bare"}], [ListedModel("bare")]),
        ("openai", {"data": [{"id": "g", "context_window": 7}, 3, {}, {"id": 4}, {"id": " x"}, {"id": "a\nb"}]}, [ListedModel("g", 7)]),
        ("openai", {"data": [{"id": "x" * 257}, {"id": "y", "context_length": -1}, {"id": "y"}]}, [ListedModel("y")]),
        ("gemini", {"models": [{"name": "models/g", "supportedGenerationMethods": ["generateContent"]}, {"name": "models/e", "supportedGenerationMethods": ["embedContent"]}]}, [ListedModel("g")]),
        ("kiro", {"models": [{"modelId": "c", "tokenLimits": {"maxInputTokens": 5, "maxOutputTokens": 4}}]}, [ListedModel("c", 5, 4)]),
    ],
)  # fmt: skip
def test_entries_are_read_as_services_write_them(dialect: str, body: Any, expected: list[ListedModel]) -> None:
    assert page(dialect, body)[0] == expected


@pytest.mark.parametrize(
    ("dialect", "body", "query"),
    [
        ("anthropic", {"data": [{"id": "a"}], "has_more": True, "last_id": "a"}, "limit=1000&after_id=a"),
        ("gemini", {"models": [{"name": "models/a"}], "nextPageToken": "t&1"}, "pageSize=1000&pageToken=t%261"),
        ("kiro", {"models": [{"modelId": "a"}], "nextToken": "t"}, "origin=AI_EDITOR&nextToken=t"),
    ],
)
def test_a_further_page_is_requested_by_its_token(dialect: str, body: Any, query: str) -> None:
    _, token = page(dialect, body)
    call = ApiRequest("models", "", False, None, {"page": token})
    assert registry.get(dialect).binding.wrap(call).query == query


def test_the_last_page_has_no_next_one() -> None:
    assert page("anthropic", {"data": [{"id": "a"}], "has_more": False, "last_id": "a"})[1] == ""
    assert page("kiro", {"models": [{"modelId": "a"}], "nextToken": None})[1] == ""


@pytest.mark.parametrize("dialect", READING)
@given(body=st.binary(max_size=40) | st.sampled_from([b"{}", b"null", b'{"data":3}', b"<html>", b"[" * 5000]))
def test_any_other_body_is_a_violation_and_never_an_exception(dialect: str, body: bytes) -> None:
    try:
        assert isinstance(page(dialect, body)[0], list)
    except DragomanError as error:
        assert error.fault.is_violation
