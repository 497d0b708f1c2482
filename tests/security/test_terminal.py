"""Point 34 of SECURITY.md: no text of a model, a client or an upstream can send control sequences to the terminal."""

from __future__ import annotations

import io
import json
import os
import re
from pathlib import Path
from typing import Literal

import pytest
from msgspec import structs

from dragoman.cli import auth, main, status
from dragoman.cli.doctor import _print
from dragoman.cli.doctor_checks import Check
from dragoman.cli.sim import _print_exchange
from dragoman.cli.terminal import Paint, one_line, plain
from dragoman.gateway.access_log import AccessLog
from dragoman.gateway.explain import RefusalLog, encode_report
from dragoman.gateway.records import Record
from dragoman.gateway.redaction import Redactor
from dragoman.gateway.secrets import app_folders
from dragoman.gateway.show import toml_value
from dragoman.simulator import ReceivedRequest, parse_script, running_simulator
from dragoman.wire.http import HttpRequest
from dragoman.wire.jsonio import Json
from tests.gateway.test_explain import refusal

DRIVES = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
HOSTILE = "\x1b[2J\x1b]0;owned\x07\x1b]52;c;cm0gLXJm\x07\x9b31m\x90\u202eevil\u2066\r\x08\x7f end"
JSON = json.dumps(HOSTILE)


def harmless(text: str) -> bool:
    assert "owned" in text or "evil" in text or "end" in text, "it was not shown at all"
    return DRIVES.search(text) is None


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR", "DRAGOMAN_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def output_of(capfd: pytest.CaptureFixture[str], *words: str) -> str:
    main([*words])
    out, err = capfd.readouterr()
    return out + err


def test_point_34_text_of_a_model_in_agent_is_harmless(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MY_KEY", "a-key")
    with running_simulator("openai", script=parse_script(f'then = "repeat"\n[[turn]]\ntext = {JSON}')) as simulator:
        for form in ((), ("--no-stream",), ("--json", "--quiet")):
            words = (
                "agent",
                "hello",
                "--dialect",
                "openai",
                "--url",
                simulator.url,
                "--model",
                "m",
                "--key-env",
                "MY_KEY",
                *form,
            )
            assert harmless(output_of(capfd, *words))


def test_point_34_an_upstream_error_in_agent_is_harmless(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MY_KEY", "a-key")
    with running_simulator(
        "openai", script=parse_script(f'then = "repeat"\n[[turn]]\nstatus = 400\nmessage = {JSON}')
    ) as simulator:
        assert harmless(
            output_of(
                capfd,
                "agent",
                "hello",
                "--dialect",
                "openai",
                "--url",
                simulator.url,
                "--model",
                "m",
                "--key-env",
                "MY_KEY",
            )
        )


def test_point_34_explain_output_is_harmless(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    report = refusal("req_1", json.dumps({"text": HOSTILE}))
    report = structs.replace(report, fault=HOSTILE, model="m", upstream="u")
    assert RefusalLog(app_folders(os.environ).state / "refusals").write(report.id, encode_report(report))
    for words in (("explain",), ("explain", "last"), ("explain", "--json"), ("explain", "last", "--json")):
        assert harmless(output_of(capfd, *words))


def test_point_34_status_and_cooldown_output_is_harmless() -> None:
    row: dict[str, Json] = {
        "credential": HOSTILE,
        "models": HOSTILE,
        "state": "open",
        "kind": "server",
        "why": HOSTILE,
        "until": 5.0,
    }
    assert harmless(status.render_cooldown(dict(row), 0.0))
    upstream: dict[str, Json] = {
        "name": "u",
        "health": "failing",
        "dialect": "openai",
        "base_url": HOSTILE,
        "last_error": HOSTILE,
        "last_error_at": 1.0,
        "cooldowns": [row],
        "credentials": [{"name": "k", "source": HOSTILE, "problem": HOSTILE}],
    }
    found: dict[str, Json] = {"state": "ready", "reload_refused": HOSTILE, "upstreams": [upstream]}
    assert harmless("\n".join(status.render_status(found, 2.0, Paint(None))))


def test_point_34_errors_of_check_and_translate_are_harmless(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "request.json"
    body = {
        "model": HOSTILE,
        "max_tokens": HOSTILE,
        HOSTILE: 1,
        "messages": [{"role": HOSTILE, "content": [{"type": HOSTILE}]}],
    }
    file.write_text(json.dumps(body))
    for form in ((), ("--json",)):
        assert not DRIVES.search(output_of(capfd, "check", "--dialect", "anthropic", *form, str(file)))
        assert not DRIVES.search(
            output_of(capfd, "translate", "--from", "anthropic", "--to", "openai", "--explain", *form, str(file))
        )
    body |= {
        "model": "claude-sonnet-4.5",
        "max_tokens": 5,
        "messages": [{"role": "user", "content": HOSTILE}],
        "tools": [{"name": HOSTILE, "input_schema": {"type": "object"}}],
    }
    file.write_text(json.dumps(body))
    for form in ((), ("--json",)):
        assert harmless(
            output_of(capfd, "translate", "--from", "anthropic", "--to", "kiro", "--explain", *form, str(file))
        )


def test_point_34_a_configuration_with_control_characters_is_harmless(
    home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = home / "config.toml"
    file.write_text(f"[upstreams.a]\ndialect = {JSON}\n")
    for command in ("check", "show"):
        for form in ((), ("--json",)):
            assert harmless(output_of(capfd, "config", command, "--config", str(file), *form))
    for words in (("serve",), ("models",), ("doctor", "--offline"), ("doctor", "--offline", "--json")):
        assert harmless(output_of(capfd, *words, "--config", str(file)))
    assert harmless(toml_value(HOSTILE))


def test_point_34_log_lines_and_other_output_are_harmless(capfd: pytest.CaptureFixture[str]) -> None:
    forms: tuple[Literal["text", "json"], ...] = ("text", "json")
    for form in forms:
        stream = io.StringIO()
        access_log = AccessLog(Redactor(), stream=stream, form=form, level="debug")
        record = Record("req_1", "POST", "/v1/messages")
        record.outcome, record.error, record.model = "failed", HOSTILE, HOSTILE
        access_log.request(record)
        access_log.event("error", "bug", error=HOSTILE)
        lines = stream.getvalue()
        if form == "text":
            assert harmless(lines)
        assert "\x1b" not in lines and len(lines.splitlines()) == 2
    _print([Check("a", "fail", HOSTILE, HOSTILE)])
    auth._print_message(HOSTILE)
    _print_exchange(ReceivedRequest(HttpRequest("GET", f"/{HOSTILE}")))
    out, err = capfd.readouterr()
    assert harmless(out) and harmless(err)


def test_point_34_ordinary_text_is_unchanged() -> None:
    text = "می‌خواهم 👩‍👩‍👧 ümlaut\n\ttabs and lines"
    assert plain(text) == text
    assert "\n" not in one_line(text)
