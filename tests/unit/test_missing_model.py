"""L7: a request without a model is an error that says what to do; `"model": ""` is never sent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import dragoman
import dragoman.dialects as registry
from dragoman.cli import main
from dragoman.errors import LocalMisuse, MalformedRequest
from dragoman.gateway.config import assemble
from dragoman.wire.http import HttpRequest

BODIES: dict[str, dict[str, Any]] = {
    "anthropic": {"max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]},
    "openai": {"messages": [{"role": "user", "content": "hi"}]},
    "responses": {"input": "hi"},
    "bedrock": {"messages": [{"role": "user", "content": [{"text": "hi"}]}]},
    "bedrock.invoke": {"max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]},
    "gemini": {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]},
    "kiro": {"conversationState": {"currentMessage": {"userInputMessage": {"content": "hi"}}}},
}
FIELDS = {"bedrock": "modelId"}
WITHOUT: tuple[dict[str, Any], ...] = ({}, {"model": None}, {"model": ""}, {"model": " "})


@pytest.mark.parametrize("target", registry.names())
@pytest.mark.parametrize("given", WITHOUT, ids=["absent", "null", "empty", "blank"])
@pytest.mark.parametrize("source", BODIES)
def test_l7_a_request_without_a_model_names_the_option(source: str, given: dict[str, Any], target: str) -> None:
    named = {FIELDS.get(source, "model"): value for value in given.values()} if source != "kiro" else {}
    if source in ("anthropic", "openai", "responses"):  # their bodies have a field for it
        with pytest.raises(MalformedRequest) as refused:
            dragoman.translate_request({**BODIES[source], **named}, source=source, target=target)
        assert refused.value.fault.at == "model"
        return
    with pytest.raises(LocalMisuse, match=r"names no model.*--model"):
        dragoman.translate_request({**BODIES[source], **named}, source=source, target=target)


@pytest.mark.parametrize("target", registry.names())
@pytest.mark.parametrize("source", BODIES)
def test_l7_the_option_is_enough(source: str, target: str) -> None:
    told = dragoman.translate_request(BODIES[source], source=source, target=target, model="claude-sonnet-4.5")
    assert "claude-sonnet-4.5" in told.raw.decode() + told.path


@pytest.mark.parametrize("model", ["", "  "])
def test_l7_an_empty_option_is_no_model(model: str) -> None:
    with pytest.raises(LocalMisuse, match="model"):
        dragoman.translate_request({**BODIES["openai"], "model": "m"}, source="openai", target="anthropic", model=model)


@pytest.mark.parametrize("source", ["gemini", "bedrock"])
def test_l7_the_command_line_says_so_and_exits_with_2(
    source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = tmp_path / "asked.json"
    asked.write_text(json.dumps(BODIES[source]))
    assert main(["translate", "--from", source, "--to", "openai", str(asked)]) == 2
    shown = capsys.readouterr()
    assert "--model" in shown.err and not shown.out


@pytest.mark.parametrize("dialect", ["anthropic", "openai", "responses"])
@pytest.mark.parametrize("given", WITHOUT, ids=["absent", "null", "empty", "blank"])
def test_l7_a_binding_refuses_a_body_without_a_model(dialect: str, given: dict[str, Any]) -> None:
    """As the gateway reads it."""
    known = registry.get(dialect)
    asked = known.binding.wrap(known.binding.unwrap({**BODIES[dialect], "model": "m"}))
    body = json.dumps({**BODIES[dialect], **given}).encode()
    with pytest.raises(MalformedRequest) as refused:
        known.binding.match(HttpRequest("POST", asked.path, headers=asked.headers, body=body))
    assert refused.value.fault.at == "model"


def test_l7_check_still_misses_the_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = tmp_path / "asked.json"
    asked.write_text(json.dumps(BODIES["openai"]))
    assert main(["check", "--dialect", "openai", str(asked)]) == 1
    assert "model" in capsys.readouterr().err


UPSTREAM = '[upstreams.kimi]\npreset = "moonshot"\n'


@pytest.mark.parametrize("model", ["", " "])
def test_l7_a_route_has_to_name_a_model_if_the_request_does_not(model: str) -> None:
    """Gemini, Bedrock and Kiro clients can leave it out: then the route says which, or it is an error."""

    def resolved(text: str) -> list[str]:
        config = assemble(text, Path("/c/config.toml"), {"HOME": "/h"}, {}).config
        return [target.model for target in config.resolve(model)]

    with pytest.raises(MalformedRequest, match="names no model") as refused:
        resolved(UPSTREAM)
    assert refused.value.fault.at == "model"
    with pytest.raises(MalformedRequest):
        resolved(UPSTREAM + '[default]\nupstream = "kimi"\n')
    assert resolved(UPSTREAM + '[default]\nupstream = "kimi"\nmodel = "kimi-k2"\n') == ["kimi-k2"]
