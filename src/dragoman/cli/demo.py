"""`dragoman demo`: run two conversations with tools through a gateway, and show both sides of each request.

The gateway and two simulated services run in this process, so the demo needs no account and only loopback.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path

from dragoman.cli.client_setup import setup_lines
from dragoman.cli.terminal import CommandError, Paint, one_line, replace_unencodable, width
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


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `dragoman demo`."""
    parser.add_argument("--brief", action="store_true", help="show the replies and the notes, without the requests")


def run(arguments: Namespace) -> int:
    """Run `dragoman demo`; return the exit status."""
    replace_unencodable(sys.stdout)
    began = time.monotonic()
    with _running_demo(arguments.brief) as demo:
        demo.title("Dragoman: a gateway with two simulated services", "no account, no network")
        good = [_anthropic_to_kiro(demo), _openai_to_kimi(demo)]
    took = f"({time.monotonic() - began:.1f} s)"
    demo.say(f"\nBoth tool calls arrived complete. {took}" if all(good) else "\nA tool call was lost.")
    _print_next_steps(demo)
    return 0 if all(good) else 1


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
    demo.show_received("tool_use", call)
    if call is None:
        return False
    messages += [
        {"role": "assistant", "content": [{"type": "tool_use", **call}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call["id"], "content": _WEATHER}]},
    ]
    demo.say("\nThe client runs the tool and sends its result.")
    events = demo.turn("/v1/messages", body, demo.kiro, "Kiro", "an AWS event stream")
    text = "".join(str(_at(event, "delta", "text") or "") for event in events)
    demo.show_received("text", text)
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
    demo.show_received("text", text)
    demo.show_received("tool_calls", call)
    if call is None:
        return False
    messages += [
        {"role": "assistant", "content": text, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "content": _WEATHER},
    ]
    demo.say("\nThe client runs the tool and sends its result.")
    events = demo.turn("/v1/chat/completions", body, demo.kimi, "Kimi's server", "text")
    demo.show_received("text", _openai_message(events)[0])
    return "<|" not in text and _at(call, "function", "name") == "get_weather"


def _anthropic_call(events: Sequence[Json]) -> dict[str, Json] | None:
    blocks = [block for event in events if (block := _at(event, "content_block"))]
    block = next((each for each in blocks if _at(each, "type") == "tool_use"), None)
    if not isinstance(block, dict):
        return None
    written = "".join(str(_at(event, "delta", "partial_json") or "") for event in events)
    return {"id": block["id"], "name": block["name"], "input": jsonio.decode(written or "{}")}


def _openai_message(events: Sequence[Json]) -> tuple[str, dict[str, Json] | None]:
    deltas = [delta for event in events if (delta := _at(event, "choices", 0, "delta"))]
    text = "".join(str(_at(delta, "content") or "") for delta in deltas)
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

    def request(self, record: Record) -> None:
        self.records.append(record)


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
        print(text, flush=True)

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
        """Send one request, print both sides of it, and return the events of the response."""
        before = len(self._log.records)
        status, raw = self._post(path, body)
        received = service.requests[-1]
        record = self._record(before)
        if not self._brief:
            self._requests(path, body, received, name)
        self.say(f"{self._label(f'{name} responds')} {form}, {received.sent} bytes; the client gets status {status}")
        if raw_text:
            self.say(f"  {self._paint(raw_text, 'yellow')}")
        self._notes(record.notes if record else ())
        return [jsonio.decode(line[6:]) for line in raw.splitlines() if line.startswith(b"data: {")]

    def show_received(self, what: str, value: Json) -> None:
        """Print a part of the response that the client gets."""
        text = one_line(value if isinstance(value, str) else jsonio.encode(value).decode(), 400)
        paint = self._paint
        self.say(f"{self._label('the client gets')} {paint(what, 'green', 'bold')} {paint(text, 'green')}")

    def _label(self, text: str) -> str:
        return self._paint(f"{text:<22}", "bold")

    def _requests(self, path: str, body: Json, received: ReceivedRequest, name: str) -> None:
        half = (self._width - 3) // 2
        hidden = ("tools",) if name in self._shown else ()  # shown once, because every turn repeats them
        self._shown.add(name)
        left = [f"the client sends  POST {path}", *sketch(hide_fields(body, hidden), half)]
        right = [f"{name} gets  {received.method} {received.path}", *sketch(hide_fields(received.json, hidden), half)]
        self.say("")
        for line in side_by_side(left, right, self._width, self._paint):
            self.say(line)
        self.say("")

    def _notes(self, notes: Sequence[Note]) -> None:
        if not notes:
            self.say(f"{self._label('notes')} none; only the format changed")
        for index, note in enumerate(notes):
            self.say(f"{self._label('' if index else f'notes ({len(notes)})')} {one_line(note, 400)}")

    def _post(self, path: str, body: Json) -> tuple[int, bytes]:
        headers = (("authorization", f"Bearer {self._running.key}"), ("content-type", "application/json"))
        request = HttpRequest("POST", path, headers=headers, body=jsonio.encode(body))
        response, pieces = send(self._running.url, request, timeouts=HttpTimeouts(head=30.0, idle=30.0))
        raw = b"".join(pieces)
        if response.status != 200:
            raise CommandError(f"the gateway responded with status {response.status}: {raw.decode(errors='replace')}")
        return response.status, raw

    def _record(self, before: int) -> Record | None:
        """Return the record of the last request; it is written just after the response."""
        until = time.monotonic() + 2
        while len(self._log.records) <= before and time.monotonic() < until:
            time.sleep(0.002)
        return self._log.records[-1] if len(self._log.records) > before else None


@contextmanager
def _running_demo(brief: bool) -> Iterator[Demo]:
    log = _RecordingLog()
    with (
        tempfile.TemporaryDirectory(prefix="dragoman-demo-") as folder,
        running_simulator("kiro", profile="paranoid") as kiro,
        running_simulator("openai", script=parse_script(_TURNS)) as kimi,
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
    rows = [("the gateway", f"{_command()} serve", "")]
    rows += [(c.name, c.line, c.hint) for c in setup_lines(f"http://{host}:{config.server.port}", config, os.environ)]
    paint = Paint(sys.stdout)
    for name, line, hint in rows:
        demo.say(f"{paint(name, 'bold')}{paint(f'  {hint}', 'dim') if hint else ''}\n  {line}")
    demo.say(
        f"\nA real service needs three lines of configuration (docs/configuration.md). {_command()} doctor checks them."
    )


def _command() -> str:
    """Return the command that starts this program: its name if it is on PATH, otherwise its path."""
    called = sys.argv[0]
    if shutil.which("dragoman") or not called or called.endswith(".py"):
        return "dragoman"
    return shlex.quote(called)


# --- readable JSON: short values on one line, long texts cut, two values side by side


_NARROW = 90  # columns; below that, the two sides are printed one after the other
_LONGEST = 40


def sketch(value: Json, width: int, indent: int = 0, before: str = "", after: str = "") -> Iterator[str]:
    """Yield the lines of a value, each at most `width` characters long."""
    flat = f"{' ' * indent}{before}{_flat(value)}{after}"
    if len(flat) <= width or not isinstance(value, dict | list) or not value:
        yield flat if len(flat) <= width else f"{flat[: width - 1]}…"
        return
    begin, end = ("{", "}") if isinstance(value, dict) else ("[", "]")
    yield f"{' ' * indent}{before}{begin}"
    last = len(value) - 1
    items = value.items() if isinstance(value, dict) else (("", item) for item in value)
    for index, (name, item) in enumerate(items):
        label = f"{jsonio.quote(name).decode()}: " if isinstance(value, dict) else ""
        yield from sketch(item, width, indent + 2, label, "," if index < last else "")
    yield f"{' ' * indent}{end}{after}"


def hide_fields(value: Json, names: Sequence[str]) -> Json:
    """Return the value with the values of these fields replaced by `…`."""
    match value:
        case dict():
            return {name: "…" if name in names else hide_fields(item, names) for name, item in value.items()}
        case list():
            return [hide_fields(item, names) for item in value]
        case _:
            return value


def _flat(value: Json) -> str:
    match value:
        case dict():
            inner = ", ".join(f"{jsonio.quote(name).decode()}: {_flat(item)}" for name, item in value.items())
            return f"{{{inner}}}"
        case list():
            return f"[{', '.join(map(_flat, value))}]"
        case str() if len(value) > _LONGEST * 2:
            return jsonio.quote(f"{value[:_LONGEST]} … {value[-_LONGEST:]}").decode()
        case _:
            return jsonio.encode(value).decode()


def side_by_side(left: Sequence[str], right: Sequence[str], width: int, paint: Paint) -> Iterator[str]:
    """Yield two columns with a heading line each; one below the other if the terminal is narrow."""
    if width < _NARROW:
        for column in (left, right):
            yield paint(column[0], "bold")
            yield from (f"  {line}" for line in column[1:])
        return
    half = (width - 3) // 2
    for index, (one, other) in enumerate(zip_longest(left, right, fillvalue="")):
        styles = ("bold",) if index == 0 else ()
        yield f"{paint(f'{one[:half]:<{half}}', *styles)} {paint('│', 'dim')} {paint(other[:half], *styles)}".rstrip()
