"""`dragoman check`: what a request, a reply or a captured stream breaks of its dialect's own rules."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence

import dragoman.dialects as registry
from dragoman.cli.files import Unreadable, complain, read
from dragoman.cli.terminal import one_line
from dragoman.dialects.base import Breach, Dialect
from dragoman.errors import DragomanError, MalformedRequest
from dragoman.model.conversation import Conversation
from dragoman.wire import jsonio
from dragoman.wire.frame import Frame


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--dialect", required=True, metavar="D", help="the dialect it is written in")
    parser.add_argument("--what", choices=("request", "reply", "stream"), default="request", help="default: request")
    parser.add_argument("--json", action="store_true", help="the breaches as JSON")
    parser.add_argument("file", nargs="?", default="-", metavar="FILE|-", help="default: standard input")


def run(arguments: Namespace) -> int:
    try:
        dialect = registry.get(arguments.dialect)
    except DragomanError as error:
        return complain(error, 2)
    try:
        breaches = _CHECKS[arguments.what](dialect, read(arguments.file))
    except (Unreadable, MalformedRequest) as error:
        return complain(error, 1)
    if arguments.json:
        print(jsonio.pretty(breaches).decode())
    else:
        for breach in breaches:
            print(one_line(f"[{breach.rule}] {breach.at + ': ' if breach.at else ''}{breach.detail}", 1000))
    if not breaches:
        print(f"no breach of {dialect.name}'s rules", file=sys.stderr)
    return 3 if breaches else 0


def _request(dialect: Dialect, data: bytes) -> Sequence[Breach]:
    try:
        body = jsonio.decode(data)
    except jsonio.JsonError as error:
        raise MalformedRequest(f"no JSON: {error}") from None
    call = dialect.binding.unwrap(body)
    breaches = list(dialect.codec.breaches(call))
    try:
        dialect.codec.parse_request(call)
    except DragomanError as error:  # a rule usually says it better
        if not breaches:
            breaches.append(Breach(f"{dialect.name}.request.unreadable", error.at, str(error)))
    return breaches


def _reply(dialect: Dialect, data: bytes) -> Sequence[Breach]:
    try:
        dialect.codec.parse_reply(data, Conversation("", ()))
    except DragomanError as error:
        return [Breach(f"{dialect.name}.reply.unreadable", error.at, str(error))]
    return []


def _stream(dialect: Dialect, data: bytes) -> Sequence[Breach]:
    decoder = dialect.binding.frames()
    frames: list[Frame] = []
    broken: list[Breach] = []
    try:
        frames.extend(decoder.feed(data))
        frames.extend(decoder.close())
    except DragomanError as error:
        broken.append(Breach(f"wire.{type(error).__name__}", error.at, str(error)))
    return [*dialect.codec.stream_breaches(frames), *broken]


_CHECKS = {"request": _request, "reply": _reply, "stream": _stream}
