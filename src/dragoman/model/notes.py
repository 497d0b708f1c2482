"""Notes: what a translation changed. No change without its note, no note without a change."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, TypeAlias

from msgspec import Struct

from dragoman.errors import Unrepresentable

Action: TypeAlias = Literal["changed", "dropped", "added", "renamed"]


class Note(Struct, frozen=True):
    """One change: a stable rule name (docs/rules.md), what was done, where in the payload, and a sentence."""

    rule: str
    action: Action
    at: str
    detail: str

    def __str__(self) -> str:
        place = f" {self.at}:" if self.at else ""
        return f"[{self.rule}] {self.action}{place} {self.detail}"


MOST_OF_ANSWER = 1000  # notes on one answer that are kept
_LONGEST = 2000  # characters of such a note


class Notes:
    """A growing list of notes. With `refuse`, the first loss is an error instead (D9, `losses = "refuse"`).

    `most` is for answers, which may have no end: further notes are counted, and long ones are cut.
    """

    __slots__ = ("_more", "_most", "_notes", "_refuse")

    def __init__(self, *, refuse: bool = False, most: int | None = None) -> None:
        self._notes: list[Note] = []
        self._refuse = refuse
        self._most = most
        self._more = 0

    def add(self, rule: str, action: Action, at: str, detail: str) -> None:
        if self._refuse and action == "dropped":
            raise Unrepresentable(f"{detail} (rule {rule}; losses are refused)", at=at)
        if self._most is not None:
            if len(self._notes) >= self._most:
                self._more += 1
                return
            rule, at, detail = rule[:_LONGEST], at[:_LONGEST], detail[:_LONGEST]
        self._notes.append(Note(rule, action, at, detail))

    def changed(self, rule: str, at: str, detail: str) -> None:
        self.add(rule, "changed", at, detail)

    def dropped(self, rule: str, at: str, detail: str) -> None:
        self.add(rule, "dropped", at, detail)

    def added(self, rule: str, at: str, detail: str) -> None:
        self.add(rule, "added", at, detail)

    def renamed(self, rule: str, at: str, detail: str) -> None:
        self.add(rule, "renamed", at, detail)

    def __iter__(self) -> Iterator[Note]:
        yield from self._notes
        if self._more:
            yield Note("notes.more", "changed", "", f"{self._more} more changes of this answer are not listed")

    def __len__(self) -> int:
        return len(self._notes) + (1 if self._more else 0)
