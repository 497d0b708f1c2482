"""A whole answer where a stream was asked for: some upstreams ignore the wish for a stream. Pure."""

from __future__ import annotations

from dragoman.answer import MOST_WHOLE, Answer, Mask, Progress
from dragoman.dialects.base import REAL_WORLD, World
from dragoman.errors import BadFrame, DragomanError, Fault, UpstreamFault, UpstreamViolation
from dragoman.gateway.limits import json_memory
from dragoman.model.events import Budget
from dragoman.model.filter import Note
from dragoman.translate import Plan


class WholeAnswer:
    """An answer that came whole where a stream was asked for: gathered, and told as the stream it stands for.

    It has the same members as `Answer`. Whatever cannot be read as a whole answer is read as a stream.
    """

    def __init__(
        self, plan: Plan, world: World = REAL_WORLD, mask: Mask | None = None, budget: Budget | None = None
    ) -> None:
        self._plan, self._world = plan, world
        self._budget = budget or Budget()
        self._answer = Answer(plan, world, mask, self._budget)
        self._pieces: list[bytes] = []
        self._size = 0
        self.hushed = 0

    @property
    def progress(self) -> Progress:
        return self._answer.progress

    @property
    def over(self) -> bool:
        return self._answer.over

    @property
    def fault(self) -> Fault | None:
        return self._answer.fault

    @property
    def notes(self) -> list[Note]:
        return self._answer.notes

    def feed(self, chunk: bytes) -> bytes:
        self._size += len(chunk)
        self.hushed += chunk.isspace()
        if self._size > MOST_WHOLE:
            return self._answer.close(BadFrame(f"the answer is longer than {MOST_WHOLE} bytes").fault)
        try:
            self._budget.keep(len(chunk))
        except UpstreamViolation as error:
            return self._answer.close(error.fault)
        self._pieces.append(chunk)
        return b""

    def close(self, broken: Fault | None = None) -> bytes:
        """The body is over: tell all of it."""
        body, self._pieces = b"".join(self._pieces), []
        self._budget.free(len(body))
        if broken is not None:
            return self._answer.close(broken)
        tree = json_memory(body)
        try:
            self._budget.keep(tree)
        except UpstreamViolation as error:
            return self._answer.close(error.fault)
        try:
            reply = self._plan.upstream.codec.parse_reply(body, self._plan.sent)
        except UpstreamFault as error:
            return self._answer.close(error.fault)
        except (DragomanError, RecursionError):
            return self._answer.feed(body) + self._answer.close()
        finally:
            self._budget.free(tree)
        return self._answer.tell(reply)

    def ping(self) -> bytes:
        return self._answer.ping()
