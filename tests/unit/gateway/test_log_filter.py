"""Filters of requests: what each form matches, where a mistake is, completion."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.gateway.filter_keys import BADGES, FILTER_KEYS, FilteredRequest, badges_of
from dragoman.gateway.log_filter import (
    VALUE_FORMS,
    FilterError,
    complete_filter,
    parse_filter,
    quote_value,
    split_words,
)
from dragoman.gateway.records import LoggedRequest
from dragoman.model.filter import Note
from tests.growth import check_linear_growth
from tests.unit.test_references import ROOT

NOW = 1_795_000_000.0


def request(**fields: Any) -> FilteredRequest:
    """Return a request with these fields; the others are those of an ordinary one."""
    usual: dict[str, Any] = {
        "ts": "2026-11-18T10:26:40.000Z",
        "level": "info",
        "event": "request",
        "request_id": "req_019a",
        "method": "POST",
        "path": "/v1/messages",
        "status": 200,
        "outcome": "ok",
        "stream": True,
        "verbatim": False,
        "attempts": 1,
        "total_ms": 4000.0,
        "notes": 2,
        "dialect": "anthropic",
        "model": "claude-sonnet-4.5",
        "used_model": "kimi-k2",
        "upstream": "kiro",
        "tools": ("Bash", "mcp__files__read"),
        "rules": ("raw_tools.recovered", "kiro.max_tokens"),
        "first_byte_ms": 3200.0,
        "input_tokens": 2000,
        "cache_read_tokens": 18000,
        "cache_share": 0.9,
        "cost_nanodollars": 20_000_000,
    }
    extra = {name: fields.pop(name) for name in ("session", "recorded") if name in fields}
    return FilteredRequest(LoggedRequest(**{**usual, **fields}), **extra)


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("", True),
        ("upstream:kiro status:<400 tool:Bash note:raw_tools.* first_byte:>3s", True),
        ("upstream:KIRO", True),
        ("upstream:kir", False),
        ("upstream:kir*", True),
        ("upstream:openai,kiro", True),
        ("-upstream:kiro", False),
        ("-upstream:openai -tool:Read", True),
        ("model:kimi-k2", True),
        ("model:claude*4.5", True),
        ("model:*sonnet*", True),
        ('model:"claude*4.5"', False),
        ("tool:mcp__*__read", True),
        ("tool:mcp__*__write", False),
        ("status:200", True),
        ("status:=200", True),
        ("status:>=400", False),
        ("status:100..299", True),
        ("status:>200", False),
        ("first_byte:>3s", True),
        ("first_byte:>3.3s", False),
        ("first_byte:3200ms", True),
        ("total:1s..1m", True),
        ("input:20k", True),
        ("input:>20k", False),
        ("cached:>50%", True),
        ("cached:<0.5", False),
        ("cost:>$0.01", True),
        ("cost:<0.01", False),
        ("output:*", False),
        ("-output:*", True),
        ("output:>0", False),
        ("error:*", False),
        ("stream:yes verbatim:no", True),
        ("is:recovered", True),
        ("is:lossy,retried", False),
        ("outcome:ok", True),
        ("sonnet", True),
        ("SONNET mcp__files", True),
        ("raw_tools", True),
        ('"claude sonnet"', False),
        ("-nonsense", True),
        ("at:>1d", True),
        ("at:>10m", False),
        ("at:<2026-11-19", True),
        ('at:"2026-11-18 00:00"..2026-11-19T12:00', True),
        ("recorded:off", True),
        ("session:*", False),
    ],
)
def test_what_a_filter_matches(text: str, matches: bool) -> None:
    assert parse_filter(text, NOW).matches(request()) is matches


def test_values_with_spaces_commas_and_quotes_are_written_in_quotes() -> None:
    subject = request(error='no "quota" left, really', outcome="failed")
    assert parse_filter(r'error:"no \"quota\" left, really"').matches(subject)
    assert parse_filter('"quota\\" left"').matches(subject)
    assert not parse_filter(r'error:"no quota"').matches(subject)
    assert parse_filter(f"error:{quote_value(subject.request.error)}").matches(subject)


@pytest.mark.parametrize(
    ("fields", "badges"),
    [
        ({"rules": ()}, []),
        ({}, ["recovered"]),
        ({"rules": ("kiro.stream.recovered",)}, ["recovered"]),
        ({"rules": ("a.b",), "changes": (Note("a.b", "dropped", "", ""),)}, ["lossy"]),
        ({"rules": (), "attempts": 2, "tried": ("kiro: rate_limit 429",)}, ["retried"]),
        ({"rules": (), "attempts": 2, "tried": ("openai: timeout",)}, ["retried", "fell back"]),
        ({"rules": (), "outcome": "broken"}, ["cut"]),
        ({"rules": (), "outcome": "gone"}, ["cancelled"]),
        ({"rules": (), "outcome": "refused"}, ["refused"]),
        ({"rules": (), "outcome": "failed", "tried": ("openai: timeout",)}, ["failed"]),
    ],
)
def test_the_words_for_what_is_remarkable(fields: dict[str, Any], badges: list[str]) -> None:
    subject = request(**fields)
    assert badges_of(subject) == badges
    for badge in BADGES:
        assert parse_filter(f'is:"{badge}"').matches(subject) is (badge in badges)


@pytest.mark.parametrize(
    ("text", "message", "place"),
    [
        ("status:abc", "status: expected a number", "abc"),
        ("upstream:kiro status:>=4x0", "status: expected a number", "4x0"),
        ("first_byte:>3", "first_byte: expected a duration", "3"),
        ("first_byte:1s..3y", "first_byte: expected a duration", "3y"),
        ("cost:>$x", "cost: expected dollars", "$x"),
        ("stream:perhaps", "stream: expected yes or no", "perhaps"),
        ("at:>yesterday", "at: expected a time", "yesterday"),
        ("at:>9999999999999d..", "at: expected a time", ""),
        ("is:lossy,odd", "is: expected one of lossy", "odd"),
        ("outcome:fine", "outcome: expected one of ok", "fine"),
        ("upstrem:kiro", "did you mean upstream?", "upstrem"),
        ("x:1", "there is no key 'x'", "x"),
        ("model:", "model: a value is missing", "model:"),
        ("model:a,", "model: a value is missing", ","),
        ('error:"no end', "a quote is not closed", '"no end'),
        ("a " * 60, "more than 50 words", "a"),
        ("a" * 3000, "more than 2000 characters", "a" * 3000),
    ],
)
def test_a_mistake_names_its_place(text: str, message: str, place: str) -> None:
    with pytest.raises(FilterError) as caught:
        parse_filter(text)
    error = caught.value
    assert message in str(error)
    if place:
        assert text[error.position : error.position + error.length] == place
    assert error.show(text).splitlines()[-1].strip("^ ") == ""


@given(st.text(alphabet=st.sampled_from('abk:"\\,*-.<>= \n\u2028status1%$é'), max_size=40))
def test_any_text_is_read_or_refused_with_a_place_in_it(text: str) -> None:
    try:
        parse_filter(text).matches(request())
    except FilterError as error:
        assert 0 <= error.position <= len(text) and error.position + error.length <= max(len(text), 1)


@given(st.text(min_size=1, max_size=30))
def test_a_quoted_value_matches_itself(value: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError:
        return
    assert len(list(split_words(f"model:{quote_value(value)}"))) == 1
    assert parse_filter(f"model:{quote_value(value)}").matches(request(model=value))


def test_stars_take_linear_time() -> None:
    wanted = parse_filter(f"error:{'a*' * 300}b")

    def work(size: int) -> Callable[[], object]:
        subject = request(error="a" * size)
        return lambda: wanted.matches(subject)

    check_linear_growth(work, 20_000)


def test_keys_and_values_are_completed() -> None:
    def known(key: str) -> list[str]:
        return {"upstream": ["kiro", "openai", "my kit"]}.get(key, [])

    def complete(text: str) -> list[str]:
        return [text[: each.begin] + each.insert + text[each.end :] for each in complete_filter(text, len(text), known)]

    assert complete("stat") == ["status:"]
    assert complete("a -up") == ["a -upstream:", "a -upstream_dialect:"]
    assert len(complete("")) == 20
    assert complete("upstream:ki") == ["upstream:kiro", 'upstream:"my kit"']
    assert complete("upstream:kiro,op") == ["upstream:kiro,openai"]
    assert complete("is:re") == ["is:recovered", "is:retried", "is:refused"]
    assert complete("is:fe") == ['is:"fell back"']
    assert complete("status:") == ["status:>", "status:<"]
    assert complete("stream:y") == ["stream:yes"]
    assert complete("nothing:") == []


def test_every_key_is_described_in_the_documentation() -> None:
    page = (ROOT / "docs/inspector.md").read_text()
    assert [name for name in FILTER_KEYS if f"`{name}`" not in page] == []
    assert {key.kind for key in FILTER_KEYS.values()} <= set(VALUE_FORMS)
