"""Mutators of valid examples. The same bytes, limit and random seed give the same result.

A body is mutated as a JSON tree, a stream frame by frame: invalid JSON and wrong checksums are refused early and would
test nothing else.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from copy import deepcopy
from typing import Any, TypeAlias

import dragoman.dialects as registry
from dragoman.dialects.base import Dialect
from dragoman.errors import DragomanError
from dragoman.wire.frame import Frame, Payload

Mutator: TypeAlias = Callable[[bytes, int, int], bytes]
_Place: TypeAlias = tuple[Any, Any]  # an object or array, and a key or index in it

LIMIT = 16384  # bytes of an input

_ODD: list[Any] = [
    None, True, 0, -1, 1.5, 10**20, "", " ", "\x00", "é\ud83d\ude00", [], {}, [[]], {"type": "text", "text": ""},
    [{"type": "tool_use", "id": "t", "name": "f", "input": {}}], "data: x\n\n", "user", "assistant", "tool", "system",
]  # fmt: skip
_ODD_BYTES = (b"", b"null", b'"', b"\\", b"\n\n", b"\r", b"\x00", b"\xff", b"{", b"]", b"<|", "é".encode())


def make_mutator(target: str, examples: Sequence[bytes]) -> Mutator:
    kind, _, dialect = target.partition(".")
    if kind == "request":
        return BodyMutator(examples)
    return StreamMutator(registry.get(dialect), examples) if kind == "response" else BytesMutator(examples)


class BytesMutator:
    """Changes, duplicates or removes pieces of bytes, or inserts pieces of another example."""

    def __init__(self, examples: Sequence[bytes]) -> None:
        self._examples = examples

    def __call__(self, data: bytes, limit: int, seed: int) -> bytes:
        rng = random.Random(seed)
        for _ in range(rng.randint(1, 3)):
            start, end = _piece(data, rng)
            other = rng.choice(self._examples) if self._examples else b""
            begin, stop = _piece(other, rng)
            middle = (data[start:end] * 2, other[begin:stop], rng.choice(_ODD_BYTES), rng.randbytes(3))
            data = data[:start] + rng.choice(middle) + data[end:]
        return data[:limit]


def _piece(data: bytes, rng: random.Random) -> tuple[int, int]:
    start = rng.randrange(len(data) + 1)
    return start, start + rng.choice((0, 1, rng.randrange(1, 24), rng.randrange(len(data) + 1)))


class BodyMutator:
    def __init__(self, examples: Iterable[bytes]) -> None:
        self._fields = [
            (key, holder[key])
            for example in examples
            for holder, key in _places(_tree(example))
            if isinstance(key, str)
        ]

    def __call__(self, data: bytes, limit: int, seed: int) -> bytes:
        rng = random.Random(seed)
        tree = _tree(data)
        for _ in range(rng.randint(1, 3)):
            tree = self._mutated(tree, rng)
        mutated = json.dumps(tree).encode()
        return mutated if len(mutated) <= limit else data

    def _mutated(self, tree: Any, rng: random.Random) -> Any:
        places = list(_places(tree))
        if not places or not self._fields:
            return deepcopy(rng.choice(_ODD))
        holder, key = rng.choice(places)
        name, value = rng.choice(self._fields)
        match rng.randrange(7):
            case 0:
                del holder[key]
            case 1:
                other, place = rng.choice(places)
                holder[key] = deepcopy(other[place])
            case 2 if isinstance(holder, list):
                holder.insert(rng.randint(0, len(holder)), deepcopy(holder[key]))
            case 3 if isinstance(holder, dict):
                holder[rng.choice([other for _, other in places if isinstance(other, str)])] = deepcopy(holder[key])
            case 4 if isinstance(holder, dict):
                holder[name] = deepcopy(value)
            case 5:
                alike = [other for named, other in self._fields if named == key] or [value]
                holder[key] = deepcopy(rng.choice(alike))
            case _:
                holder[key] = deepcopy(rng.choice(_ODD))
        return tree


def _tree(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return {}


def _places(tree: Any) -> Iterator[_Place]:
    if isinstance(tree, dict | list):
        for key, value in list(tree.items() if isinstance(tree, dict) else enumerate(tree)):
            yield tree, key
            yield from _places(value)


class StreamMutator:
    """Removes, duplicates, moves or changes frames, or inserts frames of another example."""

    def __init__(self, dialect: Dialect, examples: Sequence[bytes]) -> None:
        self._binding = dialect.binding
        self._others = [frame for example in examples for frame in self._frames(example)]
        self._bodies = BodyMutator(frame.data for frame in self._others)
        self._bytes = BytesMutator(examples)

    def __call__(self, data: bytes, limit: int, seed: int) -> bytes:
        rng = random.Random(seed)
        frames = self._frames(data)
        if not frames or not rng.randrange(4):
            return self._bytes(data, limit, seed)
        for _ in range(rng.randint(1, 3)):
            self._mutate(frames, rng)
        mutated = b"".join(map(self._binding.encode_frame, frames))
        return mutated if len(mutated) <= limit else data

    def _frames(self, data: bytes) -> list[Payload]:
        decoder, found = self._binding.frame_decoder(), list[Frame]()
        with suppress(DragomanError):  # keep the frames before a bad one
            found.extend(decoder.feed(data))
        return [Payload(frame.kind.encode(errors="replace"), frame.data, frame.error) for frame in found]

    def _mutate(self, frames: list[Payload], rng: random.Random) -> None:
        at = rng.randrange(len(frames) + 1)
        if at == len(frames) or not rng.randrange(4):
            frames.insert(at, rng.choice(self._others))
            return
        frame = frames[at]
        match rng.randrange(6):
            case 0:
                del frames[at]
            case 1:
                frames.insert(rng.randint(0, len(frames)), frame)
            case 2:
                kind = rng.choice(self._others).kind
                frames[at] = Payload(kind, frame.data, rng.random() < 0.2)
            case _:
                data = self._bodies(frame.data, LIMIT, rng.getrandbits(32))
                frames[at] = Payload(frame.kind, data, frame.error)
