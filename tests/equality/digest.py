"""Translate every input of a corpus into every dialect and write what came out, one digest a line.

A program of its own: it runs against the sources of another commit, and uses the library's public functions alone.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import pickle
import secrets
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_CUTS = (0, 1, 61)  # whole; byte by byte for short streams; in pieces of 61 bytes
_SHORT = 3000
_OPTIONS: tuple[dict[str, Any], ...] = ({}, {"raw_tools": "auto", "think_tags": True}, {"repair": True})
_TOOL = {"name": "read", "description": "Read a file.", "input_schema": {"type": "object", "properties": {}}}
_QUESTION = {
    "model": "m",
    "max_tokens": 100,
    "stream": True,
    "tools": [_TOOL],
    "messages": [{"role": "user", "content": "?"}],
}


_ids = [itertools.count()]  # the one that counts now


def _freeze() -> None:
    """Ids and times are the same in every run."""

    def token_hex(nbytes: int | None = None) -> str:
        return f"{next(_ids[0]):0{2 * (nbytes or 16)}x}"

    secrets.token_hex = token_hex
    time.time = lambda: 1_700_000_000.0


def outcomes(names: list[str], kind: str, dialect: str, data: bytes) -> Iterator[tuple[str, object]]:
    """What becomes of one input, by the name of the case."""
    import dragoman

    for other in names:
        if kind == "request":
            yield f"{dialect}>{other}", _request(dragoman, data, dialect, other)
            continue
        yield f"{dialect}>{other} whole", _reply(dragoman, data, dialect, other)
        for options in _OPTIONS:
            for cut in _CUTS:
                if cut != 1 or len(data) <= _SHORT:
                    name = f"{dialect}>{other} {sorted(options)} cut {cut}"
                    yield name, _stream(dragoman, data, dialect, other, options, cut)


def _again() -> None:
    """Ids begin anew, so that a case does not depend on those before it."""
    _ids[0] = itertools.count()


def _request(dragoman: Any, data: bytes, source: str, target: str) -> object:
    _again()
    try:
        translation = dragoman.translate_request(data, source=source, target=target, model="m")
    except dragoman.DragomanError as error:
        return _error(error)
    return [translation.raw, translation.path, sorted(translation.headers.items()), _notes(translation.notes)]


def _reply(dragoman: Any, data: bytes, source: str, target: str) -> object:
    _again()
    try:
        translation = dragoman.translate_reply(data, source=source, target=target)
    except dragoman.DragomanError as error:
        return _error(error)
    return [translation.raw, _notes(translation.notes)]


def _stream(dragoman: Any, data: bytes, source: str, target: str, options: dict[str, Any], cut: int) -> object:
    _again()
    translation = dragoman.translate_request(
        _question(dragoman, target), source=target, target=source, model="m", **options
    )
    stream = dragoman.stream_translator(source=source, target=target, request=translation)
    try:
        pieces = [data[at : at + cut] for at in range(0, len(data), cut)] if cut else [data]
        out = b"".join(map(stream.feed, pieces)) + stream.close()
    except dragoman.DragomanError as error:
        return _error(error)
    if _without_words and stream.error is not None:
        message = json.dumps(stream.error.fault.message, ensure_ascii=False)[1:-1].encode("utf-8", "replace")
        out = _without_frames(out, message) if out[:1] == b"\0" else out.replace(message, b"")
        return [out, stream.error.fault.kind, _notes(stream.notes)]
    return [out, str(stream.error), _notes(stream.notes)]


def _without_frames(out: bytes, message: bytes) -> bytes:
    """Remove the AWS frames that hold the message: their lengths and checksums depend on its wording."""
    kept_frames, at = [], 0
    while at < len(out):
        size = int.from_bytes(out[at : at + 4], "big")
        frame = out[at : at + max(size, 1)]
        kept_frames.append(b"" if message in frame else frame)
        at += max(size, 1)
    return b"".join(kept_frames)


def _question(dragoman: Any, target: str) -> bytes:
    if target not in _QUESTIONS:
        translation = dragoman.translate_request(json.dumps(_QUESTION), source="anthropic", target=target)
        _QUESTIONS[target] = translation.raw
    return _QUESTIONS[target]


_QUESTIONS: dict[str, bytes] = {}


_without_words = "DRAGOMAN_WITHOUT_WORDS" in os.environ  # do not compare the wording of errors and notes


def _error(error: Exception) -> list[str]:
    return [type(error).__name__] if _without_words else [type(error).__name__, str(error)]


def _notes(notes: Any) -> list[str]:
    if _without_words:
        return [f"{note.rule} {note.action} {note.at}" for note in notes]
    return list(map(str, notes))


def main(corpus: str, out: str, only: str = "") -> None:
    """Write a digest for each case of each input to `out`; with `only`, show the outcomes of that input."""
    _freeze()
    names, items = pickle.loads(Path(corpus).read_bytes())  # written by ourselves
    with Path(out).open("w") as output:
        for number, item in enumerate(items):
            if only and number != int(only):
                continue
            for name, outcome in outcomes(names, *item):
                shown = repr(outcome)
                digest = (
                    shown if only else hashlib.blake2b(shown.encode("utf-8", "replace"), digest_size=12).hexdigest()
                )
                output.write(f"{number} {name}: {digest}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
