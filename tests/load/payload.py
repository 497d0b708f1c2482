"""The content of one exchange, derived from a name, so that a client can check its response by the name alone."""

from __future__ import annotations

import hashlib
import json
import random
import re
from dataclasses import dataclass

TOOL = "get_weather"
UNPACED_PREFIX = "00"  # names with this prefix get an unpaced response
NAME_PLACEHOLDER = "@@load@@"  # in a template of a request
_WORDS = ("alpha", "ßtraße", "“quoted”", "🦜", "back\\slash", 'a "b" c', "tab\tend", "line\nbreak", "漢字", "{}[]", "é")
_MARK = re.compile(rb"load:([0-9a-f]{16}):([0-9a-f]+):([0-9a-f]{32}):end")
_QUESTION_BYTES = 2000


@dataclass(frozen=True)
class ExpectedResponse:
    """A response: pieces of text, then calls, each with pieces of arguments."""

    text: tuple[str, ...]
    calls: tuple[tuple[str, ...], ...]

    def whole(self) -> str:
        return "".join(self.text)

    def arguments(self) -> list[object]:
        return [json.loads("".join(pieces)) for pieces in self.calls]


def request_text(name: str) -> str:
    """Return a unique request text: the name, filler bytes, and their digest."""
    filler = random.Random(f"question {name}").randbytes(_QUESTION_BYTES // 2).hex()
    return f"load:{name}:{filler}:{_digest(name, filler)}:end"


def name_in_request(body: bytes) -> str | None:
    """Return the name in a request; None unless there is exactly one, with a matching digest."""
    found = _MARK.findall(body)
    if len(found) != 1:
        return None
    name, filler, digest = (part.decode() for part in found[0])
    return name if _digest(name, filler) == digest and len(filler) == _QUESTION_BYTES // 2 * 2 else None


def _digest(name: str, filler: str) -> str:
    return hashlib.sha256(f"{name} {filler}".encode()).hexdigest()[:32]


def expected_response(name: str, pieces: int = 16) -> ExpectedResponse:
    """Return the expected response: text and up to two calls, in about `pieces` pieces."""
    chance = random.Random(f"answer {name}")
    text = tuple(f"{chance.choice(_WORDS)} {chance.getrandbits(32):08x} " for _ in range(pieces))
    calls = tuple(_call(chance, name, index) for index in range(chance.randrange(3)))
    return ExpectedResponse(text, calls)


def _call(chance: random.Random, name: str, index: int) -> tuple[str, ...]:
    note = " ".join(chance.choice(_WORDS) for _ in range(8))
    raw = json.dumps({"city": f"{name} {index}", "note": note}, ensure_ascii=chance.random() < 0.5)
    cuts = sorted(chance.sample(range(1, len(raw)), 5))
    return tuple(raw[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(raw)], strict=True))
