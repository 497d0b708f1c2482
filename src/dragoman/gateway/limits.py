"""How much of anything a request may have, and how much all of them together. Pure.

What it costs: a tree is walked once, level by level; the text is looked at before it is read only where it is long
enough to hold more values than may be.
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
_ANSWER = ResponseLimits()
_SCHEMA_DEPTH, _SCHEMA_NODES = 64, 20_000
_OBJECT, _ARRAY = 100, 10  # bytes of text that take as long to read and translate as a JSON object, and an array
_VALUE = 100  # bytes of a JSON value in memory, beside its text
_TEXT = 2  # times its body that a decoded request may take and count as mostly text
_REMOTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:|//")
_BUSY = 1.0  # seconds after which to come back
MAX_MODEL_LENGTH = 2048  # characters, as many as AWS allows; names are remembered in tables and searched for versions
_SMALL = 1024 * 1024  # bytes of a request, in which nearly all are
_PEERS_LEAST = 256  # half of a small limit would be too little for a gateway with one client


class RequestLimits(Struct, frozen=True, kw_only=True):
    """`[server.limits]`: what one request may have, and all of them at once."""

    depth: Annotated[int, Meta(ge=8, le=500)] = 128  # of JSON in JSON
    nodes: Annotated[int, Meta(ge=1000)] = 1_000_000  # values in it
    messages: Annotated[int, Meta(ge=1)] = 2048
    tools: Annotated[int, Meta(ge=0)] = 512
    schema: Annotated[int, Meta(ge=1024)] = 256 * 1024  # bytes of one tool's
    name: Annotated[int, Meta(ge=1)] = 256  # characters of a tool's
    answer: Annotated[int, Meta(ge=64 * 1024)] = _ANSWER.answer  # bytes that are kept of one answer
    blocks: Annotated[int, Meta(ge=1)] = _ANSWER.blocks  # calls, texts and other blocks of one answer
    choices: Annotated[int, Meta(ge=1)] = _ANSWER.choices  # of one answer
    streams: Annotated[int, Meta(ge=1)] = _STREAMS  # requests at once
    in_flight: Annotated[int, Meta(ge=1024 * 1024)] = _IN_FLIGHT  # bytes held for all of them
    peer_requests: Annotated[int, Meta(ge=0)] = 0  # requests at once from one address; 0: half of `streams`
    peer_connections: Annotated[int, Meta(ge=0)] = 0  # connections from one address; 0: half of all that fit


class Overloaded(ClientFault):
    """This gateway has no room for it now."""

    def __init__(self, message: str) -> None:
        super().__init__(message, fault=Fault("overloaded", message, 503, retry_after=_BUSY))


# --- one request


def check_text(body: bytes, limits: RequestLimits) -> None:
    """Refuse text with too many values in it before it is read: each becomes an object. Raises TooLarge."""
    if len(body) // 2 < limits.nodes:  # a value and what parts it from the next are two bytes
        return
    if count_values(body) <= limits.nodes:
        return
    unescaped = body.replace(rb"\\", b"").replace(rb"\"", b"")
    plain = b'"'.join(unescaped.split(b'"')[::2])  # of each string one quote
    if count_values(plain) - plain.count(b"[]") - plain.count(b"{}") > limits.nodes:
        raise _too_many_values(limits)


def model_too_long(name: str) -> MalformedRequest:
    return MalformedRequest(f"a name of {len(name)} characters; the limit here is {MAX_MODEL_LENGTH}", at="model")


def count_values(text: bytes) -> int:
    """At least the number of values in it: each but the first of a container follows a comma, the first its bracket."""
    return text.count(b",") + text.count(b"[") + text.count(b"{") + 1


def is_large(body: bytes, offload: int) -> bool:
    """Whether the worker process reads a body: because of its length, or because very many objects are in it."""
    if not offload or len(body) > offload:
        return offload > 0
    # In long texts that seldom have a byte, this counts it ten times as fast as `bytes.count`, and only up to a bound.
    objects = len(body) - len(body.replace(b"{", b"", offload // _OBJECT + 1))
    arrays = len(body) - len(body.replace(b"[", b"", offload // _ARRAY + 1))
    return _OBJECT * objects + _ARRAY * arrays > offload


def json_memory(body: bytes) -> int:
    """Bytes that the values of a body take when they are read, about. Text with commas counts for more."""
    return len(body) + _VALUE * count_values(body)


def base_memory(*conversations: Conversation) -> int:
    """Bytes that conversations take without their messages, about: their tools and system texts."""
    parts: dict[int, object] = {}  # by identity: what two conversations share is there once
    for each in conversations:
        for tool in each.tools:
            part = tool.schema if isinstance(tool, ToolSpec) else tool.data
            parts[id(part)] = part
    texts = {id(text.text): len(text.text) for each in conversations for text in each.system}
    return sum(texts.values()) + (json_memory(jsonio.encode([*parts.values()])) if parts else 0)


class TreeStats(Struct, frozen=True):
    """What a walk through a body has shown."""

    depth: int
    nodes: int
    has_references: bool  # somewhere stands a `$ref`
    size: int  # bytes of its text
    memory: int  # bytes that the values take when they are read, about


def check_tree(tree: Json, size: int, limits: RequestLimits, beside: int = 0) -> TreeStats:
    """Refuse a value that is nested too deeply or has too many parts. Raises MalformedRequest, TooLarge.

    `beside` is how many more values there are, at no depth that matters.
    """
    level: list[Json] = [tree]
    depth, nodes = 0, beside
    refers = False
    while level:
        depth += 1
        nodes += len(level)
        if depth > limits.depth and _holds_containers(level):
            raise MalformedRequest(f"nested more than {limits.depth} levels deep, the limit here ({_SETTING}.depth)")
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
    """The values of a tree, level by level."""
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


def check_conversation(asked: Conversation, shape: TreeStats, limits: RequestLimits) -> None:
    """Refuse more messages or tools than may be, and tools that are too much. Raises MalformedRequest, TooLarge."""
    if len(asked.messages) > limits.messages:
        raise _too_many("messages", len(asked.messages), limits.messages)
    if len(asked.tools) > limits.tools:
        raise _too_many("tools", len(asked.tools), limits.tools)
    # What the whole body does not have, no schema in it has.
    suspect = shape.has_references or shape.depth > _SCHEMA_DEPTH or shape.nodes > _SCHEMA_NODES
    for index, tool in enumerate(asked.tools):
        if not isinstance(tool, ToolSpec):
            continue
        if len(tool.name) > limits.name:
            message = f"a name of {len(tool.name)} characters; the limit here is {limits.name} ({_SETTING}.name)"
            raise MalformedRequest(message, at=f"tools[{index}]")
        if tool.schema and (suspect or shape.size > limits.schema):
            _check_schema(tool.schema, f"tools[{index}]", limits)


def _check_schema(schema: Mapping[str, Json], at: str, limits: RequestLimits) -> None:
    nodes = 0
    for depth, level in enumerate(tree_levels(dict(schema)), 1):
        nodes += len(level)
        if nodes > _SCHEMA_NODES or (depth > _SCHEMA_DEPTH and _holds_containers(level)):
            message = f"a tool's schema may have {_SCHEMA_DEPTH} levels and {_SCHEMA_NODES} values"
            raise MalformedRequest(message, at=at)
        for value in level:
            reference = value.get("$ref") if isinstance(value, dict) else None
            if isinstance(reference, str) and _REMOTE.match(reference):
                raise MalformedRequest(
                    "a tool's schema may refer to its own parts (#/…) only, not to another place", at=at
                )
    if (size := len(jsonio.encode(schema))) > limits.schema:
        raise TooLarge(f"a schema of {size} bytes; the limit here is {limits.schema} ({_SETTING}.schema)", at=at)


def _too_many(what: str, found: int, most: int) -> MalformedRequest:
    return MalformedRequest(f"{found} {what}; the limit here is {most} ({_SETTING}.{what})", at=what)


def _too_many_values(limits: RequestLimits) -> TooLarge:
    return TooLarge(f"more than {limits.nodes} values, the limit here ({_SETTING}.nodes)")


# --- all requests together


class MemoryBudget:
    """What all requests of this process hold, in two totals that cannot take room from each other.

    `asked` are the bytes of requests: bodies, decoded trees, rendered bodies. `kept` are the bytes of answers: whole
    bodies, and what is kept of a stream for its final event or for the response store. Each total is limited by
    `server.limits.in_flight`. Small requests have an eighth of that to themselves, in addition, so that a few large
    uploads do not keep them out.
    """

    def __init__(self, limits: RequestLimits) -> None:
        self.resize(limits)
        self.requests = 0
        self.by_peer: dict[str, int] = {}  # requests
        self.request_bytes = self.response_bytes = 0
        self.small_bytes = 0  # bytes of small requests, as announced: a part of `asked`
        self.peak_bytes = self.peak_requests = 0  # the most bytes, and requests, since they were last read

    def resize(self, limits: RequestLimits) -> None:
        self.limits, self._max_of_peer = limits, peer_share(limits.peer_requests, limits.streams)
        self.response_limits = ResponseLimits(limits.answer, limits.blocks, limits.choices)

    @property
    def bytes(self) -> int:
        return self.request_bytes + self.response_bytes

    def enter(self, peer: str = "") -> MemoryAccount:
        """Count one more request of this peer, and open its account; `leave` closes it. Raises Overloaded."""
        most = self.limits.streams
        if self.requests >= most:
            raise Overloaded(f"{most} requests are running, the limit here ({_SETTING}.streams)")
        most = self._max_of_peer
        if self.by_peer.get(peer, 0) >= most:
            raise Overloaded(f"{most} requests of this address are running, the limit here ({_SETTING}.peer_requests)")
        self.requests += 1
        if self.requests > self.peak_requests:  # noqa: PLR1730  a call more for every request
            self.peak_requests = self.requests
        if peer:
            self.by_peer[peer] = self.by_peer.get(peer, 0) + 1
        return MemoryAccount(self, peer)


def peer_share(setting: int, total: int) -> int:
    """How much of a total one peer may have: as it is set, or half of it, and not fewer than 256."""
    return setting or min(total, max(_PEERS_LEAST, total // 2))


MemoryKind: TypeAlias = Literal["body", "decoded", "rendered"]


class MemoryAccount(Struct, eq=False):
    """The memory of one request: what is held of the question (`asked`) and of the answer (`kept`)."""

    budget: MemoryBudget
    peer: str = ""
    request_bytes: int = 0
    response_bytes: int = 0
    small_bytes: int = 0  # bytes that were reserved in the share of small requests
    bytes_by_kind: dict[MemoryKind, int] = {}  # `asked`, by the form of the request that takes them

    def reserve(self, size: int) -> None:
        """Take room for bytes of the body that are still to come. Raises Overloaded, and then takes none."""
        load, most = self.budget, self.budget.limits.in_flight
        is_small = self.request_bytes + size <= _SMALL
        if load.request_bytes + size > most and not (is_small and load.small_bytes + size <= most // 8):
            raise _requests_are_held(most)
        if is_small:
            self.small_bytes += size
            load.small_bytes += size
        self.hold("body", self.bytes_by_kind.get("body", 0) + size)

    def hold(self, form: MemoryKind, size: int) -> None:
        """Count the bytes that one form of the request takes now, instead of those counted for it before.

        They are not refused, because other limits bound them: the values of a tree, the length of a rendered body.
        Until they are gone no other request is let in. Only a decoded form that takes much more than its text is
        refused where other requests fill the room. Raises Overloaded, and then counts none.
        """
        load, more = self.budget, size - self.bytes_by_kind.get(form, 0)
        if form == "decoded" and size > _SMALL and more > _TEXT * self.request_bytes:
            most = load.limits.in_flight
            if load.request_bytes > self.request_bytes and load.request_bytes + more > most:
                raise _requests_are_held(most)
        self.bytes_by_kind[form] = size
        self.request_bytes += more
        load.request_bytes += more
        if (held := load.request_bytes + load.response_bytes) > load.peak_bytes:
            load.peak_bytes = held

    def keep(self, size: int) -> None:
        """Count bytes that are kept of the answer. Raises Overloaded, and then counts none."""
        load, most = self.budget, self.budget.limits.in_flight
        if load.response_bytes + size > most:
            raise Overloaded(f"{most} bytes of answers are held, the limit here ({_SETTING}.in_flight)")
        self.response_bytes += size
        load.response_bytes += size
        if (held := load.request_bytes + load.response_bytes) > load.peak_bytes:
            load.peak_bytes = held

    def free(self, size: int) -> None:
        """Count bytes of the answer that are kept no more."""
        self.response_bytes -= size
        self.budget.response_bytes -= size

    def leave(self) -> None:
        """Give everything back."""
        load, peer = self.budget, self.peer
        load.requests -= 1
        if peer:
            load.by_peer[peer] -= 1
            if not load.by_peer[peer]:
                del load.by_peer[peer]
        load.request_bytes -= self.request_bytes
        load.response_bytes -= self.response_bytes
        load.small_bytes -= self.small_bytes
        self.request_bytes = self.response_bytes = self.small_bytes = 0


def _requests_are_held(most: int) -> Overloaded:
    return Overloaded(f"{most} bytes of requests are held, the limit here ({_SETTING}.in_flight)")


# --- memory that is freed is kept between two requests, and given back to the system after a burst of them
#
# By itself glibc gives the heap's end back whenever 128 KiB of it are free, and every answer of that size asks for it
# again: each page is made empty once more. After a burst, on the other hand, it would keep what lies further inside.


_WORTH = 4 * 1024 * 1024  # bytes of requests at once: what fewer leave behind is reused soon
_EACH = 16 * 1024  # bytes that a request takes beside what it says
_REST = 5.0  # seconds: a trim looks through all that is free, which takes a few ms
_KEPT = 1024 * 1024 * 1024  # bytes at the heap's end that are not given back by the way: we do it ourselves
_APART = 32 * 1024 * 1024  # bytes of one thing that gets memory of its own, and gives it back at once
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of mallopt


class Trimmer:
    def __init__(self, load: MemoryBudget, trim: Callable[[], None] | None = None) -> None:
        self._load = load
        self._trim = trim or _trim
        self._not_before = 0.0
        self._kept = False

    def trim_if_idle(self, now: float) -> None:
        """Trim if a burst is over; called by the sweeper."""
        if not self._kept:
            self._kept = True
            _keep()  # not before the first answers: it takes longer than they may wait
        load = self._load
        worth, held = load.peak_bytes + load.peak_requests * _EACH, load.bytes + load.requests * _EACH
        if worth < _WORTH or held > worth // 2 or now < self._not_before:
            return
        load.peak_bytes, load.peak_requests = load.bytes, load.requests
        self._not_before = now + _REST
        self._trim()


def _keep() -> None:
    _call("mallopt", _M_TRIM_THRESHOLD, _KEPT)
    _call("mallopt", _M_MMAP_THRESHOLD, _APART)


def _trim() -> None:
    _call("malloc_trim", 0)


def _call(name: str, *arguments: int) -> None:
    if sys.platform == "linux":
        import ctypes  # noqa: PLC0415  not while we start

        try:
            getattr(ctypes.CDLL(None), name)(*arguments)
        except (AttributeError, OSError):  # not glibc
            return
