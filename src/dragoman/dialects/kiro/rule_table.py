"""The rules of GenerateAssistantResponse: the number, the grade of evidence and the demand of each.

The numbers are those of the simulator, which refuses by these rules and adds those that a body does not show. A rule
without a number is not the simulator's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

from msgspec import Struct

from dragoman.dialects.rulebook import Evidence, Rulebook

# A: the official model or client. B: seen live, by documents 000, 002 and 003 or by others. C: repaired by others.
# D: others contradict each other.
Grade: TypeAlias = Literal["A", "B", "C", "D"]
EVIDENCE: Mapping[Grade, Evidence] = {"A": "documented", "B": "observed", "C": "inferred", "D": "inferred"}


class Graded(Struct, frozen=True):
    """One rule. Rules that share a number differ in their evidence; the first of them names the number."""

    number: int | None
    grade: Grade
    sentence: str


class Limits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The thresholds of the rules, as the facts give them."""

    tool_count: int = 120  # rule 45: the least number refused
    name: int = 64
    description: int = 10_240
    user_content: int = 600_000
    assistant_content: int = 100_000
    result_text: int = 800_000
    conversation_id: int = 128
    images: int = 10  # in one message
    image_base64: int = 5_242_880


GRADED: Mapping[str, Graded] = {
    "body.unknown_field": Graded(30, "C", "no unknown top-level field"),
    "body.trigger": Graded(47, "A", "chatTriggerType is MANUAL"),
    "body.trigger_auto": Graded(47, "C", "chatTriggerType is not AUTO"),
    "body.conversation_id": Graded(50, "A", "conversationId is 1 to 128 characters"),
    "body.surrogate": Graded(34, "C", "the body is JSON without unpaired surrogates"),
    "history.empty": Graded(31, "C", "no empty history"),
    "history.begin": Graded(2, "A", "history starts with the user"),
    "history.end": Graded(4, "B", "history ends with the assistant"),
    "history.alternate": Graded(1, "B", "history alternates"),
    "history.first_results": Graded(3, "A", "the first user turn answers no call"),
    "current.role": Graded(5, "B", "the current message is the user's"),
    "current.thinking_tags": Graded(41, "B", "no thinking tags beside results"),
    "user.empty": Graded(6, "C", "user turns have text"),
    "user.empty_beside": Graded(6, "D", "user turns have text beside results and images"),
    "assistant.empty": Graded(7, "B", "assistant turns have text"),
    "assistant.blank": Graded(7, "D", "assistant turns have more than white space"),
    "assistant.reasoning": Graded(40, "B", "replayed reasoning is nested and signed"),
    "content.long": Graded(51, "A", "no content over its length"),
    "call.id": Graded(16, "A", "call ids are legal"),
    "call.input": Graded(28, "A", "a call's input is an object"),
    "call.unanswered": Graded(9, "A", "every call is answered in the next user turn"),
    "call.duplicate": Graded(12, "C", "call ids are unique"),
    "call.reused": Graded(12, "D", "a later turn does not use a call id again"),
    "result.status": Graded(33, "A", "a result's status is success or error"),
    "result.no_status": Graded(None, "C", "a result has a status"),
    "result.empty": Graded(32, "B", "no empty result"),
    "result.long": Graded(51, "A", "no result over its length"),
    "result.orphan": Graded(8, "A", "every result has its call"),
    "result.duplicate": Graded(11, "B", "one result for one call"),
    "result.late": Graded(10, "B", "no turn splits a batch of results"),
    "tool.name": Graded(15, "A", "tool names are legal"),
    "tools.many": Graded(45, "B", "not too many tools"),
    "tools.cache_point": Graded(27, "B", "no cachePoint among the tools"),
    "tools.undeclared": Graded(13, "A", "tools of history are declared"),
    "tools.missing": Graded(14, "B", "results come with tools"),
    "tools.description": Graded(17, "A", "a tool has a description"),
    "tools.no_description": Graded(17, "C", "a tool does not leave its description out"),
    "tools.long_description": Graded(18, "A", "no description over 10240"),
    "tools.description_bytes": Graded(18, "C", "no description over 10240 bytes"),
    "schema.root": Graded(19, "B", "a schema's root is of type object"),
    "schema.union": Graded(25, "B", "no anyOf, oneOf, allOf at a schema's root"),
    "schema.required": Graded(20, "B", "required is an array"),
    "schema.required_empty": Graded(21, "D", "required is not empty"),
    "schema.properties": Graded(24, "D", "no empty properties below a schema's root"),
    "schema.keyword": Graded(26, "B", "no validation keywords"),
    "schema.unsure_keyword": Graded(26, "C", "no keywords that others remove: $ref, const, format and their like"),
    "schema.additional_properties": Graded(22, "D", "no additionalProperties"),
    "schema.dollar_schema": Graded(23, "D", "no $schema"),
    "image.many": Graded(38, "A", "not too many images"),
    "image.format": Graded(35, "A", "image formats are known"),
    "image.bytes": Graded(36, "A", "images come by value"),
    "image.base64": Graded(39, "B", "image bytes are base64"),
    "image.long": Graded(37, "B", "no image over 5 MiB of base64"),
    # streams
    "stream.unknown": Graded(None, "C", "events have known names"),
    "stream.json": Graded(None, "A", "a payload is a JSON object"),
    "stream.content": Graded(None, "A", "a text event has content, a string"),
    "stream.call_id": Graded(None, "B", "a call begins with a toolUseId, and a fragment without one follows a call"),
    "stream.call_name": Graded(None, "B", "a call begins with a name"),
    "stream.open_call": Graded(None, "B", "a call without its stop was cut"),
    "stream.no_usage": Graded(None, "C", "contextUsageEvent comes with every whole answer"),
}


def _sentence(rule: Graded) -> str:
    return rule.sentence if rule.number is None else f"{rule.sentence} (rule {rule.number})"


RULES = Rulebook(
    "kiro",
    {
        name: (EVIDENCE[rule.grade], "error" if rule.grade in "AB" else "advice", _sentence(rule))
        for name, rule in GRADED.items()
    },
)
