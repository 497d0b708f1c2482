"""What every node of this dialect shares: its family, its unknown fields, the cache point that follows it."""

from __future__ import annotations

from collections.abc import Mapping

from dragoman.errors import DragomanError
from dragoman.model.blocks import Cache, Extra, Opaque, Where
from dragoman.model.naming import of_the_node, to_keep
from dragoman.wire import jsonio
from dragoman.wire.fields import Fields
from dragoman.wire.jsonio import Json

FAMILY = "bedrock"
AS_JSON = "~json"  # how a text of a tool result was spelt: as a JSON value
SUCCESS = "~status"  # the client wrote the status `success`, which is the default
_BESIDE = "~beside"  # fields that stand beside an object's one member, which the service refuses


def extra(fields: Fields) -> Extra | None:
    """All that nobody took, for this family alone."""
    return extra_of(to_keep(fields.rest()))


def extra_of(rest: dict[str, Json], spelling: frozenset[str] = frozenset()) -> Extra | None:
    return Extra(FAMILY, rest, spelling & rest.keys()) if rest else None


def own_fields(kept: Extra | None) -> Mapping[str, Json]:
    """The fields kept for this family; those that begin with `~` are ours, and never written."""
    return kept.fields if kept is not None and kept.family == FAMILY else {}


def with_extra(body: dict[str, Json], kept: Extra | None) -> dict[str, Json]:
    """Put kept fields back. Objects are merged, as a known one may hold unknown fields; else the kept one wins."""
    return _merged(body, of_the_node(own_fields(kept)))


def _merged(body: dict[str, Json], kept: Mapping[str, Json]) -> dict[str, Json]:
    for name, value in kept.items():
        known = body.get(name)
        body[name] = _merged({**known}, value) if isinstance(known, dict) and isinstance(value, dict) else value
    return body


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


def opaque(fields: Fields, kind: str) -> Opaque:
    """The whole object, of which nothing was taken yet."""
    return Opaque(FAMILY, fields.rest(), kind, at=Where(fields.at))


def json_text(value: Json, at: str, blame: type[DragomanError]) -> str:
    """A value as JSON text."""
    try:
        return jsonio.text_of(value)
    except jsonio.JsonError as error:
        raise blame(str(error), at=at) from None
