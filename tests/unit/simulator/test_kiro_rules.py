"""The 51 refusal rules: each refuses what it names, with the service's words, and accepts what is next to it."""

from __future__ import annotations

import base64
import http.client
import re
import struct
from pathlib import Path
from typing import Any, cast, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dragoman
from dragoman.dialects.kiro.image_size import parse_image_size
from dragoman.simulator import running_simulator
from dragoman.simulator.faults import FAULTS, parse_fault
from dragoman.simulator.kiro.refusals import PROFILES, StrictnessProfile
from dragoman.simulator.kiro.rules import RULES, first_refusal, refusals
from dragoman.simulator.script import QUIRKS, StreamPace, TokenSettings, parse_script
from dragoman.wire import jsonio
from dragoman.wire.http import HttpRequest
from tests.unit.simulator.kiro_cases import (
    ACCEPTED,
    REFUSED,
    Case,
    assistant,
    body,
    call_and_results,
    image,
    png,
    result,
    spec,
    use,
    user,
)
from tests.wrong_values import body_paths, with_value

NUMBERS = range(1, 52)


@pytest.mark.parametrize("case", REFUSED, ids=str)
def test_a_breach_is_the_first_error_with_the_services_words(case: Case) -> None:
    found = first_refusal(case.request, "paranoid", case.limits)
    assert found is not None
    response = found.response
    assert (found.rule, found.grade) == (case.rule, case.grade)
    assert (response.status, response.type, response.message, response.reason) == (
        case.status,
        case.type,
        case.message,
        case.reason,
    )
    assert not case.at or found.at == case.at


@pytest.mark.parametrize("case", REFUSED, ids=str)
def test_a_breach_breaks_only_its_rule(case: Case) -> None:
    assert {found.rule for found in refusals(case.request, "paranoid", case.limits)} == {case.rule, *case.also}


@pytest.mark.parametrize("profile", get_args(StrictnessProfile))
@pytest.mark.parametrize("case", REFUSED, ids=str)
def test_a_profile_refuses_by_the_grades_it_has(case: Case, profile: StrictnessProfile) -> None:
    broken = {found.rule for found in refusals(case.request, profile, case.limits)}
    assert (case.rule in broken) == (case.grade in PROFILES[profile])


@pytest.mark.parametrize("case", ACCEPTED, ids=str)
def test_what_is_next_to_a_breach_is_accepted_by_every_profile(case: Case) -> None:
    for profile in get_args(StrictnessProfile):
        assert list(map(str, refusals(case.request, profile, case.limits))) == []


def test_every_rule_has_a_refused_and_an_accepted_request() -> None:
    assert sorted(rule.number for rule in RULES) == [0, *NUMBERS]
    assert {case.rule for case in REFUSED} == set(NUMBERS)
    assert {case.rule for case in ACCEPTED} == set(NUMBERS)


_ORPHAN_AND_IMAGE = body(user(results=[result()], tools=[spec()], images=[image("bmp")]))
# The documented check order: of two breaches the earlier one is answered.
ORDER = (
    ("top level before profileArn", body(profileArn="x", stream=True), 30),
    ("profileArn before the model", body(user(modelId="x"), profileArn="x"), 49),
    ("the model before lengths", body(user(modelId="x"), state={"conversationId": ""}), 48),
    ("lengths before tools", body(user("u" * 600_001, tools=[spec("a b")])), 51),
    ("a schema before a name", body(user(tools=[spec("a b", {"type": "string"})])), 19),
    ("tools before history", body(user(tools=[spec("a b")]), [assistant()]), 15),
    (
        "history before pairing",
        body(user(tools=[spec()]), [assistant("x", {"toolUseId": "a", "name": "get_weather", "input": {}})]),
        2,
    ),
    ("pairing before images", _ORPHAN_AND_IMAGE, 8),
    ("images before size", body(user(images=[image("bmp")]), [user("w" * 500_000), assistant()] * 2), 35),
)


@pytest.mark.parametrize(("payload", "rule"), [row[1:] for row in ORDER], ids=[row[0] for row in ORDER])
def test_of_two_breaches_the_earlier_in_the_check_order_is_answered(payload: Any, rule: int) -> None:
    found = first_refusal(Case(rule=rule, name="", body=payload).request)
    assert found is not None
    assert found.rule == rule


WRONG_SHAPES: tuple[tuple[str, Any, str | None], ...] = (
    ("no state", {}, "conversationState"),
    ("not an object", [], ""),
    ("no current message", {"conversationState": {"chatTriggerType": "MANUAL"}}, "conversationState.currentMessage"),
    ("two members", body({**user(), **assistant()}), "conversationState.currentMessage"),
    ("content is a list", body(user([{"text": "a"}])), "conversationState.currentMessage.userInputMessage.content"),
    ("unknown origin", body(user(origin="MOON")), "conversationState.currentMessage.userInputMessage.origin"),
    ("history entry is a text", body(state={"history": ["a"]}), "conversationState.history[0]"),
    ("two kinds of result", call_and_results({"toolUseId": "t1", "content": [{"text": "a", "json": {}}]}), None),
)


@pytest.mark.parametrize(("payload", "at"), [row[1:] for row in WRONG_SHAPES], ids=[row[0] for row in WRONG_SHAPES])
def test_a_wrong_shape_is_refused_by_every_profile(payload: Any, at: str | None) -> None:
    found = first_refusal(Case(rule=0, name="", body=payload).request, "official")
    assert found is not None
    assert found.rule == 0
    assert at is None or found.at == at


ROUTES: tuple[tuple[str, str, dict[str, str], int], ...] = (
    ("POST", "/nowhere", {"content-type": "application/json"}, 404),
    ("GET", "/generateAssistantResponse", {}, 404),
    ("POST", "/generateAssistantResponse", {"content-type": "text/plain"}, 400),
    (
        "POST",
        "/",
        {
            "content-type": "application/json",
            "x-amz-target": "AmazonCodeWhispererStreamingService.GenerateAssistantResponse",
        },
        400,
    ),
    ("POST", "/", {"content-type": "application/x-amz-json-1.0", "x-amz-target": "Some.Thing"}, 400),
)


@pytest.mark.parametrize(("method", "path", "headers", "status"), ROUTES)
def test_an_unknown_operation_is_refused_before_the_body_is_looked_at(
    method: str, path: str, headers: dict[str, str], status: int
) -> None:
    found = first_refusal(HttpRequest(method, path, headers=tuple(headers.items()), body=b"{"))
    assert found is not None
    assert (found.response.status, found.response.type) == (status, "UnknownOperationException")


# --- the heads of image files

PICTURES = (
    ("png", base64.b64decode(png(30, 20)), (30, 20)),
    ("gif", b"GIF89a" + struct.pack("<HH", 30, 20), (30, 20)),
    ("jpeg", b"\xff\xd8\xff\xe0\x00\x04ab\xff\xc2\x00\x11\x08" + struct.pack(">HH", 20, 30) + b"\x03", (30, 20)),
    ("webp, extended", b"RIFF....WEBPVP8X" + b"." * 8 + b"\x1d\x00\x00\x13\x00\x00", (30, 20)),
    ("webp, lossless", b"RIFF....WEBPVP8L....\x2f" + struct.pack("<I", 29 | 19 << 14) + b"." * 5, (30, 20)),
    ("webp, lossy", b"RIFF....WEBPVP8 " + b"." * 10 + struct.pack("<HH", 30, 20), (30, 20)),
    ("jpeg without a frame", b"\xff\xd8\xff\xe0\x00\x04ab" + b"." * 20, ()),
    ("webp of an unknown kind", b"RIFF....WEBPXXXX" + b"." * 20, ()),
    ("text", b"hello", ()),
)


@pytest.mark.parametrize(("data", "edges"), [row[1:] for row in PICTURES], ids=[row[0] for row in PICTURES])
def test_the_edges_of_an_image_are_read_from_its_head(data: bytes, edges: tuple[int, ...]) -> None:
    assert parse_image_size(data) == edges


# --- laws

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


_RICH = call_and_results(
    tools=[spec(), spec("other", {"type": "object", "properties": {"a": {"anyOf": [{"type": "string"}]}}})]
)
_RICH["conversationState"]["currentMessage"]["userInputMessage"]["images"] = [image()]
_RICH["conversationState"]["history"][1]["assistantResponseMessage"]["reasoningContent"] = {"redactedContent": "YQ=="}
_PLACES = len(list(body_paths(_RICH)))


@given(st.lists(st.tuples(st.integers(0, _PLACES - 1), _JSON), max_size=3))
@settings(max_examples=300, deadline=None)
def test_no_request_whatever_breaks_the_rules_themselves(changes: list[tuple[int, Any]]) -> None:
    document = jsonio.decode(jsonio.encode(_RICH))
    for place, value in changes:
        places = list(body_paths(document))
        if place < len(places):
            document = with_value(document, places[place], value)
    request = Case(rule=0, name="", body=cast("Any", document)).request
    found = {
        profile: {(each.rule, each.at) for each in refusals(request, profile)}
        for profile in get_args(StrictnessProfile)
    }
    assert found["official"] <= found["observed"] <= found["paranoid"]
    assert bool(changes) or not found["paranoid"]


@given(st.binary(max_size=60))
def test_no_bytes_whatever_break_the_rules_themselves(raw: bytes) -> None:
    list(refusals(Case(rule=0, name="", body=raw).request))


# --- the default `sim kiro` refuses what documents 000, 002 and 003 saw refused, and takes what they saw taken

MOCK_ARN = "arn:aws:codewhisperer:us-east-1:699475941385:profile/test"  # the mock token (docs/mission.md, row 000.14)
MOCK_TOKEN = "test_access_token"

SEEN_REFUSED: list[tuple[str, Any]] = [
    ("000: an empty result text", call_and_results(result(text=""))),
    ("000: a result without content", call_and_results(result(content=[]))),
    ("000: a result whose content is missing", call_and_results({"toolUseId": "t1", "status": "success"})),
    ("000: a result without its call's id", call_and_results(result(id_=""))),
    ("000: a status that is none", call_and_results(result(status="maybe"))),
    ("002: history that ends with a user turn", body(history=[user(), assistant(), user()])),
    ("002: history of one user turn", body(history=[user()])),
    ("002: a current message of the assistant", body(assistant())),
    ("002: a call without input", call_and_results(uses=[{"toolUseId": "t1", "name": "get_weather"}])),
    ("002: a call whose input is null", call_and_results(uses=[use(input=None)])),
    ("002: a call whose input is text", call_and_results(uses=[use(input="{}")])),
    ("002: a schema that is null", body(user(tools=[{"toolSpecification": {"name": "f", "description": "d", "inputSchema": {"json": None}}}]))),
    ("002: an inputSchema that is null", body(user(tools=[{"toolSpecification": {"name": "f", "description": "d", "inputSchema": None}}]))),
    ("003: u, u, a, u", body(history=[user(), user(), assistant(), user()])),
    ("003: u, u, a", body(history=[user(), user(), assistant()])),
    ("003: u, a, a", body(history=[user(), assistant(), assistant()])),
    ("003: a, u", body(history=[assistant(), user()])),
]  # fmt: skip

ACCEPTED_CASES: list[tuple[str, Any]] = [
    ("000: a result", call_and_results()),
    ("000: an error result", call_and_results(result(status="error"))),
    ("002: results beside their sentence", call_and_results(content="Tool results provided.")),
    ("002: no history", body()),
    ("003: placeholders", body(history=[user(), assistant(), user(), assistant("Hi!"), user(), assistant()])),
    ("002: a tool", body(user(tools=[spec()]))),
]


def ask(url: str, payload: Any, arn: str = MOCK_ARN) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(url.removeprefix("http://"))
    headers = {"content-type": "application/json", "authorization": f"Bearer {MOCK_TOKEN}"}
    connection.request("POST", "/generateAssistantResponse", jsonio.encode({**payload, "profileArn": arn}), headers)
    response = connection.getresponse()
    data = response.read()
    connection.close()
    return response.status, jsonio.decode(data) if response.status != 200 else None


@pytest.mark.parametrize(("name", "payload"), SEEN_REFUSED, ids=[name for name, _ in SEEN_REFUSED])
def test_the_default_simulator_refuses_what_the_documents_saw_refused(name: str, payload: Any) -> None:
    with running_simulator("kiro") as simulator:
        status, response = ask(simulator.url, payload)
    assert status == 400, name
    assert response["message"]
    headers = (("content-type", "application/json"), ("authorization", "Bearer x"))
    for profile in ("observed", "paranoid"):
        request = HttpRequest("POST", "/generateAssistantResponse", headers=headers, body=jsonio.encode(payload))
        assert first_refusal(request, profile) is not None


@pytest.mark.parametrize(("name", "payload"), ACCEPTED_CASES, ids=[name for name, _ in ACCEPTED_CASES])
@pytest.mark.parametrize("profile", get_args(StrictnessProfile))
def test_the_mock_token_of_document_000_works_with_every_profile(name: str, payload: Any, profile: str) -> None:
    with running_simulator("kiro", profile=profile) as simulator:
        assert ask(simulator.url, payload) == (200, None), name


@pytest.mark.parametrize("arn", ["", "test", "arn:aws:codewhisperer:us-east-1:699475941385:profile/", "arn:aws:s3:::x"])
def test_what_is_no_arn_of_a_profile_is_refused_still(arn: str) -> None:
    with running_simulator("kiro") as simulator:
        assert ask(simulator.url, body(), arn)[0] == 400


@pytest.mark.parametrize("words", ["x", "x" * 6_300], ids=["short", "30 KB"])
def test_what_dragoman_makes_of_the_turns_of_document_003_is_taken(words: str) -> None:
    turns = [{"role": role, "content": words} for role in ("user", "user", "assistant", "user", "user")]
    payload = {"model": "claude-sonnet-4-5", "max_tokens": 5, "messages": turns}
    done = dragoman.translate_request(payload, source="anthropic", target="kiro")
    kinds = [next(iter(entry)) for entry in done.body["conversationState"]["history"]]
    assert kinds == ["userInputMessage", "assistantResponseMessage"] * 3
    with running_simulator("kiro") as simulator:
        assert ask(simulator.url, done.body)[0] == 200


# --- docs/simulator.md is true: its scripts are scripts, and it names every field there is (tests/docs runs its Python)

PAGE = (Path(__file__).parents[3] / "docs" / "simulator.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_its_scripts_are_scripts() -> None:
    assert [len(parse_script(text).turns) for text in blocks("toml")] == [8]


def test_the_page_names_every_quirk_and_every_setting_of_pace_and_tokens() -> None:
    words = set(re.findall(r"\w+", PAGE))
    assert {*QUIRKS, *StreamPace.__struct_fields__, *TokenSettings.__struct_fields__} <= words


def test_the_page_names_every_fault_and_its_examples_are_faults() -> None:
    assert set(FAULTS) <= set(re.findall(r"`(\w+)`", PAGE))
    specs = re.findall(r"--fault (\w+:[\w=,+]+)", PAGE)
    assert len(specs) == 4
    for each in specs:
        parse_fault(each)
