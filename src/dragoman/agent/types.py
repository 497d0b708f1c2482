"""Plain values of the agent: a validated call, the result of a step and of a run, and what a watcher sees."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Any, Literal, TypeAlias, TypedDict

from msgspec import Struct

import dragoman.dialects as registry
from dragoman.errors import Fault, UpstreamViolation
from dragoman.filters.calls import fit_alphabet
from dragoman.model.conversation import Conversation, Usage

# --- what is wrong with a raw response


class BedrockResponseError(UpstreamViolation):
    """A response of Bedrock that is malformed or lacks a required field.

    `response` is the raw response, or the part of it that is malformed, for debugging. It may be anything: a response
    can be malformed by being no object. It is never part of the message, so that logs do not hold conversations.
    """

    def __init__(self, message: str, response: Any = None, field: str | None = None) -> None:
        told = f"{message} (field: {field})" if field else message
        super().__init__(message, fault=Fault(self.kind, told, self.status, at=field or ""))
        self.response = response
        self.field = field


class ToolUseBlock(TypedDict):
    """A validated tool call. Neither id nor name is ever empty."""

    id: str
    name: str
    input: dict[str, Any]


class ToolAnswer(TypedDict):
    """What a tool answered to one call."""

    id: str
    name: str
    content: str
    is_error: bool


class StepResult(Struct, frozen=True, kw_only=True):
    """One answer of the model, dealt with: its text, the calls it made and what they were answered.

    `error`: the answer could not be used; `message` says why, and nothing of it goes any further.
    """

    status: Literal["done", "tool_use", "error"]
    message: str = ""
    calls: tuple[ToolUseBlock, ...] = ()
    answers: tuple[ToolAnswer, ...] = ()
    content: tuple[Any, ...] = ()  # of a raw response with calls: its blocks, with the ids of `calls`

    @property
    def assistant_message(self) -> dict[str, Any]:
        """The model's answer as Converse's next assistant message; its ids are those of `tool_results`."""
        return {"role": "assistant", "content": list(self.content)}

    @property
    def tool_results(self) -> list[dict[str, Any]]:
        """The answers as content of Converse's next user message: one for each call, in their order."""
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
    """How a run ended. `conversation` is all that was said, every call answered, so that a run can be gone on with."""

    status: Literal["done", "length", "error", "steps", "time", "cancelled"]
    text: str
    steps: tuple[StepResult, ...]
    conversation: Conversation
    usage: Usage = Usage()
    error: str = ""  # why it ended, if not because the model was done


# --- what a watcher sees, in the order in which it happens


class Asked(Struct, frozen=True):
    """A step begins: the model is asked."""

    step: int


class Said(Struct, frozen=True):
    """Some text of the answer."""

    text: str


class Thought(Struct, frozen=True):
    """Some of the model's thinking."""

    text: str


class Called(Struct, frozen=True):
    """The model called a tool; it begins now."""

    id: str
    name: str
    arguments: str


class Answered(Struct, frozen=True):
    """A tool answered, or failed."""

    id: str
    name: str
    content: str
    is_error: bool
    seconds: float


class Stepped(Struct, frozen=True):
    """A step is over."""

    step: int
    result: StepResult


class Ended(Struct, frozen=True):
    """The run is over."""

    result: RunResult


Watched: TypeAlias = Asked | Said | Thought | Called | Answered | Stepped | Ended


# --- ids of tool calls that Converse takes back: legal, short enough, and different from one another


def with_valid_ids(calls: Sequence[ToolUseBlock]) -> list[ToolUseBlock]:
    """Return the calls of one response with ids that the service takes back, as a run sends them.
    An id that is illegal or too long gets the alias that a request would carry. An id that an earlier call of the
    response has is replaced by one made from the id and the call's position.

    See docs/decisions/content.md#d4.
    """
    alphabet = registry.get("bedrock").codec.capabilities("").ids
    given: set[str] = set()
    mended: list[ToolUseBlock] = []
    for position, call in enumerate(calls):
        id_ = fit_alphabet(call["id"], alphabet)
        if id_ in given:
            id_ = "call_" + sha256(f"{position}\0{call['id']}".encode(errors="surrogatepass")).hexdigest()[:24]
        given.add(id_)
        mended.append(ToolUseBlock(id=id_, name=call["name"], input=call["input"]))
    return mended
