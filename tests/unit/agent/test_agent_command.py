"""`dragoman agent`, offline and against a simulator."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from dragoman.cli import main
from dragoman.simulator import running_simulator

TOOLS = '''
def get_weather(city: str) -> str:
    """Return the weather."""
    return f"{city} is sunny"

THING = 3
'''


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_agent_tools.py").write_text(TOOLS)
    monkeypatch.chdir(tmp_path)


def command(*arguments: str) -> int:
    return main(["agent", *arguments])


def test_the_agent_answers_offline_and_shows_its_steps(capsys: pytest.CaptureFixture[str]) -> None:
    assert command('Call get_weather {"city": "Oslo"}', "--tool", "my_agent_tools:get_weather") == 0
    out, err = capsys.readouterr()
    assert out == "The tool answered: Oslo is sunny\n"
    assert 'call get_weather {"city":"Oslo"}' in err
    assert "result get_weather" in err
    assert err.startswith("step 1\n")


@pytest.mark.parametrize("more", [["--no-stream"], ["--quiet"]])
def test_the_agent_may_be_quiet_and_ask_for_whole_replies(more: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert command("Good morning", *more) == 0
    out, err = capsys.readouterr()
    assert out == "You said: Good morning\n"
    assert bool(err) == ("--quiet" not in more)


def test_the_result_may_be_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert command("hi", "--json", "--quiet") == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["status"], document["text"]) == ("done", "You said: hi")


def test_the_question_may_come_from_standard_input(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("from a pipe"))
    assert command("-", "--quiet") == 0
    assert capsys.readouterr().out == "You said: from a pipe\n"


@pytest.mark.parametrize("tool", ["nosuch:x", "my_agent_tools:nosuch", "my_agent_tools:THING", "my_agent_tools", ":x"])
def test_a_tool_that_is_not_there_is_wrong_usage(tool: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("hi", "--tool", tool) == 2
    assert capsys.readouterr().err.startswith("dragoman: ")


def test_a_dialect_needs_an_address() -> None:
    assert command("hi", "--dialect", "anthropic") == 2
    assert command("hi", "--dialect", "nosuch", "--url", "http://127.0.0.1:1") == 2


@pytest.mark.parametrize("dialect", ["anthropic", "openai", "bedrock", "gemini"])
def test_the_agent_asks_a_service_with_the_key_of_the_environment(
    dialect: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MY_KEY", "secret")
    with running_simulator(dialect) as service:
        words = ("--dialect", dialect, "--url", service.url, "--model", "m", "--quiet", "--key-env", "MY_KEY")
        assert command("hi", *words) == 0
        headers = service.requests[0].headers
    assert capsys.readouterr().out == "You said: hi\n"
    assert "secret" in (headers.get("x-api-key") or headers.get("x-goog-api-key") or headers["authorization"])


def test_no_key_is_sent_that_was_not_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """DRAGOMAN_KEY is the key of a gateway, which `run` gives to clients, and not that of an upstream."""
    monkeypatch.setenv("DRAGOMAN_KEY", "secret")
    with running_simulator("openai") as service:
        assert command("hi", "--dialect", "openai", "--url", service.url, "--model", "m", "--quiet") == 1
        assert "secret" not in str(service.requests[0].headers)
        assert command("hi", "--dialect", "openai", "--url", service.url, "--key-env", "NO_SUCH") == 5
    assert "environment variable NO_SUCH is not set" in capsys.readouterr().err


def test_trouble_is_one_sentence_and_an_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    assert command("hi", "--dialect", "openai", "--url", "http://127.0.0.1:1", "--model", "m", "--quiet") == 1
    assert "could not connect to 127.0.0.1:1" in capsys.readouterr().err
