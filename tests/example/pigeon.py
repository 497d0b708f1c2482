"""Pigeon: the smallest whole dialect. One JSON object in, one JSON object a line out.

request   {"model", "stream", "system": [text], "turns": [{"who", "says": [...]}], "tools": [{"name", "about", "schema"}]}
says      {"text"} | {"call": {"id", "name", "arguments"}} | {"result": {"of", "text", "error"}}
lines     {"hello": {"id", "model"}}, {"say": text}, {"call": {...}}, {"args": text}, {"usage": [in, out]},
          {"stop": why}, {"bye": true} | {"oops": message}
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from dragoman.dialects.base import ApiRequest, Decoder, Dialect, Encoder, Environment
from dragoman.dialects.rulebook import Breach, DialectRule
from dragoman.errors import BadFrame, Fault, MalformedRequest, MissingField, OutOfOrder, Truncated, Unrepresentable
from dragoman.model.assemble import assemble_reply, reply_events
from dragoman.model.blocks import Block, Location, Text, ToolCall, ToolResult
from dragoman.model.capabilities import Capabilities, traits
from dragoman.model.conversation import Conversation, Message, Reply, Stop, StopReason, ToolSpec, Usage, to_canonical
from dragoman.model.events import (
    FINISHED,
    ArgumentsDelta,
    BlockEnded,
    BlockKeys,
    BlockStarted,
    Event,
    Events,
    Failed,
    Finished,
    ResponseBudget,
    Started,
    Stopped,
    TextDelta,
    UsageReported,
)
from dragoman.model.filter import Filter
from dragoman.wire import jsonio
from dragoman.wire.fields import Fields
from dragoman.wire.frame import Frame, Payload
from dragoman.wire.http import HttpRequest, HttpResponse
from dragoman.wire.jsonio import Json

WHY = {StopReason.TOOL: "call", StopReason.LENGTH: "full"}


def parse_block(fields: Fields) -> Block:
    at = Location(fields.at)
    if fields.has("call"):
        call = fields.child("call")
        return ToolCall(call.text("id"), call.text("name"), call.text("arguments", ""), at=at)
    if fields.has("result"):
        result = fields.child("result")
        text = result.text("text", "")
        content = (Text(text),) if text else ()
        return ToolResult(result.text("of"), content, result.flag("error", False), at=at)
    return Text(fields.text("text"), at=at)


def render_block(block: Block) -> Json:
    match block:
        case Text(text=text):
            return {"text": text}
        case ToolCall(id=id, name=name, arguments=arguments):
            return {"call": {"id": id, "name": name, "arguments": arguments}}
        case ToolResult(call_id=of, content=content, is_error=error):
            texts = [each.text for each in content if isinstance(each, Text)]
            if len(texts) == len(content) <= 1:
                return {"result": {"of": of, "text": "".join(texts), "error": error}}
        case _:
            pass
    raise Unrepresentable(f"pigeons carry no {type(block).__name__}", at=block.at.path)


class OneText(Filter):
    """Pigeon's own filter: the texts of a result as one."""

    name = "pigeon.one_text"

    def forward(self, conversation, notes, facts):  # type: ignore[no-untyped-def]
        from msgspec import structs

        def one(block: Block) -> Block:
            if not isinstance(block, ToolResult) or len(block.content) < 2:
                return block
            notes.changed("pigeon.one_text", block.at.path, "the texts of a result are one text")
            return structs.replace(
                block, content=(Text("\n".join(getattr(each, "text", "") for each in block.content)),)
            )

        messages = tuple(
            structs.replace(message, blocks=tuple(map(one, message.blocks))) for message in conversation.messages
        )
        return structs.replace(conversation, messages=messages), None


class PigeonCodec(Struct, frozen=True):
    """Pigeon, a dialect for tests."""

    loft: str = ""  # a setting

    @property
    def family(self) -> str:
        return "pigeon"

    def capabilities(self, model: str) -> Capabilities:
        return Capabilities(choice_modes=frozenset({"auto"}), stop_limit=0, traits=traits("result_errors", "one_block"))

    def quirks(self, model: str) -> Sequence[Filter]:
        return (OneText(),)

    def parse_request(self, call: ApiRequest) -> Conversation:
        body = Fields(call.body)
        messages = tuple(
            Message(
                turn.one_of("who", ("user", "assistant", "system")),  # type: ignore[arg-type]
                tuple(map(parse_block, turn.children("says"))),
                at=Location(turn.at),
            )
            for turn in body.children("turns")
        )
        tools = tuple(
            ToolSpec(tool.text("name"), tool.text("about", ""), tool.child("schema").rest(), at=Location(tool.at))
            for tool in (body.children("tools") if body.has("tools") else [])
        )
        system = tuple(map(Text, body.strings("system"))) if body.has("system") else ()
        limit = body.integer("max_tokens") if body.has("max_tokens") else None
        return to_canonical(Conversation(call.model, messages, system, tools, max_tokens=limit, stream=call.stream))

    def render_request(self, conversation: Conversation) -> ApiRequest:
        body: dict[str, Json] = {
            "system": [text.text for text in conversation.system],
            "turns": [
                {"who": message.role, "says": [render_block(block) for block in message.blocks]}
                for message in conversation.messages
            ],
            "tools": [
                {"name": tool.name, "about": tool.description, "schema": dict(tool.schema or {})}
                for tool in conversation.tools
                if isinstance(tool, ToolSpec)
            ],
        }
        if conversation.max_tokens is not None:
            body["max_tokens"] = conversation.max_tokens
        return ApiRequest("generate", conversation.model, conversation.stream, body)

    def parse_reply(self, body: bytes, conversation: Conversation) -> Reply:
        decoder, frames = PigeonDecoder(), Lines()
        events = [event for frame in (*frames.feed(body), *frames.close()) for event in decoder.feed(frame)]
        return assemble_reply([*events, *decoder.close(None)])

    def render_reply(self, reply: Reply, conversation: Conversation, environment: Environment) -> bytes:
        return b"".join(payload.data + b"\n" for payload in PigeonEncoder().feed(reply_events(reply)))

    def decoder(
        self, conversation: Conversation, environment: Environment, keys: BlockKeys | None = None
    ) -> PigeonDecoder:
        return PigeonDecoder(keys)

    def encoder(
        self, conversation: Conversation, environment: Environment, budget: ResponseBudget | None = None
    ) -> PigeonEncoder:
        return PigeonEncoder()

    def parse_fault(self, response: HttpResponse, sent: Conversation | None = None) -> Fault:
        return Fault("server", response.body.decode("utf-8", "replace"), response.status)

    def render_fault(self, fault: Fault) -> bytes:
        return jsonio.encode({"oops": fault.message})

    def breaches(self, call: ApiRequest) -> Sequence[Breach]:
        return () if isinstance(call.body, dict) else (Breach("pigeon.object", "", "a letter is an object"),)

    def stream_breaches(self, frames: Iterable[Frame]) -> Sequence[Breach]:
        return ()

    def rules(self) -> Sequence[DialectRule]:
        return (DialectRule("pigeon.object", "documented", "error", "a letter is an object"),)


class PigeonDecoder(Decoder):
    def __init__(self, keys: BlockKeys | None = None) -> None:
        self._keys = keys or BlockKeys()
        self._key = -1
        self._open = self._begun = self._is_over = False

    @property
    def is_open(self) -> bool:
        return self._open

    def feed(self, frame: Frame) -> Events:
        try:
            line = Fields(jsonio.decode(frame.data), blame=MissingField)
        except jsonio.JsonError as error:
            raise BadFrame(str(error)) from None
        if self._begun == line.has("hello"):
            raise OutOfOrder("a letter begins with hello, once")
        if line.has("hello"):
            hello = line.child("hello")
            self._begun = True
            return (Started(hello.text("id"), hello.text("model")),)
        if line.has("say"):
            return (*self._into(Text("")), TextDelta(self._key, line.text("say")))
        if line.has("call"):
            call = line.child("call")
            return (*self._end(), *self._into(ToolCall(call.text("id"), call.text("name"))))
        if line.has("args") and self._open:
            return (ArgumentsDelta(self._key, line.text("args")),)
        if line.has("usage"):
            input_tokens, answered = (
                count if isinstance(count, int) else 0 for count in (*line.array("usage"), 0, 0)[:2]
            )
            return (UsageReported(Usage(input_tokens, answered)),)
        return self._last(line)

    def _last(self, line: Fields) -> Events:
        if line.has("end"):
            return self._end()
        if line.has("stop"):
            why = {name: why for why, name in WHY.items()}.get(line.text("stop"), StopReason.END)
            return (*self._end(), Stopped(Stop(why)))
        self._is_over = True
        return (*self._end(), FINISHED) if line.has("bye") else (Failed(Fault("server", line.text("oops"))),)

    def close(self, broken: Fault | None) -> Events:
        return () if self._is_over else (Failed(broken or Truncated("the pigeon did not arrive").fault),)

    def _into(self, block: Text | ToolCall) -> Events:
        if self._open:
            return ()
        self._key, self._open = self._keys.fresh(), True
        return (BlockStarted(self._key, block),)

    def _end(self) -> Events:
        ended = (BlockEnded(self._key),) if self._open else ()
        self._open = False
        return ended


class PigeonEncoder(Encoder):
    def feed(self, events: Events) -> Iterable[Payload]:
        return [Payload(b"", jsonio.encode(line)) for event in events if (line := self._line(event)) is not None]

    def _line(self, event: Event) -> Mapping[str, Json] | None:
        match event:
            case Started(id=id, model=model):
                return {"hello": {"id": id, "model": model}}
            case TextDelta(text=text):
                return {"say": text}
            case BlockStarted(block=ToolCall(id=id, name=name)):
                return {"call": {"id": id, "name": name}}
            case ArgumentsDelta(text=text):
                return {"args": text}
            case BlockEnded():
                return {"end": True}
            case UsageReported(usage=usage):
                return {"usage": [usage.input + usage.cache_read + usage.cache_write, usage.output]}
            case Stopped(stop=stop):
                return {"stop": WHY.get(stop.reason, "done")}
            case Finished():
                return {"bye": True}
            case Failed(fault=fault):
                return {"oops": fault.message}
            case _:
                return None

    def passes(self, events: Events) -> bool:
        return True

    def ping(self) -> Payload | None:
        return None


class Lines:
    """Frames that are lines."""

    def __init__(self) -> None:
        self._buffered = b""

    @property
    def buffered_bytes(self) -> int:
        return len(self._buffered)

    def feed(self, chunk: bytes) -> Iterator[Frame]:
        *lines, self._buffered = (self._buffered + chunk).split(b"\n")
        for line in lines:
            if line.strip():
                yield Frame("", line, line + b"\n")

    def close(self) -> Iterator[Frame]:
        if self._buffered:
            raise Truncated("half a line")
        yield from ()


class PigeonBinding(Struct, frozen=True):
    def match(self, request: HttpRequest) -> ApiRequest | None:
        if (request.method, request.path) != ("POST", "/fly"):
            return None
        try:
            return self.unwrap(jsonio.decode(request.body))
        except jsonio.JsonError as error:
            raise MalformedRequest(f"no JSON: {error}") from None

    def unwrap(self, body: Json) -> ApiRequest:
        fields = Fields(body)
        return ApiRequest("generate", fields.text("model", ""), fields.flag("stream", False), fields.rest())

    def wrap(self, call: ApiRequest) -> HttpRequest:
        assert isinstance(call.body, dict)
        body = jsonio.encode({"model": call.model, "stream": call.stream, **call.body})
        return HttpRequest("POST", "/fly", headers=(("content-type", "application/json"),), body=body)

    def frame_decoder(self) -> Lines:
        return Lines()

    def encode_frame(self, payload: Payload) -> bytes:
        return payload.data + b"\n"

    def error_response(self, fault: Fault, body: bytes) -> HttpResponse:
        return HttpResponse(fault.status, body=body)


DIALECT = Dialect("pigeon", PigeonCodec(), PigeonBinding())
