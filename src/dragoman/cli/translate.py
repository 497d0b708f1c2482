"""`dragoman translate`: translate a request, a reply or a stream from one dialect into another.

The translated body or stream goes to standard output, the notes to standard error.
"""

from __future__ import annotations

import base64
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import Any

import dragoman
from dragoman.api import Translated
from dragoman.cli.terminal import named_values, one_line, print_error, read_chunks, read_input, say
from dragoman.errors import DragomanError
from dragoman.model.filter import Note
from dragoman.wire import jsonio


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `dragoman translate`."""
    parser.add_argument(
        "--what",
        choices=("request", "reply", "stream"),
        default="request",
        help="the type of the input (default: request)",
    )
    parser.add_argument("--from", dest="source", required=True, metavar="D", help="the dialect of the input")
    parser.add_argument("--to", dest="target", required=True, metavar="D", help="the dialect of the output")
    parser.add_argument("--model", metavar="M", help="the model to request (default: the one of the input)")
    parser.add_argument(
        "--request",
        metavar="FILE",
        help="for a reply or a stream: the client's request, in the dialect of --to",
    )
    parser.add_argument(
        "--raw-tools", metavar="NAME", help="how to read raw tool calls: auto, off, a format, or file:NAME.toml"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of a dialect or filter (VALUE: JSON or text)",
    )
    parser.add_argument("--explain", action="store_true", help="print the notes to standard error")
    parser.add_argument("--json", action="store_true", help='print {"body": …, "notes": […]}')
    parser.add_argument("--strict", action="store_true", help="exit with status 3 if content was lost")
    parser.add_argument(
        "file", nargs="?", default="-", metavar="FILE|-", help="the file to read (default: standard input)"
    )


def run(arguments: Namespace) -> int:
    """Run `dragoman translate`; return the exit status."""
    options: dict[str, Any] = named_values("--set", arguments.set)
    if arguments.raw_tools is not None:
        options["raw_tools"] = arguments.raw_tools
    notes, problem = (_stream if arguments.what == "stream" else _whole)(arguments, options)
    if arguments.explain:
        _explain(notes)
    if problem is not None:
        return print_error(problem, 1)
    return 3 if arguments.strict and any(note.action == "dropped" for note in notes) else 0


def _translated_request(arguments: Namespace, options: dict[str, Any]) -> Translated | None:
    """Return the translated request of a reply or a stream, or None. It is in the client's dialect, that of --to."""
    if arguments.request is None:
        return None
    return dragoman.translate_request(
        read_input(arguments.request),
        source=arguments.target,
        target=arguments.source,
        model=arguments.model,
        **options,
    )


def _whole(arguments: Namespace, options: dict[str, Any]) -> tuple[Sequence[Note], None]:
    body = read_input(arguments.file)
    dialects = {"source": arguments.source, "target": arguments.target}
    if arguments.what == "request":
        translated = dragoman.translate_request(body, **dialects, model=arguments.model, **options)
    else:
        request = _translated_request(arguments, options)
        translated = dragoman.translate_reply(body, **dialects, request=request, **({} if request else options))
    if arguments.json:
        _print_json(translated.body, translated.notes)
    else:
        print(jsonio.encode_pretty(translated.body).decode())
    return translated.notes, None


def _stream(arguments: Namespace, options: dict[str, Any]) -> tuple[Sequence[Note], DragomanError | None]:
    request = _translated_request(arguments, options)
    dialects = {"source": arguments.source, "target": arguments.target}
    stream = dragoman.stream_translator(**dialects, request=request, **({} if request else options))
    chunks: list[bytes] = []
    out = sys.stdout.buffer

    def write(data: bytes) -> None:
        if arguments.json:
            chunks.append(data)
        elif data:
            out.write(data)
            out.flush()

    for chunk in read_chunks(arguments.file):
        write(stream.feed(chunk))
    write(stream.close())
    if arguments.json:
        _print_json(_as_text(b"".join(chunks)), stream.notes)
    return stream.notes, stream.error


def _as_text(data: bytes) -> jsonio.Json:
    """Return a stream as a JSON value: text, or base64 for binary frames."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def _print_json(body: jsonio.Json, notes: Sequence[Note]) -> None:
    print(jsonio.encode_pretty({"body": body, "notes": list(notes)}).decode())


def _explain(notes: Sequence[Note]) -> None:
    if not notes:
        print("nothing was changed", file=sys.stderr)
    for note in notes:
        say(one_line(note, 1000), sys.stderr)
