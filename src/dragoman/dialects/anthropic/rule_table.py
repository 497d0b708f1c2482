"""The rules of Messages: what the service refuses in a request, and what its SDKs break on in a stream."""

from __future__ import annotations

from dragoman.dialects.rulebook import Rulebook

RULES = Rulebook.parse(
    "anthropic",
    """
body.object | documented | error | the body is an object
max_tokens.required | observed | error | max_tokens is set
max_tokens.range | documented | error | max_tokens is a whole number, 0 or more
temperature.range | observed | advice | temperature is from 0 to 1; DeepSeek's endpoint takes up to 2
top_p.range | observed | advice | top_p is from 0 to 1
stop_sequences.blank | observed | error | each stop sequence is a string that is not blank
output_config.effort | documented | advice | effort is one of low, medium, high, xhigh, max
thinking.type | documented | advice | thinking is of a type that is known
thinking.budget_required | observed | error | enabled thinking has a budget
thinking.budget_least | observed | error | the budget is at least 1024
thinking.budget_limit | observed | advice | the budget is below max_tokens, but for interleaved thinking
thinking.forced_tool | observed | error | no tool is forced while thinking is enabled
thinking.signature | observed | advice | thinking goes back with its signature; other services sign none
thinking.opening | observed | advice | a tool loop opens with the thinking that led to it; newer models do without
tools.duplicate | observed | error | tool names differ
tools.name | observed | error | a tool name has 1 to 128 letters, digits, _ and -
tools.schema | observed | error | input_schema is a schema whose type is "object"
tools.deferred_cache | observed | error | a deferred tool is no cache mark
tool_choice.type | documented | error | tool_choice is of type auto, any, tool or none
tool_choice.no_tools | observed | error | a choice comes with tools
tool_choice.name | observed | error | the chosen tool is declared
tool_choice.parallel | documented | advice | none has no disable_parallel_tool_use
system.text | documented | error | a system prompt holds text only
messages.required | observed | error | there is at least one message
messages.limit | documented | error | there are at most 100,000 messages
messages.role | documented | error | a role is user, assistant or system
messages.empty | observed | error | a message has content, but for a last one of the assistant
messages.trailing_space | observed | error | the last answer does not end with white space
block.type | documented | error | a block says its type
text.empty | observed | error | a text is not empty
text.blank | observed | advice | a text is not all white space; beside a call it is taken
cache.blank_text | observed | error | an empty text is no cache mark
cache.thinking | observed | error | thinking is no cache mark
cache.count | observed | error | there are at most 4 cache marks
tool_use.id_required | documented | error | a call has an id
tool_use.id_charset | observed | error | an id has letters, digits, _ and - only
tool_use.name | observed | error | a call's name has 1 to 128 letters, digits, _ and -
tool_use.input | observed | error | a call's input is an object
tool_use.duplicate | observed | error | the ids of a turn's calls differ
tool_use.unanswered | observed | error | each call is answered in the next turn
tool_result.id_required | documented | error | a result names its call
tool_result.id_charset | observed | error | an id has letters, digits, _ and - only
tool_result.duplicate | observed | error | a call has one result
tool_result.orphan | observed | error | the turn before a result holds its call
stream.json | observed | error | the data of a frame is a JSON object
stream.event_name | observed | error | the event line equals the type: the SDKs skip other frames
stream.after_end | documented | advice | nothing follows message_stop or an error
stream.first | observed | error | message_start comes first
stream.unfinished | observed | error | a stream ends with message_stop, or with an error
stream.object | observed | error | message, usage, delta and content_block are objects
stream.start_once | observed | error | message_start comes once
stream.message | observed | error | message_start holds an assistant's message with content []
stream.message_fields | documented | advice | the message has an id and a model
stream.delta_once | documented | advice | message_delta comes once
stream.stop_reason | observed | error | message_delta says why the model stopped
stream.usage | documented | advice | usage has whole numbers
stream.no_delta | observed | error | message_delta comes before message_stop
stream.error | documented | advice | an error has a type and a message
stream.open_block | documented | advice | blocks stop before message_delta
stream.never_stopped | observed | error | blocks stop before message_stop: clients act on it
stream.index | observed | error | blocks are numbered 0, 1, 2
stream.interleaved | documented | advice | a block stops before the next one starts
stream.late_block | documented | advice | no block comes after message_delta
stream.block_start | observed | error | a block starts with its fields
stream.input_at_start | documented | advice | a tool_use block starts with input {}; the input comes in deltas
stream.no_block | observed | error | a delta or a stop belongs to an open block
stream.delta_type | documented | error | a delta says its type
stream.delta_kind | observed | error | a block grows by deltas of its kind
stream.delta_value | observed | error | a delta has its text
stream.input_json | observed | error | the input of a tool is a JSON object
stream.input_cut | observed | advice | the input of a tool was cut by a limit
""",
)
