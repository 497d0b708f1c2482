"""PlanCache: a plain request that passes unchanged follows the plan of the first request of its shape.

Plain requests (`Dialect.plain`) of one shape differ only in texts and figures that no filter reads. So the first one is
read, planned and rendered by the codec, and the others take its plan and its head. `tests/laws/test_plan_cache.py`
demands that they are sent and answered as if they were planned themselves. `dragoman_plan_cache_hits` counts them.
"""

from __future__ import annotations

from collections.abc import Hashable

from msgspec import Struct, structs

from dragoman.dialects.base import Dialect, PlainRequest
from dragoman.translate import Plan
from dragoman.wire import jsonio
from dragoman.wire.http import HttpRequest

_MOST, _LONGEST = 256, 256  # entries, and characters of a model's name: clients name any model they like


class CachedPlan(Struct, frozen=True):
    """What became of the first request: its HTTP request without the body, its plan without conversations, and the
    fields that were added to the body.
    """

    head: HttpRequest
    made: Plan
    added: bytes

    def plan(self, plain: PlainRequest) -> Plan:
        """The plan of another request of this shape."""
        made, asked = self.made, plain.asked
        sent = structs.replace(asked, extra=made.sent.extra) if self.added else asked
        return Plan(made.client, made.upstream, asked, sent, made.notes, (), made.settings, made.passes)

    def request(self, body: bytes) -> HttpRequest:
        if self.added:
            body = b"%b,%b" % (body.rstrip()[:-1], self.added)
        head = self.head
        return HttpRequest(head.method, head.path, head.query, head.headers, body)


class PlanCache:
    """The cached plans of one upstream."""

    def __init__(self) -> None:
        self._plans: dict[Hashable, CachedPlan] = {}

    def __len__(self) -> int:
        return len(self._plans)

    def find(self, client: Dialect, plain: PlainRequest, model: str) -> CachedPlan | None:
        """The plan for this shape; None if there is none, or if the upstream calls the model by another name."""
        return self._plans.get((client.name, model, plain.shape)) if model == plain.asked.model else None

    def keep(self, plain: PlainRequest, made: Plan, given: HttpRequest, sent: HttpRequest) -> None:
        """Keep a plan that leaves the body as it was given, but for fields that it adds."""
        model = made.sent.model
        if not made.passes or model != plain.asked.model or len(model) > _LONGEST:
            return
        before, after = given.document, jsonio.decode(sent.body)
        if not isinstance(before, dict) or not isinstance(after, dict):
            return
        if any(name not in after or after[name] != value for name, value in before.items() if name != "stream"):
            return
        added = {name: value for name, value in after.items() if name not in before}
        if len(self._plans) >= _MOST:
            self._plans.clear()
        like = structs.replace(plain.asked, extra=made.sent.extra if added else plain.asked.extra)
        self._plans[made.client.name, model, plain.shape] = CachedPlan(
            structs.replace(sent, body=b""),
            structs.replace(made, asked=like, sent=like, makers=()),
            jsonio.encode(added)[1:] if added else b"",
        )
