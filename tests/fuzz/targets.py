"""The fuzz targets: each takes bytes and raises BrokenPromise if a promise does not hold.

The promises: only our exceptions are raised, splits of the input do not matter, and whatever is parsed can be
translated to every other dialect by its rules.
"""

from __future__ import annotations

import hashlib
import itertools
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from msgspec import structs

import dragoman.dialects as registry
from dragoman.conformance import laws
from dragoman.conformance.laws import normalize_spelling
from dragoman.dialects.base import Dialect
from dragoman.errors import DragomanError
from dragoman.filters.raw_tools.outputs import EngineNote
from dragoman.model.blocks import Text
from dragoman.model.conversation import Conversation, Message, ToolSpec
from dragoman.response_stream import ResponseTranslator
from dragoman.translate import plan
from dragoman.wire import jsonio
from dragoman.wire.eventstream import EventStreamDecoder, parse_headers
from dragoman.wire.frame import Frame, FrameDecoder
from dragoman.wire.sse import SseDecoder
from tests.eventstream import decode_message, encode_message
from tests.stories.story import STORIES, wire_bytes
from tests.unit.raw_tools.cases import CASES
from tests.unit.raw_tools.samples import outputs

VECTORS = Path(__file__).parents[1] / "vectors"
CRASHES = VECTORS / "crashes"  # one folder for each target; the suite runs all inputs in it
_REQUEST = Conversation(  # with tools, so that calls in a reply are checked
    "m", (Message("user", (Text("x"),)),), tools=tuple(ToolSpec(name, "", {}) for name in ("get_weather", "Read"))
)
_MAY_BE_MISSING = (
    "stream.input_json",
    "stream.input_cut",
    "stream.no_usage",
    "stream.open_call",
)  # an upstream may omit these
_SHOWN = 4096  # bytes of an input that are shown
_DEPTH = 100  # the gateway refuses deeper bodies at admission


class PropertyBroken(AssertionError):
    """A property that a fuzz target checks does not hold."""


def sse(data: bytes) -> None:
    _cuts_of_frames(SseDecoder, data)


def eventstream(data: bytes) -> None:
    _cuts_of_frames(EventStreamDecoder, data)
    _header_round_trip(data)


def _cuts_of_frames(make: Callable[[], FrameDecoder], data: bytes) -> None:
    whole = _decoded(make(), [data])
    for pieces in ([data[i : i + 1] for i in range(len(data))], _split_in_two(data)):
        decoded = _decoded(make(), pieces)
        if decoded != whole:
            raise PropertyBroken(f"frames depend on the cut: {whole!r} {decoded!r}")


def _decoded(decoder: FrameDecoder, pieces: list[bytes]) -> tuple[list[Frame], str]:
    frames: list[Frame] = []
    try:
        for piece in pieces:
            frames += decoder.feed(piece)
        frames += decoder.close()
    except DragomanError as error:
        return frames, f"{type(error).__name__}: {error}"
    return frames, ""


def _split_in_two(data: bytes) -> list[bytes]:
    middle = len(data) // 2
    return [data[:middle], b"", data[middle:]]


def _header_round_trip(data: bytes) -> None:
    try:
        headers = parse_headers(data)
    except DragomanError:
        return
    frame = decode_message(encode_message(headers, data))
    if frame.headers != headers or frame.payload != data:
        raise PropertyBroken(f"headers came back otherwise: {headers!r} {frame.headers!r}")


def raw_tools(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    for choice in ("auto", "kimi"):
        whole = [emitted for emitted in outputs([text], choice) if not isinstance(emitted, EngineNote)]
        for pieces in (list(text), [text[: len(text) // 2], text[len(text) // 2 :]]):
            emitted = [each for each in outputs(pieces, choice) if not isinstance(each, EngineNote)]
            if emitted != whole:
                raise PropertyBroken(f"calls depend on the cut: {whole!r} {emitted!r}")


def request(dialect: Dialect, data: bytes) -> None:
    """Check a body: it is refused with our errors, or translated to every dialect without breaking its rules."""
    if _depth(data) > _DEPTH:
        return
    try:
        call = dialect.binding.unwrap(jsonio.decode(data))
        call = structs.replace(call, model=call.model or "m")
        broken = dialect.codec.breaches(call)  # accepts any input
        conversation = dialect.codec.parse_request(call)
    except (DragomanError, jsonio.JsonError):
        return
    for upstream in map(registry.get, registry.names()):
        try:
            sent = plan(dialect, upstream, conversation).call()
        except DragomanError:
            continue
        if not broken and (
            breaches := upstream.codec.breaches(sent)
        ):  # rules that were broken in the input may stay broken
            raise PropertyBroken(f"what {dialect.name} asks breaks rules of {upstream.name}: {breaches!r}")
    if not broken:
        _check_round_trip(dialect, conversation)


def _check_round_trip(dialect: Dialect, first: Conversation) -> None:
    """Check that nothing is lost in the same dialect; a missing id may be added."""
    try:
        again = dialect.codec.parse_request(dialect.codec.render_request(first))
    except DragomanError as error:
        raise PropertyBroken(f"{dialect.name} cannot say its own body: {error!r} {first!r}") from error
    original, found = (dict(each.extra.fields) if each.extra else {} for each in (first, again))
    lost = [name for name, value in original.items() if name not in found or found[name] != value]
    if lost or normalize_spelling(structs.replace(first, extra=None)) != normalize_spelling(
        structs.replace(again, extra=None)
    ):
        raise PropertyBroken(f"{dialect.name} loses something of its own body: {lost} {first!r} {again!r}")


def translate_response(dialect: Dialect, data: bytes) -> None:
    """Check a stream or whole reply: only our errors, valid events at every split, and valid output for the client."""
    laws.only_own_errors(dialect, data)
    planned = plan(client := _other_end(data), dialect, _REQUEST)
    laws.cuts_do_not_matter(planned, data, (1, len(data) // 2, len(data) - 1))
    if client.codec.family == dialect.codec.family:
        return  # passed through unchanged
    translator, frames = ResponseTranslator(planned, laws.fixed_environment()), client.binding.frame_decoder()
    frames_out = [*frames.feed(translator.feed(data) + translator.close()), *frames.close()]
    broken = [each for each in client.codec.stream_breaches(frames_out) if not each.rule.endswith(_MAY_BE_MISSING)]
    if broken:
        raise PropertyBroken(
            f"the {client.name} response translated from {dialect.name} breaks the rules of {client.name}: {broken!r}"
        )


def _other_end(data: bytes) -> Dialect:
    """Return a dialect chosen by the bytes."""
    names = registry.names()
    return registry.get(names[zlib.crc32(data) % len(names)])


def _depth(data: bytes) -> int:
    deepest = depth = 0
    for byte in data:
        depth += (byte in b"[{") - (byte in b"]}")
        deepest = max(deepest, depth)
    return deepest


TARGETS: dict[str, Callable[[bytes], None]] = {
    "sse": sse,
    "eventstream": eventstream,
    "raw_tools": raw_tools,
    **{f"request.{name}": partial(request, registry.get(name)) for name in registry.names()},
    **{f"response.{name}": partial(translate_response, registry.get(name)) for name in registry.names()},
}


def seeds(target: str) -> Iterator[bytes]:
    """Yield valid examples: the stories, and inputs that failed before."""
    kind, _, dialect = target.partition(".")
    if dialect:
        suffix = "request.json" if kind == "request" else "stream"
        contents = (path.read_bytes() for path in sorted(STORIES.glob(f"*/{dialect}.{suffix}")))
        yield from contents if kind == "request" else (wire_bytes(registry.get(dialect), text) for text in contents)
    elif kind == "raw_tools":
        yield from ("".join(text for _, text in case.content).encode() for case in CASES)
    else:
        dialects = ("anthropic", "openai") if kind == "sse" else ("bedrock", "kiro")
        yield from itertools.chain.from_iterable(seeds(f"response.{dialect}") for dialect in dialects)
    yield from crashes(target)


def crashes(target: str) -> Iterator[bytes]:
    yield from (path.read_bytes() for path in sorted((CRASHES / target).glob("*")))


def run_target(target: str, data: bytes) -> None:
    """Run a target on the bytes; write them as a vector if they break a promise."""
    try:
        TARGETS[target](data)
    except BaseException:
        path = CRASHES / target / hashlib.sha1(data, usedforsecurity=False).hexdigest()[:12]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        print(f"kept as {path}: {data[:_SHOWN]!r}", file=sys.stderr)
        raise


def find_targets(wanted: Sequence[str]) -> Sequence[str]:
    """Return the targets with these names; all of them if none is given."""
    unknown = [name for name in wanted if name not in TARGETS]
    if unknown:
        sys.exit(f"no such target: {', '.join(unknown)} (there are: {', '.join(TARGETS)})")
    return wanted or list(TARGETS)


def exit_status(good: Mapping[str, bool]) -> int:
    failed = [target for target, is_good in good.items() if not is_good]
    print(f"{len(good)} targets, {len(failed)} broken" + "".join(f"\n  {name}" for name in failed))
    return 1 if failed else 0
