"""`dragoman demo`: run two conversations with tools through a gateway, and show both sides of each request.

The gateway and two simulated services run in this process, so the demo needs no account and only loopback. On a
terminal the services stream as fast as a person reads, and the text appears as the client receives it.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from dragoman.cli.client_setup import setup_lines
from dragoman.cli.json_lines import NARROW, flat_json, hide_fields, side_by_side, value_lines
from dragoman.cli.layout import display_width, fold, shell_lines
from dragoman.cli.terminal import (
    CommandError,
    Paint,
    columns_of,
    one_line,
    plain,
    replace_unencodable,
    say,
    width,
)
from dragoman.gateway.access_log import AccessLog
from dragoman.gateway.config import build_config, load_config
from dragoman.gateway.layers import ConfigError
from dragoman.gateway.records import Record
from dragoman.gateway.redaction import Redactor
from dragoman.gateway.serve import GatewayServer, running_gateway
from dragoman.http.client.blocking import send
from dragoman.http.client.client import HttpTimeouts
from dragoman.model.filter import Note
from dragoman.simulator import ReceivedRequest, Simulator, parse_script, running_simulator
from dragoman.wire import jsonio
from dragoman.wire.http import HttpRequest
from dragoman.wire.jsonio import Json

_CITY: Json = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
_DESCRIPTION = "Return the weather of a city."
_WEATHER = "It is 4 °C and raining in Oslo."
# A tool call of a Kimi model whose server does not know the format: tokens in the middle of the text.
_RAW = (
    "I will look. <|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
    '<|tool_call_argument_begin|>{"city": "Oslo"}<|tool_call_end|><|tool_calls_section_end|>'
)
_TURNS = f"""
[[turn]]
parts = [{{ text = '{_RAW}' }}]

[[turn]]
text = "Take an umbrella: 4 °C and rain in Oslo."
"""
_CONFIG = """
allow_literal_secrets = true
[upstreams.kiro]
dialect = "kiro"
base_url = "{kiro}"
key = "the-key-of-the-demo"
models = ["claude-sonnet-4.5"]
[upstreams.kimi]
dialect = "openai"
base_url = "{kimi}"
key = "the-key-of-the-demo"
models = ["kimi-k2"]
[upstreams.kimi.translation]
raw_tools = "auto"
"""


_LABEL = 23  # columns of the labels of a turn
_DELAY = 0.025  # seconds between the pieces of a reply, on a terminal


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `dragoman demo`."""
    parser.add_argument("--brief", action="store_true", help="show the replies and the notes, without the requests")


def run(arguments: Namespace) -> int:
    """Run `dragoman demo`; return the exit status."""
    replace_unencodable(sys.stdout)
    began = time.monotonic()
    with _running_demo(arguments.brief) as demo:
        demo.title("Dragoman: a gateway with two simulated services", "no account, no network")
        are_complete = [_anthropic_to_kiro(demo), _openai_to_kimi(demo)]
    duration = f"({time.monotonic() - began:.1f} s)"
    demo.say(f"\nBoth tool calls arrived complete. {duration}" if all(are_complete) else "\nA tool call was lost.")
    _print_next_steps(demo)
    return 0 if all(are_complete) else 1


# --- the two conversations


def _anthropic_to_kiro(demo: Demo) -> bool:
    demo.section(
        "1", "An Anthropic client, a Kiro service", "the dialect of Claude Code, translated for a strict service"
    )
    ask = 'What is the weather in Oslo? Call get_weather {"city": "Oslo"}'
    messages: list[Json] = [{"role": "user", "content": ask}]
    tools: list[Json] = [{"name": "get_weather", "description": _DESCRIPTION, "input_schema": _CITY}]
    body: dict[str, Json] = {
        "model": "claude-sonnet-4.5",
        "max_tokens": 512,
        "stream": True,
        "system": "Be brief.",
        "tools": tools,
        "messages": messages,
    }
    events = demo.turn("/v1/messages", body, demo.kiro, "Kiro", "an AWS event stream")
    call = _anthropic_call(events)
    if call is None:
        return False
    messages += [
        {"role": "assistant", "content": [{"type": "tool_use", **call}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call["id"], "content": _WEATHER}]},
    ]
    demo.say("\nThe client runs the tool and sends its result.")
    events = demo.turn("/v1/messages", body, demo.kiro, "Kiro", "an AWS event stream")
    text = "".join(map(_text_delta, events))
    return call["input"] == {"city": "Oslo"} and "4 °C" in text


def _openai_to_kimi(demo: Demo) -> bool:
    demo.section(
        "2", "An OpenAI client, a Kimi model that writes raw tokens", "its server does not know its tool format"
    )
    messages: list[Json] = [{"role": "user", "content": "What is the weather in Oslo?"}]
    function: Json = {"name": "get_weather", "description": _DESCRIPTION, "parameters": _CITY}
    tools: list[Json] = [{"type": "function", "function": function}]
    body: dict[str, Json] = {"model": "kimi-k2", "stream": True, "tools": tools, "messages": messages}
    events = demo.turn("/v1/chat/completions", body, demo.kimi, "Kimi's server", "text", raw_text=_RAW)
    text, call = _openai_message(events)
    if call is None:
        return False
    messages += [
        {"role": "assistant", "content": text, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "content": _WEATHER},
    ]
    demo.say("\nThe client runs the tool and sends its result.")
    demo.turn("/v1/chat/completions", body, demo.kimi, "Kimi's server", "text")
    return "<|" not in text and _at(call, "function", "name") == "get_weather"


def _text_delta(event: Json) -> str:
    """Return the text that an event of either dialect adds to the reply."""
    return str(_at(event, "delta", "text") or _at(event, "choices", 0, "delta", "content") or "")


def _anthropic_call(events: Sequence[Json]) -> dict[str, Json] | None:
    blocks = [block for event in events if (block := _at(event, "content_block"))]
    block = next((each for each in blocks if _at(each, "type") == "tool_use"), None)
    if not isinstance(block, dict):
        return None
    written = "".join(str(_at(event, "delta", "partial_json") or "") for event in events)
    return {"id": block["id"], "name": block["name"], "input": jsonio.decode(written or "{}")}


def _openai_message(events: Sequence[Json]) -> tuple[str, dict[str, Json] | None]:
    deltas = [delta for event in events if (delta := _at(event, "choices", 0, "delta"))]
    text = "".join(map(_text_delta, events))
    pieces = [piece for delta in deltas if (piece := _at(delta, "tool_calls", 0))]
    if not pieces:
        return text, None
    first = next(piece for piece in pieces if _at(piece, "id"))
    arguments = "".join(str(_at(piece, "function", "arguments") or "") for piece in pieces)
    function: Json = {"name": _at(first, "function", "name"), "arguments": arguments}
    return text, {"id": _at(first, "id"), "type": "function", "function": function}


def _at(value: Json, *path: str | int) -> Json:
    """Return the value at a path of names and indexes, or None."""
    for step in path:
        if isinstance(value, dict) and isinstance(step, str):
            value = value.get(step)
        elif isinstance(value, list) and isinstance(step, int) and len(value) > step:
            value = value[step]
        else:
            return None
    return value


# --- running the demo and printing it


class _RecordingLog(AccessLog):
    """An access log that stores the record of each request, with its notes, and writes nothing."""

    def __init__(self) -> None:
        super().__init__(Redactor(), level="error")
        self.records: list[Record] = []

    def request(self, record: Record) -> bytes:
        self.records.append(record)
        return b""


class Demo:
    """The running gateway and its two simulated services; prints both sides of each request."""

    def __init__(
        self, running: GatewayServer, log: _RecordingLog, kiro: Simulator, kimi: Simulator, *, brief: bool
    ) -> None:
        self.kiro, self.kimi = kiro, kimi
        self._running = running
        self._log = log
        self._brief = brief
        self._paint = Paint(sys.stdout)
        self._width = width()
        self._shown: set[str] = set()  # services whose tools were shown

    def say(self, text: str) -> None:
        """Print a line."""
        say(text)
        sys.stdout.flush()

    def title(self, text: str, more: str) -> None:
        """Print the title, with a remark in parentheses."""
        self.say(f"{self._paint(text, 'bold')} {self._paint(f'({more})', 'dim')}")

    def section(self, number: str, text: str, more: str) -> None:
        """Print the heading of a conversation, and a line about it."""
        rule = "─" * max(self._width - len(text) - 6, 3)
        self.say(f"\n{self._paint(f'── {number} {text} {rule}', 'bold', 'cyan')}")
        self.say(self._paint(more, "dim"))

    def turn(
        self, path: str, body: dict[str, Json], service: Simulator, name: str, form: str, raw_text: str = ""
    ) -> list[Json]:
        """Send one request, print both sides of it and the reply as it arrives, and return its events."""
        before = len(self._log.records)
        pieces = self._post(path, body)
        received = service.requests[-1]
        if not self._brief:
            self._requests(path, body, received, name)
        if raw_text:
            self._row(f"{name} writes", raw_text, "yellow")
        events = self._receive(pieces)
        received.wait()
        self._row(f"{name} responded", f"{form}, {received.sent} bytes")
        record = self._record(before)
        self._notes(record.notes if record else ())
        return events

    def _receive(self, pieces: Iterable[bytes]) -> list[Json]:
        """Print the text of a reply as it arrives, then its tool calls, and return its events."""
        text = _LiveText(f"{self._label('the client gets')} ", columns_of(sys.stdout), self._paint)
        events: list[Json] = []
        for line in _lines(pieces):
            if line.startswith(b"data: {"):
                event = jsonio.decode(line[6:])
                events.append(event)
                text.write(_text_delta(event))
        text.close()
        for what, call in (("tool_use", _anthropic_call(events)), ("tool_calls", _openai_message(events)[1])):
            if call is not None:
                self._row("the client gets", f"{what} {one_line(flat_json(call), 400)}", "green")
        return events

    def _label(self, text: str) -> str:
        return self._paint(f"{text:<{_LABEL}}", "bold")

    def _row(self, label: str, text: str, *styles: str) -> None:
        columns, room = columns_of(sys.stdout), _LABEL + 1
        indent = room if columns is None or columns > 2 * room else 2
        first, *more = fold(text, columns, first=" " * room, rest=" " * indent, cuts=True)
        print(f"{self._label(label)} {self._paint(first[room:], *styles)}")
        for line in more:
            print(f"{line[:indent]}{self._paint(line[indent:], *styles)}")
        sys.stdout.flush()

    def _requests(self, path: str, body: Json, received: ReceivedRequest, name: str) -> None:
        is_narrow = self._width < NARROW
        half = self._width - 2 if is_narrow else (self._width - 3) // 2
        hidden = ("tools",) if name in self._shown else ()  # shown once, because every turn repeats them
        self._shown.add(name)
        left = [f"the client sends  POST {path}", *value_lines(hide_fields(body, hidden), half)]
        right = [
            f"{name} gets  {received.method} {received.path}",
            *value_lines(hide_fields(received.json, hidden), half),
        ]
        print()
        for line in side_by_side(left, right, self._width, self._paint):
            print(line)
        print(flush=True)

    def _notes(self, notes: Sequence[Note]) -> None:
        if not notes:
            self._row("notes", "none; only the format changed")
        for index, note in enumerate(notes):
            self._row("" if index else f"notes ({len(notes)})", one_line(note, 400))

    def _post(self, path: str, body: Json) -> Iterator[bytes]:
        headers = (("authorization", f"Bearer {self._running.key}"), ("content-type", "application/json"))
        request = HttpRequest("POST", path, headers=headers, body=jsonio.encode(body))
        response, pieces = send(self._running.url, request, timeouts=HttpTimeouts(head=30.0, idle=30.0))
        if response.status != 200:
            raw = b"".join(pieces)
            raise CommandError(f"the gateway responded with status {response.status}: {raw.decode(errors='replace')}")
        return pieces

    def _record(self, before: int) -> Record | None:
        """Return the record of the last request; it is written just after the response."""
        until = time.monotonic() + 2
        while len(self._log.records) <= before and time.monotonic() < until:
            time.sleep(0.002)
        return self._log.records[-1] if len(self._log.records) > before else None


class _LiveText:
    """Prints text as it arrives, wrapped at words if there are `columns`; `label` comes before its beginning."""

    def __init__(self, label: str, columns: int | None, paint: Paint) -> None:
        self._label, self._columns, self._paint = label, columns, paint
        self._used = 0  # columns of the open line; 0: nothing was printed
        self._word = ""  # that may not be complete

    def write(self, text: str) -> None:
        """Print the words of a piece of the text; its last word waits for its end."""
        *words, self._word = re.split(r"(?= )", self._word + plain(text).replace("\n", " "))
        for word in words:
            self._print(word)

    def close(self) -> None:
        """Print what is left."""
        self._print(self._word)
        if self._used:
            print(flush=True)

    def _print(self, word: str) -> None:
        if not word:
            return
        if not self._used:
            print(f"{self._label}{self._paint('text', 'green')} ", end="")
            self._used = display_width(self._label) + len("text ")
        elif self._columns is not None and self._used + display_width(word) > self._columns:
            indent = " " * (_LABEL + 1 if self._columns > 2 * (_LABEL + 1) else 2)
            print(f"\n{indent}", end="")
            self._used, word = len(indent), word.lstrip(" ")
        print(self._paint(word, "green"), end="", flush=True)
        self._used += display_width(word)


def _lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines of a body as they arrive."""
    rest = b""
    for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        yield from lines


@contextmanager
def _running_demo(brief: bool) -> Iterator[Demo]:
    log = _RecordingLog()
    pace = f"[pace]\nchunk = 4\ndelay = {_DELAY}\n" if columns_of(sys.stdout) is not None else ""
    with (
        tempfile.TemporaryDirectory(prefix="dragoman-demo-") as folder,
        running_simulator("kiro", profile="paranoid", script=parse_script(pace)) as kiro,
        running_simulator("openai", script=parse_script(pace + _TURNS)) as kimi,
    ):
        text = _CONFIG.format(kiro=kiro.url, kimi=kimi.url)
        # With this environment, the user's configuration does not change the demo.
        config = build_config(text, None, {"HOME": folder}, {"server.port": 0, "server.drain": 1}).config
        with running_gateway(config, state=Path(folder), access_log=log, key="dgm_the-key-of-the-demo") as running:
            yield Demo(running, log, kiro, kimi, brief=brief)


def _print_next_steps(demo: Demo) -> None:
    try:
        config = load_config(None, os.environ)
    except ConfigError:
        config = build_config("", None, os.environ, {}).config
    host = f"[{config.server.host}]" if ":" in config.server.host else config.server.host
    demo.section("→", "Use it", "start the gateway, then a client; without a configuration the simulator is used")
    paint, columns, command = Paint(sys.stdout), columns_of(sys.stdout), _command()
    rows: list[tuple[str, Sequence[str], str]] = [
        ("the gateway", (command, "serve"), ""),
        ("a client", (command, "run", "claude"), "sets it up and starts it; or codex, opencode, gemini …"),
    ]
    address = f"http://{host}:{config.server.port}"
    rows += [(each.name, each.words, each.hint) for each in setup_lines(address, config, os.environ)]
    for name, words, hint in rows:
        demo.say(f"{paint(name, 'bold')}{paint(f'  {hint}', 'dim') if hint else ''}")
        print("\n".join(shell_lines(words, columns)))
    demo.say(
        f"\nA real service needs three lines of configuration (docs/configuration.md). {command} doctor checks them."
    )


def _command() -> str:
    """Return the command that starts this program: its name if it is on PATH, otherwise its path."""
    called = sys.argv[0]
    if shutil.which("dragoman") or not called or called.endswith(".py"):
        return "dragoman"
    return shlex.quote(called)
