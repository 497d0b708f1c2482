"""The model list in the format of each dialect, and the estimate of tokens. Pure."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from msgspec import Struct

import dragoman.dialects as registry
from dragoman.dialects.base import Dialect, ListedModel, ModelListing
from dragoman.errors import UnknownModel
from dragoman.gateway.config import Config, ModelTable
from dragoman.gateway.routing import matches_pattern
from dragoman.model.blocks import Block, Media, Opaque, Reasoning, Text, ToolCall, ToolResult
from dragoman.model.conversation import Conversation
from dragoman.wire import jsonio
from dragoman.wire.jsonio import Json

_MEDIA_TOKENS = 1600  # of an image or a page, whatever its size: a convention
_MESSAGE_TOKENS = 4
_SINCE = int(time.time())  # Clients expect a creation date; the real one is unknown.


class ModelEntry(Struct, frozen=True):
    """A model that is known by name, its upstream, and its limits as far as they are known."""

    name: str
    upstream: str
    dialect: str
    model: str  # as the upstream calls it
    window: int | None = None
    longest_answer: int | None = None


def known_models(config: Config) -> list[ModelEntry]:
    """Return all models known by name: those of the configuration, and those of the upstreams' services."""
    listed = [_listed(config, name) for name in config.routes.names()]
    named = {each.name for each in listed}
    for upstream in config.upstreams.values():
        for name in upstream.dialect.models:
            if name not in named and _goes_to(config, name) == (upstream.name, name):
                listed.append(_listed(config, name))
                named.add(name)
    return listed


def _goes_to(config: Config, name: str) -> tuple[str, str] | None:
    try:
        target = config.routes.resolve(name)[0]
    except UnknownModel:
        return None
    return target.upstream.name, target.model


def _listed(config: Config, name: str) -> ModelEntry:
    target = config.routes.resolve(name)[0]
    dialect = target.upstream.dialect
    known = dialect.codec.capabilities(target.model)
    configured = _configured(config, name) or _configured(config, target.model) or ModelTable()
    return ModelEntry(
        name,
        target.upstream.name,
        dialect.name,
        target.model,
        configured.window or known.window,
        configured.longest_answer or known.longest_answer,
    )


def _configured(config: Config, name: str) -> ModelTable | None:
    """Return the limits in the configuration: under the model's name, else under the first pattern that matches."""
    figures = config.figures
    return figures.get(name) or next(
        (each for pattern, each in figures.items() if matches_pattern(pattern, name)), None
    )


def render_models(dialect: Dialect, listed: Sequence[ModelEntry], wanted: str, since: int = _SINCE) -> bytes:
    """Return the JSON of the list, or of the entry `wanted`. Raises UnknownModel."""
    shape = dialect.listing or registry.get("openai").listing
    assert shape is not None
    if not wanted:
        return jsonio.encode(shape.render_list([_entry(shape, model, since) for model in listed]))
    for model in listed:
        if model.name == wanted:
            return jsonio.encode(_entry(shape, model, since))
    known = ", ".join(model.name for model in listed[:10])
    raise UnknownModel(f"the model {wanted!r} is not in the list; known models: {known}")


def _entry(shape: ModelListing, model: ModelEntry, since: int) -> Json:
    entry = shape.entry(ListedModel(model.name, model.window, model.longest_answer, since))
    return {name: value for name, value in entry.items() if value is not None}


# --- counting


def estimate_tokens(conversation: Conversation) -> int:
    """Estimate the tokens of a conversation: four ASCII characters, or one other character, count as one token."""
    texts = [text.text for text in conversation.system]
    texts += [jsonio.encode(tool).decode() for tool in conversation.tools]
    blocks = [block for message in conversation.messages for block in message.blocks]
    counted = sum(map(_tokens, texts)) + sum(_block(block) for block in blocks)
    return counted + _MESSAGE_TOKENS * len(conversation.messages)


def _block(block: Block) -> int:
    if isinstance(block, Media):
        return _MEDIA_TOKENS
    if isinstance(block, ToolResult):
        return sum(map(_block, block.content))
    return sum(map(_tokens, _words(block)))


def _words(block: Block) -> Iterator[str]:
    match block:
        case Text(text=text) | Reasoning(text=text):
            yield text
        case ToolCall(name=name, arguments=arguments):
            yield from (name, arguments)
        case Opaque(data=data):
            yield jsonio.encode(data).decode()
        case _:
            return


def _tokens(text: str) -> int:
    wide = 0 if text.isascii() else sum(char > "\x7f" for char in text)
    return wide + (len(text) - wide + 3) // 4
