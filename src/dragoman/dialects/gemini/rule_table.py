"""The rules of generateContent: what the service refuses in a request, and what its clients break on in a stream."""

from __future__ import annotations

from dragoman.dialects.rulebook import Rulebook

RULES = Rulebook.parse(
    "gemini",
    """
body.object | documented | error | the body is an object
contents.required | observed | error | there is at least one content
contents.role | observed | error | a role is user, model or function
contents.empty | observed | error | a content has parts
contents.first | inferred | advice | the first turn is the user's
contents.last | inferred | advice | the last turn is the user's
text.empty | inferred | advice | a user's text is not empty; the service takes it beside other parts
part.data | observed | error | a part holds something
part.signature_only | inferred | advice | a part holds more than a thought signature
name | documented | error | a function name has 1 to 128 letters, digits, _ . : and -
call.args | documented | error | args is an object
call.signature | observed | error | the first call of a step of the current turn has its thoughtSignature
result.response | documented | error | response is an object
results.count | observed | error | a turn answers the calls of the turn before it, one result each
media.data | documented | error | inlineData has data, fileData has fileUri
media.fields | documented | advice | media has a mimeType; the service finds out that of files by itself
tools.duplicate | observed | error | function names differ
tools.schema | documented | error | a function has parameters or parametersJsonSchema, not both
choice.mode | documented | error | a mode is AUTO, ANY, NONE or VALIDATED
choice.no_tools | observed | error | a forced call comes with functions
choice.names | documented | error | allowed names go with ANY or VALIDATED only
choice.unknown | observed | error | an allowed function is declared
temperature.range | documented | error | temperature is from 0 to 2
topP.range | documented | error | topP is from 0 to 1
presencePenalty.range | documented | error | presencePenalty is from -2 to 2
frequencyPenalty.range | documented | error | frequencyPenalty is from -2 to 2
maxOutputTokens.range | documented | error | maxOutputTokens is a whole number, 1 or more
stopSequences | documented | error | there are at most 5 stop sequences, none of them empty
thinking.both | documented | error | thinking has a budget or a level, not both
output.mime | documented | error | a schema goes with application/json
stream.json | observed | error | the data of a frame is a JSON object
stream.event_name | documented | advice | frames have no event name
stream.after_end | documented | advice | nothing follows an error
stream.candidate | documented | error | a candidate is an object
stream.index | documented | error | an index is a whole number
stream.content | observed | advice | a content is the model's, and has parts: chats forget an answer without
stream.part | inferred | advice | a part holds something
stream.call | documented | error | a call has a name, and args that are an object
stream.late | inferred | advice | a candidate says nothing after its finishReason
stream.unfinished | observed | error | every candidate ends with a finishReason
""",
)
