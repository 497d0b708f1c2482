"""What a request names and the service holds: earlier responses, conversations, items, templates, background jobs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dragoman.dialects.responses.items import REFERENCE
from dragoman.dialects.responses.nodes import FAMILY, object_of, text_of
from dragoman.model.blocks import Opaque
from dragoman.model.conversation import Held, Message
from dragoman.wire.fields import Fields
from dragoman.wire.fields import describe as describe_json

_UNKNOWN = "previous_response_not_found"  # on this code clients send the whole conversation
_WHOLE = "Send the whole conversation as `input` instead."
_NO_COMPACTION = "the target cannot compact a conversation; leave this out, or send a summary as text"
NAMES = frozenset({"previous_response_id", "conversation", REFERENCE, "prompt", "background", "context_management"})


def held_by_service(fields: Fields, messages: Iterable[Message]) -> tuple[Held, ...]:
    """Raises MalformedRequest for what names nothing."""
    return (*_fields(fields), *(_item(at, item_id) for at, item_id in references(messages)))


def _fields(fields: Fields) -> Iterator[Held]:
    if (previous := fields.peek("previous_response_id")) is not None:
        why = (
            f"no response {text_of(previous)!r} is known here. A gateway keeps the answers of upstreams that do not"
            f" speak Responses for a while, unless `store` is false. {_WHOLE}"
        )
        name = "previous_response_id"
        yield Held(name, name, why, turns=True, answer=text_of(previous), code=_UNKNOWN)
    if (given := fields.peek("conversation")) is not None:
        name = given if isinstance(given, str) and given else _child(fields, "conversation").identifier("id")
        why = f"the conversation {name!r} is held by the service, and this upstream does not have it. {_WHOLE}"
        yield Held("conversation", "conversation", why, turns=True, code=_UNKNOWN)
    if fields.peek("prompt") is not None:
        why = (
            "the prompt template is held by the service, and this upstream does not have it."
            " Send its text as `instructions` and `input` instead."
        )
        yield Held("prompt", "prompt", why, stored=True)
    if fields.peek("background") is True:
        why = "only an upstream that speaks Responses runs a response in the background. Send the request without it."
        yield Held("background", "background", why, job=True)
    management = fields.peek("context_management")
    for index, entry in enumerate(management if isinstance(management, list) else ()):
        if object_of(entry).get("type") == "compaction":
            yield Held("context_management", f"context_management[{index}]", _NO_COMPACTION)


def _child(fields: Fields, name: str) -> Fields:
    given = fields.peek(name)
    if not isinstance(given, dict):
        fields.fail(name, f"expected an id or an object with one, got {describe_json(given)}")
    return Fields(given, name)


def references(messages: Iterable[Message]) -> Iterator[tuple[str, str]]:
    """Where items are named that the service holds, and their ids."""
    for message in messages:
        for block in message.blocks:
            if isinstance(block, Opaque) and block.family == FAMILY and block.kind == REFERENCE:
                yield block.at.path, text_of(object_of(block.data).get("id"))


def _item(at: str, item_id: str) -> Held:
    why = f"no item {item_id!r} is known here, and this upstream cannot look it up. Send the item itself instead."
    return Held(REFERENCE, at, why, turns=True)


def without(held: Iterable[Held], name: str) -> tuple[Held, ...]:
    return tuple(each for each in held if each.name != name)
