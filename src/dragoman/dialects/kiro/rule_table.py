"""The rules of GenerateAssistantResponse. Numbers are those of the simulator, which has all of them with their answers.

observed: documents 000, 002 and 003 of the mission, or others who measured it, saw the request refused. documented: the
official service model or client says so. inferred: others repair it, or contradict one another about it.
"""

from __future__ import annotations

from dragoman.dialects.rulebook import Rulebook

RULES = Rulebook(
    "kiro",
    {
        "body.unknown_field": ("inferred", "advice", "there are no top-level fields but the known ones (rule 30)"),
        "body.trigger": ("documented", "error", "chatTriggerType is MANUAL (rule 47)"),
        "body.conversation_id": ("documented", "error", "conversationId has 1 to 128 characters (rule 50)"),
        "body.surrogate": ("inferred", "advice", "texts hold no half characters (rule 34)"),
        "history.empty": ("inferred", "advice", "an empty history is left out (rule 31)"),
        "history.begin": ("documented", "error", "history begins with the user (rule 2)"),
        "history.end": ("observed", "error", "history ends with the assistant (rule 4, document 002)"),
        "history.alternate": ("observed", "error", "turns of history alternate (rule 1, document 003)"),
        "history.first_results": ("documented", "error", "the first user turn answers no call (rule 3)"),
        "current.role": ("observed", "error", "the current message is the user's (rule 5, document 002)"),
        "current.thinking_tags": ("observed", "error", "no thinking tags stand beside tool results (rule 41)"),
        "user.empty": ("inferred", "advice", "a user turn has text (rule 6)"),
        "assistant.empty": ("observed", "error", "an assistant turn has text (rule 7)"),
        "assistant.blank": ("inferred", "advice", "an assistant turn has more than white space (rule 7)"),
        "assistant.reasoning": ("observed", "error", "reasoning is nested and signed (rule 40)"),
        "content.long": ("documented", "error", "a text is within its length (rule 51)"),
        "call.id": ("documented", "error", "an id has 1 to 64 of a-z, A-Z, 0-9, _ and - (rule 16)"),
        "call.input": ("observed", "error", "a call's input is an object (rule 28, document 002)"),
        "call.unanswered": ("observed", "error", "a call is answered in the next user turn (rule 9)"),
        "call.duplicate": ("inferred", "advice", "ids of calls differ (rule 12)"),
        "result.status": ("documented", "error", "a status is success or error (rule 33)"),
        "result.no_status": ("inferred", "advice", "a result has a status (rule 33)"),
        "result.empty": ("observed", "error", "a result has content (rule 32, document 000)"),
        "result.long": ("documented", "error", "a result is within its length (rule 51)"),
        "result.orphan": ("observed", "error", "a result has its call before it (rule 8)"),
        "result.duplicate": ("observed", "error", "a call has one result (rule 11)"),
        "result.late": ("observed", "error", "no turn stands between a call and its result (rule 10)"),
        "tool.name": ("observed", "error", "a name has 1 to 64 of a-z, A-Z, 0-9, _ and - (rule 15)"),
        "tools.many": ("observed", "error", "there are fewer than 120 tools (rule 45)"),
        "tools.cache_point": ("observed", "error", "tools are specifications only (rule 27)"),
        "tools.undeclared": ("observed", "error", "tools that history calls are declared (rules 13, 14)"),
        "tools.description": ("observed", "error", "a description has 1 to 10240 bytes (rules 17, 18)"),
        "schema.root": ("observed", "error", "a schema is an object of type object (rule 19, document 002)"),
        "schema.union": ("observed", "error", "no union stands at a schema's root (rule 25)"),
        "schema.required": ("observed", "error", "required is an array (rule 20)"),
        "schema.required_empty": ("inferred", "advice", "required is not empty (rule 21)"),
        "schema.properties": ("inferred", "advice", "properties below the root are not empty (rule 24)"),
        "schema.keyword": ("observed", "error", "no validation keywords (rule 26)"),
        "schema.unsure_keyword": (
            "inferred",
            "advice",
            "no $ref, const, additionalProperties, $schema (rules 22, 23, 26)",
        ),
        "image.many": ("documented", "error", "a turn has at most 10 images (rule 38)"),
        "image.format": ("documented", "error", "an image is png, jpeg, gif or webp (rule 35)"),
        "image.bytes": ("observed", "error", "an image is base64 of at most 5 MiB (rules 36, 37, 39)"),
        # streams
        "stream.unknown": ("inferred", "advice", "events have known names"),
        "stream.json": ("documented", "error", "a payload is a JSON object"),
        "stream.content": ("documented", "error", "a text event has content, a string"),
        "stream.call_id": (
            "observed",
            "error",
            "a call begins with a toolUseId, and a fragment without one follows a call",
        ),
        "stream.call_name": ("observed", "error", "a call begins with a name"),
        "stream.open_call": ("observed", "error", "a call without its stop was cut"),
        "stream.no_usage": ("inferred", "advice", "contextUsageEvent comes with every whole answer"),
    },
)
