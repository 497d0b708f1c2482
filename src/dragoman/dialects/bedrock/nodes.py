"""What every node of this dialect shares: its family, its unknown fields, the cache point that follows it."""

from __future__ import annotations

from dragoman.dialects.kit.kept import Kept
from dragoman.model.blocks import Cache, Extra, to_keep
from dragoman.wire.fields import Fields
from dragoman.wire.jsonio import Json

FAMILY = "bedrock"
AS_JSON = "~json"  # how a text of a tool result was spelt: as a JSON value
SUCCESS = "~status"  # the client wrote the status `success`, which is the default
_KEPT = Kept(FAMILY)
extra, extra_of, own_fields, with_extra = _KEPT.extra, _KEPT.extra_of, _KEPT.own_fields, _KEPT.with_extra
opaque = _KEPT.opaque
_BESIDE = "~beside"  # fields that stand beside an object's one member, which the service refuses


def extra_beside(kept: Extra | None, outer: Fields) -> Extra | None:
    """The fields kept, and those that stand beside the member that held them."""
    rest = outer.rest()
    return extra_of({**own_fields(kept), _BESIDE: rest}) if rest else kept


def beside(kept: Extra | None) -> dict[str, Json]:
    """The fields that stood beside the member."""
    fields = own_fields(kept).get(_BESIDE)
    return fields if isinstance(fields, dict) else {}


def take_mark(fields: Fields) -> Cache | None:
    """The cache mark that a block stands for, if it is one and says nothing else."""
    point = fields.peek("cachePoint")
    if not isinstance(point, dict) or len(fields.rest()) != 1:
        return None
    if point.get("type") != "default" or point.get("ttl") not in (None, "5m", "1h"):
        return None
    rest = {name: value for name, value in point.items() if name not in ("type", "ttl")}
    return Cache("1h" if point.get("ttl") == "1h" else "5m", extra_of(to_keep(rest)))


def render_mark(cache: Cache) -> dict[str, Json]:
    """A cache mark as the block that stands after what it marks: it is never an attribute here."""
    point: dict[str, Json] = {"type": "default"}
    if cache.ttl != "5m":
        point["ttl"] = cache.ttl
    return {"cachePoint": with_extra(point, cache.extra)}
