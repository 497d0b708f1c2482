"""The rules of Chat Completions: what services refuse in a request, and what official helpers break on in a stream.

Many services speak this dialect. What OpenAI alone refuses, while others answer it, is advice: a file does not say
which service it is for. The same holds for streams: what a known service sends is advice.
"""

from __future__ import annotations

from dragoman.dialects.rulebook import Rulebook

RULES = Rulebook.parse(
    "openai",
    """
body.shape | documented | error | the body is an object
messages.missing | documented | error | messages is an array
messages.empty | observed | error | there is at least one message
message.shape | documented | error | a message is an object
message.role | documented | error | a message has a role, a string
message.role_unknown | documented | advice | OpenAI knows developer, system, user, assistant, tool, function
message.content | documented | error | content is a string or a list of parts
message.no_content | observed | advice | OpenAI refuses a message without content; others take it
message.empty_parts | observed | advice | OpenAI refuses an empty list of parts; others take it
message.part_type | documented | error | a part is an object with a type
message.part | documented | advice | a role has parts of its own types; some services take others
message.name | documented | advice | a function message names its function
call.none | observed | advice | OpenAI refuses an empty tool_calls; others take it
call.shape | documented | error | a call is an object
call.id | documented | error | a call has an id
call.id_length | observed | advice | OpenAI takes ids of at most 64 characters; others take longer ones
call.duplicate_id | inferred | advice | the ids of a message's calls differ
call.type | documented | advice | the type is function or custom; Mistral's calls have none
call.name | documented | error | a call has a name
call.name_letters | observed | advice | OpenAI takes names of 1 to 64 of a-z A-Z 0-9 _ -
call.arguments | documented | advice | arguments are a string; Mistral takes an object
tool.unanswered_call | observed | error | every call is answered before the next message
tool.answered_twice | observed | error | a call is answered once
tool.unknown_call | observed | error | a tool message answers a call of the message before it
tools.shape | documented | error | tools is an array of objects
tools.empty | observed | advice | OpenAI refuses an empty list of tools; others take it
tools.limit | documented | advice | OpenAI takes at most 128 tools; others take more
tools.type | documented | advice | a tool has a type; services take function tools without
tools.name | documented | error | a function has a name
tools.name_letters | observed | advice | OpenAI takes names of 1 to 64 of a-z A-Z 0-9 _ -
tools.duplicate | inferred | advice | no two tools have one name
tools.parameters | documented | error | parameters is a schema
tool_choice.without_tools | observed | advice | OpenAI refuses a choice without tools; others ignore it
tool_choice.shape | documented | error | none, auto, required (any), a tool, or allowed_tools
tool_choice.unknown_tool | observed | error | the chosen tool is declared
parallel.without_tools | observed | advice | OpenAI refuses the flag without tools; others ignore it
knob.type | documented | error | a sampling setting is a number
knob.range | documented | advice | OpenAI's ranges: temperature 0 to 2, top_p 0 to 1, penalties -2 to 2
n.range | documented | error | n is a whole number from 1 to 128
stop.shape | documented | advice | OpenAI takes a string or up to four; others take more
max_tokens.type | documented | error | a limit is a whole number
max_tokens.range | documented | advice | a limit is above 0; local servers take -1 for none
max_tokens.both | observed | advice | OpenAI refuses max_tokens beside max_completion_tokens
effort.unknown | documented | advice | OpenAI's efforts: none, minimal, low, medium, high, xhigh, max
stream_options.without_stream | observed | advice | OpenAI refuses stream_options without stream
top_logprobs.without_logprobs | documented | advice | top_logprobs needs logprobs
response_format.name | documented | advice | a name has 1 to 64 of a-z A-Z 0-9 _ -
response_format.schema | documented | error | schema is an object
response_format.shape | documented | advice | text, json_object, or json_schema with a name
stream.no_json | observed | error | the data of a frame is a JSON object
stream.named | documented | advice | frames have no event name
stream.after_end | documented | advice | nothing follows [DONE] or an error
stream.error_shape | documented | advice | an error is an object with a message; LM Studio's is a string
stream.envelope | documented | advice | a chunk has id, object, created and model; Azure's first has empty ones
stream.envelope_changed | documented | advice | id, object, created and model stay the same
stream.after_usage | observed | advice | OpenAI's helper loses usage that is not in the last chunk
stream.choices | observed | error | choices is an array
stream.empty | documented | advice | a chunk without choices tells usage; Azure's first tells filters
stream.choice | observed | error | a choice is an object; its index is a whole number, its delta an object
stream.choice_fields | documented | advice | a choice has an index and a delta; Azure's filters send none
stream.no_role | documented | advice | the first delta of a choice has the role assistant
stream.role_twice | documented | advice | the role comes once; several services repeat it
stream.after_finish | documented | advice | nothing is said after the finish_reason
stream.finish_twice | documented | advice | a choice finishes once; OpenRouter repeats it with the usage
stream.finish_reason | documented | advice | OpenAI's reasons: stop, length, tool_calls, content_filter, function_call
stream.content | observed | error | content and refusal are strings
stream.content_parts | documented | advice | content is a string; Mistral sends parts
stream.details_index | observed | advice | an entry of reasoning_details has an index
stream.call_index | observed | error | call indices are dense and begin with 0
stream.call_no_index | observed | advice | a call has an index; Mistral sends none
stream.call_start | observed | advice | the first entry of a call has id, type and name
stream.call_repeated | observed | advice | id, type and name of a call come once
stream.call_name | observed | error | a call has a name
stream.arguments | observed | error | arguments are text
stream.no_end | documented | advice | a stream ends with [DONE] or an error
stream.no_finish | observed | error | every choice has a finish_reason
""",
)
