"""The values of the agent: validated tool calls, results of steps and runs, and the events of a run. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Any, Literal, TypeAlias, TypedDict

from msgspec import Struct

import dragoman.dialects as registry
from dragoman.errors import Fault, UpstreamViolation
from dragoman.filters.calls import fit_alphabet
from dragoman.model.conversation import Conversation, Usage

# --- errors and tool calls


class BedrockResponseError(UpstreamViolation):
    """A response of Bedrock that is malformed or lacks a required field.

    `response` is the raw response, or the malformed part of it, for debugging; it may be a value of any type. It is
    never part of the message, so that logs do not contain conversations.
    """

    def __init__(self, message: str, response: Any = None, field: str | None = None) -> None:
        detail = f"{message} (field: {field})" if field else message
        super().__init__(message, fault=Fault(self.kind, detail, self.status, at=field or ""))
        self.response = response
        self.field = field


class ToolUseBlock(TypedDict):
    """A validated tool call. Neither id nor name is ever empty."""

    id: str
    name: str
    input: dict[str, Any]


class ToolAnswer(TypedDict):
    """The result of one tool call."""

    id: str
    name: str
    content: str
    is_error: bool


class StepResult(Struct, frozen=True, kw_only=True):
    """One reply of the model: its text, its tool calls and their results.

    Status `error`: the reply is not valid; `message` says why, and the conversation does not contain it.
    """

    status: Literal["done", "tool_use", "error"]
    message: str = ""
    calls: tuple[ToolUseBlock, ...] = ()
    answers: tuple[ToolAnswer, ...] = ()
    content: tuple[Any, ...] = ()  # of a raw response with calls: its blocks, with the ids of `calls`

    @property
    def assistant_message(self) -> dict[str, Any]:
        """The model's reply as the next assistant message for Converse; its ids are those of `tool_results`."""
        return {"role": "assistant", "content": list(self.content)}

    @property
    def tool_results(self) -> list[dict[str, Any]]:
        """The results as content of the next user message for Converse: one for each call, in order."""
        return [
            {
                "toolResult": {
                    "toolUseId": answer["id"],
                    "content": [{"text": answer["content"]}],
                    "status": "error" if answer["is_error"] else "success",
                }
            }
            for answer in self.answers
        ]


class RunResult(Struct, frozen=True, kw_only=True):
    """The result of a run.

    `conversation` has all messages, with a result for every call, so that another run can continue it.
    """

    status: Literal["done", "length", "error", "steps", "time", "cancelled"]
    text: str
    steps: tuple[StepResult, ...]
    conversation: Conversation
    usage: Usage = Usage()
    error: str = ""  # the reason, if the model had not finished


# --- events of a run, in the order in which `watch` receives them


class StepStarted(Struct, frozen=True):
    """A step begins: the request goes to the model."""

    step: int


class TextReceived(Struct, frozen=True):
    """A piece of the reply's text."""

    text: str


class ReasoningReceived(Struct, frozen=True):
    """A piece of the model's reasoning."""

    text: str


class ToolStarted(Struct, frozen=True):
    """The model called a tool; the tool starts now."""

    id: str
    name: str
    arguments: str


class ToolEnded(Struct, frozen=True):
    """A tool call has ended, with a result or an error."""

    id: str
    name: str
    content: str
    is_error: bool
    seconds: float


class StepEnded(Struct, frozen=True):
    """A step has ended."""

    step: int
    result: StepResult


class RunEnded(Struct, frozen=True):
    """The run has ended."""

    result: RunResult


RunEvent: TypeAlias = StepStarted | TextReceived | ReasoningReceived | ToolStarted | ToolEnded | StepEnded | RunEnded


# --- ids of tool calls that Converse accepts: allowed characters, short enough, unique


def with_valid_ids(calls: Sequence[ToolUseBlock]) -> list[ToolUseBlock]:
    """Return the calls of one response with ids that the service accepts in the next request.

    An id that is illegal or too long becomes the alias that a request would contain. An id that an earlier call of
    the response has becomes a hash of the id and the call's position.

    See docs/decisions/content.md#d4.
    """
    alphabet = registry.get("bedrock").codec.capabilities("").ids
    used_ids: set[str] = set()
    renamed: list[ToolUseBlock] = []
    for position, call in enumerate(calls):
        id_ = fit_alphabet(call["id"], alphabet)
        if id_ in used_ids:
            id_ = "call_" + sha256(f"{position}\0{call['id']}".encode(errors="surrogatepass")).hexdigest()[:24]
        used_ids.add(id_)
        renamed.append(ToolUseBlock(id=id_, name=call["name"], input=call["input"]))
    return renamed
