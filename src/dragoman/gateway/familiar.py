"""Plain questions of one shape pass one upstream alike: the first is planned with care, and the others follow it."""

from __future__ import annotations

from collections.abc import Hashable

from msgspec import Struct, structs

from dragoman.dialects.base import Dialect, Plain
from dragoman.model.blocks import Extra
from dragoman.model.notes import Note
from dragoman.translate import Plan
from dragoman.wire import jsonio
from dragoman.wire.http import HttpRequest

_MOST = 256  # clients name any model they like


class Outline(Struct, frozen=True):
    """What became of the first: its request without the body, the notes, and what was put into the body."""

    head: HttpRequest
    notes: tuple[Note, ...]
    extra: Extra | None
    added: bytes

    def plan(self, first: Plan, plain: Plain) -> Plan:
        """The plan of another one."""
        sent = structs.replace(plain.asked, extra=self.extra)
        return structs.replace(first, asked=plain.asked, sent=sent, notes=self.notes)

    def request(self, body: bytes) -> HttpRequest:
        if self.added:
            body = b"%b,%b" % (body.rstrip()[:-1], self.added)
        return structs.replace(self.head, body=body)


class Familiar:
    """What is remembered of one upstream."""

    def __init__(self) -> None:
        self._outlines: dict[Hashable, tuple[Outline, Plan]] = {}

    def plan(self, client: Dialect, plain: Plain, model: str) -> tuple[Outline, Plan] | None:
        """How this question is asked, if one like it was; None if not, or if it names another model."""
        if model != plain.asked.model:
            return None
        known = self._outlines.get((client, model, plain.shape))
        return None if known is None else (known[0], known[0].plan(known[1], plain))

    def learn(self, plain: Plain, made: Plan, given: HttpRequest, sent: HttpRequest) -> None:
        """Remember how it was asked, if that is: as it was given, perhaps with fields added."""
        if not made.passes or made.sent.model != plain.asked.model or len(made.sent.model) > _MOST:
            return
        said, told = given.document, jsonio.decode(sent.body)
        if not isinstance(said, dict) or not isinstance(told, dict):
            return
        added = {name: value for name, value in told.items() if name not in said}
        if any(name not in told or told[name] != value for name, value in said.items() if name != "stream"):
            return
        outline = Outline(
            structs.replace(sent, body=b""),
            made.notes,
            made.sent.extra if added else plain.asked.extra,
            jsonio.encode(added)[1:] if added else b"",
        )
        if len(self._outlines) >= _MOST:
            self._outlines.clear()
        bare = structs.replace(made, asked=plain.asked, sent=plain.asked, makers=())
        self._outlines[made.client, made.sent.model, plain.shape] = (outline, bare)
