"""The language: the parts of this package as one codec, and what it can say."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from urllib.parse import quote, unquote

from msgspec import Struct

from dragoman.dialects.base import Call, Model, Operation, World, in_cache_order
from dragoman.dialects.gemini import faults, quirks, reply, request, rules
from dragoman.dialects.gemini.blocks import FAMILY, is_older, names, read
from dragoman.dialects.gemini.encoder import ARRAY, ITEM, GeminiEncoder
from dragoman.dialects.gemini.faults import status_of
from dragoman.dialects.gemini.request import KNOBS
from dragoman.dialects.gemini.rules import RULES
from dragoman.dialects.gemini.stream import GeminiDecoder
from dragoman.dialects.kit.faults import refusal
from dragoman.errors import Fault, MalformedRequest, MissingField
from dragoman.model.budget import Budget
from dragoman.model.capabilities import Alphabet, Capabilities, traits
from dragoman.model.conversation import Conversation
from dragoman.model.events import BlockKeys
from dragoman.model.filter import Filter
from dragoman.wire import jsonio
from dragoman.wire.fields import Fields
from dragoman.wire.frame import Frame, FrameDecoder, Payload
from dragoman.wire.http import HttpRequest, HttpResponse, path_name
from dragoman.wire.jsonio import Json
from dragoman.wire.jsonscan import ObjectScanner
from dragoman.wire.sse import MAX_FRAME, FrameTooLong, SseDecoder, encode_sse


class GeminiCodec(Struct, frozen=True):
    """Gemini's generateContent."""

    @property
    def family(self) -> str:
        return FAMILY

    def capabilities(self, model: str) -> Capabilities:
        older = is_older(model)
        return Capabilities(
            system="leading",
            turns="merge",
            traits=traits(
                "user_last",
                "no_blank_text",
                "whole_calls",
                "bare_tools",
                "choice_names",
                "home_names",
                "result_errors",
                "reasoning",
                "sealed_words",
                "seal_slot",
                "seal_bytes",
                "one_block",
                "choices",
                "cites",
                "budgets",
                "thinking_show",
            ),
            names=Alphabet("a-zA-Z0-9_.:-", 128),
            ids=Alphabet(r"\x21-\x7e", 256),
            arguments="object",
            named_media=frozenset(),
            result_media=frozenset() if older else frozenset({"image", "document"}),
            media=frozenset(
                (kind, how) for kind in ("image", "document", "audio", "video") for how in ("base64", "url")
            ),
            seals=frozenset({FAMILY}),
            knobs=frozenset(KNOBS),
            knob_ranges=(
                ("temperature", 0, 2),
                ("top_p", 0, 1),
                ("presence_penalty", -2, 2),
                ("frequency_penalty", -2, 2),
            ),
            output=frozenset({"text", "json", "schema"}),
            efforts=() if older else ("minimal", "low", "medium", "high"),
            thinking=frozenset({"default", "off", "on", "adaptive"}),
            holds=frozenset({"cachedContent"}),
            files=FAMILY,
            addresses=("gs://", "https://generativelanguage.googleapis.com/"),
            stop_limit=rules.MOST_STOPS,
        )

    def quirks(self, model: str) -> Sequence[Filter]:
        older = is_older(model)
        return (
            *((quirks.EffortAsBudget(),) if older else ()),
            quirks.AskForEvents(),
            quirks.OneChoice(),
            quirks.SettleThinking(),
            quirks.SettleResults(),
            quirks.FitMedia(),
            *(() if older else (quirks.SignCalls(),)),
        )

    parse_request = staticmethod(request.parse_request)
    render_request = staticmethod(request.render_request)
    parse_reply = staticmethod(reply.parse_reply)
    render_reply = staticmethod(reply.render_reply)

    def decoder(self, asked: Conversation, world: World, keys: BlockKeys | None = None) -> GeminiDecoder:
        return GeminiDecoder(asked, keys)

    def encoder(self, asked: Conversation, world: World, budget: Budget | None = None) -> GeminiEncoder:
        return GeminiEncoder(asked, world, budget)

    def parse_fault(self, response: HttpResponse, sent: Conversation | None = None) -> Fault:
        return faults.parse_fault(response)

    render_fault = staticmethod(faults.render_fault)
    breaches = staticmethod(rules.breaches)
    stream_breaches = staticmethod(rules.stream_breaches)
    rules = staticmethod(RULES.declared)


# ---
# Frames of a stream: server-sent events, bare JSON among them, or one JSON array.
#
# The service tells an error in mid-stream as bare JSON, in a line of its own; no line of an event begins with `{`. A
# stream that nobody asked for as events is one array of the same objects.


_BARE = re.compile(rb"[\r\n]\{")
_SPACE = b" \t\r\n"


class GeminiFrames:
    """Feed bytes cut anywhere; get the same frames as if they came whole."""

    def __init__(self) -> None:
        self._events = SseDecoder()
        self._begun = False
        self._array = False
        self._line_begins = True
        self._held: list[bytes] = []  # of one object of bare JSON
        self._size = 0
        self._scanner: ObjectScanner | None = None

    @property
    def held(self) -> int:
        """See FrameDecoder."""
        return self._size + self._events.held

    def feed(self, chunk: bytes) -> Iterator[Frame]:
        if not self._begun:
            chunk = chunk.lstrip(_SPACE)
            if not chunk:
                return
            self._begun = True
            self._array = chunk.startswith(b"[")
        while chunk:
            if self._scanner is not None:
                chunk, frame = self._bare(chunk, self._scanner)
                if frame is not None:
                    yield frame
            elif self._array:
                chunk = chunk.lstrip(b"[,]" + _SPACE)
                self._scanner = ObjectScanner() if chunk else None
            elif self._line_begins and chunk.startswith(b"{"):
                self._scanner = ObjectScanner()
            else:
                found = _BARE.search(chunk)
                end = found.start() + 1 if found else len(chunk)
                lines, chunk = chunk[:end], chunk[end:]
                self._line_begins = lines.endswith((b"\n", b"\r"))
                yield from self._events.feed(lines)

    def close(self) -> Iterator[Frame]:
        if self._held:
            broken = b"".join(self._held)
            self._held = []
            yield Frame("", broken, broken)
        yield from self._events.close()

    def _bare(self, chunk: bytes, scanner: ObjectScanner) -> tuple[bytes, Frame | None]:
        """Take more of an object; give what follows it, and itself if it is whole."""
        rest = scanner.feed(chunk.decode("latin-1"))
        if not scanner.complete:
            self._held.append(chunk)
            self._size += len(chunk)
            if self._size > MAX_FRAME:
                raise FrameTooLong(f"a frame is longer than {MAX_FRAME} bytes")
            return b"", None
        end = len(chunk) - len(rest)
        whole = b"".join([*self._held, chunk[:end]])
        self._held, self._size, self._scanner, self._line_begins = [], 0, None, False
        return chunk[end:], Frame("", whole, whole)


# ---
# Path, headers and framing: POST /v1beta/models/{model}:{method}, server-sent events or one array.


_VERSION = r"/v\d+(?:alpha|beta)?\d*"
_METHODS: dict[str, Operation] = {
    "generateContent": "generate",
    "streamGenerateContent": "generate",
    "countTokens": "count",
}
_CALL = re.compile(rf"{_VERSION}/(.+):({'|'.join(_METHODS)})/?\Z", re.DOTALL)
_LIST = re.compile(rf"({_VERSION})/models(?:/(.+?))?/?\Z", re.DOTALL)
_OWNER = re.compile(r"(?:projects/[^/]+/locations/[^/]+/)?(?:publishers/[^/]+/)?models/")
_SHARED = "/v1"  # where other dialects list their models too
_HEADERS = ("x-goog-api-key", "x-goog-api-client")
_COUNT = names("generateContentRequest")
_JSON = ("content-type", "application/json")


class GeminiBinding(Struct, frozen=True):
    prefix: str = "/v1beta"

    def match(self, request: HttpRequest) -> Call | None:
        path = unquote(request.path)
        if request.method == "GET":
            return _listing(path, request)
        found = _CALL.match(path)
        if request.method != "POST" or found is None:
            return None
        model, method = path_name(model_in(found[1])), found[2]
        fields = Fields.of(request) if request.body else Fields({})
        if _METHODS[method] == "count":
            return Call("count", model, False, _counted(fields))
        stream = method.startswith("stream")
        hints = {"alt": ARRAY} if stream and request.parameter("alt") != "sse" else {}
        return Call("generate", model, stream, fields.rest(), hints)

    def unwrap(self, body: Json) -> Call:
        """The call in a bare body, which may name its model."""
        fields = Fields(body)
        return Call("generate", model_in(fields.text("model", "") or ""), False, fields.rest())

    def wrap(self, call: Call) -> HttpRequest:
        name = quote(path_name(call.model), safe="", errors="surrogatepass")
        path = f"{self.prefix}/models/{name}" if name else f"{self.prefix}/models"
        if call.operation == "models":
            return HttpRequest("GET", path, headers=(("accept", "application/json"),))
        body = call.body if isinstance(call.body, dict) else {}
        if call.operation == "count":
            counted: Json = {"generateContentRequest": {"model": f"models/{call.model}", **body}}
            return _post(f"{path}:countTokens", "", counted, "application/json")
        body = in_cache_order(body, ("tools", "systemInstruction"), "contents")
        if not call.stream:
            return _post(f"{path}:generateContent", "", body, "application/json")
        if call.hints.get("alt") == ARRAY:
            return _post(f"{path}:streamGenerateContent", "", body, "application/json")
        return _post(f"{path}:streamGenerateContent", "alt=sse", body, "text/event-stream")

    def frames(self) -> FrameDecoder:
        return GeminiFrames()

    def frame(self, payload: Payload) -> bytes:
        if payload.kind == ITEM:
            return payload.data
        if payload.error:
            # As an event, which every reader of events sees, and Google's Python SDK raises. Then bare, as the service
            # does it, and not closed by a blank line: Google's JavaScript SDK raises for bare JSON in a piece of its
            # own, and for text that is left over at the end.
            return encode_sse(b"", payload.data) + payload.data + b"\n"
        return encode_sse(payload.kind, payload.data)

    def refuse(self, fault: Fault, body: bytes) -> HttpResponse:
        return refusal(fault, status_of(fault), body)


def model_in(name: str) -> str:
    """The model in a resource name: without those who own it."""
    while found := _OWNER.match(name):
        name = name[found.end() :]
    return name


def _listing(path: str, request: HttpRequest) -> Call | None:
    found = _LIST.match(path)
    if found is None or (found[1] == _SHARED and not any(map(request.header, _HEADERS))):
        return None
    return Call("models", model_in(found[2] or ""), False, None)


def _counted(fields: Fields) -> Json:
    """What shall be counted: a whole request, or contents alone."""
    body = read(fields.rest(), "", MalformedRequest, _COUNT)
    whole = body.maybe_child("generateContentRequest")
    return whole.rest() if whole is not None else body.rest()


def _post(path: str, query: str, body: Json, accept: str) -> HttpRequest:
    try:
        data = jsonio.encode(body)
    except jsonio.JsonError as error:
        raise MalformedRequest(str(error)) from None
    return HttpRequest("POST", path, query, (_JSON, ("accept", accept)), data)


class GeminiCounts(Struct, frozen=True):
    def parse_count(self, body: bytes) -> int:
        return Fields.parse(body, blame=MissingField).integer("totalTokens", 0)

    def render_count(self, tokens: int, estimated: bool) -> bytes:
        return jsonio.encode({"totalTokens": tokens})


# ---
# Which models there are, in Gemini's shape.


class GeminiListing:
    def entry(self, model: Model) -> dict[str, Json]:
        return {
            "name": f"models/{model.name}",
            "displayName": model.name,
            "inputTokenLimit": model.window,
            "outputTokenLimit": model.longest_answer,
            "supportedGenerationMethods": ["generateContent", "countTokens"],
        }

    def list_of(self, entries: list[Json]) -> Json:
        return {"models": entries}
