"""What every node of this dialect shares: its family, its unknown fields, its cache mark."""

from __future__ import annotations

from dragoman.dialects.anthropic.meanings import is_no_op, meaning_of
from dragoman.dialects.kit.kept import Kept
from dragoman.model.blocks import OUTER, Cache, Extra, Opaque, Where, to_keep
from dragoman.wire.fields import Fields
from dragoman.wire.jsonio import Json

FAMILY = "anthropic"
_KEPT = Kept(FAMILY)
extra, extra_of, own_fields, with_extra = _KEPT.extra, _KEPT.extra_of, _KEPT.own_fields, _KEPT.with_extra


def outer_fields(kept: Extra | None) -> dict[str, Json]:
    """Those of what a node came in, as they are kept there."""
    return {name.removeprefix(OUTER): value for name, value in own_fields(kept).items() if name.startswith(OUTER)}


def inner_fields(kept: Extra | None) -> dict[str, Json]:
    return {name: value for name, value in kept.fields.items() if not name.startswith(OUTER)} if kept else {}


def take_cache(fields: Fields) -> Cache | None:
    """The cache mark, if it is one we know; any other form stays among the node's unknown fields."""
    mark = fields.peek("cache_control")
    if mark is None:
        fields.any("cache_control")
        return None
    if not isinstance(mark, dict) or mark.get("type") != "ephemeral" or mark.get("ttl") not in (None, "5m", "1h"):
        return None
    fields.any("cache_control")
    rest = {name: value for name, value in mark.items() if name not in ("type", "ttl")}
    return Cache("1h" if mark.get("ttl") == "1h" else "5m", extra_of(to_keep(rest)))


def with_cache(body: dict[str, Json], cache: Cache | None) -> dict[str, Json]:
    if cache is not None:
        mark: dict[str, Json] = {"type": "ephemeral"}
        if cache.ttl != "5m":
            mark["ttl"] = cache.ttl
        body["cache_control"] = with_extra(mark, cache.extra)
    return body


def opaque(fields: Fields, kind: str) -> Opaque:
    """The whole object, of which nothing was taken yet; only its cache mark is read."""
    cache = take_cache(fields)
    data = fields.rest()
    return Opaque(FAMILY, data, kind, cache, is_no_op(kind, data), meaning_of(kind, data), at=Where(fields.at))
