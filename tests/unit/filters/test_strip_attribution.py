"""Claude Code's accounting line reaches Anthropic's own hosts and no other target."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import dragoman
import dragoman.dialects as registry
from dragoman.gateway.config import assemble
from dragoman.simulator import running_simulator
from tests.gateway.house import house, messages, upstream

LINE = "x-anthropic-billing-header: cc_version=2.1.325.a1b; cc_entrypoint=cli; cc_is_subagent=true;"
TARGETS = [name for name in registry.names() if name != "anthropic"]


def asked(system: Any, text: str = "hi") -> dict[str, Any]:
    return {"model": "claude-x", "max_tokens": 9, "system": system, "messages": [{"role": "user", "content": text}]}


def blocks(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in texts]


def rules(made: dragoman.Translated) -> list[tuple[str, str]]:
    return [(note.rule, note.action) for note in made.notes if note.rule == "system.attribution"]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("system", [blocks(LINE, "Be brief."), f"{LINE}\nBe brief.", blocks(f"{LINE}\nBe brief.")])
def test_the_line_is_removed_for_every_target_but_anthropic(system: Any, target: str) -> None:
    made = dragoman.translate_request(asked(system), source="anthropic", target=target)
    assert "billing" not in made.raw.decode()
    assert "Be brief." in made.raw.decode()
    assert rules(made) == [("system.attribution", "changed")]


@pytest.mark.parametrize("target", TARGETS)
def test_a_request_reads_as_if_the_line_had_never_been_there(target: str) -> None:
    with_line = dragoman.translate_request(asked(blocks(LINE, "Be brief.")), source="anthropic", target=target)
    without = dragoman.translate_request(asked(blocks("Be brief.")), source="anthropic", target=target)
    assert with_line.raw == without.raw


@pytest.mark.parametrize("system", [blocks(LINE, "Be brief."), f"{LINE}\nBe brief."])
def test_anthropic_gets_the_line_as_it_came(system: Any) -> None:
    made = dragoman.translate_request(asked(system), source="anthropic", target="anthropic")
    assert made.body["system"] == system
    assert made.notes == []


@pytest.mark.parametrize(
    ("target", "attribution", "sent"),
    [
        ("anthropic", "strip", False),
        ("bedrock", "keep", True),
        ("bedrock.invoke", "keep", True),
        ("kiro", "keep", True),
    ],
)
def test_the_setting_decides(target: str, attribution: str, sent: bool) -> None:
    given = asked(blocks(LINE, "Be brief."))
    made = dragoman.translate_request(given, source="anthropic", target=target, attribution=attribution)
    assert ("billing" in made.raw.decode()) is sent
    assert bool(rules(made)) is not sent


@pytest.mark.parametrize("target", TARGETS)
def test_only_the_beginning_of_the_system_text_is_looked_at(target: str) -> None:
    quoted = f"The log says: {LINE}"
    given = asked(blocks("Be brief.", quoted), LINE)
    made = dragoman.translate_request(given, source="anthropic", target=target)
    assert made.raw.decode().count("x-anthropic-billing-header") == 2
    assert rules(made) == []


def test_a_block_of_the_line_alone_goes_whole() -> None:
    made = dragoman.translate_request(asked(f"{LINE}\n"), source="anthropic", target="openai")
    assert made.body["messages"] == [{"role": "user", "content": "hi"}]


def test_it_is_no_loss() -> None:
    made = dragoman.translate_request(asked(blocks(LINE)), source="anthropic", target="openai", losses="refuse")
    assert rules(made) == [("system.attribution", "changed")]


def test_a_plain_chat_request_loses_the_line_too() -> None:
    body = {"model": "m", "messages": [{"role": "system", "content": LINE}, {"role": "user", "content": "hi"}]}
    made = dragoman.translate_request(body, source="openai", target="openai")
    assert made.body["messages"] == [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("table", "attribution"),
    [
        ('preset = "anthropic"\nkey = "x"', "auto"),
        ('dialect = "anthropic"\nbase_url = "https://eu.api.anthropic.com"\nkey = "x"', "auto"),
        ('dialect = "anthropic"\nbase_url = "https://api.moonshot.ai/anthropic"\nkey = "x"', "strip"),
        ('dialect = "anthropic"\nbase_url = "https://notanthropic.com"\nkey = "x"', "strip"),
        ('preset = "anthropic"\nbase_url = "https://api.z.ai/api/anthropic"\nkey = "x"', "strip"),
        ('dialect = "anthropic"\nbase_url = "https://x.test"\nkey = "x"\ntranslation.attribution = "keep"', "keep"),
        ('preset = "anthropic"\nkey = "x"\ntranslation.attribution = "strip"', "strip"),
        ('preset = "simulator"\ndialect = "anthropic"', "auto"),
    ],
)
def test_a_compatible_service_on_another_host_does_not_get_it(table: str, attribution: str) -> None:
    loaded = assemble(f"allow_literal_secrets = true\n[upstreams.a]\n{table}\n", None, {"HOME": "/nowhere"}, {})
    assert loaded.config.upstreams["a"].settings.attribution == attribution


def test_the_gateway_removes_it_where_bytes_would_pass_otherwise(tmp_path: Path) -> None:
    given = {**messages(), "system": blocks(LINE, "Be brief.")}
    with (
        running_simulator("anthropic") as simulator,
        house(upstream("a", "anthropic", simulator.url), tmp_path) as home,
    ):
        for stream in (False, True):
            assert home.ask("/v1/messages", {**given, "stream": stream})[0] == 200
        sent = [json.loads(each.body)["system"] for each in simulator.requests]
    assert sent == ["Be brief."] * 2
