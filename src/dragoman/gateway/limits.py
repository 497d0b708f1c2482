"""The limits of one request, and the memory budget of all requests together. Pure, except for `Trimmer`.

A decoded body is walked once, level by level. The text of a body is checked before it is parsed only if it is long
enough to contain more values than the limit.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct

from dragoman.errors import ClientFault, Fault, MalformedRequest, TooLarge
from dragoman.model.conversation import Conversation, ToolSpec
from dragoman.model.events import ResponseLimits
from dragoman.wire import jsonio
from dragoman.wire.jsonio import Json

_SETTING = "server.limits"
_STREAMS = 2048
_IN_FLIGHT = 256 * 1024 * 1024
_RESPONSE = ResponseLimits()
_SCHEMA_DEPTH, _SCHEMA_NODES = 64, 20_000
_OBJECT, _ARRAY = 100, 10  # bytes of text that take as long to parse and translate as a JSON object, and an array
_VALUE = 100  # bytes of a JSON value in memory, without its text
_TEXT = 2  # A decoded request of up to this multiple of its body counts as mostly text.
_REMOTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:|//")
_BUSY = 1.0  # seconds; the retry-after of an overloaded gateway
MAX_MODEL_LENGTH = 2048  # characters, as many as AWS allows; names are cached and searched for versions
_SMALL = 1024 * 1024  # bytes; nearly all requests are smaller
_PEERS_LEAST = 256  # Half of a small limit would be too little for a gateway with one client.


class RequestLimits(Struct, frozen=True, kw_only=True):
    """`[server.limits]`: the limits of one request, and of all requests at once."""

    depth: Annotated[int, Meta(ge=8, le=500)] = 128  # levels of nested JSON
    nodes: Annotated[int, Meta(ge=1000)] = 1_000_000  # JSON values
    messages: Annotated[int, Meta(ge=1)] = 2048
    tools: Annotated[int, Meta(ge=0)] = 512
    schema: Annotated[int, Meta(ge=1024)] = 256 * 1024  # bytes of one tool's
    name: Annotated[int, Meta(ge=1)] = 256  # characters of a tool's
    answer: Annotated[int, Meta(ge=64 * 1024)] = _RESPONSE.max_bytes  # bytes that are buffered of one response
    blocks: Annotated[int, Meta(ge=1)] = _RESPONSE.blocks  # calls, texts and other blocks of one response
    choices: Annotated[int, Meta(ge=1)] = _RESPONSE.choices  # of one response
    streams: Annotated[int, Meta(ge=1)] = _STREAMS  # requests at once
    in_flight: Annotated[int, Meta(ge=1024 * 1024)] = _IN_FLIGHT  # bytes held for all of them
    peer_requests: Annotated[int, Meta(ge=0)] = 0  # requests at once from one address; 0: half of `streams`
    peer_connections: Annotated[int, Meta(ge=0)] = 0  # connections from one address; 0: half of all that fit


class Overloaded(ClientFault):
    """The gateway has no room for the request now (503)."""

    def __init__(self, message: str) -> None:
        super().__init__(message, fault=Fault("overloaded", message, 503, retry_after=_BUSY))


# --- one request


def check_text(body: bytes, limits: RequestLimits) -> None:
    """Refuse text with too many JSON values before it is parsed, because each becomes an object. Raises TooLarge."""
    if len(body) // 2 < limits.nodes:  # A value and its separator take at least two bytes.
        return
    if count_values(body) <= limits.nodes:
        return
    unescaped = body.replace(rb"\\", b"").replace(rb"\"", b"")
    plain = b'"'.join(unescaped.split(b'"')[::2])  # each string becomes one quote
    if count_values(plain) - plain.count(b"[]") - plain.count(b"{}") > limits.nodes:
        raise _too_many_values(limits)


def model_too_long(name: str) -> MalformedRequest:
    """Return the error for a model name that is too long."""
    message = f"the name of the model has {len(name)} characters, more than the limit of {MAX_MODEL_LENGTH}"
    return MalformedRequest(message, at="model")


def count_values(text: bytes) -> int:
    """Return an upper bound of the number of JSON values: each follows a comma or an opening bracket."""
    return text.count(b",") + text.count(b"[") + text.count(b"{") + 1


def is_large(body: bytes, offload: int) -> bool:
    """Return whether the job process must parse a body: it is long, or contains very many objects."""
    if not offload or len(body) > offload:
        return offload > 0
    if _OBJECT * len(body) <= offload:  # also if it consisted of braces alone
        return False
    # For a byte that is rare, this is ten times as fast as `bytes.count`, and it stops at a bound.
    objects = len(body) - len(body.replace(b"{", b"", offload // _OBJECT + 1))
    arrays = len(body) - len(body.replace(b"[", b"", offload // _ARRAY + 1))
    return _OBJECT * objects + _ARRAY * arrays > offload


def json_memory(body: bytes) -> int:
    """Return the estimated bytes of a decoded body. Text with commas is overestimated."""
    return len(body) + _VALUE * count_values(body)


def base_memory(*conversations: Conversation) -> int:
    """Return the estimated bytes of the tools and system texts of conversations."""
    parts: dict[int, object] = {}  # by identity: shared parts are counted once
    for each in conversations:
        for tool in each.tools:
            part = tool.schema if isinstance(tool, ToolSpec) else tool.data
            parts[id(part)] = part
    texts = {id(text.text): len(text.text) for each in conversations for text in each.system}
    return sum(texts.values()) + (json_memory(jsonio.encode([*parts.values()])) if parts else 0)


class TreeStats(Struct, frozen=True):
    """Figures of a decoded body."""

    depth: int
    nodes: int
    has_references: bool  # whether there is a `$ref`
    size: int  # bytes of its text
    memory: int  # estimated bytes of the decoded values


def check_tree(tree: Json, size: int, limits: RequestLimits, beside: int = 0) -> TreeStats:
    """Refuse a body that is nested too deeply or has too many values. Raises MalformedRequest, TooLarge.

    `beside` is the number of further values, which are not in the tree and not deep.
    """
    level: list[Json] = [tree]
    depth, nodes = 0, beside
    refers = False
    while level:
        depth += 1
        nodes += len(level)
        if depth > limits.depth and _holds_containers(level):
            raise MalformedRequest(f"nested more than {limits.depth} levels deep (setting {_SETTING}.depth)")
        inside: list[Json] = []
        for value in level:
            kind = value.__class__
            if kind is dict:
                inside += value.values()  # type: ignore[union-attr]
                refers = refers or "$ref" in value  # type: ignore[operator]
            elif kind is list:
                inside += value  # type: ignore[arg-type]
        if nodes > limits.nodes:
            raise _too_many_values(limits)
        level = inside
    return TreeStats(depth, nodes, refers, size, size + _VALUE * nodes)


def tree_levels(tree: Json) -> Iterator[list[Json]]:
    """Yield the values of a tree, level by level."""
    level: list[Json] = [tree]
    while level:
        yield level
        inside: list[Json] = []
        for value in level:
            if isinstance(value, dict):
                inside += value.values()
            elif isinstance(value, list):
                inside += value
        level = inside


def _holds_containers(level: list[Json]) -> bool:
    return any(isinstance(value, dict | list) for value in level)


def check_conversation(conversation: Conversation, shape: TreeStats, limits: RequestLimits) -> None:
    """Refuse too many messages or tools, and tools that are too large. Raises MalformedRequest, TooLarge."""
    if len(conversation.messages) > limits.messages:
        raise _too_many("messages", len(conversation.messages), limits.messages)
    if len(conversation.tools) > limits.tools:
        raise _too_many("tools", len(conversation.tools), limits.tools)
    # Figures of the whole body are upper bounds for each schema in it.
    suspect = shape.has_references or shape.depth > _SCHEMA_DEPTH or shape.nodes > _SCHEMA_NODES
    for index, tool in enumerate(conversation.tools):
        if not isinstance(tool, ToolSpec):
            continue
        if len(tool.name) > limits.name:
            message = (
                f"the tool name has {len(tool.name)} characters; the limit is {limits.name} (setting {_SETTING}.name)"
            )
            raise MalformedRequest(message, at=f"tools[{index}]")
        if tool.schema and (suspect or shape.size > limits.schema):
            _check_schema(tool.schema, f"tools[{index}]", limits)


def _check_schema(schema: Mapping[str, Json], at: str, limits: RequestLimits) -> None:
    nodes = 0
    for depth, level in enumerate(tree_levels(dict(schema)), 1):
        nodes += len(level)
        if nodes > _SCHEMA_NODES or (depth > _SCHEMA_DEPTH and _holds_containers(level)):
            message = f"a tool's schema may have at most {_SCHEMA_DEPTH} levels and {_SCHEMA_NODES} values; simplify it"
            raise MalformedRequest(message, at=at)
        for value in level:
            reference = value.get("$ref") if isinstance(value, dict) else None
            if isinstance(reference, str) and _REMOTE.match(reference):
                raise MalformedRequest("a `$ref` of a tool's schema must point into the schema itself (#/…)", at=at)
    if (size := len(jsonio.encode(schema))) > limits.schema:
        raise TooLarge(f"the schema has {size} bytes, more than {limits.schema} (setting {_SETTING}.schema)", at=at)


def _too_many(what: str, count: int, most: int) -> MalformedRequest:
    message = f"the request has {count} {what}, more than the limit of {most} (setting {_SETTING}.{what})"
    return MalformedRequest(message, at=what)


def _too_many_values(limits: RequestLimits) -> TooLarge:
    return TooLarge(f"the request has more than {limits.nodes} JSON values (setting {_SETTING}.nodes)")


# --- all requests together


class MemoryBudget:
    """The memory that all requests of this process use, in two separate totals.

    `request_bytes` counts bodies, decoded trees and rendered bodies. `response_bytes` counts whole bodies, and what is
    buffered of a stream for its final event or for the response store. Each total is limited by
    `server.limits.in_flight`. Small requests have an additional eighth of that, so that a few large uploads do not
    block them.
    """

    def __init__(self, limits: RequestLimits) -> None:
        self.resize(limits)
        self.requests = 0
        self.by_peer: dict[str, int] = {}  # requests
        self.request_bytes = self.response_bytes = 0
        self.small_bytes = 0  # the part of `request_bytes` for small requests, as announced
        self.peak_bytes = self.peak_requests = 0  # the maximum since the last trim

    def resize(self, limits: RequestLimits) -> None:
        """Use these limits from now on."""
        self.limits, self._max_of_peer = limits, peer_share(limits.peer_requests, limits.streams)
        self.response_limits = ResponseLimits(limits.answer, limits.blocks, limits.choices)

    @property
    def bytes(self) -> int:
        """Bytes of requests and responses."""
        return self.request_bytes + self.response_bytes

    def enter(self, peer: str = "") -> MemoryAccount:
        """Count one more request of this peer and return its account; `leave` closes it. Raises Overloaded."""
        most = self.limits.streams
        if self.requests >= most:
            raise Overloaded(f"{most} requests are running, which is the limit (setting {_SETTING}.streams)")
        most = self._max_of_peer
        if self.by_peer.get(peer, 0) >= most:
            message = f"{most} requests of this address are running, which is the limit"
            raise Overloaded(f"{message} (setting {_SETTING}.peer_requests)")
        self.requests += 1
        if self.requests > self.peak_requests:  # noqa: PLR1730  a call more for every request
            self.peak_requests = self.requests
        if peer:
            self.by_peer[peer] = self.by_peer.get(peer, 0) + 1
        return MemoryAccount(self, peer)


def peer_share(setting: int, total: int) -> int:
    """Return how much of a total one peer may use: the setting, or half of the total but at least 256."""
    return setting or min(total, max(_PEERS_LEAST, total // 2))


MemoryKind: TypeAlias = Literal["body", "decoded", "rendered"]


class MemoryAccount(Struct, eq=False):
    """The memory that one request and its response use, as a part of the budget."""

    budget: MemoryBudget
    peer: str = ""
    request_bytes: int = 0
    response_bytes: int = 0
    small_bytes: int = 0  # bytes reserved in the share of small requests
    bytes_by_kind: dict[MemoryKind, int] = {}  # `request_bytes`, by the form of the request

    def reserve(self, size: int) -> None:
        """Reserve bytes for a body that is still to arrive. Raises Overloaded, and then reserves none."""
        budget, most = self.budget, self.budget.limits.in_flight
        is_small = self.request_bytes + size <= _SMALL
        if budget.request_bytes + size > most and not (is_small and budget.small_bytes + size <= most // 8):
            raise _memory_exceeded(most)
        if is_small:
            self.small_bytes += size
            budget.small_bytes += size
        self.hold("body", self.bytes_by_kind.get("body", 0) + size)

    def release(self, size: int) -> None:
        """Release reserved bytes of a body before the end of the request."""
        small = min(size, self.small_bytes)
        self.small_bytes -= small
        self.budget.small_bytes -= small
        self.hold("body", self.bytes_by_kind.get("body", 0) - size)

    def hold(self, form: MemoryKind, size: int) -> None:
        """Set the bytes that one form of the request takes.

        Other limits bound these bytes (the number of values, the length of a rendered body), so they are counted even
        above the limit, and new requests are refused until they are released. Only a decoded form that takes much more
        than its text is refused when other requests use the budget. Raises Overloaded, and then counts none.
        """
        budget, more = self.budget, size - self.bytes_by_kind.get(form, 0)
        if form == "decoded" and size > _SMALL and more > _TEXT * self.request_bytes:
            most = budget.limits.in_flight
            if budget.request_bytes > self.request_bytes and budget.request_bytes + more > most:
                raise _memory_exceeded(most)
        self.bytes_by_kind[form] = size
        self.request_bytes += more
        budget.request_bytes += more
        if (total := budget.request_bytes + budget.response_bytes) > budget.peak_bytes:
            budget.peak_bytes = total

    def keep(self, size: int) -> None:
        """Count buffered bytes of the response. Raises Overloaded, and then counts none."""
        budget, most = self.budget, self.budget.limits.in_flight
        if budget.response_bytes + size > most:
            raise Overloaded(f"running responses need more than {most} bytes; try later (setting {_SETTING}.in_flight)")
        self.response_bytes += size
        budget.response_bytes += size
        if (total := budget.request_bytes + budget.response_bytes) > budget.peak_bytes:
            budget.peak_bytes = total

    def free(self, size: int) -> None:
        """Release bytes of the response."""
        self.response_bytes -= size
        self.budget.response_bytes -= size

    def leave(self) -> None:
        """Release everything, at the end of the request."""
        budget, peer = self.budget, self.peer
        budget.requests -= 1
        if peer:
            budget.by_peer[peer] -= 1
            if not budget.by_peer[peer]:
                del budget.by_peer[peer]
        budget.request_bytes -= self.request_bytes
        budget.response_bytes -= self.response_bytes
        budget.small_bytes -= self.small_bytes
        self.request_bytes = self.response_bytes = self.small_bytes = 0


def _memory_exceeded(most: int) -> Overloaded:
    return Overloaded(f"running requests need more than {most} bytes; try later (setting {_SETTING}.in_flight)")


# --- freed memory is kept between two requests, and returned to the system after a burst of requests
#
# By default glibc returns the end of the heap whenever 128 KiB of it are free, and each response of that size requests
# it again, with cleared pages. After a burst, however, it keeps free memory in the middle of the heap.


_MIN_PEAK = 4 * 1024 * 1024  # bytes of requests at once; a smaller burst is not worth a trim
_EACH = 16 * 1024  # bytes that a request takes in addition to its content
_REST = 5.0  # seconds between two trims: one takes a few ms
_TRIM_ABOVE = 1024 * 1024 * 1024  # bytes at the end of the heap that glibc does not return by itself
_MMAP_ABOVE = 32 * 1024 * 1024  # bytes of an allocation that gets its own mapping, which is returned at once
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of mallopt


class Trimmer:
    """Returns freed memory to the system after a burst of requests."""

    def __init__(self, budget: MemoryBudget, trim: Callable[[], None] | None = None) -> None:
        self._budget = budget
        self._trim = trim or _trim
        self._not_before = 0.0
        self._is_configured = False

    def trim_if_idle(self, now: float) -> None:
        """Trim if a burst is over; called regularly by `serve`."""
        if not self._is_configured:
            self._is_configured = True
            _set_thresholds()  # Done here and not at the start, because it takes long.
        budget = self._budget
        peak, current = budget.peak_bytes + budget.peak_requests * _EACH, budget.bytes + budget.requests * _EACH
        if peak < _MIN_PEAK or current > peak // 2 or now < self._not_before:
            return
        budget.peak_bytes, budget.peak_requests = budget.bytes, budget.requests
        self._not_before = now + _REST
        self._trim()


def _set_thresholds() -> None:
    _call("mallopt", _M_TRIM_THRESHOLD, _TRIM_ABOVE)
    _call("mallopt", _M_MMAP_THRESHOLD, _MMAP_ABOVE)


def _trim() -> None:
    _call("malloc_trim", 0)


def _call(name: str, *arguments: int) -> None:
    if sys.platform == "linux":
        import ctypes  # noqa: PLC0415  not needed at the start

        try:
            getattr(ctypes.CDLL(None), name)(*arguments)
        except (AttributeError, OSError):  # not glibc
            return
