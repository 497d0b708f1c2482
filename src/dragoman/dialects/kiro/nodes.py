"""What every part of this dialect shares: its family, unknown fields, log, what is called."""

from __future__ import annotations

import logging

from dragoman.dialects.kit.kept import Kept
from dragoman.model.blocks import Extra, to_keep
from dragoman.model.filter import Inventory
from dragoman.wire.jsonio import Json

FAMILY = "kiro"
LOG = logging.getLogger("dragoman.kiro")

# Fields of a request that only say which conversation or account it is: nothing is lost where they mean nothing.
IDENTITY = frozenset({"conversationId", "profileArn"})
_KEPT = Kept(FAMILY)
own_fields, with_own = _KEPT.own_fields, _KEPT.with_extra


def extra_of(fields: dict[str, Json], spelling: frozenset[str] = frozenset()) -> Extra | None:
    """Fields that nobody took, for this family alone."""
    return _KEPT.extra_of(to_keep(fields), spelling)


def called(held: Inventory) -> list[str]:
    """The names of all tools that history calls, in the order of their first call."""
    return list(dict.fromkeys([call.name for call in held.calls]))
