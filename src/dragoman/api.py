"""The functions of the library: translate a request, a whole reply, a stream or an error. Pure.

docs/library.md describes them. `dragoman` exports what is public here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import wraps
from typing import Any, Literal, ParamSpec, TypedDict, TypeVar, Unpack

import msgspec
from msgspec import Struct, structs

import dragoman.dialects as registry
from dragoman.dialects.base import ApiRequest, Dialect
from dragoman.errors import DragomanError, LocalMisuse, MalformedRequest, UpstreamFault, UpstreamViolation
from dragoman.model.conversation import Conversation
from dragoman.model.filter import Note
from dragoman.response_stream import ResponseTranslator, error_response, stream_content_type, translate_whole_reply
from dragoman.translate import Plan, TranslationSettings, configure_dialect, plan
from dragoman.wire import jsonio
from dragoman.wire.http import HttpResponse
from dragoman.wire.validation import explain_refusal

P = ParamSpec("P")
R = TypeVar("R")


class Options(TypedDict, total=False):
    """The options of a translation: keyword arguments of `translate_request`, `translate_reply`, `stream_translator`.

    A setting of a dialect goes to the dialect of the upstream if that has it, else to the dialect of the client.
    """

    # Of every translation.
    losses: Literal["note", "refuse"]  # refuse: raise Unrepresentable for content that the target cannot express
    think_tags: bool  # the model writes its thinking as <think>…</think> into the text; it becomes reasoning
    raw_tools: str | None  # tool calls that a model writes as text: auto, off, the name of a format, file:PATH
    raw_tools_mode: Literal["live", "buffered"]  # buffered: each such call is sent whole
    attribution: Literal["auto", "keep", "strip"]  # Claude Code's accounting line; auto: kept for Anthropic only
    repair: bool  # write every frame anew, even one that could be sent unchanged

    # Of the dialects anthropic and bedrock.invoke.
    default_max_tokens: int  # for a request without a limit
    signed_thinking: bool  # False: the service does not sign thinking but expects it back
    threads: bool  # False: the service keeps no message threads

    # Of the dialect openai.
    max_tokens_field: Literal["max_completion_tokens", "max_tokens"]  # unless the client chose one
    reasoning_field: Literal["reasoning_content", "reasoning", "content"]  # content: as parts of the type thinking
    custom_tools: bool  # False: tools that take free text are wrapped as functions
    result_media: bool  # the service accepts images in tool messages
    ask_usage: bool  # request the usage of streams whose client did not
    special_tokens: bool  # request that a vLLM-like server keeps its special tokens when tools are offered
    file_urls: bool  # the service accepts the URL of a file as its data
    options: tuple[str, ...]  # fields of Responses clients that the service gets
    user_limit: int | None  # characters of a user id; a longer one is sent as its hash
    cache_marks: Literal["auto", "on", "off"]  # whether the service gets the cache marks of other dialects
    cache_control: bool  # it gets them in Anthropic's form
    cache_long: bool  # a cache mark of 1h is sent as 12h
    cache_key: bool | None  # a gateway adds a prompt_cache_key, made of the client's session
    web_search: Literal["auto", "field", "openrouter", "none"]  # how the upstream searches the web
    more_sampling: tuple[str, ...]  # numeric fields beyond OpenAI's own: top_k, min_p, repetition_penalty …

    # Of the dialect responses.
    compaction: bool | None  # the service compacts conversations; None: for gpt-5.4 and later

    # Of the dialect kiro.
    pairing: Literal["placeholders", "merge"]  # how a missing turn is filled; merge: turns of one role become one
    fillers: tuple[str, str]  # the text of a missing assistant turn, and of a missing user turn
    oversize: Literal["refuse", "trim"]  # trim: drop the oldest exchanges of a request that is too long
    history_limit: int | None  # entries of the history; older exchanges are dropped
    long_descriptions: Literal["system", "cut"]  # system: a description that is cut is whole in the system text
    max_tools: int  # the number of tools that are offered
    usage_window: int | Literal["model"]  # tokens that 100 per cent of context stand for
    usage_split: tuple[int, int, int] | bool  # shares of input, cache writes and cache reads; False: all is input
    origin: str  # sent in every user turn
    profile_arn: str  # the profile that the request names
    conversation_id: str  # a fixed id in place of a computed one
    recover_calls: bool  # a call of a declared tool that the model wrote as text becomes a call
    drop_repeats: bool  # drop a piece of text that equals the one before it

    # Of the dialect ollama.
    num_ctx: int | None  # the context window in tokens; None: the server's choice
    keep_alive: str | int | None  # how long the model stays loaded
    truncate: bool  # the server may drop old messages of a prompt that is too long

    # Of the dialect bedrock.
    vendor: str  # the vendor of models whose id does not name one

    # Of dialects that other packages add.
    settings: Mapping[str, object]  # settings of such a dialect, by name


class Translated:
    """A translated request or reply.

    Attributes:
        raw: the JSON body as bytes.
        headers: the headers to send with it, without those of a credential.
        path: the path and query of a request; empty for a reply.
        stream: whether the client asked for a stream.
        notes: what was changed, one `Note` for each change.
    """

    def __init__(self, raw: bytes, notes: list[Note], plan: Plan, path: str, headers: Mapping[str, str]) -> None:
        self.raw = raw
        self.notes = notes
        self.plan = plan  # internal
        self.path = path
        self.headers = dict(headers)
        self.stream = plan.original.stream

    @property
    def body(self) -> dict[str, Any]:
        """The body as a dict; a new one for each access."""
        body = jsonio.decode(self.raw)
        assert isinstance(body, dict)
        return body

    def __repr__(self) -> str:
        return f"<Translated {self.path or 'reply'}, {len(self.raw)} bytes, {len(self.notes)} notes>"


class StreamTranslator:
    """Translates a stream: feed it the source's bytes, cut anywhere; it returns the target's bytes."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan  # internal
        self._translator = ResponseTranslator(plan)
        self._broken: DragomanError | None = None

    def feed(self, chunk: bytes) -> bytes:
        """Translate a chunk of the source's bytes. Raises LocalMisuse if it is not bytes."""
        if not isinstance(chunk, bytes | bytearray | memoryview):
            raise LocalMisuse(f"feed expects bytes, not {type(chunk).__name__}")
        return self._translator.feed(bytes(chunk))

    def close(self, error: DragomanError | None = None) -> bytes:
        """Return the end of the target's stream: an error in its dialect if the source was cut.

        `error` says why the source's bytes ended early, for example a TransportError. It is ignored if the stream was
        complete before.
        """
        if error is not None and not isinstance(error, DragomanError):
            raise LocalMisuse(f"close expects a DragomanError or None, not {type(error).__name__}")
        if not self._translator.is_over:
            self._broken = error
        return self._translator.close(error.fault if error else None)

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the response to the client."""
        hints = self.plan.original.hints
        content_type = stream_content_type(self.plan.client.binding, hints.fields if hints else {})
        return {"content-type": content_type, "cache-control": "no-cache"}

    @property
    def notes(self) -> list[Note]:
        """The notes so far."""
        return list(self._translator.notes)

    @property
    def error(self) -> DragomanError | None:
        """The error with which the stream ended, or None."""
        fault = self._translator.fault
        if fault is None:
            return None
        if self._broken is not None:
            return self._broken
        kind = UpstreamViolation if fault.is_violation else UpstreamFault
        return kind(fault.message, fault=fault)


class RenderedError(Struct, frozen=True):
    """An error as an HTTP response in a client's dialect."""

    status: int
    headers: dict[str, str]
    body: bytes


def _shallow(blame: type[DragomanError]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function so that it raises `blame`, not RecursionError, for values that are nested too deeply."""

    def decorate(work: Callable[P, R]) -> Callable[P, R]:
        @wraps(work)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return work(*args, **kwargs)
            except RecursionError:
                raise blame("the value is nested too deeply") from None

        return wrapper

    return decorate


@_shallow(MalformedRequest)
def translate_request(
    body: Mapping[str, Any] | bytes | str,
    *,
    source: str,
    target: str,
    model: str | None = None,
    stream: bool | None = None,
    **options: Unpack[Options],
) -> Translated:
    """Translate a client's request from the dialect `source` into `target`.

    `model` replaces the model that the body names. `stream` says whether the client asked for a stream; it is needed
    where the path says so and not the body (gemini, bedrock). `options` are those of `Options`.

    Raises MalformedRequest for a body that breaks its own dialect and Unrepresentable for one the target cannot
    express, both naming the path; LocalMisuse for an unknown dialect or option, and where neither the body nor `model`
    names a model.
    """
    _check(model, stream)
    client, upstream, settings = _parse_options(source, target, options)
    call = _unwrap(client, _decoded(body, MalformedRequest), model)
    conversation = client.codec.parse_request(call if stream is None else structs.replace(call, stream=stream))
    planned = plan(client, upstream, conversation, model=model, settings=settings)
    if model is None and not conversation.model.strip():
        raise LocalMisuse(
            f"the {source} request names no model; give one with the option model (--model on the command line)"
        )
    request = upstream.binding.wrap(planned.call())
    path = f"{request.path}?{request.query}" if request.query else request.path
    return Translated(request.body, list(planned.notes), planned, path, dict(request.headers))


def _check(model: str | None, stream: bool | None) -> None:
    if model is not None and not isinstance(model, str):
        raise LocalMisuse("model must be a string")
    if model is not None and not model.strip():
        raise LocalMisuse("model: expected the name of a model, got nothing")
    if stream is not None and not isinstance(stream, bool):
        raise LocalMisuse("stream must be True, False or None")


def _unwrap(client: Dialect, body: jsonio.Json, model: str | None) -> ApiRequest:
    """Return the API request in a body. `model` is used if the body should name a model and does not."""
    try:
        return client.binding.unwrap(body)
    except MalformedRequest as error:
        if model is None or error.at != "model" or not isinstance(body, dict):
            raise
        return client.binding.unwrap({**body, "model": model})


@_shallow(UpstreamViolation)
def translate_reply(
    body: Mapping[str, Any] | bytes | str,
    *,
    source: str,
    target: str,
    request: Translated | None = None,
    **options: Unpack[Options],
) -> Translated:
    """Translate an upstream's whole reply from `source` into the client's dialect `target`.

    `request` is the result of `translate_request`; it carries model, tools and names. `options` are added to those of
    the request.

    Raises UpstreamViolation, naming the path, for a reply that breaks its own dialect, UpstreamFault for an error in
    its place, and LocalMisuse as `translate_request`.
    """
    planned = _plan_of(source, target, request, options)
    raw, notes = translate_whole_reply(planned, _encoded(body))
    return Translated(raw, notes, planned, "", {"content-type": "application/json"})


def stream_translator(
    *, source: str, target: str, request: Translated | None = None, **options: Unpack[Options]
) -> StreamTranslator:
    """Return a translator of an upstream's stream from `source` into the client's dialect `target`.

    `request` and `options` are as for `translate_reply`. The stream never raises for what the upstream sent: the output
    ends with an error in the client's dialect, and `error` returns it. Raises LocalMisuse as `translate_request`.
    """
    return StreamTranslator(_plan_of(source, target, request, options))


def parse_error(
    body: bytes,
    *,
    status: int,
    dialect: str,
    headers: Mapping[str, str] | None = None,
    request: Translated | None = None,
) -> UpstreamFault:
    """Read an upstream's error response, in its dialect; its `fault` has the kind, the status and the time to wait.

    `request` is the result of `translate_request`, for services that report no numbers. A body that cannot be read
    gives an error too, by its status. Raises LocalMisuse for an unknown dialect and for a status below 300.
    """
    if status not in range(300, 600):
        raise LocalMisuse(f"status: expected that of an error, got {status!r}")
    fields = tuple([(name.lower(), value) for name, value in (headers or {}).items()])
    sent = request.plan.translated if request is not None else None
    fault = registry.get(dialect).codec.parse_fault(HttpResponse(status, fields, body), sent)
    return UpstreamFault(fault.message, fault=fault)


def render_error(error: DragomanError, *, dialect: str) -> RenderedError:
    """Return an error as the HTTP response for a client of this dialect.

    If the response has begun, the stream ends with `StreamTranslator.close(error)` instead. The message is that of the
    error: one of an upstream may name addresses. Raises LocalMisuse for an unknown dialect.
    """
    if not isinstance(error, DragomanError):
        raise LocalMisuse(f"render_error expects a DragomanError, got {type(error).__name__}")
    response = error_response(registry.get(dialect), error.fault)
    return RenderedError(response.status, dict(response.headers), response.body)


def _plan_of(source: str, target: str, request: Translated | None, options: Options) -> Plan:
    """Return the plan of the request, or one for an unknown request."""
    if request is None:
        client, upstream, settings = _parse_options(target, source, options)
        return plan(client, upstream, Conversation("", ()), settings=settings)
    if not isinstance(request, Translated):
        raise LocalMisuse("request must be the result of translate_request")
    planned = request.plan
    if (planned.upstream.name, planned.client.name) != (source, target):
        raise LocalMisuse(
            f"the request went from {planned.client.name} to {planned.upstream.name}: "
            f"its response goes from {planned.upstream.name} to {planned.client.name}"
        )
    if not options:
        return planned
    all_options = {**structs.asdict(planned.settings), **_flat(options)}
    client, upstream, settings = _configured(planned.client, planned.upstream, all_options)
    return plan(client, upstream, planned.original, model=planned.translated.model, settings=settings)


def _parse_options(client: str, upstream: str, options: Options) -> tuple[Dialect, Dialect, TranslationSettings]:
    return _configured(registry.get(client), registry.get(upstream), _flat(options))


def _flat(options: Options) -> dict[str, object]:
    """Return the options with the members of `settings` as options of their own."""
    flat: dict[str, object] = {**options}
    settings = flat.pop("settings", {})
    if not isinstance(settings, Mapping):
        raise LocalMisuse("the option settings must be a mapping")
    for name, value in settings.items():
        if name in flat:
            raise LocalMisuse(f"the option {name!r} is set twice, by its name and in settings")
        flat[name] = value
    return flat


def _configured(
    client: Dialect, upstream: Dialect, options: dict[str, object]
) -> tuple[Dialect, Dialect, TranslationSettings]:
    """Return both dialects and the settings. An option belongs to the translation or to one of the dialects."""
    general = {name: options.pop(name) for name in TranslationSettings.__struct_fields__ if name in options}
    known = [*getattr(upstream.codec, "__struct_fields__", ()), *getattr(client.codec, "__struct_fields__", ())]
    for name in options:
        if name not in known:
            near = get_close_matches(str(name), [*known, *TranslationSettings.__struct_fields__], 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise LocalMisuse(f"unknown option {name!r}{hint}")
    ours = {name: options[name] for name in options if name in getattr(upstream.codec, "__struct_fields__", ())}
    theirs = {name: options[name] for name in options if name not in ours}
    try:
        settings = msgspec.convert(general, TranslationSettings)
    except msgspec.ValidationError as error:
        raise LocalMisuse(f"option {explain_refusal(error)}") from None
    return configure_dialect(client, theirs), configure_dialect(upstream, ours), settings


def _encoded(body: Mapping[str, Any] | bytes | str) -> bytes:
    if isinstance(body, bytes):
        return body
    try:
        return body.encode("utf-8", "surrogatepass") if isinstance(body, str) else jsonio.encode(body)
    except jsonio.JsonError as error:
        raise LocalMisuse(f"the body is not JSON: {error}") from None


def _decoded(body: Mapping[str, Any] | bytes | str, blame: type[DragomanError]) -> jsonio.Json:
    try:
        return jsonio.decode(body if isinstance(body, bytes | str) else jsonio.encode(body))
    except jsonio.JsonError as error:
        raise blame(f"the body is not JSON: {error}") from None
