"""What every part of this dialect shares: its family, unknown fields, log, what is called."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from dragoman.model.blocks import Extra
from dragoman.model.facts import Inventory
from dragoman.model.naming import of_the_node, to_keep
from dragoman.wire.jsonio import Json

FAMILY = "kiro"
LOG = logging.getLogger("dragoman.kiro")

# Fields of a request that only say which conversation or account it is: nothing is lost where they mean nothing.
IDENTITY = frozenset({"conversationId", "profileArn"})
_NONE: Mapping[str, Json] = {}


def extra_of(fields: dict[str, Json], spelling: frozenset[str] = frozenset()) -> Extra | None:
    """Fields that nobody took, for this family alone."""
    return Extra(FAMILY, to_keep(fields), spelling.intersection(fields)) if fields else None


def own_fields(extra: Extra | None) -> Mapping[str, Json]:
    """The fields kept for this family."""
    return extra.fields if extra is not None and extra.family == FAMILY else _NONE


def merged(body: dict[str, Json], kept: Mapping[str, Json]) -> dict[str, Json]:
    """Put kept fields back. Objects are merged, since a known one may hold unknown fields; what the body says wins."""
    for name, value in kept.items():
        known = body.get(name)
        if known is None:
            body[name] = value
        elif isinstance(known, dict) and isinstance(value, dict):
            body[name] = merged({**known}, value)
    return body


def with_own(body: dict[str, Json], extra: Extra | None) -> dict[str, Json]:
    """The body with what was kept for this family."""
    return body if extra is None else merged(body, of_the_node(own_fields(extra)))


def called(held: Inventory) -> list[str]:
    """The names of all tools that history calls, in the order of their first call."""
    return list(dict.fromkeys([call.name for call in held.calls]))
