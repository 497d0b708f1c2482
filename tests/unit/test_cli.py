"""The command line as a user sees it: output, errors, exit statuses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

STORY = Path(__file__).parent.parent / "stories"


def run(*arguments: str, stdin: str | bytes = b"") -> tuple[int, str, str]:
    data = stdin.encode() if isinstance(stdin, str) else stdin
    done = subprocess.run([sys.executable, "-m", "dragoman", *arguments], input=data, capture_output=True, check=False)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


BODY: dict[str, Any] = {"model": "m", "max_tokens": 9, "top_k": 3, "messages": [{"role": "user", "content": "hi"}]}
BOTH = ("--from", "anthropic", "--to", "openai")


def test_version_and_help() -> None:
    assert run("--version")[1].startswith("dragoman ")
    status, out, _ = run("--help")
    assert (status, "translate" in out) == (0, True)
    assert run()[0] == 2


def test_an_unknown_command_gets_the_nearest() -> None:
    status, _, error = run("translat")
    assert (status, "Did you mean translate?" in error) == (2, True)


def test_translate_prints_the_body_and_explains_on_standard_error() -> None:
    status, out, error = run("translate", *BOTH, "--explain", stdin=json.dumps(BODY))
    assert status == 0
    assert json.loads(out)["messages"] == [{"role": "user", "content": "hi"}]
    assert error == "[knob.dropped] dropped top_k: the target has no setting top_k\n"


def test_translate_as_json_with_the_notes(tmp_path: Path) -> None:
    file = tmp_path / "request.json"
    file.write_text(json.dumps(BODY))
    status, out, _ = run("translate", *BOTH, "--json", "--model", "other", str(file))
    result = json.loads(out)
    assert (status, result["body"]["model"]) == (0, "other")
    assert result["notes"] == [
        {"rule": "knob.dropped", "action": "dropped", "at": "top_k", "detail": "the target has no setting top_k"}
    ]


def test_strict_exits_with_3_when_something_was_lost() -> None:
    assert run("translate", *BOTH, "--strict", stdin=json.dumps(BODY))[0] == 3
    whole = {name: value for name, value in BODY.items() if name != "top_k"}
    assert run("translate", *BOTH, "--strict", stdin=json.dumps(whole))[0] == 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{", "not JSON"),
        ('{"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": 7}]}', "messages[0].content"),
    ],
)
def test_bad_input_exits_with_1_and_a_sentence_naming_the_path(text: str, expected: str) -> None:
    status, out, error = run("translate", *BOTH, stdin=text)
    assert (status, out) == (1, "")
    assert error.startswith("dragoman: ")
    assert expected in error
    assert "Traceback" not in error


def test_wrong_usage_exits_with_2() -> None:
    assert run("translate", "--from", "anthropic")[0] == 2
    assert run("translate", "--from", "klingon", "--to", "openai", stdin="{}")[0] == 2
    assert run("translate", *BOTH, "--set", "nonsense", stdin="{}")[0] == 2
    assert run("check", "--dialect", "klingon", stdin="{}")[0] == 2


def test_a_missing_file_exits_with_1() -> None:
    status, _, error = run("translate", *BOTH, "no-such-file")
    assert (status, "no-such-file" in error) == (1, True)


def test_a_stream_is_translated_with_its_request() -> None:
    story = STORY / "interleaved-calls"
    status, out, error = run(
        "translate", "--what", "stream", "--from", "openai", "--to", "anthropic", "--explain",
        "--request", str(story / "anthropic.request.json"), str(story / "openai.stream"),
    )  # fmt: skip
    assert status == 0
    assert out.encode() == (story / "anthropic.stream").read_bytes()
    assert "nothing was changed" in error or error.startswith("[")


def test_a_cut_stream_exits_with_1_after_the_clients_error() -> None:
    story = STORY / "cut-stream"
    arguments = ("translate", "--what", "stream", "--from", "openai", "--to", "anthropic", str(story / "openai.stream"))
    status, out, error = run(*arguments)
    assert status == 1
    assert "event: error" in out
    assert "ended" in error
    result = json.loads(run(*arguments, "--json")[1])
    assert result["body"] == out


def test_a_reply_is_translated() -> None:
    message = {"role": "assistant", "content": "hi"}
    reply = {"id": "c", "model": "m", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    status, out, _ = run(
        "translate", "--what", "reply", "--from", "openai", "--to", "anthropic", stdin=json.dumps(reply)
    )
    assert (status, json.loads(out)["content"]) == (0, [{"type": "text", "text": "hi"}])


def test_check_names_each_breach_and_exits_with_3() -> None:
    bad = {"model": "m", "messages": [{"role": "user", "content": [{"type": "text", "text": " "}]}]}
    status, out, _ = run("check", "--dialect", "anthropic", stdin=json.dumps(bad))
    assert status == 3
    assert [line.split(" ")[:2] for line in out.splitlines()] == [
        ["[anthropic.max_tokens.required]", "max_tokens:"],
        ["advice", "[anthropic.text.blank]"],
    ]
    assert all(line.endswith("(observed)") for line in out.splitlines())
    assert json.loads(run("check", "--json", "--dialect", "anthropic", stdin=json.dumps(bad))[1])[0]["at"]


@pytest.mark.parametrize("dialect", ["anthropic", "openai"])
def test_check_of_our_own_streams_finds_nothing(dialect: str) -> None:
    for story in ("interleaved-calls", "signed-thinking"):
        status, out, _ = run(
            "check", "--what", "stream", "--dialect", dialect, str(STORY / story / f"{dialect}.stream")
        )
        assert (status, out) == (0, "")


def test_check_of_a_stream_finds_what_is_wrong() -> None:
    stream = 'event: message_start\ndata: {"type":"ping"}\n\n'
    status, out, _ = run("check", "--what", "stream", "--dialect", "anthropic", stdin=stream)
    assert status == 3
    assert "anthropic.stream" in out


def test_dialects_lists_the_registry() -> None:
    status, out, _ = run("dialects")
    assert (status, "anthropic" in out, "openai" in out) == (0, True, True)
    assert {row["name"] for row in json.loads(run("dialects", "--json")[1])} >= {"anthropic", "openai"}
