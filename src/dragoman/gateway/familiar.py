"""Plain questions of one shape pass one upstream alike: the first is planned with care, and the others follow it."""

from __future__ import annotations

from collections.abc import Hashable

from msgspec import Struct, structs

from dragoman.dialects.base import Dialect, Plain
from dragoman.translate import Plan
from dragoman.wire import jsonio
from dragoman.wire.http import HttpRequest

_MOST, _LONGEST = 256, 256  # how many, and characters of a model's name: clients name any model they like


class Outline(Struct, frozen=True):
    """What became of the first: its request without the body, its plan without what was asked, and what was put into
    the body.
    """

    head: HttpRequest
    made: Plan
    added: bytes

    def plan(self, plain: Plain) -> Plan:
        """The plan of another one."""
        made, asked = self.made, plain.asked
        sent = structs.replace(asked, extra=made.sent.extra) if self.added else asked
        return Plan(made.client, made.upstream, asked, sent, made.notes, (), made.settings, made.passes)

    def request(self, body: bytes) -> HttpRequest:
        if self.added:
            body = b"%b,%b" % (body.rstrip()[:-1], self.added)
        head = self.head
        return HttpRequest(head.method, head.path, head.query, head.headers, body)


class Familiar:
    """What is remembered of one upstream."""

    def __init__(self) -> None:
        self._outlines: dict[Hashable, Outline] = {}

    def outline(self, client: Dialect, plain: Plain, model: str) -> Outline | None:
        """How this question is asked, if one like it was; None if not, or if it names another model."""
        return self._outlines.get((client.name, model, plain.shape)) if model == plain.asked.model else None

    def learn(self, plain: Plain, made: Plan, given: HttpRequest, sent: HttpRequest) -> None:
        """Remember how it was asked, if that is: as it was given, perhaps with fields added."""
        model = made.sent.model
        if not made.passes or model != plain.asked.model or len(model) > _LONGEST:
            return
        said, told = given.document, jsonio.decode(sent.body)
        if not isinstance(said, dict) or not isinstance(told, dict):
            return
        if any(name not in told or told[name] != value for name, value in said.items() if name != "stream"):
            return
        added = {name: value for name, value in told.items() if name not in said}
        if len(self._outlines) >= _MOST:
            self._outlines.clear()
        like = structs.replace(plain.asked, extra=made.sent.extra if added else plain.asked.extra)
        self._outlines[made.client.name, model, plain.shape] = Outline(
            structs.replace(sent, body=b""),
            structs.replace(made, asked=like, sent=like, makers=()),
            jsonio.encode(added)[1:] if added else b"",
        )
