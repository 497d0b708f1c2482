"""An answer as a stream: the upstream's read callback translates and writes to the client.

Each attempt is a fresh answer from its plan. Output is held until something came that a second try would say again;
after that, after `hold` seconds, and after the first ping, the stream goes on to its own end or its dialect's error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Mapping
from functools import lru_cache
from typing import cast

from dragoman.answer import Answer
from dragoman.dialects.base import REAL_WORLD, Binding, Call, Dialect
from dragoman.errors import DragomanError, Fault, TransportError, UpstreamFault, UpstreamViolation
from dragoman.gateway.attempts import Attempts
from dragoman.gateway.exchange import Exchange
from dragoman.gateway.observe import Journal, Record
from dragoman.gateway.outlet import Outlet, Pulse
from dragoman.gateway.passing import Passing, Telling
from dragoman.gateway.refusing import BUG, ENDING
from dragoman.gateway.whole_answer import WholeAnswer
from dragoman.http.client.client import Reply
from dragoman.model.budget import Budget
from dragoman.model.events import Failed
from dragoman.translate import Plan
from dragoman.wire.http import Headers
from dragoman.wire.jsonio import Json
from dragoman.wire.ndjson import NdjsonDecoder

_GRACE = 1.0  # seconds for the upstream to end its body after its answer has: then the connection can be kept
_APART = 0.05  # seconds between an error and the same error as bare JSON, so that a client reads them one by one
_STREAM_HEADERS: Headers = (("cache-control", "no-cache"), ("x-accel-buffering", "no"))


class Stream:
    """Delivers to one client; `run` until the end."""

    __slots__ = (
        "_answer",
        "_attempts",
        "_bare",
        "_begun",
        "_budget",
        "_client",
        "_exchange",
        "_is_job",
        "_journal",
        "_made",
        "_named",
        "_outlet",
        "_record",
        "_reply",
    )

    def __init__(
        self,
        exchange: Exchange,
        client: Dialect,
        attempts: Attempts,
        record: Record,
        journal: Journal,
        *,
        silence: float,
        hold: float,
        pulse: Pulse,
    ) -> None:
        self._exchange, self._record, self._journal = exchange, record, journal
        self._client, self._attempts = client, attempts
        self._answer: Telling | None = None
        self._budget = Budget()  # of the answer
        self._made: Plan | None = None  # until the first bytes tell whether they are a stream
        self._reply: Reply | None = None  # until the answer has said its end
        self._named: Callable[[str], None] | None = None  # to be told the answer's id
        self._is_job = False  # what was asked for runs without us: the client is shown its id at once
        self._bare = b""  # the bare JSON of an error that ends the stream
        self._begun: Callable[[], None] | None = None  # to be told when the answer says something
        self._outlet = Outlet(exchange, self, silence=silence, hold=hold, pulse=pulse)

    async def run(self) -> None:
        """Raises what the attempts raise as long as the client has seen nothing; then it is told in the stream."""
        outlet = self._outlet
        self._exchange.streams()
        try:
            await self._attempts.through(self)
        except asyncio.CancelledError:
            if outlet.flowing and not self._exchange.gone:
                outlet.end(self._error(ENDING))
            raise
        except Exception as error:  # whatever it is: a client that reads a stream must be told its end
            if not outlet.flowing:
                raise
            self._note_broken(error)
            await self._end(self._error(error.fault if isinstance(error, DragomanError) else BUG))
        finally:
            outlet.close()
            self._note_stream()

    # --- for the attempts

    @property
    def seen(self) -> bool:
        return self._outlet.flowing

    @property
    def left(self) -> float:
        return self._outlet.left

    def drop(self) -> None:
        self._answer = None
        self._budget.close()
        self._outlet.drop()

    async def take(
        self, reply: Reply, made: Plan, begun: Callable[[], None], named: Callable[[str], None]
    ) -> Fault | None:
        outlet = self._outlet
        self._named, self._is_job = named, made.asked.is_job
        mask, account = self._journal.redactor.upstream_fault, self._exchange.account
        self._budget = Budget() if account is None else account.budget()
        self._answer = (Passing if _passes(made) else Answer)(made, mask=mask, budget=self._budget)
        self._made = made
        del made  # the attempts let go of it when the answer has begun
        self._reply, self._begun = reply, begun
        outlet.feed_from(reply)
        broken: DragomanError | None = None
        try:
            await reply.pump(self._hear, self._hushed)
        except (TransportError, UpstreamViolation) as error:
            broken = error
        finally:
            self._reply = self._made = None
        answer = self._answer
        assert answer is not None
        ended = answer.over
        last = b"" if ended else self._closed(answer, broken.fault if broken else None)
        if answer.fault is not None:
            failure = broken if broken is not None and not ended else _failure(answer.fault)
            if not outlet.flowing:
                raise failure
            self._note_broken(failure)
        await self._end(last)
        return answer.fault

    def _closed(self, answer: Telling, broken: Fault | None) -> bytes:
        """The end of an answer whose bytes are over. The stream of a job may break while the job goes on."""
        last, stored = answer.close(broken), self._client.stored
        if answer.fault is None or not self._is_job or stored is None:
            return last
        return self._client.binding.frame(stored.render_cut(self._journal.redactor.upstream_fault(answer.fault)))

    def _hear(self, chunk: bytes) -> None:
        """The read callback."""
        if self._made is not None:
            self._sniff(chunk)
        answer = self._answer
        assert answer is not None
        told = answer.feed(chunk)
        if self._begun is not None or answer.over:
            self._turn(answer, told)
        elif told:
            self._exchange.chunk(told)

    def _hushed(self) -> int:
        return 0 if self._answer is None else self._answer.hushed

    def _sniff(self, chunk: bytes) -> None:
        """Look at the first bytes: no stream begins as a JSON object does, except for lines of JSON."""
        begin = chunk.lstrip()[:1]
        made = self._made
        if begin == b"{" and made is not None and not isinstance(made.upstream.binding.frames(), NdjsonDecoder):
            self._answer = WholeAnswer(made, mask=self._journal.redactor.upstream_fault, budget=self._budget)
        if begin:
            self._made = None

    def _turn(self, answer: Telling, told: bytes) -> None:
        """It has yet to begin, or it is over."""
        outlet = self._outlet
        if self._reply is None:
            return  # it has said its end
        answer_id = answer.progress.id
        if self._named is not None and answer_id:
            named, self._named = self._named, None
            named(answer_id)
        if answer.fault is not None and not outlet.flowing:
            raise _failure(answer.fault)
        if answer.over:
            if (last := self._without_bare(told)) or not self._bare:
                outlet.end(last)
            reply, self._reply = self._reply, None
            if answer.fault is not None and answer.fault.violation:
                reply.close()  # an answer that broke a rule may have no end either
            else:
                reply.end_within(_GRACE)
            return
        outlet.push(told)
        if self._begun is not None and (answer.progress.begun or (self._is_job and answer_id)):
            begun, self._begun = self._begun, None
            outlet.release()
            begun()  # now that the head is out, nobody asks any more what was asked

    # --- what the client hears beside the answer

    def headers(self) -> Headers:
        self._record.status = 200
        asked, binding = self._attempts.asked, self._client.binding
        kind = _kind(binding, asked.hints.fields) if asked.hints else _usual_kind(cast(Hashable, binding))
        return (("content-type", kind), *_STREAM_HEADERS)

    def ping(self) -> bytes:
        if self._answer is not None:
            return self._answer.ping()
        payload = self._client.codec.encoder(self._attempts.asked, REAL_WORLD).ping()
        return b"" if payload is None else self._client.binding.frame(payload)

    def _error(self, fault: Fault) -> bytes:
        """The dialect's error for a stream that the client sees; nothing if it has its end."""
        answer = self._answer
        fault = self._journal.redactor.upstream_fault(fault)
        if answer is not None:
            return b"" if answer.over else answer.close(fault)
        told = self._client.codec.encoder(self._attempts.asked, REAL_WORLD).feed((Failed(fault),))
        return b"".join([self._client.binding.frame(payload) for payload in told])

    def _without_bare(self, told: bytes) -> bytes:
        """The last of it, without the bare JSON of an error, which is sent a little later and so read by itself: by
        that Google's SDK knows an error (see the binding of Gemini). To others the pieces mean nothing.
        """
        at = told.rfind(b"\n\n{") + 2
        if at < 2 or not self._outlet.flowing:
            return told
        self._bare = told[at:]
        self._outlet.push(told[:at])
        return b""

    async def _end(self, told: bytes) -> None:
        told = self._without_bare(told)
        if self._bare:
            await asyncio.sleep(_APART)
        self._outlet.end(told or self._bare)

    # --- what is noted of it

    def _note_stream(self) -> None:
        record, answer, outlet = self._record, self._answer, self._outlet
        if outlet.first_at is not None:
            record.first_byte = outlet.first_at - self._exchange.began
        if answer is not None:
            record.notes += answer.notes
            record.usage, record.stop = answer.progress.usage, answer.progress.stop

    def _note_broken(self, error: Exception) -> None:
        self._record.outcome = "broken" if isinstance(error, DragomanError) else "bug"
        self._record.error = str(error)
        if not isinstance(error, DragomanError):
            self._journal.bug(self._record.id, error)


def _failure(fault: Fault) -> DragomanError:
    """The error that ended an answer: the upstream's own words, or a violation of its dialect."""
    kind = UpstreamViolation if fault.violation else UpstreamFault
    return kind(fault.message, fault=fault)


def _passes(made: Plan) -> bool:
    """Whether the bytes of a stream may pass. Calls that clients would read wrongly are written anew."""
    return made.passes and not (
        made.sent.tools and "loose_calls" in made.upstream.codec.capabilities(made.sent.model).traits
    )


def _kind(binding: Binding, hints: Mapping[str, Json]) -> str:
    """What a stream is, as a client of this binding asks for it; some choose among framings."""
    said = {name: value for name, value in hints.items() if isinstance(value, str)}
    return binding.wrap(Call("generate", "model", True, {}, said)).header("accept") or "application/octet-stream"


@lru_cache(64)
def _usual_kind(binding: Hashable) -> str:
    return _kind(cast(Binding, binding), {})
