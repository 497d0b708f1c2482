"""The functions of the library: translate a request, a whole reply, a stream. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import msgspec
from msgspec import structs

import dragoman.dialects as registry
from dragoman.dialects.base import ApiRequest, Dialect
from dragoman.errors import DragomanError, LocalMisuse, MalformedRequest, UpstreamViolation
from dragoman.model.conversation import Conversation
from dragoman.model.filter import Note
from dragoman.response_stream import ResponseTranslator, translate_whole_reply
from dragoman.translate import Plan, TranslationSettings, configure_dialect, plan
from dragoman.wire import jsonio

P = ParamSpec("P")
R = TypeVar("R")


class Translated:
    """A translated request or reply: its JSON body, path and headers, and the notes."""

    def __init__(
        self, raw: bytes, notes: list[Note], plan: Plan, path: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        self.raw = raw
        self.notes = notes
        self.plan = plan
        self.path = path
        self.headers = dict(headers or {})

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
        self.plan = plan
        self._translator = ResponseTranslator(plan)

    def feed(self, chunk: bytes) -> bytes:
        """Translate a chunk of the source's bytes. Raises LocalMisuse if it is not bytes."""
        if not isinstance(chunk, bytes | bytearray | memoryview):
            raise LocalMisuse("feed expects bytes")
        return self._translator.feed(bytes(chunk))

    def close(self) -> bytes:
        """Return the end of the target's stream: an error in its dialect if the source was cut."""
        return self._translator.close()

    @property
    def notes(self) -> list[Note]:
        """The notes so far."""
        return list(self._translator.notes)

    @property
    def error(self) -> DragomanError | None:
        """The error with which the stream ended, or None."""
        fault = self._translator.fault
        return UpstreamViolation(fault.message, fault=fault) if fault else None


def _shallow(blame: type[DragomanError]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function so that values nested as deep as Python's stack raise `blame`, not RecursionError."""

    def decorate(work: Callable[P, R]) -> Callable[P, R]:
        @wraps(work)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return work(*args, **kwargs)
            except RecursionError:
                raise blame("nested too deeply") from None

        return guarded

    return decorate


@_shallow(MalformedRequest)
def translate_request(
    body: Mapping[str, Any] | bytes | str, *, source: str, target: str, model: str | None = None, **options: Any
) -> Translated:
    """Translate a client's request from the dialect `source` into `target`, for `model` if given.

    Raises MalformedRequest for a body that breaks its own dialect and Unrepresentable for one the target cannot
    express, both naming the path; LocalMisuse for an unknown dialect or option, and where neither the body nor `model`
    names a model.
    """
    if model is not None and not isinstance(model, str):
        raise LocalMisuse("model must be a string")
    if model is not None and not model.strip():
        raise LocalMisuse("model: expected the name of a model, got nothing")
    client, upstream, settings = _parse_options(source, target, options)
    conversation = client.codec.parse_request(_unwrap(client, _decoded(body, MalformedRequest), model))
    planned = plan(client, upstream, conversation, model=model, settings=settings)
    if model is None and not conversation.model.strip():
        raise LocalMisuse(
            f"the {source} request names no model; give one with the option model (--model on the command line)"
        )
    request = upstream.binding.wrap(planned.call())
    return Translated(request.body, list(planned.notes), planned, request.path, dict(request.headers))


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
    **options: Any,
) -> Translated:
    """Translate an upstream's whole reply from `source` into the client's dialect `target`.

    `request` is the result of `translate_request`; it carries model, tools and names. Raises
    UpstreamViolation, naming the path, for a reply that breaks its own dialect.
    """
    planned = _plan_of(source, target, request, options)
    raw, notes = translate_whole_reply(planned, _encoded(body))
    return Translated(raw, notes, planned)


def stream_translator(
    *, source: str, target: str, request: Translated | None = None, **options: Any
) -> StreamTranslator:
    """Translate an upstream's stream from `source` into the client's dialect `target`, piece by piece.

    `request` is as for `translate_reply`. The stream never raises for what the upstream sent: the output ends with an
    error in the client's dialect, and `error` returns it.
    """
    return StreamTranslator(_plan_of(source, target, request, options))


def _plan_of(source: str, target: str, request: Translated | None, options: dict[str, Any]) -> Plan:
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
    all_options = {**structs.asdict(planned.settings), **options}
    client, upstream, settings = _configured(planned.client, planned.upstream, all_options)
    return plan(client, upstream, planned.original, model=planned.translated.model, settings=settings)


def _parse_options(client: str, upstream: str, options: dict[str, Any]) -> tuple[Dialect, Dialect, TranslationSettings]:
    return _configured(registry.get(client), registry.get(upstream), options)


def _configured(
    client: Dialect, upstream: Dialect, options: dict[str, Any]
) -> tuple[Dialect, Dialect, TranslationSettings]:
    """Return both dialects and the settings. An option belongs to the translation or to one of the dialects."""
    general = {name: options.pop(name) for name in TranslationSettings.__struct_fields__ if name in options}
    known = [*getattr(upstream.codec, "__struct_fields__", ()), *getattr(client.codec, "__struct_fields__", ())]
    for name in options:
        if name not in known:
            near = get_close_matches(name, [*known, *TranslationSettings.__struct_fields__], 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise LocalMisuse(f"unknown option {name!r}{hint}")
    ours = {name: options[name] for name in options if name in getattr(upstream.codec, "__struct_fields__", ())}
    theirs = {name: options[name] for name in options if name not in ours}
    try:
        settings = msgspec.convert(general, TranslationSettings)
    except msgspec.ValidationError as error:
        raise LocalMisuse(f"option: {error}") from None
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
