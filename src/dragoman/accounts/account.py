"""The account of a proven key: what it may ask for, and the limits that apply to it. Pure.

There is one object per key and process. Every gateway has the account of its own key, also without a store.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import inf
from typing import TYPE_CHECKING

from msgspec import Struct, field

from dragoman.model.patterns import matches_pattern
from dragoman.store.interface import GATEWAY_KEY

if TYPE_CHECKING:
    from dragoman.accounts.shares import LimitShare

_MAX_REMEMBERED = 256  # results about models, and models whose replies are remembered
_REPLIES = 64  # of one model
_ENOUGH_REPLIES = 8  # for an estimate
_PERCENTILE = 0.95


class ReplyLengths:
    """The lengths of the last replies to one key by one model, in tokens, to estimate the next one."""

    __slots__ = ("_estimate", "_lengths", "_new")

    def __init__(self) -> None:
        self._lengths: deque[int] = deque(maxlen=_REPLIES)
        self._estimate = 0
        self._new = 0

    def add(self, tokens: int) -> None:
        """Remember the length of a reply."""
        self._lengths.append(tokens)
        self._new += 1
        if self._new >= _ENOUGH_REPLIES:
            self._new = 0
            lengths = sorted(self._lengths)
            self._estimate = 2 * lengths[int(_PERCENTILE * (len(lengths) - 1))]

    def estimate(self) -> int | None:
        """Return twice the 95th percentile; None if there were too few replies."""
        return self._estimate or None


class Account(Struct, eq=False):
    """The permissions and limits of a key. `shares` are those of the limits of the key, its owner, and all keys."""

    id: str = GATEWAY_KEY  # of the key
    name: str = ""
    owner: str = ""
    models: tuple[str, ...] = ()  # names and patterns; empty: all
    upstreams: tuple[str, ...] = ()
    ends_at: float = inf  # when the key expires, or was revoked
    is_revoked: bool = False
    shares: tuple[LimitShare, ...] = ()
    needs_estimate: bool = False  # whether a limit counts tokens or cost
    has_cost_limit: bool = False
    _allowed: dict[str, bool] = field(default_factory=dict)  # results of `allows_model`
    _replies: dict[str, ReplyLengths] = field(default_factory=dict)  # by model

    def allows_model(self, model: str) -> bool:
        """Return whether the key may ask for this model."""
        if not self.models:
            return True
        allowed = self._allowed.get(model)
        if allowed is None:
            if len(self._allowed) >= _MAX_REMEMBERED:
                self._allowed.clear()
            allowed = self._allowed[model] = matches_any(model, self.models)
        return allowed

    def allows_upstream(self, name: str) -> bool:
        """Return whether this upstream may answer the key."""
        return not self.upstreams or name in self.upstreams

    def reply_lengths(self, model: str) -> ReplyLengths:
        """Return the lengths of the last replies of a model."""
        found = self._replies.get(model)
        if found is None:
            if len(self._replies) >= _MAX_REMEMBERED:
                self._replies.clear()
            found = self._replies[model] = ReplyLengths()
        return found


def matches_any(name: str, patterns: Sequence[str]) -> bool:
    """Return whether a name is in a list of names and patterns, as in `models` of an upstream."""
    return any(matches_pattern(pattern, name) for pattern in patterns)
