"""`dragoman agent`: send a question to a model that may call Python functions as tools.

Without --dialect, the model is the simulator's, in this process: no network and no account is needed.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from dragoman.cli.terminal import EXIT_LOGIN_NEEDED, CommandError, one_line, plain, print_notice
from dragoman.errors import LocalMisuse, Reset
from dragoman.wire import jsonio

if TYPE_CHECKING:
    from dragoman.agent import Client, RunEvent
    from dragoman.wire.http import HttpRequest, HttpResponse

_EMBEDDED = "sim-model"


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `dragoman agent`."""
    parser.add_argument("question", help="the question; - reads it from standard input")
    parser.add_argument(
        "--tool", action="append", default=[], metavar="MODULE:FUNCTION", help="a function that the model may call"
    )
    parser.add_argument(
        "--dialect",
        default="",
        metavar="D",
        help="the API to use: bedrock, or any dialect with --url (default: a small embedded model)",
    )
    parser.add_argument(
        "--url", default="", help="the address of the service (default for bedrock: that of the region)"
    )
    parser.add_argument("--model", default="", help="the model's id")
    parser.add_argument(
        "--key-env",
        default="",
        metavar="NAME",
        help="the environment variable that holds the key (default for bedrock: what the AWS tools use; else no key)",
    )
    parser.add_argument("--region", default="", help="the AWS region, for bedrock (default: that of the AWS tools)")
    parser.add_argument("--profile", default="", help="the AWS profile, for bedrock (default: that of the AWS tools)")
    parser.add_argument("--system", default="", help="the system prompt")
    parser.add_argument(
        "--max-steps", type=int, default=20, help="maximum number of replies of the model (default: 20)"
    )
    parser.add_argument("--time-limit", type=float, help="maximum time in seconds")
    parser.add_argument("--no-stream", action="store_true", help="request whole replies instead of streams")
    parser.add_argument("--json", action="store_true", help="print the whole result as JSON")
    parser.add_argument("--quiet", action="store_true", help="do not print the steps")


def run(arguments: Namespace) -> int:
    """Run `dragoman agent`; return the exit status."""
    from dragoman.agent import AgentRunner

    runner = AgentRunner(
        _client(arguments),
        [_function(place) for place in arguments.tool],
        model=arguments.model or ("" if arguments.dialect else _EMBEDDED),
        system=arguments.system,
        stream=not arguments.no_stream,
        max_steps=arguments.max_steps,
        time_limit=arguments.time_limit,
        watch=None if arguments.quiet else _StepPrinter().show,
    )
    result = runner.run(sys.stdin.read() if arguments.question == "-" else arguments.question)
    if arguments.json:
        print(jsonio.encode_pretty(result).decode())
    else:
        print(plain(result.text))
    if result.error:
        print_notice(result.error)
    return 0 if result.status == "done" else 1


def _function(place: str) -> Callable[..., Any]:
    """Import the function at `module:name`, also from the current folder. Raises LocalMisuse."""
    module, colon, name = place.partition(":")
    if not colon:
        raise LocalMisuse(f"--tool: expected MODULE:FUNCTION, got {place!r}")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        value = importlib.import_module(module)
        for part in name.split("."):
            value = getattr(value, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise LocalMisuse(f"--tool: {place} cannot be imported: {error}") from None
    if not callable(value):
        raise LocalMisuse(f"--tool: {place} is not a function")
    return value


def _client(arguments: Namespace) -> Client:
    from dragoman.agent import BedrockClient, DialectClient, HttpSender

    if not arguments.dialect:
        return DialectClient("bedrock", send_to_embedded_model)
    if arguments.dialect == "bedrock" and not arguments.key_env:
        return BedrockClient(
            arguments.model, region=arguments.region, profile=arguments.profile, endpoint_url=arguments.url
        )
    if not arguments.url:
        raise LocalMisuse(f"--dialect {arguments.dialect} needs an address: add --url URL")
    return DialectClient(arguments.dialect, HttpSender(arguments.url), arguments.model, _signer(arguments))


def _signer(arguments: Namespace) -> Callable[[HttpRequest], HttpRequest]:
    """Return a function that adds the key of --key-env to a request, in the header that the dialect uses."""
    from msgspec import structs

    import dragoman.dialects as registry

    header = registry.get(arguments.dialect).key_header
    key = os.environ.get(arguments.key_env, "") if arguments.key_env else ""
    if arguments.key_env and not key:
        raise CommandError(f"--key-env: environment variable {arguments.key_env} is not set.", EXIT_LOGIN_NEEDED)
    value = f"Bearer {key}" if header == "authorization" else key

    def sign(request: HttpRequest) -> HttpRequest:
        return structs.replace(request, headers=(*request.headers, (header, value))) if key else request

    return sign


def send_to_embedded_model(request: HttpRequest, timeout: float | None) -> tuple[HttpResponse, Iterator[bytes]]:
    """Send a request to the simulator's model inside this process; it needs no network and no account."""
    from msgspec import structs

    import dragoman.dialects as registry
    from dragoman.simulator.response import BodyEnd, Pause
    from dragoman.simulator.script import Script
    from dragoman.simulator.service import DialectService
    from dragoman.wire.http import HttpResponse

    service = DialectService(registry.get("bedrock"), Script())
    response = service.handle(
        structs.replace(request, headers=(*request.headers, ("authorization", "Bearer embedded")))
    )

    def pieces() -> Iterator[bytes]:
        for piece in response.pieces:
            if isinstance(piece, Pause):
                time.sleep(piece.seconds)
            elif isinstance(piece, BodyEnd):
                raise Reset("the embedded model ended the response early")
            else:
                yield piece

    return HttpResponse(response.status, response.headers), pieces()


class _StepPrinter:
    """Prints steps to standard error as they happen; the final text goes to standard output."""

    def __init__(self) -> None:
        self._open = ""  # the prefix of the unfinished line

    def show(self, event: RunEvent) -> None:
        from dragoman.agent import ReasoningReceived, StepStarted, TextReceived, ToolEnded, ToolStarted

        match event:
            case StepStarted(step):
                self._line(f"step {step}")
            case TextReceived(text):
                self._piece("  ", text)
            case ReasoningReceived(text):
                self._piece("  (thinking) ", text)
            case ToolStarted(_, name, arguments):
                self._line(f"  call {name} {arguments}")
            case ToolEnded(_, name, content, is_error, seconds):
                self._line(f"  {'failed' if is_error else 'result'} {name} ({seconds:.1f}s) {one_line(content, 200)}")
            case _:
                self._line("")

    def _piece(self, lead: str, text: str) -> None:
        if self._open != lead:
            self._line("")
            self._write(lead)
            self._open = lead
        self._write(text.replace("\n", "\n  "))

    def _line(self, text: str) -> None:
        if self._open:
            self._write("\n")
            self._open = ""
        if text:
            self._write(f"{text}\n")

    def _write(self, text: str) -> None:
        sys.stderr.write(plain(text))
        sys.stderr.flush()
