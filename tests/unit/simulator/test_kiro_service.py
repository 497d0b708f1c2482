"""The simulated Kiro service over HTTP: both protocols, frames that botocore reads, endpoints, tokens, scripts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from botocore.eventstream import EventStreamBuffer

from dragoman.simulator import Simulator, parse_script, running_simulator
from dragoman.simulator.kiro.refusals import SimulatorLimits, sign
from dragoman.simulator.kiro.rules import first_refusal
from dragoman.wire import jsonio
from dragoman.wire.http import HttpRequest
from tests.unit.simulator.kiro_cases import ACCEPTED, REFUSED, Case, assistant, body, call_and_results, spec, user

REST = {"content-type": "application/json", "authorization": "Bearer token"}
TARGET = {
    "content-type": "application/x-amz-json-1.0",
    "authorization": "Bearer token",
    "x-amz-target": "AmazonCodeWhispererStreamingService.GenerateAssistantResponse",
}
# One connection a request, and no time spent on certificates that loopback has no use for.
CLIENT = httpx.Client(timeout=60, verify=False, limits=httpx.Limits(max_keepalive_connections=0))


def events(content: bytes) -> list[tuple[str, Any]]:
    """Decode by botocore, which checks every CRC."""
    buffer = EventStreamBuffer()
    buffer.add_data(content)
    return [
        (message.headers.get(":event-type") or message.headers[":exception-type"], jsonio.decode(message.payload))
        for message in buffer
    ]


def ask(simulator: Simulator, payload: Any, path: str = "/generateAssistantResponse", **headers: str) -> httpx.Response:
    base = TARGET if path == "/" else REST
    content = payload if isinstance(payload, bytes) else jsonio.encode(payload)
    return CLIENT.post(simulator.url + path, content=content, headers={**base, **headers})


def text_of(content: bytes) -> str:
    return "".join(data["content"] for kind, data in events(content) if kind == "assistantResponseEvent")


@pytest.fixture(scope="module")
def paranoid() -> Iterator[Simulator]:
    with running_simulator(profile="paranoid") as running:
        yield running


# --- refusals


@pytest.mark.parametrize("path", ["/generateAssistantResponse", "/"])
@pytest.mark.parametrize("case", [case for case in REFUSED if case.limits == SimulatorLimits()], ids=str)
def test_a_refusal_has_the_words_and_the_place_of_its_protocol(paranoid: Simulator, case: Case, path: str) -> None:
    response = ask(paranoid, case.raw, path, **case.headers)
    document = response.json()
    assert (response.status_code, document["message"], document["reason"]) == (case.status, case.message, case.reason)
    assert response.headers["x-dragoman-rule"] == str(case.rule)
    if path == "/":
        assert document["__type"].rpartition("#")[2] == case.type
        assert response.headers["content-type"] == "application/x-amz-json-1.0"
    else:
        assert response.headers["x-amzn-errortype"] == case.type
        assert "__type" not in document


@pytest.mark.parametrize("case", [case for case in REFUSED if case.limits != SimulatorLimits()], ids=str)
def test_thresholds_are_settings(case: Case) -> None:
    with running_simulator(profile="paranoid", limits=case.limits) as limited:
        response = ask(limited, case.raw, **case.headers)
        assert (response.status_code, response.headers["x-dragoman-rule"]) == (case.status, str(case.rule))


@pytest.mark.parametrize("case", [case for case in ACCEPTED if case.limits == SimulatorLimits()], ids=str)
def test_what_is_accepted_is_answered(paranoid: Simulator, case: Case) -> None:
    response = ask(paranoid, case.raw, **case.headers)
    assert response.status_code == 200
    assert events(response.content)[-1][0] == "meteringEvent"


@pytest.mark.parametrize(
    ("authorization", "status"),
    [("", 401), ("Basic x", 401), ("Bearer good", 200), ("bearer good", 200)],
)
def test_a_token_is_needed_before_anything_is_looked_at(authorization: str, status: int) -> None:
    with running_simulator(script=parse_script('[tokens]\naccess = ["good"]')) as guarded:
        assert ask(guarded, body(), authorization=authorization).status_code == status
        assert ask(guarded, b"{", authorization="Bearer bad").status_code == 403


# --- replies


@pytest.mark.parametrize("path", ["/generateAssistantResponse", "/"])
def test_text_streams_and_context_usage_is_reported(paranoid: Simulator, path: str) -> None:
    response = ask(paranoid, body(user("Good morning")), path)
    assert response.headers["content-type"] == "application/vnd.amazon.eventstream"
    frames = events(response.content)
    assert [kind for kind, _ in frames if kind != "assistantResponseEvent"] == [
        "messageMetadataEvent",
        "metadataEvent",
        "contextUsageEvent",
        "meteringEvent",
    ]
    assert text_of(response.content) == "You said: Good morning"
    assert dict(frames)["metadataEvent"] == {"stopReason": "END_TURN"}
    assert 0 < dict(frames)["contextUsageEvent"]["contextUsagePercentage"] < 1


def test_usage_grows_with_the_conversation(paranoid: Simulator) -> None:
    def share(payload: Any) -> float:
        return float(dict(events(ask(paranoid, payload).content))["contextUsageEvent"]["contextUsagePercentage"])

    assert share(body(history=[user("w" * 20_000), assistant()])) - share(body()) == pytest.approx(2.5, abs=0.1)


def test_a_tool_conversation_goes_round(paranoid: Simulator) -> None:
    first = ask(paranoid, body(user("Use get_weather", tools=[spec()])))
    uses = [data for kind, data in events(first.content) if kind == "toolUseEvent"]
    assert {(use["toolUseId"], use["name"]) for use in uses} == {(uses[0]["toolUseId"], "get_weather")}
    assert "input" not in uses[0]
    assert uses[-1]["stop"] is True
    arguments = jsonio.decode("".join(use.get("input", "") for use in uses))
    assert arguments == {"city": "example city"}
    assert dict(events(first.content))["metadataEvent"] == {"stopReason": "TOOL_USE"}
    id_ = uses[0]["toolUseId"]
    call = {"toolUseId": id_, "name": "get_weather", "input": arguments}
    answered = {"toolUseId": id_, "content": [{"text": "21 degrees"}], "status": "success"}
    second = ask(
        paranoid,
        body(
            user("Tool results provided.", results=[answered], tools=[spec()]),
            [user("Use get_weather"), assistant(text_of(first.content), call)],
        ),
    )
    assert second.status_code == 200, second.headers.get("x-dragoman-detail")
    assert text_of(second.content) == "The tool answered: 21 degrees"


def test_call_ids_are_the_same_for_the_same_request_and_differ_for_another(paranoid: Simulator) -> None:
    def ids(text: str) -> set[str]:
        payload = body(user(f"{text} get_weather and clock", tools=[spec(), spec("clock")]))
        return {data["toolUseId"] for kind, data in events(ask(paranoid, payload).content) if kind == "toolUseEvent"}

    assert len(ids("use")) == 2
    assert ids("use") == ids("use")
    assert not ids("use") & ids("call")


def test_a_call_without_arguments_has_no_input_at_all(paranoid: Simulator) -> None:
    payload = body(user("Use clock", tools=[spec("clock", {"type": "object", "properties": {}})]))
    uses = [data for kind, data in events(ask(paranoid, payload).content) if kind == "toolUseEvent"]
    assert [sorted(use) for use in uses] == [["name", "toolUseId"], ["name", "stop", "toolUseId"]]


def test_the_system_text_in_front_of_the_first_turn_calls_no_tool(paranoid: Simulator) -> None:
    payload = body(user("You have get_weather.\n\nHello", tools=[spec()]))
    assert text_of(ask(paranoid, payload).content) == "You said: Hello"


FIELDS = (
    {"thinking": {"type": "adaptive", "display": "summarized"}, "output_config": {"effort": "high"}},
    {"reasoning": {"effort": "low"}},
)


@pytest.mark.parametrize("fields", FIELDS)
def test_reasoning_asked_for_natively_comes_as_events_and_is_signed(paranoid: Simulator, fields: Any) -> None:
    payload = body(user(modelId="claude-opus-5"), additionalModelRequestFields=fields)
    reasons = [data for kind, data in events(ask(paranoid, payload).content) if kind == "reasoningContentEvent"]
    text = "".join(reason.get("text", "") for reason in reasons)
    signatures = [reason["signature"] for reason in reasons if "signature" in reason]
    assert text
    assert len(signatures) > 1
    assert "".join(signatures) == sign(text)
    replayed = {"reasoningText": {"text": text, "signature": "".join(signatures)}}
    again = body(history=[user(), assistant("Answer", reasoningContent=replayed)])
    assert ask(paranoid, again).status_code == 200


def test_reasoning_asked_for_by_tags_comes_inside_the_text(paranoid: Simulator) -> None:
    response = ask(paranoid, body(user("<thinking_mode>enabled</thinking_mode>\n\nHello")))
    assert text_of(response.content).startswith("<thinking>\n")
    assert text_of(response.content).endswith("</thinking>\n\nYou said: Hello")


def test_auto_is_resolved_to_a_real_model(paranoid: Simulator) -> None:
    frames = events(ask(paranoid, body(user(modelId="auto"))).content)
    assert dict(frames)["assistantResponseEvent"]["modelId"] == "claude-sonnet-4.5"


# --- scripts


def test_quirks_change_the_frames_and_not_the_meaning() -> None:
    script = '[[turn]]\nparts = [{ tool = "a", arguments = { p = 1 }, id = "t1" }]\nquirks = '
    for quirk, expected in (
        ("object_input", [{"name": "a", "toolUseId": "t1", "input": {}}]),
        ("bare_fragments", [{"name": "a", "toolUseId": "t1"}]),
        ("no_start", [{"name": "a", "toolUseId": "t1"}]),
    ):
        with running_simulator(script=parse_script(f'{script}["{quirk}"]')) as odd:
            frames = events(ask(odd, body()).content)
            uses = [data for kind, data in frames if kind == "toolUseEvent"]
            assert uses[:1] == expected
            assert uses[1] == (
                {"input": '{"p":1}'}
                if quirk == "bare_fragments"
                else {"name": "a", "toolUseId": "t1", "input": '{"p":1}'}
            )
            assert (frames[0][0] == "messageMetadataEvent") == (quirk != "no_start")


def test_a_stream_may_lack_its_end_events_or_wrap_them() -> None:
    text = '[[turn]]\ntext = "a"\nquirks = ["no_metadata", "no_usage"]\n[[turn]]\ntext = "a"\nquirks = ["nested"]'
    with running_simulator(script=parse_script(text)) as odd:
        assert [kind for kind, _ in events(ask(odd, body()).content)] == [
            "messageMetadataEvent",
            "assistantResponseEvent",
        ]
        assert all(list(data) == [kind] for kind, data in events(ask(odd, body()).content))


@pytest.mark.parametrize("before", ["", '{ text = "Hello" },'])
def test_an_exception_ends_the_stream_before_or_after_output(before: str) -> None:
    exception = '{ exception = "rate_limit", message = "slow down", reason = "R" }'
    script = f'[[turn]]\nparts = [{before} {exception}, {{ text = "never" }}]'
    with running_simulator(script=parse_script(script)) as broken:
        response = ask(broken, body())
        assert response.status_code == 200
        assert events(response.content)[-1] == ("ThrottlingException", {"message": "slow down", "reason": "R"})
        assert text_of(response.content) == ("Hello" if before else "")


def test_throttling_comes_with_its_retry_after_and_then_passes() -> None:
    script = (
        '[[turn]]\nstatus = [429, 500, 200]\nretry_after = 2\nreason = "INSUFFICIENT_MODEL_CAPACITY"\ntext = "at last"'
    )
    with running_simulator(script=parse_script(script)) as busy:
        first, second, third = (ask(busy, body()) for _ in range(3))
        assert (first.status_code, first.headers["retry-after"]) == (429, "2")
        assert first.headers["x-amzn-errortype"] == "ThrottlingException"
        assert first.json()["reason"] == "INSUFFICIENT_MODEL_CAPACITY"
        assert (second.status_code, second.headers["x-amzn-errortype"]) == (500, "InternalServerException")
        assert text_of(third.content) == "at last"


def test_a_refused_request_does_not_use_up_a_turn() -> None:
    with running_simulator(script=parse_script('[[turn]]\ntext = "once"')) as simulator:
        assert ask(simulator, body(user(origin="MOON"))).status_code == 400
        assert text_of(ask(simulator, body()).content) == "once"


def test_any_event_can_be_written_as_it_is() -> None:
    with running_simulator(
        script=parse_script('[[turn]]\nparts = [{ event = "codeEvent", data = { content = "x" } }]')
    ) as odd:
        assert ("codeEvent", {"content": "x"}) in events(ask(odd, body()).content)


@pytest.mark.parametrize("write", [1, 7, 1000])
def test_frames_may_be_cut_anywhere_into_writes(write: int) -> None:
    with running_simulator(script=parse_script(f'[[turn]]\ntext = "Grüße 😀"\nchunk = 2\nwrite = {write}')) as cut:
        assert text_of(ask(cut, body()).content) == "Grüße 😀"


# --- endpoints


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("ListAvailableModels", "models"),
        ("ListAvailableProfiles", "profiles"),
        ("GetUsageLimits", "usageBreakdownList"),
    ],
)
def test_the_catalogue_answers_in_every_form(paranoid: Simulator, name: str, key: str) -> None:
    path = name[0].lower() + name[1:] if name == "GetUsageLimits" else name
    get = CLIENT.get(f"{paranoid.url}/{path}", params={"origin": "AI_EDITOR"}, headers={"authorization": "Bearer t"})
    target = CLIENT.post(
        paranoid.url + "/", content=b"{}", headers={**TARGET, "x-amz-target": f"AmazonCodeWhispererService.{name}"}
    )
    assert get.json()[key]
    assert target.json()[key]
    assert CLIENT.get(f"{paranoid.url}/{path}").status_code == 401


def test_every_listed_model_is_accepted(paranoid: Simulator) -> None:
    listed = CLIENT.get(f"{paranoid.url}/ListAvailableModels", headers=REST).json()["models"]
    assert len(listed) > 10
    for model in listed:
        case = Case(rule=48, name="", body=body(user(modelId=model["modelId"])))
        assert first_refusal(case.request) is None


def test_the_management_spelling_of_profiles_is_known(paranoid: Simulator) -> None:
    response = CLIENT.post(f"{paranoid.url}/List-Available-Profiles", content=b"{}", headers=REST)
    assert response.json()["profiles"][0]["arn"].startswith("arn:aws:codewhisperer:")


def test_usage_counts_responses() -> None:
    with running_simulator() as simulator:
        ask(simulator, body())
        ask(simulator, body(user(origin="MOON")))
        document = CLIENT.get(f"{simulator.url}/getUsageLimits?resourceType=CREDIT", headers=REST).json()
        (breakdown,) = document["usageBreakdownList"]
        assert (breakdown["resourceType"], breakdown["currentUsage"]) == ("CREDIT", 1)


def test_web_search_answers_json_inside_json(paranoid: Simulator) -> None:
    call = {
        "id": "1",
        "jsonrpc": "2.0",
        "method": "tools/call",
        "params": {"name": "web_search", "arguments": {"query": "q"}},
    }
    document = CLIENT.post(f"{paranoid.url}/mcp", json=call, headers={"authorization": "Bearer t"}).json()
    assert document["id"] == "1"
    assert json.loads(document["result"]["content"][0]["text"])["query"] == "q"


# --- tokens


def refresh(simulator: Simulator, token: str) -> httpx.Response:
    return CLIENT.post(f"{simulator.url}/refreshToken", json={"refreshToken": token})


def test_an_expired_token_is_refused_until_it_is_refreshed() -> None:
    with running_simulator(script=parse_script('[tokens]\naccess = ["old"]\nrefresh = ["r1"]\nuses = 2')) as simulator:
        assert [ask(simulator, body(), authorization="Bearer old").status_code for _ in range(3)] == [200, 200, 403]
        grant = refresh(simulator, "r1").json()
        assert grant["profileArn"].startswith("arn:aws:codewhisperer:")
        assert ask(simulator, body(), authorization=f"Bearer {grant['accessToken']}").status_code == 200


def test_a_rotated_refresh_token_is_dead() -> None:
    with running_simulator(script=parse_script('[tokens]\nrefresh = ["r1"]')) as simulator:
        grant = refresh(simulator, "r1").json()
        assert refresh(simulator, "r1").status_code == 401
        assert refresh(simulator, grant["refreshToken"]).status_code == 200


def test_without_rotation_the_old_refresh_token_lives_and_no_new_one_is_given() -> None:
    with running_simulator(script=parse_script('[tokens]\nrefresh = ["r1"]\nrotate = false')) as simulator:
        assert "refreshToken" not in refresh(simulator, "r1").json()
        assert refresh(simulator, "r1").status_code == 200


def test_a_short_lifetime_ends() -> None:
    with running_simulator(script=parse_script("[tokens]\naccess = []\nlifetime = 0.0")) as simulator:
        token = refresh(simulator, "any").json()["accessToken"]
        response = ask(simulator, body(), authorization=f"Bearer {token}")
        assert (response.status_code, response.json()["message"]) == (
            403,
            "The bearer token included in the request is expired.",
        )


def test_oidc_refreshes_in_camel_case_and_names_a_dead_token() -> None:
    with running_simulator(script=parse_script('[tokens]\nrefresh = ["r1"]')) as simulator:
        fields = {"clientId": "c", "clientSecret": "s", "grantType": "refresh_token", "refreshToken": "r1"}
        assert CLIENT.post(f"{simulator.url}/token", json=fields).json()["expiresIn"] == 3600
        dead = CLIENT.post(f"{simulator.url}/token", json=fields)
        assert (dead.status_code, dead.json()["error"]) == (400, "invalid_grant")
        assert dead.headers["x-amzn-errortype"] == "InvalidGrantException"


def test_an_external_provider_refreshes_by_form() -> None:
    with running_simulator() as simulator:
        form = {"grant_type": "refresh_token", "client_id": "c", "refresh_token": "r"}
        document = CLIENT.post(f"{simulator.url}/token", data=form).json()
        assert ask(simulator, body(), authorization=f"Bearer {document['access_token']}").status_code == 200


def test_a_device_login_is_pending_before_it_is_granted() -> None:
    with running_simulator(script=parse_script("[tokens]\naccess = []\npending = 2")) as simulator:
        fields = {"clientName": "dragoman", "clientType": "public", "scopes": ["codewhisperer:conversations"]}
        client = CLIENT.post(f"{simulator.url}/client/register", json=fields).json()
        keys = {"clientId": client["clientId"], "clientSecret": client["clientSecret"]}
        start = {**keys, "startUrl": "https://view.awsapps.com/start"}
        device = CLIENT.post(f"{simulator.url}/device_authorization", json=start).json()
        poll = {**keys, "grantType": "urn:ietf:params:oauth:grant-type:device_code", "deviceCode": device["deviceCode"]}
        responses = [CLIENT.post(f"{simulator.url}/token", json=poll) for _ in range(4)]
        assert [response.json().get("error") for response in responses] == ["authorization_pending"] * 2 + [
            None,
            "invalid_grant",
        ]
        token = responses[2].json()["accessToken"]
        assert ask(simulator, body(), authorization=f"Bearer {token}").status_code == 200


@pytest.mark.parametrize("path", ["/refreshToken", "/token", "/client/register", "/device_authorization"])
@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'{"refreshToken":1}'])
def test_nonsense_at_the_token_endpoints_is_a_refusal(paranoid: Simulator, path: str, content: bytes) -> None:
    assert CLIENT.post(paranoid.url + path, content=content).status_code in (400, 401)


def test_both_protocols_ask_the_same_rules() -> None:
    target = HttpRequest("POST", "/", headers=tuple(TARGET.items()), body=jsonio.encode(call_and_results(tools=[])))
    found = first_refusal(target)
    assert found is not None
    assert found.rule == 14
