"""The rules of Responses: what services refuse in a request, and what official helpers and Codex break on in a stream.

OpenAI, Azure, xAI, Groq, OpenRouter, vLLM and others speak this dialect. What one of them refuses and others answer,
and what one of them sends in its streams, is advice: a file does not say which service it is for.
"""

from __future__ import annotations

from dragoman.dialects.rulebook import Rulebook

RULES = Rulebook.parse(
    "responses",
    """
body.shape | documented | error | the body is an object
input.missing | documented | error | input is a string or an array of items
input.empty | observed | error | there is something to answer
item.type | documented | error | an item is an object with a type, or a role
message.role | documented | error | a message has a role, a string
message.role_unknown | documented | advice | OpenAI knows developer, system, user, assistant
message.content | documented | error | content is a string or a list of parts
message.part_type | documented | error | a part is an object with a type
message.part | observed | advice | OpenAI takes output parts from the assistant, input parts from others
call.call_id | documented | error | a call has a call_id
call.name | documented | error | a call has a name
call.name_letters | observed | advice | OpenAI takes names of 1 to 64 of a-z A-Z 0-9 _ -
call.arguments | documented | error | arguments are a string
call.duplicate_id | inferred | advice | the ids of calls differ; Mantle repeats call_0 in every response
call.unanswered | observed | error | every call is answered
call_id.length | observed | advice | OpenAI takes ids of at most 64 characters
output.call_id | documented | error | an output has a call_id
output.output | documented | error | output is a string or a list of parts
output.answered_twice | inferred | advice | a call is answered once
output.unknown_call | observed | error | an output answers a call before it
output.kind | documented | advice | an output is of the kind of its call
reasoning.summary | documented | advice | reasoning has a list of summary parts
tools.shape | documented | error | tools is an array of objects
tools.type | documented | advice | a tool has a type
tools.name | documented | error | a function has a name
tools.name_letters | observed | advice | OpenAI takes names of 1 to 64 of a-z A-Z 0-9 _ -
tools.duplicate | inferred | advice | no two tools have one name
tools.parameters | documented | error | parameters is a schema
tool_choice.without_tools | observed | advice | OpenAI refuses a choice without tools
tool_choice.shape | documented | error | none, auto, required, a tool, or allowed_tools
tool_choice.unknown_tool | observed | error | the chosen tool is declared
knob.type | documented | error | a sampling setting is a number
knob.range | documented | advice | OpenAI's ranges: temperature 0 to 2, top_p 0 to 1
max_output_tokens.type | documented | error | the limit is a whole number
max_output_tokens.range | observed | advice | OpenAI takes no limit below 16 tokens; others do
effort.unknown | documented | advice | OpenAI's efforts: none, minimal, low, medium, high, xhigh, max
previous.both | documented | error | previous_response_id and conversation exclude each other
unknown_field | observed | advice | OpenAI refuses fields of Chat Completions; others ignore them
format.name | documented | advice | a name has 1 to 64 of a-z A-Z 0-9 _ -
format.schema | documented | error | schema is an object
format.shape | documented | advice | text, json_object, or json_schema with a name
stream.no_json | observed | error | the data of a frame is a JSON object
stream.type | documented | error | an event has a type
stream.event_name | documented | advice | the event's name is its type; clients read the type
stream.after_end | documented | advice | nothing but [DONE] follows the last event
stream.sequence_number | documented | advice | sequence numbers grow
stream.no_created | observed | error | response.created is the first event about the response
stream.early | observed | advice | nothing comes before response.created; OpenAI sends keepalive
stream.response | observed | error | a response has an id
stream.status | documented | advice | the status is that of the event
stream.output | observed | advice | the last event tells all items; Codex's backend tells none
stream.error | documented | advice | a failed response has an error with a code and a message
stream.usage | observed | error | usage has input_tokens, output_tokens and total_tokens, whole numbers
stream.usage_details | documented | advice | usage has input_tokens_details and output_tokens_details
stream.output_index | observed | advice | output_index counts items from 0
stream.item | observed | error | an item is an object with a type
stream.item_not_open | observed | advice | an item is added before it grows or is done
stream.item_kind | documented | advice | an item stays of its kind
stream.item_field | observed | error | a call that is done has call_id, name and arguments, strings
stream.summary | observed | advice | reasoning that is done has a summary, a list
stream.part_not_added | observed | advice | a part is added before it grows; several services do not say so
stream.delta | observed | error | a delta is text
stream.no_end | observed | error | a stream ends with response.completed, incomplete, failed or an error
stream.open_call | observed | error | every call is done before the end: Codex takes it from there
stream.open_item | documented | advice | every item is done before the end
""",
)
