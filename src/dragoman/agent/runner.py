"""The tool loop: ask the model, run the tools that it calls, tell it what they answered, until it is done.

It runs on canonical values, so any dialect's upstream can be asked. No call is lost: each gets exactly one answer,
be it the tool's, its error, or that it was out of time. An answer that cannot be used ends the run; nothing of it,
least of all an empty id, goes any further.
"""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from threading import Event, Semaphore, Thread
from typing import Any, TypeAlias

from msgspec import Struct, structs

from dragoman.agent.client import BedrockClient, Client, arguments_object, content_of, replace_calls
from dragoman.agent.tools import Tool, Toolbox
from dragoman.agent.types import (
    Answered,
    Asked,
    BedrockResponseError,
    Called,
    Ended,
    RunResult,
    Said,
    Stepped,
    StepResult,
    Thought,
    ToolAnswer,
    ToolUseBlock,
    Watched,
    with_valid_ids,
)
from dragoman.errors import DragomanError, TransportError, UpstreamFault, UpstreamViolation
from dragoman.model.assemble import assemble_reply
from dragoman.model.blocks import Media, Text, ToolCall, ToolResult
from dragoman.model.conversation import Conversation, Message, Reply, StopReason, Usage
from dragoman.model.events import Event as ModelEvent
from dragoman.model.events import Events, ReasoningDelta, TextDelta
from dragoman.wire import jsonio

logger = logging.getLogger(__name__)

MAX_STEPS = 20


class Interrupted(Exception):
    """The run was stopped from outside, or by its time limit."""


class AgentRunner:
    """Runs conversations with tools.

    `client` is what is asked (default: Bedrock), `tools` are Python functions. A run ends after `max_steps` answers or
    `time_limit` seconds at the latest; `watch` sees everything as it happens, in the thread that runs.
    """

    def __init__(
        self,
        client: Client | BedrockClient | None = None,
        tools: Iterable[Callable[..., Any] | Tool] = (),
        *,
        model: str = "",
        system: str = "",
        stream: bool = True,
        max_steps: int = MAX_STEPS,
        time_limit: float | None = None,
        watch: Callable[[Watched], None] | None = None,
    ) -> None:
        self._client = BedrockClient() if client is None else client
        self._tools = Toolbox(tools)
        self._max_steps = max_steps
        self._time_limit = time_limit
        self._watch = watch or (lambda _: None)
        self._cancelled = Event()
        self._opening = Conversation(
            model,
            (),
            system=(Text(system),) if system else (),
            tools=self._tools.specs(),
            stream=stream,
        )

    def cancel(self) -> None:
        """Stop the run, from any thread. Calls under way are answered as cancelled."""
        self._cancelled.set()

    # --- raw responses of Converse

    def step(self, response: Mapping[str, Any]) -> StepResult:
        """Deal with one raw response of Converse: run the tools that it calls. Never raises for what it holds."""
        return self._process_response(response)

    def _process_response(self, response: Mapping[str, Any]) -> StepResult:
        client = self._client if isinstance(self._client, BedrockClient) else BedrockClient()
        try:
            text = client.text_of(response)
            calls = with_valid_ids(client.parse_tool_uses(response))
        except BedrockResponseError as error:
            return _refused(error, "Invalid Bedrock response")
        result = _step_result(text, calls, self._answers(calls, None))
        if not calls:
            return result
        return structs.replace(result, content=tuple(replace_calls(content_of(response), calls)))

    # --- runs

    def run(self, question: str | Sequence[Message] | Conversation) -> RunResult:
        """Run until the model is done, or a limit is reached. Never raises for what an upstream or a tool does."""
        self._cancelled.clear()
        run = _Run(self._begun(question), None if self._time_limit is None else time.monotonic() + self._time_limit)
        result = self._loop(run)
        self._watch(Ended(result))
        return result

    def _begun(self, question: str | Sequence[Message] | Conversation) -> Conversation:
        if isinstance(question, Conversation):
            return structs.replace(question, tools=question.tools or self._tools.specs())
        messages = (Message("user", (Text(question),)),) if isinstance(question, str) else tuple(question)
        return structs.replace(self._opening, messages=messages)

    def _loop(self, run: _Run) -> RunResult:
        for number in range(1, self._max_steps + 1):
            self._watch(Asked(number))
            try:
                reply = self._asked(run)
            except Interrupted as reason:
                return run.ended("cancelled" if self._cancelled.is_set() else "time", str(reason))
            except (UpstreamFault, UpstreamViolation, TransportError) as error:
                result = _refused(error, "The model's answer cannot be used")
                return run.ended("error", result.message, self._stepped(number, result))
            result = self._dealt_with(run, reply)
            run.steps.append(self._stepped(number, result))
            why = reply.choices[0].stop.reason
            if result.status == "done" and why is not StopReason.PAUSE:
                cut = why in (StopReason.LENGTH, StopReason.CONTEXT)
                return run.ended("length", "the answer was cut at the limit of tokens") if cut else run.ended("done")
        return run.ended("steps", f"the run ended after {self._max_steps} steps, before the model was done")

    def _stepped(self, number: int, result: StepResult) -> StepResult:
        self._watch(Stepped(number, result))
        return result

    def _asked(self, run: _Run) -> Reply:
        events: list[ModelEvent] = []
        self._demand_time(run)
        with closing(self._told(run)) as groups:
            for group in groups:
                events.extend(group)
                self._demand_time(run)
        reply = assemble_reply(events)
        if not reply.choices:
            told = {"events": [type(event).__name__ for event in events]}
            raise BedrockResponseError("The model gave no answer", told)
        return reply

    def _told(self, run: _Run) -> Generator[Events, None, None]:
        """The answer as it comes, shown to the watcher."""
        for group in self._client.ask(run.conversation, run.left()):
            for event in group:
                if isinstance(event, TextDelta) and event.text:
                    self._watch(Said(event.text))
                elif isinstance(event, ReasoningDelta) and event.text:
                    self._watch(Thought(event.text))
            yield group

    def _demand_time(self, run: _Run) -> None:
        if self._cancelled.is_set():
            raise Interrupted("the run was cancelled")
        if run.late():
            raise Interrupted(f"the run took longer than {self._time_limit:g} seconds")

    def _dealt_with(self, run: _Run, reply: Reply) -> StepResult:
        """Keep the answer, and answer its calls in the turn after it."""
        blocks = reply.choices[0].blocks
        calls = [
            ToolUseBlock(id=block.id, name=block.name, input=arguments_object(block.arguments))
            for block in blocks
            if isinstance(block, ToolCall)
        ]
        run.add(reply)
        results = self._answers(calls, run.deadline)
        if results:
            run.say(Message("user", tuple(ToolResult(each.id, each.content, each.is_error) for each in results)))
        text = "".join(block.text for block in blocks if isinstance(block, Text))
        return _step_result(text, calls, results)

    def _answers(self, calls: Sequence[ToolUseBlock], deadline: float | None) -> list[CallOutcome]:
        """One answer for each call, in their order."""
        for call in calls:
            self._watch(Called(call["id"], call["name"], jsonio.encode(call["input"]).decode()))
        outcomes = run_calls(calls, self._tools.call, deadline, self._cancelled)
        for outcome in outcomes:
            self._watch(Answered(outcome.id, outcome.name, outcome.text, outcome.is_error, outcome.seconds))
        return outcomes


class _Run:
    """The state of one run."""

    def __init__(self, conversation: Conversation, deadline: float | None) -> None:
        self.conversation = conversation
        self.deadline = deadline
        self.steps: list[StepResult] = []
        self._usage = Usage()
        self._text = ""

    def late(self) -> bool:
        return self.deadline is not None and time.monotonic() >= self.deadline

    def left(self) -> float | None:
        return None if self.deadline is None else max(self.deadline - time.monotonic(), 0.001)

    def add(self, reply: Reply) -> None:
        blocks = reply.choices[0].blocks
        self._text = "".join(block.text for block in blocks if isinstance(block, Text))
        self._usage = _sum(self._usage, reply.usage or Usage())
        if blocks:
            self.say(Message("assistant", blocks))

    def say(self, message: Message) -> None:
        self.conversation = structs.replace(self.conversation, messages=(*self.conversation.messages, message))

    def ended(self, status: Any, error: str = "", last: StepResult | None = None) -> RunResult:
        steps = (*self.steps, last) if last is not None else tuple(self.steps)
        return RunResult(
            status=status,
            text=self._text,
            steps=steps,
            conversation=self.conversation,
            usage=self._usage,
            error=error,
        )


def _sum(one: Usage, other: Usage) -> Usage:
    names = ("input", "output", "cache_read", "cache_write", "reasoning")
    counts = {name: getattr(one, name) + getattr(other, name) for name in names}
    return Usage(**counts, estimated=one.estimated or other.estimated)


def _step_result(text: str, calls: Sequence[ToolUseBlock], outcomes: Sequence[CallOutcome]) -> StepResult:
    answers = tuple(
        ToolAnswer(id=each.id, name=each.name, content=each.text, is_error=each.is_error) for each in outcomes
    )
    return StepResult(status="tool_use" if calls else "done", message=text, calls=tuple(calls), answers=answers)


def _refused(error: DragomanError, what: str) -> StepResult:
    """An answer that cannot be used: told to the user and to the log, without what was in it."""
    logger.error("%s: %s", what, error)
    fault = error.fault
    # A violation in a stream comes as the stream's failure; it has no name of the service's own.
    invalid = isinstance(error, UpstreamViolation) or (
        fault.kind == "server" and fault.status == 502 and not fault.code
    )
    told = f"Received invalid response from AI: {error}" if invalid else f"The AI could not answer: {error}"
    return StepResult(status="error", message=told)


# --- running calls side by side, each in a thread of its own, and answering all of them


MOST_AT_ONCE = 8
_GLANCE = 0.05  # seconds between two looks at the clock and at whether the run was cancelled

Content: TypeAlias = tuple[Text | Media, ...]
Work: TypeAlias = Callable[[str, Mapping[str, Any]], tuple[Content, bool]]


_ABANDONED: Content = (Text("(the tool ended without an answer)"),)


class CallOutcome(Struct, frozen=True):
    """The one answer to a call."""

    id: str
    name: str
    content: Content
    is_error: bool
    seconds: float

    @property
    def text(self) -> str:
        return "\n".join(part.text if isinstance(part, Text) else f"[{part.kind}]" for part in self.content)


def run_calls(calls: Sequence[ToolUseBlock], work: Work, deadline: float | None, cancelled: Event) -> list[CallOutcome]:
    """Run all calls, several at a time; give their outcomes in the calls' order, one for each, in time.

    A thread that is not done in time cannot be stopped, only abandoned: its outcome is an error, and what it
    returns later is ignored.
    """
    done: queue.SimpleQueue[tuple[int, CallOutcome]] = queue.SimpleQueue()
    gate, begun = Semaphore(MOST_AT_ONCE), time.monotonic()
    for number, call in enumerate(calls):
        Thread(target=_run, args=(number, call, work, done, gate), daemon=True, name=f"tool {call['name']}").start()
    outcomes: dict[int, CallOutcome] = {}
    while len(outcomes) < len(calls):
        try:
            number, outcome = done.get(timeout=_wait(deadline))
            outcomes[number] = outcome
        except queue.Empty:
            if _reason(deadline, cancelled):
                break
    seconds = time.monotonic() - begun
    reason = _reason(deadline, cancelled)
    return [
        outcomes.get(number) or CallOutcome(call["id"], call["name"], (Text(reason),), True, seconds)
        for number, call in enumerate(calls)
    ]


def _run(
    number: int, call: ToolUseBlock, work: Work, done: queue.SimpleQueue[tuple[int, CallOutcome]], gate: Semaphore
) -> None:
    with gate:
        begun = time.monotonic()
        content, is_error = _ABANDONED, True
        try:
            content, is_error = work(call["name"], call["input"])
        finally:  # even a tool that ends its thread is answered
            done.put((number, CallOutcome(call["id"], call["name"], content, is_error, time.monotonic() - begun)))


def _wait(deadline: float | None) -> float:
    return _GLANCE if deadline is None else max(min(_GLANCE, deadline - time.monotonic()), 0.0)


def _reason(deadline: float | None, cancelled: Event) -> str:
    if cancelled.is_set():
        return "(cancelled before it was done)"
    if deadline is not None and time.monotonic() >= deadline:
        return "(out of time before it was done)"
    return ""
