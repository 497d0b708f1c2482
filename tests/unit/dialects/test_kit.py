"""What dialects share: kept fields have one rule of precedence, faults one form of table."""

from __future__ import annotations

from dragoman.dialects.kit.faults import FaultTable, refusal
from dragoman.dialects.kit.kept import Kept, merged
from dragoman.errors import Fault
from dragoman.model.blocks import Extra


def test_a_kept_field_wins_and_objects_are_merged() -> None:
    body = merged({"a": 1, "b": {"known": 1, "both": 1}}, {"a": 2, "b": {"both": 2, "more": 2}, "c": 2})
    assert body == {"a": 2, "b": {"known": 1, "both": 2, "more": 2}, "c": 2}


def test_only_its_own_family_writes_kept_fields_back() -> None:
    kept = Kept("ours")
    fields = {"a": 1, "~word": 2, "../outer": 3}
    assert kept.with_extra({}, Extra("ours", fields)) == {"a": 1}
    assert kept.with_extra({}, Extra("theirs", fields)) == {} == dict(kept.own_fields(Extra("theirs", fields)))


def test_the_first_kind_of_a_type_is_what_the_type_means() -> None:
    table = FaultTable({"invalid": ("bad", 400), "context_full": ("bad", 400), "server": ("broken", 500)})
    assert (table.by_type("bad"), table.by_type("new")) == ("invalid", None)
    assert table.type_of(Fault("server", "", code="bad")) == "broken"
    assert [table.by_status(status) for status in (418, 429, 599)] == ["invalid", "rate_limit", "server"]


def test_a_refusal_says_how_long_to_wait_in_whole_seconds() -> None:
    answer = refusal(Fault("rate_limit", "", retry_after=1.2), 429, b"{}", ("x-more", "1"))
    assert answer.headers == (("content-type", "application/json"), ("x-more", "1"), ("retry-after", "2"))
