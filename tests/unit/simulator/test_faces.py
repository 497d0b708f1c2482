"""The other dialects' simulators, asked by the official clients: the same model and scripts in another language."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import openai
import pytest

from dragoman.simulator import Simulator, parse, running_simulator

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
ANTHROPIC_TOOL: Any = {"name": "get_weather", "description": "Tells the weather.", "input_schema": SCHEMA}
OPENAI_TOOL: Any = {"type": "function", "function": {"name": "get_weather", "description": "d", "parameters": SCHEMA}}
HELLO: Any = [{"role": "user", "content": "Good morning"}]
WEATHER: Any = [{"role": "user", "content": 'Call get_weather {"city": "Paris"}'}]


def claude(simulator: Simulator) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=simulator.url, api_key="key", max_retries=0, timeout=60)


def gpt(simulator: Simulator) -> openai.OpenAI:
    return openai.OpenAI(base_url=simulator.url + "/v1", api_key="key", max_retries=0, timeout=60)


@pytest.fixture(scope="module")
def claudes() -> Iterator[Simulator]:
    with running_simulator("anthropic") as running:
        yield running


@pytest.fixture(scope="module")
def gpts() -> Iterator[Simulator]:
    with running_simulator("openai") as running:
        yield running


# --- anthropic


def test_an_anthropic_message_whole_and_streamed_is_the_same(claudes: Simulator) -> None:
    before = claudes.total
    with claude(claudes) as client:
        whole = client.messages.create(model="m", max_tokens=99, messages=HELLO)
        with client.messages.stream(model="m", max_tokens=99, messages=HELLO) as stream:
            streamed = stream.get_final_message()
    assert claudes.total == before + 2  # no client tried twice
    assert [block.to_dict() for block in whole.content] == [{"type": "text", "text": "You said: Good morning"}]
    assert streamed.content[0].to_dict()["text"] == "You said: Good morning"
    assert (whole.stop_reason, whole.usage.input_tokens, whole.usage.output_tokens) == ("end_turn", 7, 6)
    assert (streamed.stop_reason, streamed.usage.input_tokens, streamed.usage.output_tokens) == ("end_turn", 7, 6)


def test_an_anthropic_tool_conversation_goes_round(claudes: Simulator) -> None:
    with claude(claudes) as client:
        with client.messages.stream(model="m", max_tokens=999, messages=WEATHER, tools=[ANTHROPIC_TOOL]) as stream:
            first = stream.get_final_message()
        call = first.content[-1]
        assert call.type == "tool_use"
        assert (call.name, call.input, first.stop_reason) == ("get_weather", {"city": "Paris"}, "tool_use")
        turns: Any = [
            *WEATHER,
            {"role": "assistant", "content": [block.to_dict() for block in first.content]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "21 degrees"}]},
        ]
        second = client.messages.create(model="m", max_tokens=999, messages=turns, tools=[ANTHROPIC_TOOL])
    assert second.content[0].to_dict()["text"] == "The tool answered: 21 degrees"


def test_anthropic_thinking_is_sealed_when_asked_for(claudes: Simulator) -> None:
    with claude(claudes) as client:
        thinking: Any = {"type": "enabled", "budget_tokens": 1024}
        answer = client.messages.create(model="m", max_tokens=2000, messages=HELLO, thinking=thinking)
    assert [block.type for block in answer.content] == ["thinking", "text"]
    assert answer.content[0].to_dict()["signature"]


def test_anthropic_tokens_are_counted_as_an_answer_reports_them(claudes: Simulator) -> None:
    with claude(claudes) as client:
        counted = client.messages.count_tokens(model="m", messages=HELLO).input_tokens
        assert counted == client.messages.create(model="m", max_tokens=9, messages=HELLO).usage.input_tokens


def test_an_anthropic_request_that_breaks_a_rule_is_refused_by_its_own_error(claudes: Simulator) -> None:
    orphan: Any = [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t9", "content": "x"}]}]
    with claude(claudes) as client, pytest.raises(anthropic.BadRequestError):
        client.messages.create(model="m", max_tokens=9, messages=orphan)
    with running_simulator("anthropic", profile="lenient") as lenient, claude(lenient) as client:
        assert client.messages.create(model="m", max_tokens=9, messages=orphan).type == "message"


# --- openai


def test_an_openai_completion_whole_and_streamed_is_the_same(gpts: Simulator) -> None:
    before = gpts.total
    with gpt(gpts) as client:
        whole = client.chat.completions.create(model="m", messages=HELLO)
        options: Any = {"include_usage": True}
        chunks = list(client.chat.completions.create(model="m", messages=HELLO, stream=True, stream_options=options))
    assert gpts.total == before + 2
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert whole.choices[0].message.content == text == "You said: Good morning"
    assert whole.choices[0].finish_reason == "stop"
    assert whole.usage is not None
    assert chunks[-1].usage is not None
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (7, 6)
    assert (chunks[-1].usage.prompt_tokens, chunks[-1].usage.completion_tokens) == (7, 6)


def test_an_openai_tool_conversation_goes_round(gpts: Simulator) -> None:
    with gpt(gpts) as client:
        first = client.chat.completions.create(model="m", messages=WEATHER, tools=[OPENAI_TOOL])
        message = first.choices[0].message
        assert message.tool_calls is not None
        (call,) = message.tool_calls
        assert call.type == "function"
        assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Paris"})
        assert first.choices[0].finish_reason == "tool_calls"
        turns: Any = [
            *WEATHER,
            message.to_dict(),
            {"role": "tool", "tool_call_id": call.id, "content": "21 degrees"},
        ]
        second = client.chat.completions.create(model="m", messages=turns, tools=[OPENAI_TOOL])
    assert second.choices[0].message.content == "The tool answered: 21 degrees"


def test_an_openai_client_that_wants_a_call_gets_one_and_one_that_wants_none_gets_none(gpts: Simulator) -> None:
    with gpt(gpts) as client:
        must = client.chat.completions.create(model="m", messages=HELLO, tools=[OPENAI_TOOL], tool_choice="required")
        none = client.chat.completions.create(model="m", messages=WEATHER, tools=[OPENAI_TOOL], tool_choice="none")
    assert must.choices[0].finish_reason == "tool_calls"
    assert none.choices[0].finish_reason == "stop"


def test_openai_choices_are_as_many_as_asked_for(gpts: Simulator) -> None:
    with gpt(gpts) as client:
        answer = client.chat.completions.create(model="m", messages=HELLO, n=2)
    assert [choice.message.content for choice in answer.choices] == ["You said: Good morning"] * 2


def test_openai_structured_output_fits_its_schema(gpts: Simulator) -> None:
    form: Any = {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA, "strict": True}}
    with gpt(gpts) as client:
        answer = client.chat.completions.create(model="m", messages=HELLO, response_format=form)
    assert json.loads(answer.choices[0].message.content or "") == {"city": "example city"}


# --- shared


@pytest.mark.parametrize("dialect", ["anthropic", "openai"])
def test_a_key_is_needed_and_a_script_may_name_it(dialect: str) -> None:
    with running_simulator(dialect, script=parse('[tokens]\naccess = ["right"]')) as simulator:
        for headers, status in (({}, 401), ({"x-api-key": "wrong"}, 401), ({"x-api-key": "right"}, 404)):
            assert httpx.post(f"{simulator.url}/nowhere", headers=headers).status_code == status
        assert httpx.get(f"{simulator.url}/v1/models", headers={"authorization": "Bearer right"}).status_code == 200


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"model":1}', b'{"model":"m","messages":3,"max_tokens":"x"}'])
@pytest.mark.parametrize(("dialect", "path"), [("anthropic", "/v1/messages"), ("openai", "/v1/chat/completions")])
def test_nonsense_is_a_refusal(dialect: str, path: str, content: bytes) -> None:
    with running_simulator(dialect) as simulator:
        headers = {"authorization": "Bearer k", "content-type": "application/json"}
        answer = httpx.post(simulator.url + path, content=content, headers=headers)
        assert answer.status_code == 400
        assert answer.json()["error"]["message"]


def test_statuses_come_in_their_sequence_with_retry_after() -> None:
    script = parse('[[turn]]\nstatus = [429, 529, 200]\nretry_after = 0.01\ntext = "at last"')
    with running_simulator("anthropic", script=script) as busy, claude(busy) as client:
        with pytest.raises(anthropic.RateLimitError) as throttled:
            client.messages.create(model="m", max_tokens=9, messages=HELLO)
        assert throttled.value.response.headers["retry-after"] == "0.01"
        with pytest.raises(anthropic.APIStatusError) as overloaded:
            client.messages.create(model="m", max_tokens=9, messages=HELLO)
        assert overloaded.value.status_code == 529
        answer = client.messages.create(model="m", max_tokens=9, messages=HELLO)
        assert answer.content[0].to_dict()["text"] == "at last"


def test_an_exception_after_output_is_the_dialects_own_error_in_the_stream() -> None:
    script = parse('[[turn]]\nparts = [{ text = "Hello" }, { exception = "overloaded", message = "later" }]')
    with (
        running_simulator("anthropic", script=script) as broken,
        claude(broken) as client,
        client.messages.stream(model="m", max_tokens=9, messages=HELLO) as stream,
        pytest.raises(anthropic.APIStatusError, match="later"),
    ):
        stream.until_done()


def test_an_exception_in_a_whole_reply_is_an_http_error() -> None:
    script = parse('[[turn]]\nparts = [{ text = "Hello" }, { exception = "overloaded", message = "later" }]')
    failure = pytest.raises(openai.APIStatusError, match="later")
    with running_simulator("openai", script=script) as broken, gpt(broken) as client, failure:
        client.chat.completions.create(model="m", messages=HELLO)


@pytest.mark.parametrize("at", ["byte = 40", "event = 2"])
def test_a_cut_stream_fails_in_the_clients_hands(at: str) -> None:
    script = parse(f'[[turn]]\ntext = "Hello, how are you?"\ncut = {{ {at}, how = "close" }}')
    failure = pytest.raises((httpx.RemoteProtocolError, openai.APIError))
    with running_simulator("openai", script=script) as cut, gpt(cut) as client, failure:
        list(client.chat.completions.create(model="m", messages=HELLO, stream=True))


def test_a_whole_reply_waits_as_a_stream_does() -> None:
    script = parse('[[turn]]\nparts = [{ wait = 0.2 }, { text = "Hello" }]')
    with running_simulator("openai", script=script) as slow, gpt(slow) as client:
        begun = time.monotonic()
        answer = client.chat.completions.create(model="m", messages=HELLO)
    assert answer.choices[0].message.content == "Hello"
    assert time.monotonic() - begun >= 0.2


def test_a_raw_frame_is_written_between_the_others() -> None:
    script = parse('[[turn]]\nparts = [{ event = "ping", data = { type = "ping" } }, { text = "Hello" }]')
    with running_simulator("anthropic", script=script) as odd:
        asked = {"model": "m", "max_tokens": 9, "messages": HELLO, "stream": True}
        headers = {"x-api-key": "k", "anthropic-version": "2023-06-01"}
        text = httpx.post(f"{odd.url}/v1/messages", json=asked, headers=headers).text
        assert 'event: ping\ndata: {"type":"ping"}\n\n' in text
