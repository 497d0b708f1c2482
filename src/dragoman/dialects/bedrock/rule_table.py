"""The rules of Converse: what the service refuses in a request, and the grammar of its streams."""

from __future__ import annotations

from dragoman.dialects.rulebook import Rulebook

RULES = Rulebook.parse(
    "bedrock",
    """
body.object | documented | error | the body is an object
type | documented | error | a member has its type
union | documented | error | a union has exactly one member
field.unknown | observed | error | there are no members that the service does not know
field.required | documented | error | required members are set
enum | documented | error | a word is one of those that the service knows
pattern | documented | error | a text matches its pattern
length | documented | error | a text or a list has its length
range | documented | error | a number is in its range
messages.required | observed | error | there is at least one message
messages.first | observed | error | a conversation starts with the user
messages.alternate | observed | advice | roles alternate; several models take turns of one role
messages.last | observed | advice | a model without prefill wants the user's turn last
content.empty | observed | error | a message has content
text.blank | observed | advice | a text is not blank; some models take it
tools.duplicate | observed | error | tool names differ
tools.schema | observed | error | an input schema is of type object
tool_choice.no_tools | observed | error | a choice comes with tools
tool_choice.name | observed | error | the chosen tool is declared
tool_config.required | observed | error | a conversation with tool blocks comes with tools
thinking.budget | observed | error | the budget is at least 1024
thinking.limit | observed | advice | maxTokens is greater than the budget, but for interleaved thinking
thinking.forced_tool | observed | error | no tool is forced while thinking is enabled
output.schema | documented | error | the output schema is the text of a JSON object
output.closed | observed | error | objects of the output schema set additionalProperties to false
tool_use.input | observed | error | a call's input is an object
tool_use.duplicate | observed | error | the ids of a turn's calls differ
tool_use.unanswered | observed | error | calls are answered at the start of the next turn
tool_result.duplicate | observed | error | a call has one result
tool_result.count | observed | error | there are no more results than calls in the turn before
tool_result.orphan | observed | error | a result answers a call of the turn before
tool_result.apart | observed | error | some models take no other content beside results
reasoning.refused | observed | error | DeepSeek takes no reasoning back
reasoning.unsigned | observed | error | Claude takes reasoning back with its signature only
reasoning.signed | inferred | advice | other vendors take reasoning back without a signature
document.text | documented | advice | a text accompanies a document
document.name | documented | error | a document name has letters, digits, single spaces, - ( ) and [ ]
document.duplicate | observed | error | document names differ
cache.ttl_order | observed | error | a cache point of 1h does not come after one of 5m
cache.document | inferred | advice | no cache point follows a document other than PDF
cache.count | observed | error | there are at most 4 cache points
stream.json | documented | error | a payload is JSON
stream.object | documented | error | a payload is an object
stream.after_end | inferred | advice | nothing follows the end of the stream
stream.no_stop | documented | error | a stream ends with messageStop, or with an exception
stream.no_metadata | observed | advice | metadata comes after messageStop
stream.exception | documented | advice | an exception is one of those in the service's model
stream.exception_message | documented | advice | an exception has a message
stream.start_once | documented | error | messageStart comes once
stream.role | documented | error | messageStart has the role assistant
stream.no_start | documented | error | messageStart comes first
stream.index | documented | error | contentBlockIndex is a whole number, 0 or more
stream.union | documented | error | start and delta have exactly one member
stream.block_start | documented | error | a tool's start has toolUseId and name
stream.index_reused | documented | error | a block begins once
stream.interleaved | inferred | advice | a block stops before the next one begins
stream.late_block | inferred | advice | no block comes after messageStop
stream.no_block_start | documented | error | a tool's block is announced by contentBlockStart
stream.delta_kind | documented | error | a block grows by deltas of its kind
stream.delta_value | documented | error | a delta has its text
stream.no_block | documented | error | a block that stops is open
stream.input_json | observed | error | the input of a tool is a JSON object
stream.input_cut | observed | advice | the input of a tool was cut by a limit
stream.stop_once | documented | error | messageStop comes once
stream.open_block | documented | error | blocks stop before messageStop
stream.open_cut | observed | advice | blocks stop before messageStop, but where a limit cut them
stream.stop_reason | documented | advice | stopReason is one of those in the service's model
stream.metadata_early | inferred | advice | metadata comes after messageStop
stream.usage | documented | advice | usage has inputTokens, outputTokens and totalTokens
""",
)
