"""Count the calls of one exchange: `python -m bench.walk` prints the files and functions that it goes through.

With `--brief` it prints only the counts. It exits with 1 if a count is above its limit; `make check` runs it.

An Anthropic client requests a stream, and Kiro sends a text and a tool call. A gateway serves on loopback, with its own
HTTP server and client. The count includes the functions of the package that the gateway's thread calls, from the first
byte of the request to the line in the access log. The calls for one delta of an open block are counted separately. A
comprehension, a generator expression and a lambda count as part of the function that contains them.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import dragoman
import dragoman.dialects as registry
from dragoman.model.blocks import Text
from dragoman.model.conversation import Conversation, Message
from dragoman.response_stream import ResponseTranslator
from dragoman.simulator import parse_script, running_simulator
from dragoman.translate import plan
from dragoman.wire.eventstream import encode_event
from tests.gateway.harness import anthropic_body, start_gateway, upstream_config

PACKAGE = str(Path(dragoman.__file__).parent) + "/"
MAX_FILES, MAX_FUNCTIONS, MAX_CALLS = 45, 250, 8  # the limits: files and functions of an exchange, calls of a delta
_SCRIPT = """
then = "repeat"
[[turn]]
parts = [{ text = "Let me look." }, { tool = "read", arguments = { path = "a.txt" } }]
"""
_TOOL = {"name": "read", "description": "Read a file.", "input_schema": {"type": "object", "properties": {}}}


class Walk:
    """The functions that were called, in the order of their first call, and how often."""

    def __init__(self) -> None:
        self.calls: Counter[tuple[str, str]] = Counter()
        self.changes = 0  # how often a call is in another file than the call before it
        self._last = ""

    def profile(self, frame: FrameType, event: str, _argument: object) -> None:
        """Count a call; this is the function for `sys.setprofile`."""
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(PACKAGE) and not frame.f_code.co_name.startswith("<"):
            name = name.removeprefix(PACKAGE)
            self.calls[name, frame.f_code.co_qualname] += 1
            self.changes += name != self._last
            self._last = name

    @property
    def files(self) -> list[str]:
        """The files of all functions, in the order of their first call."""
        return list(dict.fromkeys(name for name, _ in self.calls))


def exchange() -> Walk:
    """Return the calls of an exchange, in a gateway that has already served some like it."""
    walk, raw = Walk(), json.dumps({**anthropic_body("claude-sonnet-4.5", stream=True), "tools": [_TOOL]}).encode()
    with (
        tempfile.TemporaryDirectory() as folder,
        running_simulator("kiro", script=parse_script(_SCRIPT)) as simulator,
        start_gateway(upstream_config("one", "kiro", simulator.url), Path(folder)) as harness,
    ):
        harness.running.gateway.log.configure("json", "info")  # the usual level
        for _ in range(3):
            status, _, body = harness.request("/v1/messages", raw)
            assert status == 200 and b"tool_use" in body, body
        harness.log_lines(3)
        _in_loop(harness.running.loop, lambda: sys.setprofile(walk.profile))
        harness.request("/v1/messages", raw)
        harness.log_lines(4)
        _in_loop(harness.running.loop, lambda: sys.setprofile(None))
    return walk


def _in_loop(loop: object, work: Callable[[], object]) -> None:
    """Run a function in the thread of an event loop, and wait for its end."""
    done = threading.Event()
    loop.call_soon_threadsafe(lambda: (work(), done.set()))  # type: ignore[attr-defined, func-returns-value]
    assert done.wait(60)


def delta() -> Walk:
    """Return the calls for one more delta of an open block, alone in its read."""
    conversation = Conversation("m", (Message("user", (Text("?"),)),), stream=True)
    translator = ResponseTranslator(plan(registry.get("anthropic"), registry.get("kiro"), conversation))
    frames = [encode_event("assistantResponseEvent", b'{"content":"word %d"}' % number) for number in range(4)]
    for frame in frames[:3]:
        translator.feed(frame)
    walk = Walk()
    sys.setprofile(walk.profile)
    try:
        translator.feed(frames[3])
    finally:
        sys.setprofile(None)
    return walk


def main() -> int:
    """Print the calls; return 1 if a count is above its limit."""
    walk, one = exchange(), delta()
    for name in walk.files if "--brief" not in sys.argv else ():
        print(name)
        for (file, function), count in walk.calls.items():
            if file == name:
                print(f"    {function}{f' × {count}' if count > 1 else ''}")
    files, functions, calls = len(walk.files), len(walk.calls), sum(one.calls.values())
    print(
        f"\n{sum(walk.calls.values())} calls in {functions} functions of {files} files, {walk.changes} changes of file"
    )
    print(f"one delta of an open block: {calls} calls ({', '.join(function for _, function in one.calls)})")
    return 0 if files <= MAX_FILES and functions <= MAX_FUNCTIONS and calls <= MAX_CALLS else 1


if __name__ == "__main__":
    sys.exit(main())
