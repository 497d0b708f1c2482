"""What a client got, against what was said: the truth, an error in its own words, or something is lost or wrong."""

from __future__ import annotations

import ssl
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from botocore.eventstream import ParserError

import dragoman.dialects as registry
from dragoman.errors import DragomanError
from dragoman.simulator.faults import Fault
from dragoman.wire.sse import FrameTooLong
from tests.faults.hearing import CUT_SHORT, EARS, Heard, refusal, whole
from tests.faults.listening import Lost, Told, Wrong

if TYPE_CHECKING:
    from tests.faults.stage import Shown

# What the model says: two characters of several bytes, what JSON must escape, and a call.
SAYS = 'Größe “ok” 🦜\nsecond line {"a": [1, 2]} and the end.'
CALLS = {"city": "Nowhereville", "note": 'ü " \\ 🦜'}


@dataclass(frozen=True)
class Probe:
    """One way to cause a fault, and what may come of it.

    `may`: answer (all that the model said, and its end), error (in the client's words), either, or short (an end that
    tells of a limit, docs/decisions/answers.md#d7). `within`: the deadline of the configuration; without one only a
    hang is one.
    """

    label: str
    faults: tuple[Fault, ...] = ()
    may: str = "answer"
    stream: bool = True
    within: float | None = None
    status: tuple[int, ...] = ()
    says: str = ""
    asked: int | None = None  # how often the upstream was asked, at most
    check: Callable[[Shown], None] | None = None
    tls: ssl.SSLContext | None = None
    framed: bool = True  # the proxy sees wire frames; else bytes, however long
    url: str = ""  # instead of the proxy's


def hear(client: str, told: Told, *, stream: bool) -> Heard:
    """What a 200 says. Raises Wrong for what a client could not read."""
    try:
        heard = EARS[client](told.body) if stream else whole(client, told.body)
    except (ValueError, KeyError, TypeError, ParserError, struct.error) as error:
        raise Wrong(f"a client cannot read this: {error!r}: {told.body[-400:]!r}") from error
    if heard.odd:
        raise Wrong(f"a client stumbles over this: {heard.odd}: {told.body[-400:]!r}")
    if stream:
        dialect = registry.get(client)
        try:
            decoder = dialect.binding.frame_decoder()
            breaches = dialect.codec.stream_breaches([*decoder.feed(told.body), *decoder.close()])
        except DragomanError as error:
            if not isinstance(error, FrameTooLong):  # a reader's limit, which is for upstreams
                raise Wrong(f"no stream of {client}: {error}") from error
            breaches = ()
        if heard.finish in CUT_SHORT:  # the call that the limit cut off is no JSON, and cannot be
            breaches = [breach for breach in breaches if not breach.rule.endswith(("input_json", "input_cut"))]
        if breaches:
            raise Wrong(f"the stream breaks the rules of {client}: {breaches[0]} ({heard.finish}, {heard.error})")
    return heard


def judge(
    client: str, probe: Probe, told: Told, says: str | None = SAYS, calls: Sequence[Any] | None = (CALLS,)
) -> Heard | None:
    """Raises Lost or Wrong unless the client got the truth; with None for what was said, an honest stream will do."""
    if told.status != 200:
        message = refusal(client, told)
        if not told.whole:
            raise Lost(f"half a refusal: {told}")
        if told.status == 429 and "retry-after" not in told.headers:
            raise Wrong("429 without retry-after")
        if probe.may not in ("error", "either", "short"):
            raise Wrong(f"refused ({told.status}: {message}), though an answer was there")
        _as_said(probe, told, message)
        return None
    heard = hear(client, told, stream=probe.stream)
    if (says is not None and not says.startswith(heard.text)) or (calls is not None and len(heard.calls) > len(calls)):
        raise Wrong(f"nobody said {_brief(heard)}")
    if heard.error is not None:
        if probe.may not in ("error", "either", "short"):
            raise Wrong(f"an error ({heard.error}), though an answer was there")
        if heard.finish and heard.ended:
            raise Wrong("an error and an end")
        _as_said(probe, told, heard.error)
        return heard
    if not heard.ended or not told.whole:
        raise Lost(f"it just ends: {told.body[-300:]!r}")
    complete = says in (None, heard.text) and _same(heard, calls)
    if complete and heard.finish not in CUT_SHORT:
        if probe.may == "error":
            raise Wrong("an answer, though the upstream gave none")
        return heard
    if probe.may != "short":
        raise Wrong(f"a made-up end ({heard.finish}): {_brief(heard)}")
    if len(heard.calls) and not complete and heard.finish not in CUT_SHORT:
        raise Wrong(f"a call that never ended came with {heard.finish!r}: {_brief(heard)}")
    return heard


def _as_said(probe: Probe, told: Told, message: str) -> None:
    if probe.status and told.status not in probe.status:
        raise Wrong(f"{told.status} instead of {str(probe.status)[:20]}…: {message}")
    if probe.says not in message:
        raise Wrong(f"{probe.says!r} is not in {message!r}")


def _same(heard: Heard, calls: Sequence[Any] | None) -> bool:
    try:
        said = heard.arguments()
    except ValueError:
        return calls is None
    return all(call["whole"] for call in heard.calls) and (calls is None or said == list(calls))


def _brief(heard: Heard) -> str:
    return f"{heard.text[:120]!r} {str(heard.calls)[:200]}"
