"""`dragoman check`: list the rules of a dialect that a request, a reply or a captured stream breaks."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence

from msgspec import structs

import dragoman.dialects as registry
from dragoman.cli.terminal import Paint, one_line, read_input, say, table_lines
from dragoman.dialects.base import Dialect
from dragoman.dialects.rulebook import Breach, DialectRule
from dragoman.errors import DragomanError, MalformedRequest
from dragoman.model.conversation import Conversation
from dragoman.wire import jsonio
from dragoman.wire.frame import Frame


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `dragoman check`."""
    parser.add_argument("--dialect", required=True, metavar="D", help="the dialect of the input")
    parser.add_argument(
        "--what",
        choices=("request", "reply", "stream"),
        default="request",
        help="the type of the input (default: request)",
    )
    parser.add_argument("--model", metavar="M", help="the model, for rules of one model, if the body does not name it")
    parser.add_argument("--strict", action="store_true", help="exit with status 3 for advice, too")
    parser.add_argument("--json", action="store_true", help="print the breaches as JSON")
    parser.add_argument(
        "--rules",
        action="store_true",
        help="print the dialect's rules as a table (Markdown, if not on a terminal), and check nothing",
    )
    parser.add_argument(
        "file", nargs="?", default="-", metavar="FILE|-", help="the file to read (default: standard input)"
    )


def run(arguments: Namespace) -> int:
    """Run `dragoman check`; return the exit status."""
    dialect = registry.get(arguments.dialect)
    if arguments.rules:
        if sys.stdout.isatty():
            rows = [("RULE", "SEVERITY", "EVIDENCE", "WHAT IT DEMANDS"), *map(_cells, dialect.codec.rules())]
            print("\n".join(table_lines(rows, Paint(sys.stdout))))
        else:
            print("\n".join(table_of(dialect)))
        return 0
    breaches = breaches_of(dialect, arguments.what, read_input(arguments.file), arguments.model or "")
    if arguments.json:
        print(jsonio.encode_pretty(breaches).decode())
    else:
        for breach in sorted(breaches, key=lambda breach: breach.severity != "error"):
            say(one_line(_line(breach), 1000))
    errors = sum(breach.severity == "error" for breach in breaches)
    if not errors:
        print(f"no breach of {dialect.name}'s rules", file=sys.stderr)
    return 3 if errors or (arguments.strict and breaches) else 0


def breaches_of(dialect: Dialect, what: str, data: bytes, model: str = "") -> Sequence[Breach]:
    """Return the breaches of a request, a reply or a stream, in its order.

    Raises MalformedRequest if a request is not JSON.
    """
    return _CHECKS[what](dialect, data, model)


def _line(breach: Breach) -> str:
    place = f"{breach.at}: " if breach.at else ""
    advice = "advice " if breach.severity == "advice" else ""
    return f"{advice}[{breach.rule}] {place}{breach.detail} ({breach.evidence})"


def _cells(rule: DialectRule) -> tuple[str, str, str, str]:
    return rule.name, rule.severity, rule.evidence, rule.sentence


def table_of(dialect: Dialect) -> list[str]:
    """Return the rules of a dialect as lines of a Markdown table."""
    cells = map(_cells, dialect.codec.rules())
    rows = [f"| `{name}` | {severity} | {evidence} | {sentence} |" for name, severity, evidence, sentence in cells]
    return ["| rule | severity | evidence | what it demands |", "|---|---|---|---|", *rows]


def _request(dialect: Dialect, data: bytes, model: str) -> Sequence[Breach]:
    try:
        body = jsonio.decode(data)
    except jsonio.JsonError as error:
        raise MalformedRequest(f"the input is not JSON: {error}") from None
    call = dialect.binding.unwrap(body)
    if model:
        call = structs.replace(call, model=model)
    breaches = list(dialect.codec.breaches(call))
    try:
        dialect.codec.parse_request(call)
    except DragomanError as error:  # reported only if no rule has found an error: its message is less precise
        if not any(breach.severity == "error" for breach in breaches):
            breaches.append(Breach(f"{dialect.name}.request.unreadable", error.at, str(error), "documented"))
    return breaches


def _reply(dialect: Dialect, data: bytes, _: str) -> Sequence[Breach]:
    try:
        dialect.codec.parse_reply(data, Conversation("", ()))
    except DragomanError as error:
        return [Breach(f"{dialect.name}.reply.unreadable", error.at, str(error), "documented")]
    return []


def _stream(dialect: Dialect, data: bytes, _: str) -> Sequence[Breach]:
    decoder = dialect.binding.frame_decoder()
    frames: list[Frame] = []
    broken: list[Breach] = []
    try:
        frames.extend(decoder.feed(data))
        frames.extend(decoder.close())
    except DragomanError as error:
        broken.append(Breach(f"wire.{type(error).__name__}", error.at, str(error), "documented"))
    return [*dialect.codec.stream_breaches(frames), *broken]


_CHECKS = {"request": _request, "reply": _reply, "stream": _stream}
