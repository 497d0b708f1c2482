"""The tool loop: every call gets exactly one result, and what cannot be used goes no further."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.agent import (
    AgentRunner,
    BedrockClient,
    DialectClient,
    HttpSender,
    ReasoningReceived,
    RunEnded,
    RunEvent,
    RunResult,
    StepEnded,
    StepResult,
    StepStarted,
    TextReceived,
    ToolEnded,
    ToolStarted,
)
from dragoman.errors import Fault, LocalMisuse
from dragoman.model.blocks import Reasoning, Signature, Text, ToolCall, ToolResult
from dragoman.model.conversation import Conversation, Message, Stop, StopReason, Usage
from dragoman.model.events import (
    FINISHED,
    ArgumentsDelta,
    BlockEnded,
    BlockStarted,
    Event,
    Events,
    Failed,
    ReasoningDelta,
    SignatureAdded,
    Started,
    Stopped,
    TextDelta,
    UsageReported,
)
from dragoman.simulator import parse_script, running_simulator
from dragoman.wire.http import HttpRequest
from tests.unit.dialects.bedrock_wire import CLAUDE


class Scripted:
    """A client that gives one reply after the other, and keeps what it was asked."""

    def __init__(self, *events: list[Event]) -> None:
        self._replies = list(events)
        self.requests: list[Conversation] = []

    def ask(self, conversation: Conversation, timeout: float | None = None) -> Iterator[Events]:
        self.requests.append(conversation)
        for event in self._replies.pop(0):
            yield (event,)


def reply(*items: Any, why: StopReason | None = None) -> list[Event]:
    """A reply: texts, and calls as (id, name, arguments)."""
    events: list[Event] = [Started("", "m")]
    for key, item in enumerate(items):
        if isinstance(item, str):
            events += [BlockStarted(key, Text("")), TextDelta(key, item), BlockEnded(key)]
        else:
            id_, name, arguments = item
            events += [BlockStarted(key, ToolCall(id_, name)), ArgumentsDelta(key, arguments), BlockEnded(key)]
    called = any(not isinstance(item, str) for item in items)
    return [
        *events,
        UsageReported(Usage(10, 5)),
        Stopped(Stop(why or (StopReason.TOOL if called else StopReason.END))),
        FINISHED,
    ]


def get(city: str) -> str:
    """Return the weather."""
    return f"{city} is sunny"


def results(conversation: Conversation) -> list[ToolResult]:
    return [block for message in conversation.messages for block in message.blocks if isinstance(block, ToolResult)]


def calls(conversation: Conversation) -> list[ToolCall]:
    return [block for message in conversation.messages for block in message.blocks if isinstance(block, ToolCall)]


# --- step: raw responses, as in document 004 of docs/mission.md


def raw(*blocks: Any) -> Any:
    return {"output": {"message": {"role": "assistant", "content": list(blocks)}}, "stopReason": "end_turn"}


def test_a_malformed_response_is_an_error_result_and_one_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    called: list[str] = []

    def query_tasks() -> str:
        called.append("x")
        return ""

    runner = AgentRunner(BedrockClient(), [query_tasks])
    bad = raw({"text": "private words"}, {"type": "tool_use", "toolUseId": None, "name": "query_tasks"})
    with caplog.at_level(logging.DEBUG):
        result = runner.step(bad)
    assert result == StepResult(
        status="error",
        message="Received invalid response from AI: Bedrock response missing required 'toolUseId' field (field: toolUseId)",
    )
    assert called == []
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert (
        record.getMessage()
        == "Invalid Bedrock response: Bedrock response missing required 'toolUseId' field (field: toolUseId)"
    )
    assert "private words" not in caplog.text


@pytest.mark.parametrize("bad", [None, {}, [], {"output": {"message": {"content": 3}}}, raw({"text": 3})])
def test_a_response_of_another_shape_is_an_error_result(bad: Any) -> None:
    assert AgentRunner(BedrockClient()).step(bad).status == "error"


def test_an_empty_id_never_travels() -> None:
    good, bad = (
        {"toolUse": {"toolUseId": "a", "name": "get", "input": {"city": "x"}}},
        {"toolUse": {"toolUseId": "", "name": "get"}},
    )
    result = AgentRunner(BedrockClient(), [get]).step(raw(good, bad))
    assert (result.status, result.calls, result.answers, result.tool_results) == ("error", (), (), [])


def test_a_step_runs_every_tool_that_is_called() -> None:
    blocks = [
        {"text": "I look."},
        {"toolUse": {"toolUseId": "a", "name": "get", "input": {"city": "Oslo"}}},
        {"type": "tool_use", "toolUseId": "b", "name": "nosuch", "input": "text"},
    ]
    result = AgentRunner(BedrockClient(), [get]).step(raw(*blocks))
    assert (result.status, result.message) == ("tool_use", "I look.")
    assert [call["input"] for call in result.calls] == [{"city": "Oslo"}, {"raw_arguments": "text"}]
    assert result.tool_results == [
        {"toolResult": {"toolUseId": "a", "content": [{"text": "Oslo is sunny"}], "status": "success"}},
        {
            "toolResult": {
                "toolUseId": "b",
                "content": [{"text": "There is no tool named 'nosuch'. The tools are: get."}],
                "status": "error",
            }
        },
    ]


def test_a_step_without_calls_is_the_text() -> None:
    assert AgentRunner(BedrockClient()).step(raw({"text": "a"}, {"text": "b"})) == StepResult(
        status="done", message="ab"
    )


# --- run


def test_a_question_is_answered_with_the_help_of_tools() -> None:
    client = Scripted(
        reply("I look.", ("a", "get", '{"city":"Oslo"}'), ("b", "get", '{"city":"Rome"}')), reply("Sunny.")
    )
    result = AgentRunner(client, [get], model="m", system="Be kind.").run("Weather?")
    assert (result.status, result.text, result.error) == ("done", "Sunny.", "")
    assert [step.status for step in result.steps] == ["tool_use", "done"]
    assert result.usage == Usage(20, 10)
    assert [message.role for message in client.requests[1].messages] == ["user", "assistant", "user"]
    assert results(client.requests[1]) == [
        ToolResult("a", (Text("Oslo is sunny"),)),
        ToolResult("b", (Text("Rome is sunny"),)),
    ]
    assert client.requests[0].system == (Text("Be kind."),)
    assert [tool.name for tool in client.requests[0].tools] == ["get"]  # type: ignore[union-attr]
    assert result.conversation.messages[-1] == Message("assistant", (Text("Sunny."),))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "missing a required argument"),
        ("[1]", "expected a JSON object, got '[1]'"),
        ('"{\\"city\\": \\"Oslo\\"}"', "Oslo is sunny"),
        ("no", "expected a JSON object, got 'no'"),
    ],
)
def test_arguments_that_are_no_object_follow_the_rule(arguments: str, message: str) -> None:
    client = Scripted(reply(("a", "get", arguments)), reply("ok"))
    AgentRunner(client, [get], model="m").run("x")
    (result,) = results(client.requests[1])
    assert message in result.content[0].text  # type: ignore[union-attr]


def test_a_tool_that_fails_is_an_error_result_and_the_run_goes_on() -> None:
    def fail() -> None:
        raise RuntimeError("no luck")

    client = Scripted(reply(("a", "fail", "{}")), reply("Sorry."))
    result = AgentRunner(client, [fail], model="m").run("x")
    assert results(client.requests[1]) == [ToolResult("a", (Text("RuntimeError: no luck"),), is_error=True)]
    assert result.text == "Sorry."


def test_a_tool_that_ends_its_thread_is_answered_too() -> None:
    def leave() -> None:
        raise SystemExit

    client = Scripted(reply(("a", "leave", "{}")), reply("ok"))
    AgentRunner(client, [leave], model="m").run("x")
    assert results(client.requests[1])[0].is_error


def test_calls_run_side_by_side_and_are_answered_in_their_order() -> None:
    barrier = threading.Barrier(3, timeout=60)

    def meet(n: int) -> int:
        barrier.wait()
        time.sleep(0.02 * (3 - n))
        return n

    client = Scripted(reply(*[(f"c{n}", "meet", f'{{"n":{n}}}') for n in range(3)]), reply("ok"))
    AgentRunner(client, [meet], model="m").run("x")
    assert [(each.call_id, each.content) for each in results(client.requests[1])] == [
        (f"c{n}", (Text(str(n)),)) for n in range(3)
    ]


def test_the_limit_of_steps_ends_a_run_with_every_call_answered() -> None:
    client = Scripted(*[reply((f"c{n}", "get", '{"city":"x"}')) for n in range(3)])
    result = AgentRunner(client, [get], model="m", max_steps=3).run("x")
    assert (result.status, len(result.steps)) == ("steps", 3)
    assert "3 steps" in result.error
    assert [each.call_id for each in results(result.conversation)] == ["c0", "c1", "c2"]


def test_the_time_limit_ends_a_run_with_every_call_answered() -> None:
    release = threading.Event()

    def wait() -> None:
        release.wait(60)

    client = Scripted(reply(("a", "wait", "{}"), ("b", "get", '{"city":"x"}')))
    result = AgentRunner(client, [wait, get], model="m", time_limit=0.5).run("x")
    assert not release.is_set()  # it did not wait for the tool
    release.set()
    assert result.status == "time"
    late, quick = results(result.conversation)
    assert (late.is_error, quick.is_error) == (True, False)
    assert "time limit" in late.content[0].text  # type: ignore[union-attr]


def test_a_run_can_be_cancelled_while_tools_run() -> None:
    release = threading.Event()

    def wait() -> None:
        runner.cancel()
        release.wait(60)

    runner = AgentRunner(Scripted(reply(("a", "wait", "{}"))), [wait], model="m")
    result = runner.run("x")
    release.set()
    assert result.status == "cancelled"
    assert [each.is_error for each in results(result.conversation)] == [True]


def test_a_run_can_be_cancelled_while_the_model_speaks() -> None:
    def watch(event: RunEvent) -> None:
        if isinstance(event, TextReceived):
            runner.cancel()

    client = Scripted(reply("a", "b", "c"))
    runner = AgentRunner(client, model="m", watch=watch)
    assert runner.run("x").status == "cancelled"


def test_a_reply_that_the_limit_cut_says_so() -> None:
    result = AgentRunner(Scripted(reply("and so", why=StopReason.LENGTH)), model="m").run("x")
    assert (result.status, result.text) == ("length", "and so")
    assert result.error


def test_a_pause_is_gone_on_with() -> None:
    client = Scripted(reply("one", why=StopReason.PAUSE), reply("two"))
    assert AgentRunner(client, model="m").run("x").text == "two"
    assert client.requests[1].messages[-1].role == "assistant"


def test_reasoning_is_sent_back_with_its_signature() -> None:
    signature = Signature("bedrock", "sig")
    thought: list[Event] = [
        BlockStarted(9, Reasoning("", "bedrock")),
        ReasoningDelta(9, "hm"),
        SignatureAdded(9, signature),
        BlockEnded(9),
    ]
    first = reply(("a", "get", '{"city":"x"}'))
    client = Scripted([first[0], *thought, *first[1:]], reply("ok"))
    AgentRunner(client, [get], model="m").run("x")
    assert client.requests[1].messages[1].blocks[0] == Reasoning("hm", "bedrock", signature)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (Fault("rate_limit", "slow down", 429, code="ThrottlingException"), "The AI could not answer: slow down"),
        (
            Fault("server", "toolUseId: expected a string"),
            "Received invalid response from AI: toolUseId: expected a string",
        ),
    ],
)
def test_a_failed_reply_ends_the_run(fault: Fault, words: str, caplog: pytest.LogCaptureFixture) -> None:
    result = AgentRunner(Scripted([Started("", "m"), Failed(fault)]), model="m").run("x")
    assert (result.status, result.error) == ("error", words)
    assert result.steps == (StepResult(status="error", message=words),)
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


def test_a_mistake_of_ours_is_raised() -> None:
    with pytest.raises(LocalMisuse, match="no model"):
        AgentRunner(DialectClient("anthropic", HttpSender("http://127.0.0.1:1"))).run("x")


def test_a_watcher_sees_everything_in_its_order() -> None:
    seen: list[RunEvent] = []
    client = Scripted(reply("I look.", ("a", "get", '{"city":"x"}')), reply("ok"))
    result = AgentRunner(client, [get], model="m", watch=seen.append).run("x")
    kinds = [type(event) for event in seen]
    assert kinds == [
        StepStarted,
        TextReceived,
        ToolStarted,
        ToolEnded,
        StepEnded,
        StepStarted,
        TextReceived,
        StepEnded,
        RunEnded,
    ]
    assert seen[2] == ToolStarted("a", "get", '{"city":"x"}')
    assert seen[-1] == RunEnded(result)


def test_a_run_goes_on_from_an_earlier_one() -> None:
    client = Scripted(reply("one"), reply("two"))
    runner = AgentRunner(client, [get], model="m")
    earlier = runner.run("first").conversation
    more = runner.run((*earlier.messages, Message("user", (Text("second"),))))
    assert [message.role for message in more.conversation.messages] == ["user", "assistant", "user", "assistant"]


@given(ids=st.lists(st.text("ab", min_size=1, max_size=3), max_size=5, unique=True), fails=st.sets(st.integers(0, 4)))
@settings(max_examples=40)
def test_every_call_has_exactly_one_result(ids: list[str], fails: set[int]) -> None:
    def maybe(n: int) -> int:
        if n in fails:
            raise ValueError(n)
        return n

    named = [(id_, "maybe" if n % 2 else "unknown", f'{{"n":{n}}}') for n, id_ in enumerate(ids)]
    result = AgentRunner(Scripted(reply(*named), reply("ok")), [maybe], model="m").run("x")
    assert (
        [each.call_id for each in results(result.conversation)]
        == [call.id for call in calls(result.conversation)]
        == ids
    )


# --- over the wire


def signed(request: HttpRequest) -> HttpRequest:
    return HttpRequest(
        request.method, request.path, request.query, (*request.headers, ("authorization", "Bearer x")), request.body
    )


def run_against(dialect: str, stream: bool, script: str = "", **more: Any) -> tuple[RunResult, int]:
    with running_simulator(dialect, script=parse_script(script) if script else None) as service:
        client: Any
        if dialect == "bedrock":
            client = BedrockClient(CLAUDE, endpoint_url=service.url, region="eu-central-1", sign=signed)
        else:
            client = DialectClient(dialect, HttpSender(service.url), "claude-x", signed)
        result = AgentRunner(client, [get], stream=stream, **more).run('Call get {"city": "Oslo"}')
        return result, service.total


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("dialect", ["bedrock", "anthropic", "openai", "bedrock.invoke"])
def test_the_same_runner_runs_through_any_dialect(dialect: str, stream: bool) -> None:
    result, requests = run_against(dialect, stream)
    assert (result.status, result.text) == ("done", "The tool answered: Oslo is sunny")
    assert requests == 2
    assert len(results(result.conversation)) == len(calls(result.conversation)) == 1


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (
            '[[turn]]\nstatus = [429]\ntype = "ThrottlingException"\nmessage = "slow down"',
            "The AI could not answer: slow down",
        ),
        (
            '[[turn]]\nparts = [{ text = "a" }, { exception = "ThrottlingException", message = "slow down" }]',
            "slow down",
        ),
        (
            '[[turn]]\ntext = "Hello, how are you?"\ncut = { byte = 300, how = "close" }',
            "in the middle of its response",
        ),
        ('[[turn]]\ntext = "Hello, how are you?"\ncut = { byte = 300, how = "end" }', "ended inside a message"),
        (
            '[[turn]]\nparts = [{ event = "contentBlockStart", data = { contentBlockIndex = 0, start = { toolUse = { name = "get" } } } }]',
            "toolUseId",
        ),
    ],
)
def test_trouble_on_the_wire_is_a_clear_sentence(script: str, words: str) -> None:
    result, requests = run_against("bedrock", True, script)
    assert result.status == "error"
    assert words in result.error
    assert requests == 1
    assert calls(result.conversation) == []


def test_a_refused_connection_is_a_clear_sentence() -> None:
    client = DialectClient("anthropic", HttpSender("http://127.0.0.1:1"), "m")
    result = AgentRunner(client).run("x")
    assert result.status == "error"
    assert "could not connect to 127.0.0.1:1" in result.error


def test_a_silent_upstream_is_given_up_in_time() -> None:
    result, _ = run_against("bedrock", True, "[[turn]]\nparts = [{ wait = 60.0 }, { text = 'late' }]", time_limit=0.3)
    assert result.status in ("error", "time")


@pytest.mark.parametrize("url", ["ftp://x", "x", ""])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(LocalMisuse):
        HttpSender(url)


def test_thinking_is_shown() -> None:
    seen: list[RunEvent] = []
    thought: list[Event] = [BlockStarted(9, Reasoning("", "x")), ReasoningDelta(9, "hm"), BlockEnded(9)]
    first = reply("ok")
    AgentRunner(Scripted([first[0], *thought, *first[1:]]), model="m", watch=seen.append).run("x")
    assert ReasoningReceived("hm") in seen


# --- ids of raw responses


@pytest.mark.parametrize(
    "ids",
    [
        ["call one"],
        ["call|fc_1"],
        ["ключ"],
        ["x" * 65],
        ["x" * 90 + "a", "x" * 90 + "b"],
        ["same", "same"],
        ["same", "other", "same", "same"],
        ["x|y", "x|y"],
        ["a\ud800"],
    ],
)
def test_a_step_mends_ids_as_a_run_does(ids: list[str]) -> None:
    """Illegal, over-long and duplicate ids: calls, answers and the assistant message carry the same legal ones."""
    blocks = [{"toolUse": {"toolUseId": each, "name": "get", "input": {"city": each}}} for each in ids]
    result = AgentRunner(BedrockClient(), [get]).step(raw({"text": "I look."}, *blocks))
    aliases = [call["id"] for call in result.calls]
    assert len(set(aliases)) == len(ids)
    assert all(re.fullmatch(r"[a-zA-Z0-9_.:-]{1,64}", each) for each in aliases)
    assert [each["id"] for each in result.answers] == aliases
    assert [each["toolResult"]["toolUseId"] for each in result.tool_results] == aliases
    assert result.assistant_message == {
        "role": "assistant",
        "content": [
            {"text": "I look."},
            *(
                {"toolUse": {"toolUseId": new, "name": "get", "input": {"city": old}}}
                for new, old in zip(aliases, ids, strict=True)
            ),
        ],
    }
    again = AgentRunner(BedrockClient(), [get]).step(raw(*blocks))
    assert [call["id"] for call in again.calls] == aliases


def test_legal_ids_stay() -> None:
    block = {"type": "tool_use", "toolUseId": "a.b:c-1", "name": "get", "input": {"city": "Oslo"}}
    result = AgentRunner(BedrockClient(), [get]).step(raw(block))
    assert [call["id"] for call in result.calls] == ["a.b:c-1"]
    true = {"toolUse": {"toolUseId": "a.b:c-1", "name": "get", "input": {"city": "Oslo"}}}
    assert result.assistant_message["content"] == [true]
