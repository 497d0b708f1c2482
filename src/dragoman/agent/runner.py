"""The tool loop: send the conversation to the model, run the tools that it calls, send their results, until it is done.

It works on canonical values, so it can use an upstream of any dialect. Each call gets exactly one result: the tool's,
its error, or a timeout. A reply that is not valid ends the run and is not added to the conversation. Tools run in
threads of their own; `watch` is called in the thread of the run.
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
    BedrockResponseError,
    ReasoningReceived,
    RunEnded,
    RunEvent,
    RunResult,
    StepEnded,
    StepResult,
    StepStarted,
    TextReceived,
    ToolAnswer,
    ToolEnded,
    ToolStarted,
    ToolUseBlock,
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

    `client` sends the requests (default: Bedrock), `tools` are Python functions. A run ends after at most `max_steps`
    replies or `time_limit` seconds. `watch` receives each event of the run as it happens, in the thread of the run.
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
        watch: Callable[[RunEvent], None] | None = None,
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
        """Stop the run, from any thread. Calls that are running get the result "cancelled"."""
        self._cancelled.set()

    # --- raw responses of Converse

    def step(self, response: Mapping[str, Any]) -> StepResult:
        """Run the tools that a raw response of Converse calls. An invalid response gives the status `error`."""
        return self._process_response(response)

    def _process_response(self, response: Mapping[str, Any]) -> StepResult:
        client = self._client if isinstance(self._client, BedrockClient) else BedrockClient()
        try:
            text = client.text_of(response)
            calls = with_valid_ids(client.parse_tool_uses(response))
        except BedrockResponseError as error:
            return _failed_step(error, "Invalid Bedrock response")
        result = _step_result(text, calls, self._run_tools(calls, None))
        if not calls:
            return result
        return structs.replace(result, content=tuple(replace_calls(content_of(response), calls)))

    # --- runs

    def run(self, question: str | Sequence[Message] | Conversation) -> RunResult:
        """Run until the model is done, or a limit is reached.

        Failures of the upstream and of tools do not raise: they are part of the result.
        """
        self._cancelled.clear()
        run = _Run(self._start(question), None if self._time_limit is None else time.monotonic() + self._time_limit)
        result = self._loop(run)
        self._watch(RunEnded(result))
        return result

    def _start(self, question: str | Sequence[Message] | Conversation) -> Conversation:
        if isinstance(question, Conversation):
            return structs.replace(question, tools=question.tools or self._tools.specs())
        messages = (Message("user", (Text(question),)),) if isinstance(question, str) else tuple(question)
        return structs.replace(self._opening, messages=messages)

    def _loop(self, run: _Run) -> RunResult:
        for number in range(1, self._max_steps + 1):
            self._watch(StepStarted(number))
            try:
                reply = self._request(run)
            except Interrupted as reason:
                return run.end_result("cancelled" if self._cancelled.is_set() else "time", str(reason))
            except (UpstreamFault, UpstreamViolation, TransportError) as error:
                result = _failed_step(error, "The model's reply is not valid")
                return run.end_result("error", result.message, self._finish_step(number, result))
            result = self._process_reply(run, reply)
            run.steps.append(self._finish_step(number, result))
            stop_reason = reply.choices[0].stop.reason
            if result.status == "done" and stop_reason is not StopReason.PAUSE:
                is_cut = stop_reason in (StopReason.LENGTH, StopReason.CONTEXT)
                return (
                    run.end_result("length", "the reply was cut at the limit of tokens")
                    if is_cut
                    else run.end_result("done")
                )
        return run.end_result(
            "steps", f"the run reached its limit of {self._max_steps} steps before the model was done"
        )

    def _finish_step(self, number: int, result: StepResult) -> StepResult:
        self._watch(StepEnded(number, result))
        return result

    def _request(self, run: _Run) -> Reply:
        events: list[ModelEvent] = []
        self._check_limits(run)
        with closing(self._events(run)) as groups:
            for group in groups:
                events.extend(group)
                self._check_limits(run)
        reply = assemble_reply(events)
        if not reply.choices:
            received = {"events": [type(event).__name__ for event in events]}
            raise BedrockResponseError("The model sent no reply", received)
        return reply

    def _events(self, run: _Run) -> Generator[Events, None, None]:
        """Yield the events of the reply as they arrive, and report its text and reasoning to `watch`."""
        for group in self._client.ask(run.conversation, run.left()):
            for event in group:
                if isinstance(event, TextDelta) and event.text:
                    self._watch(TextReceived(event.text))
                elif isinstance(event, ReasoningDelta) and event.text:
                    self._watch(ReasoningReceived(event.text))
            yield group

    def _check_limits(self, run: _Run) -> None:
        if self._cancelled.is_set():
            raise Interrupted("the run was cancelled")
        if run.late():
            raise Interrupted(f"the run took longer than {self._time_limit:g} seconds")

    def _process_reply(self, run: _Run, reply: Reply) -> StepResult:
        """Add the reply to the conversation, run its calls, and add their results as the next message."""
        blocks = reply.choices[0].blocks
        calls = [
            ToolUseBlock(id=block.id, name=block.name, input=arguments_object(block.arguments))
            for block in blocks
            if isinstance(block, ToolCall)
        ]
        run.add(reply)
        results = self._run_tools(calls, run.deadline)
        if results:
            run.append(Message("user", tuple(ToolResult(each.id, each.content, each.is_error) for each in results)))
        text = "".join(block.text for block in blocks if isinstance(block, Text))
        return _step_result(text, calls, results)

    def _run_tools(self, calls: Sequence[ToolUseBlock], deadline: float | None) -> list[CallOutcome]:
        """Run the calls and return one result for each, in their order."""
        for call in calls:
            self._watch(ToolStarted(call["id"], call["name"], jsonio.encode(call["input"]).decode()))
        outcomes = run_calls(calls, self._tools.call, deadline, self._cancelled)
        for outcome in outcomes:
            self._watch(ToolEnded(outcome.id, outcome.name, outcome.text, outcome.is_error, outcome.seconds))
        return outcomes


class _Run:
    """The state of one run: the conversation so far, its steps and usage."""

    def __init__(self, conversation: Conversation, deadline: float | None) -> None:
        self.conversation = conversation
        self.deadline = deadline
        self.steps: list[StepResult] = []
        self._usage = Usage()
        self._text = ""

    def late(self) -> bool:
        """Return whether the deadline has passed."""
        return self.deadline is not None and time.monotonic() >= self.deadline

    def left(self) -> float | None:
        """Return the seconds until the deadline, or None without one."""
        return None if self.deadline is None else max(self.deadline - time.monotonic(), 0.001)

    def add(self, reply: Reply) -> None:
        """Add a reply to the conversation, and its usage."""
        blocks = reply.choices[0].blocks
        self._text = "".join(block.text for block in blocks if isinstance(block, Text))
        self._usage = _sum(self._usage, reply.usage or Usage())
        if blocks:
            self.append(Message("assistant", blocks))

    def append(self, message: Message) -> None:
        """Add a message to the conversation."""
        self.conversation = structs.replace(self.conversation, messages=(*self.conversation.messages, message))

    def end_result(self, status: Any, error: str = "", last: StepResult | None = None) -> RunResult:
        """Return the result of the run; `last` is a step that failed."""
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


def _failed_step(error: DragomanError, what: str) -> StepResult:
    """Log an error, and return it as a step result. Neither contains the content of the reply."""
    logger.error("%s: %s", what, error)
    fault = error.fault
    # A violation inside a stream arrives as a Failed event; unlike an error of the service it has no code.
    invalid = isinstance(error, UpstreamViolation) or (
        fault.kind == "server" and fault.status == 502 and not fault.code
    )
    message = f"Received invalid response from AI: {error}" if invalid else f"The AI could not answer: {error}"
    return StepResult(status="error", message=message)


# --- running calls in parallel, each in a thread, with one result for each


MAX_PARALLEL_CALLS = 8
_POLL_SECONDS = 0.05  # between two checks of the deadline and of cancellation

Content: TypeAlias = tuple[Text | Media, ...]
Work: TypeAlias = Callable[[str, Mapping[str, Any]], tuple[Content, bool]]


_ABANDONED: Content = (Text("(the tool ended without a result)"),)


class CallOutcome(Struct, frozen=True):
    """The one result of a call."""

    id: str
    name: str
    content: Content
    is_error: bool
    seconds: float

    @property
    def text(self) -> str:
        """The result as text; media as their kind in brackets."""
        return "\n".join(part.text if isinstance(part, Text) else f"[{part.kind}]" for part in self.content)


def run_calls(calls: Sequence[ToolUseBlock], work: Work, deadline: float | None, cancelled: Event) -> list[CallOutcome]:
    """Run all calls, several at a time; return one outcome for each, in the order of the calls.

    A thread that is still running at the deadline cannot be stopped: its outcome is an error, and its later result is
    ignored.
    """
    done: queue.SimpleQueue[tuple[int, CallOutcome]] = queue.SimpleQueue()
    slots, started = Semaphore(MAX_PARALLEL_CALLS), time.monotonic()
    for number, call in enumerate(calls):
        Thread(target=_run, args=(number, call, work, done, slots), daemon=True, name=f"tool {call['name']}").start()
    outcomes: dict[int, CallOutcome] = {}
    while len(outcomes) < len(calls):
        try:
            number, outcome = done.get(timeout=_wait(deadline))
            outcomes[number] = outcome
        except queue.Empty:
            if _reason(deadline, cancelled):
                break
    seconds = time.monotonic() - started
    reason = _reason(deadline, cancelled)
    return [
        outcomes.get(number) or CallOutcome(call["id"], call["name"], (Text(reason),), True, seconds)
        for number, call in enumerate(calls)
    ]


def _run(
    number: int, call: ToolUseBlock, work: Work, done: queue.SimpleQueue[tuple[int, CallOutcome]], slots: Semaphore
) -> None:
    with slots:
        started = time.monotonic()
        content, is_error = _ABANDONED, True
        try:
            content, is_error = work(call["name"], call["input"])
        finally:  # a tool that ends its thread gives a result, too
            done.put((number, CallOutcome(call["id"], call["name"], content, is_error, time.monotonic() - started)))


def _wait(deadline: float | None) -> float:
    return _POLL_SECONDS if deadline is None else max(min(_POLL_SECONDS, deadline - time.monotonic()), 0.0)


def _reason(deadline: float | None, cancelled: Event) -> str:
    if cancelled.is_set():
        return "(the tool was cancelled before it finished)"
    if deadline is not None and time.monotonic() >= deadline:
        return "(the tool did not finish before the time limit)"
    return ""
