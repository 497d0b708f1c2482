"""Raw tool-call tokens through the library and the command line, to both client dialects."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import dragoman
from dragoman.cli import chat_template, main
from dragoman.cli.raw_tools import find_calls, list_formats, looks
from dragoman.errors import LocalMisuse
from dragoman.filters.raw_tools import FORMAT_ALIASES, FORMAT_NAMES, TABLES
from dragoman.filters.raw_tools.filter import _ACTIONS
from dragoman.filters.raw_tools.outputs import CallStarted, TextOutput
from dragoman.filters.raw_tools.table import Table, parse_tables
from tests.anthropic_client import parse_sse as data_of
from tests.unit.raw_tools.client_view import cut, sse
from tests.unit.raw_tools.samples import all_cuts, outputs, tool

STORY = Path(__file__).parents[2] / "stories" / "kimi-tokens-in-reasoning"
SECTION = (
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.bash:0<|tool_call_argument_begin|>"
    '{"command": "ls"}<|tool_call_end|><|tool_calls_section_end|>'
)
TOOLS = [{"name": "bash", "input_schema": {"type": "object", "properties": {"command": {"type": "string"}}}}]
BODY: dict[str, Any] = {"model": "m", "max_tokens": 9, "tools": TOOLS, "messages": [{"role": "user", "content": "x"}]}


def stream(text: str, finish: str = "stop", size: int = 5, field: str = "content") -> bytes:
    return sse(cut([{field: text}], size), finish)


def frames(data: bytes, target: str, **options: Any) -> list[dict[str, Any]]:
    request = dragoman.translate_request(BODY, source="anthropic", target="openai") if target == "anthropic" else None
    translator = dragoman.stream_translator(source="openai", target=target, request=request, **options)
    return data_of(translator.feed(data) + translator.close())


@pytest.mark.parametrize(
    ("finish", "stop"), [("stop", "tool_use"), ("length", "max_tokens"), ("content_filter", "refusal")]
)
def test_an_anthropic_client_gets_tool_use(finish: str, stop: str) -> None:
    events = frames(stream("I will.\n" + SECTION, finish), "anthropic")
    starts = [frame["content_block"]["type"] for frame in events if frame["type"] == "content_block_start"]
    assert starts == ["text", "tool_use"]
    pieces = [frame["delta"].get("partial_json", "") for frame in events if frame["type"] == "content_block_delta"]
    assert json.loads("".join(pieces)) == {"command": "ls"}
    assert len([piece for piece in pieces if piece]) > 2, "arguments stream live"
    assert events[-2]["delta"]["stop_reason"] == stop


def test_thinking_is_closed_before_the_call() -> None:
    events = frames(stream("hm " + SECTION, field="reasoning_content"), "anthropic")
    kinds = [(frame["type"], frame.get("content_block", {}).get("type")) for frame in events]
    assert kinds.index(("content_block_stop", None)) < kinds.index(("content_block_start", "tool_use"))
    assert kinds[1] == ("content_block_start", "thinking")


def test_an_openai_client_gets_tool_calls_and_row_55_no_marker_leaks() -> None:
    events = frames(stream(SECTION), "openai")
    assert "<|" not in json.dumps(events)
    assert events[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_off_leaves_the_text_alone_and_buffered_sends_a_call_whole() -> None:
    off = frames(stream(SECTION), "openai", raw_tools="off")
    assert "".join(frame["choices"][0]["delta"].get("content", "") for frame in off) == SECTION
    whole = frames(stream(SECTION), "openai", raw_tools="kimi", raw_tools_mode="buffered")
    calls = [
        frame["choices"][0]["delta"]["tool_calls"] for frame in whole if "tool_calls" in frame["choices"][0]["delta"]
    ]
    assert "".join(call[0]["function"]["arguments"] for call in calls) == '{"command": "ls"}'
    assert len([call for call in calls if call[0]["function"]["arguments"]]) == 1


def test_an_unknown_table_is_a_misuse() -> None:
    with pytest.raises(LocalMisuse, match="kimmi"):
        dragoman.stream_translator(source="openai", target="openai", raw_tools="kimmi")


def test_the_default_is_auto_for_openai_and_off_for_anthropic() -> None:
    reply = {
        "id": "m", "type": "message", "role": "assistant", "model": "m", "stop_reason": "end_turn",
        "usage": {"input_tokens": 1, "output_tokens": 1}, "content": [{"type": "text", "text": SECTION}],
    }  # fmt: skip
    assert dragoman.translate_reply(reply, source="anthropic", target="anthropic").body["content"][0]["text"] == SECTION
    message = {"role": "assistant", "content": SECTION}
    body = {"id": "c", "model": "m", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    back = dragoman.translate_reply(body, source="openai", target="openai").body["choices"][0]
    assert (back["finish_reason"], back["message"]["content"]) == ("tool_calls", None)
    off = dragoman.translate_reply(body, source="openai", target="openai", raw_tools="off").body["choices"][0]
    assert off["message"]["content"] == SECTION


def test_kimi_ids_go_in_as_the_model_knows_them() -> None:
    """Case 41: the id that went out fresh comes back as a running count."""
    call = {"type": "tool_use", "id": "toolu_9", "name": "bash", "input": {"command": "ls"}}
    body = {
        **BODY,
        "messages": [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": [call]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_9", "content": "r"}]},
        ],
    }
    sent = dragoman.translate_request(body, source="anthropic", target="openai", model="kimi-k2.5").body["messages"]
    assert sent[1]["tool_calls"][0]["id"] == sent[2]["tool_call_id"] == "functions.bash:0"


def test_special_tokens_are_asked_for_only_on_option() -> None:
    plain = dragoman.translate_request(BODY, source="anthropic", target="openai").body
    translation = dragoman.translate_request(BODY, source="anthropic", target="openai", special_tokens=True).body
    assert ("skip_special_tokens" in plain, translation["skip_special_tokens"]) == (False, False)


@pytest.mark.parametrize(("request_file", "name"), [("anthropic.request.json", "task"), (None, "task")])
def test_the_log_of_001_on_the_command_line(request_file: str | None, name: str) -> None:
    options = ["--request", str(STORY / request_file)] if request_file else []
    done = subprocess.run(
        [sys.executable, "-m", "dragoman", "translate", "--what", "stream", "--from", "openai", "--to", "anthropic",
         *options, "--raw-tools" if not request_file else "--explain", *(["kimi"] if not request_file else []),
         str(STORY / "openai.stream")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line[6:]) for line in done.stdout.splitlines() if line.startswith("data: ")]
    calls = [line["content_block"] for line in lines if line.get("content_block", {}).get("type") == "tool_use"]
    assert [call["name"] for call in calls] == [name, name]
    pieces = [
        line["delta"]["partial_json"] for line in lines if line.get("delta", {}).get("type") == "input_json_delta"
    ]
    first, second = "".join(pieces).replace("}{", "}\n{").splitlines()
    assert json.loads(first)["description"] == "Explore core C headers"
    assert json.loads(second)["prompt"] == "See net/"


# --- `dragoman raw-tools`: list, try and learn, as a user runs them

FOLDER = Path(__file__).parent / "templates"
TEXT = 'Let me look.\n<tool_call>\n{"name": "search", "arguments": {"q": "x"}}\n</tool_call>'
OPENAI = [{"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}}]
ANTHROPIC = {"tools": [{"name": "search", "input_schema": {"type": "object"}}]}


@pytest.fixture
def text(tmp_path: Path) -> str:
    file = tmp_path / "response.txt"
    file.write_text(TEXT)
    return str(file)


# --- list


def test_list_shows_every_format(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["raw-tools", "list"]) == 0
    output = capsys.readouterr().out
    assert all(table.name in output for table in TABLES)
    assert "\x1b" not in output


def test_list_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["raw-tools", "list", "--json"]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)] == [table.name for table in TABLES]


def test_every_shipped_format_says_who_writes_it() -> None:
    assert all(table.models for table in TABLES)
    assert [row.name for row in list_formats()] == [table.name for table in TABLES]


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_what_list_shows_of_a_format_is_a_call_of_it(table: Table) -> None:
    value = "x" if table.body in ("markup", "elements", "gemma") else '"x"'
    text = looks(table).replace("VALUE", value).replace("⏎", "\n")
    calls = [each for each in find_calls(text, table.name) if each.kind != "note"]
    assert [(call.kind, call.name, json.loads(call.arguments)) for call in calls] == [("call", "NAME", {"KEY": "x"})]


# --- try


@pytest.mark.parametrize("cut", ["0", "1", "7"])
def test_try_shows_text_and_calls_in_reading_order(text: str, cut: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["raw-tools", "try", "hermes", text, "--cut", cut, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["kind"] for each in found if each["kind"] != "note"] == ["text", "call"]
    call = next(each for each in found if each["kind"] == "call")
    assert (call["name"], json.loads(call["arguments"]), call["table"]) == ("search", {"q": "x"}, "hermes")


@pytest.mark.parametrize("tools", [OPENAI, ANTHROPIC])
def test_try_takes_declared_tools(text: str, tools: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "tools.json").write_text(json.dumps(tools))
    assert main(["raw-tools", "try", "auto", text, "--tools", str(tmp_path / "tools.json")]) == 0
    printed = capsys.readouterr()
    assert "call search" in printed.out
    assert '  "q": "x"' in printed.out
    assert printed.err == "1 call\n"


def test_try_takes_a_table_file(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.toml"
    assert main(["raw-tools", "learn", str(FOLDER / "hermes.jinja"), "--name", "mine", "--output", str(file)]) == 0
    for table in (str(file), f"file:{file}"):
        capsys.readouterr()
        assert main(["raw-tools", "try", table, text, "--json"]) == 0
        assert '"table": "mine"' in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["nonsense"], 2, "'nonsense' is unknown; use auto"),
        (["missing.toml"], 2, "missing.toml: no such file"),
        (["hermes", "/nowhere/at/all"], 1, "/nowhere/at/all"),
        (["hermes", "--tools", "/nowhere/at/all"], 1, "/nowhere/at/all"),
    ],
)
def test_try_says_what_is_wrong(
    words: list[str], status: int, message: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [words[0], text, *words[1:]] if len(words) != 2 else words
    assert main(["raw-tools", "try", *words]) == status
    assert message in capsys.readouterr().err


def test_try_lets_no_escape_sequence_of_the_text_through(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t").write_text("\x1b[31mred")
    assert main(["raw-tools", "try", "hermes", str(tmp_path / "t")]) == 0
    assert "\x1b" not in capsys.readouterr().out


# --- learn


def test_learn_writes_a_table_and_reports(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["raw-tools", "learn", str(FOLDER / "qwen_coder.jinja"), "--name", "mine"]) == 0
    printed = capsys.readouterr()
    (table,) = parse_tables(printed.out)
    assert (table.name, table.body, table.call_begin) == ("mine", "markup", ("<function=",))
    assert "60 of 60 renderings read correctly" in printed.err
    assert 'set raw_tools = "qwen_coder"' in printed.err


def test_learn_says_how_to_use_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    template = (FOLDER / "hermes.jinja").read_text().replace("tool_call>", "act>")
    (tmp_path / "new-model.v2.jinja").write_text(template)
    file = tmp_path / "t.toml"
    assert main(["raw-tools", "learn", str(tmp_path / "new-model.v2.jinja"), "--output", str(file)]) == 0
    (table,) = parse_tables(file.read_text())
    assert (table.name, table.call_begin) == ("new-model", ("<act>",))
    printed = capsys.readouterr()
    assert f'raw_tools = "file:{file}"' in printed.err
    assert not printed.out


def test_learn_gives_variables_to_the_template(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    template = "{{ style.tag }}" + (FOLDER / "hermes.jinja").read_text()
    (tmp_path / "t.jinja").write_text(template)
    assert main(["raw-tools", "learn", str(tmp_path / "t.jinja"), "--set", 'style={"tag": "x"}']) == 0
    capsys.readouterr()
    assert main(["raw-tools", "learn", str(tmp_path / "t.jinja"), "--set", "style"]) == 2
    assert "expected NAME=VALUE" in capsys.readouterr().err


def test_learn_fails_with_a_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.jinja").write_text("{{ messages[0].content }}")
    assert main(["raw-tools", "learn", str(tmp_path / "t.jinja")]) == 1
    printed = capsys.readouterr()
    assert not printed.out
    assert "renders no tool calls" in printed.err


def test_learn_says_that_jinja_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hidden = tmp_path / "jinja2.py"
    hidden.write_text("raise ImportError")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert main(["raw-tools", "learn", str(FOLDER / "hermes.jinja")]) == 1
    assert "pip install 'dragoman[raw-tools]'" in capsys.readouterr().err


def test_the_command_line_does_not_need_jinja() -> None:
    assert "jinja2" not in vars(chat_template)
    assert chat_template.__name__ in sys.modules


# --- docs/raw_tools.md is true: its example runs, its table of what counts holds, it names every format and every
# note

PAGE = (Path(__file__).parents[3] / "docs" / "raw_tools.md").read_text(encoding="utf-8")
_SPAN = r"(`+) ?(.+?) ?\1"


def _section(title: str) -> str:
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def _short_forms() -> dict[str, str]:
    """KIMI, TAG and BARE, as the list before the table says."""
    return dict(re.findall(r"^- `([A-Z]+)` is `(.+)`[,.]$", _section("What counts"), re.MULTILINE))


def _examples() -> list[tuple[str, str]]:
    list_formats = re.findall(rf"^\| {_SPAN} \| (call|text) \|", _section("What counts"), re.MULTILINE)
    return [(_written(response), result) for _, response, result in list_formats]


def _written(response: str) -> str:
    text = response.replace("\\|", "|").replace("⏎", "\n").replace("⇥", "\t")
    for name, form in _short_forms().items():
        text = form.join(re.split(rf"\b{name}\b", text))
    return text


EXAMPLES = _examples()


def test_the_table_of_examples_is_read() -> None:
    assert len(EXAMPLES) == len(re.findall(r"^\| `", _section("What counts"), re.MULTILINE)) >= 25
    assert sorted(_short_forms()) == ["BARE", "KIMI", "TAG"]


@pytest.mark.parametrize(("response", "result"), EXAMPLES)
def test_what_counts(response: str, result: str) -> None:
    for pieces in all_cuts(response):
        emitted = outputs(pieces, "auto", [tool("bash", "command")])
        calls = [each.name for each in emitted if isinstance(each, CallStarted)]
        assert calls == (["bash"] if result == "call" else []), pieces
        if result == "text":
            assert "".join(each.text for each in emitted if isinstance(each, TextOutput)) == response


def test_every_format_has_its_place() -> None:
    assert [name for name in (*FORMAT_NAMES, *FORMAT_ALIASES) if f"`{name}`" not in PAGE] == []


def test_every_note_has_its_row() -> None:
    rules = {rule if "." in rule else f"raw_tools.{rule}" for rule in (*_ACTIONS, "recovered", "ids", "native_name")}
    assert set(re.findall(r"^\| `([\w.]+)` \|", _section("Notes"), re.MULTILINE)) == rules
