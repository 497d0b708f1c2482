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


class Notes:
    """A growing list of notes. With `refuse`, the first loss is an error instead (D9, `losses = "refuse"`)."""

    __slots__ = ("_notes", "_refuse")

    def __init__(self, *, refuse: bool = False) -> None:
        self._notes: list[Note] = []
        self._refuse = refuse

    def add(self, rule: str, action: Action, at: str, detail: str) -> None:
        if self._refuse and action == "dropped":
            raise Unrepresentable(f"{detail} (rule {rule}; losses are refused)", at=at)
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
        return iter(self._notes)

    def __len__(self) -> int:
        return len(self._notes)
