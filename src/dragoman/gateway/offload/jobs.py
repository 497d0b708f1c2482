"""What is done with a large request: read it, plan and render it for a target, explain a refusal of it. Pure.

The worker process runs these functions, and the gateway runs `explained` for small requests. Jobs and results are plain
values that can be pickled. They hold neither the request's body, which travels beside them, nor the conversation's
messages, which the gateway does not need.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence

from msgspec import Struct, structs

from dragoman.dialects.base import Call, Dialect, ExactRequest
from dragoman.errors import DragomanError, Fault, MalformedRequest, TooLarge, Unrepresentable
from dragoman.gateway import listing
from dragoman.gateway.config import Server
from dragoman.gateway.continuing import Said, continued_plan, references
from dragoman.gateway.explain import Refusal, remembered
from dragoman.gateway.limits import RequestLimits, Shape, beside_messages, check_conversation, check_text, check_tree
from dragoman.gateway.media_urls import MediaUrls, check_media_urls
from dragoman.gateway.memory import Answered, is_stored, listened, unheard
from dragoman.gateway.redaction import Redactor
from dragoman.gateway.router import Router, Unreadable
from dragoman.gateway.whole_reply import Told, told_whole
from dragoman.model.blocks import Block, Extra
from dragoman.model.conversation import Conversation, Output, ToolSpec, bare, without_messages
from dragoman.model.events import AnswerLimits, Budget
from dragoman.model.filter import MakeBack, Note
from dragoman.translate import Plan, Settings
from dragoman.upstream.credentials import with_headers
from dragoman.wire import jsonio
from dragoman.wire.http import Headers, HttpRequest, HttpResponse
from dragoman.wire.jsonio import Json

_HEAVY_PLAN = 64 * 1024  # bytes of a pickled plan that is counted
_HEAVY = 1000  # values in one field
_NOTES = 2000  # that the gateway reads in one turn


# Conversations without their messages, which the gateway makes into objects again while it does nothing else. So they
# hold no more than is needed there.


def routed(asked: Conversation) -> Conversation:
    """What the gateway must know to find a target."""
    return structs.replace(bare(asked), output=Output(), extra=None)


def light(conversation: Conversation) -> Conversation:
    """What an answer is read with: the names of tools, but not their schemas, and no large fields."""
    tools = tuple(
        [
            structs.replace(tool, schema={}) if isinstance(tool, ToolSpec) and tool.schema else tool
            for tool in conversation.tools
        ]
    )
    return structs.replace(
        conversation,
        messages=(),
        system=conversation.system[:1],
        tools=tools,
        output=Output(conversation.output.kind, conversation.output.name),
        extra=_light_extra(conversation.extra),
    )


class Bounds(Struct, frozen=True):
    """What a request may be, as `[server]` says."""

    limits: RequestLimits
    max_body: int  # bytes, also of what is sent
    media_urls: MediaUrls

    @classmethod
    def of(cls, server: Server) -> Bounds:
        return cls(server.limits, server.max_body, server.media_urls)


def _light_extra(extra: Extra | None) -> Extra | None:
    if extra is None:
        return None
    fields = {name: value for name, value in extra.fields.items() if not _is_heavy(value)}
    return extra if len(fields) == len(extra.fields) else structs.replace(extra, fields=fields)


def _is_heavy(value: Json) -> bool:
    """Whether it has more than so many values."""
    level, count = [value], 0
    while level:
        count += len(level)
        if count > _HEAVY:
            return True
        inside: list[Json] = []
        for each in level:
            if isinstance(each, dict):
                inside += each.values()
            elif isinstance(each, list):
                inside += each
        level = inside
    return False


class ReadJob(Struct, frozen=True):
    """Find out which dialect a request speaks and what it asks for."""

    request: HttpRequest  # without its body
    bounds: Bounds


class ReadResult(Struct, frozen=True):
    """What the gateway must know of a request to route it.

    `unreadable` says that the request cannot be matched. `refusal` says that it was matched and breaks a limit or its
    dialect. Without a `dialect` no dialect has this path.
    """

    dialect: str | None = None
    call: Call | None = None  # without its body
    asked: Conversation | None = None
    unreadable: DragomanError | None = None
    refusal: DragomanError | None = None
    items: tuple[str, ...] = ()  # ids of items of earlier answers that it refers to
    tokens: int | None = None  # for a request to count them


class PlanJob(Struct, frozen=True):
    """Plan a request for one target and render what is sent there."""

    request: HttpRequest  # without its body
    bounds: Bounds
    upstream: Dialect
    model: str
    settings: Settings
    earlier: Said | None = None  # the conversation that the request continues
    items: Mapping[str, Sequence[Block]] = {}  # those items of earlier answers that are known
    counts: bool = False  # render a request to count tokens


class PlanResult(Struct, frozen=True):
    """A plan without its dialects and messages, and the request that is sent."""

    asked: Conversation  # without messages
    sent: Conversation
    notes: tuple[bytes, ...]  # pickled, some at a time
    makers: tuple[MakeBack, ...]
    settings: Settings
    passes: bool
    finds_calls: bool
    said: bytes | None  # the conversation, pickled, if the answer is kept
    memory: int  # bytes that the plan takes in the gateway, about, if that is much
    request: HttpRequest | None  # without its body, which travels beside it; None: it cannot be rendered
    refusal: DragomanError | None  # why not
    verbatim: bool  # the body is the client's own
    note: Note | None  # about what is sent

    def plan(self, client: Dialect, upstream: Dialect, notes: Sequence[Note]) -> Plan:
        """The plan again, with the notes that were read from theirs."""
        rest = (self.makers, self.settings, self.passes, self.finds_calls)
        return Plan(client, upstream, self.asked, self.sent, tuple(notes), *rest)


class ExplainJob(Struct, frozen=True):
    """Describe a refusal for `dragoman explain`."""

    plan: PlanJob
    way: tuple[str, str, str]  # the request's id, the client's dialect, the upstream's name
    headers: Headers  # that the upstream gets beside those of the dialect
    response: HttpResponse
    fault: Fault
    secrets: tuple[str, ...]


class AnswerJob(Struct, frozen=True):
    """Read a large whole answer, and write it for the client."""

    client: Dialect
    upstream: Dialect
    asked: Conversation  # without messages
    sent: Conversation
    notes: tuple[Note, ...]
    makers: tuple[MakeBack, ...]
    settings: Settings
    passes: bool
    finds_calls: bool
    limits: AnswerLimits
    keeps: bool  # what the gateway keeps of the answer is wanted, too

    @classmethod
    def of(cls, made: Plan, limits: AnswerLimits) -> AnswerJob:
        keeps, made = is_stored(made), unheard(made)
        asked, sent = without_messages(made.asked), without_messages(made.sent)
        rest = (made.notes, made.makers, made.settings, made.passes, made.finds_calls)
        return cls(made.client, made.upstream, asked, sent, *rest, limits, keeps)

    def plan(self) -> Plan:
        rest = (self.notes, self.makers, self.settings, self.passes, self.finds_calls)
        return Plan(self.client, self.upstream, self.asked, self.sent, *rest)


class AnswerResult(Struct, frozen=True):
    """What the gateway records of a whole answer, and what it stores of it."""

    told: Told
    kept: Answered | None


class Read(Struct, frozen=True):
    """A request that was read."""

    dialect: Dialect
    request: HttpRequest
    asked: Conversation


# --- reading


def read(job: ReadJob, body: bytes, router: Router) -> tuple[ReadResult, Read | None]:
    """Match a request and read all of it; gives what the gateway must know, and what planning needs."""
    request = structs.replace(job.request, body=body)
    try:
        check_text(body, job.bounds.limits)
    except DragomanError as error:
        return ReadResult(unreadable=error), None
    try:
        matched = router.match(request)
    except Unreadable as error:
        return ReadResult(error.dialect.name, unreadable=error.error), None
    if matched is None:
        return ReadResult(), None
    dialect, call = matched.dialect, matched.call
    shown = structs.replace(call, body=None)
    if call.operation not in ("generate", "count"):
        return ReadResult(dialect.name, shown), None
    try:
        asked, _ = parse(dialect, call, len(body), job.bounds)
    except DragomanError as error:
        return ReadResult(dialect.name, shown, refusal=error), None
    tokens = listing.estimate(asked) if call.operation == "count" else None
    result = ReadResult(dialect.name, shown, routed(asked), items=references(dialect, asked), tokens=tokens)
    return result, Read(dialect, request, asked)


def parse(
    dialect: Dialect, call: Call, size: int, bounds: Bounds, exact: ExactRequest | None = None
) -> tuple[Conversation, Shape]:
    """What a call asks, within the limits, and the shape of its body. Raises MalformedRequest, TooLarge."""
    shape = check_tree(call.body, size, bounds.limits, 0 if exact is None else exact.beside)
    try:
        asked = dialect.codec.parse_request(call) if exact is None else exact.asked
    except RecursionError:
        raise MalformedRequest("nested too deeply") from None
    check_conversation(asked, shape, bounds.limits)
    check_media_urls(asked, dialect.codec.family, bounds.media_urls)
    return asked, shape


# --- planning and rendering


def plan(job: PlanJob, known: Read) -> tuple[PlanResult, bytes]:
    """Plan what was read for one target; gives the plan and the body to send. Raises ClientFault."""
    made, said = planned(job, known)
    request: HttpRequest | None = None
    refusal: DragomanError | None = None
    note: Note | None = None
    body = b""
    verbatim = False
    try:
        request, note = counting(made) if job.counts else rendered(made, known.request, job.bounds.max_body)
        verbatim = request.body is known.request.body
        body = b"" if verbatim else request.body
        request = structs.replace(request, body=b"")
    except DragomanError as error:
        refusal = error
    result = PlanResult(
        without_messages(made.asked) if known.dialect.continuation is not None else light(made.asked),
        light(made.sent),
        tuple([pickle.dumps(made.notes[at : at + _NOTES]) for at in range(0, len(made.notes), _NOTES)]),
        made.makers,
        made.settings,
        made.passes,
        made.finds_calls,
        None if said is None else pickle.dumps(said),
        _memory(made),
        request,
        refusal,
        verbatim,
        note,
    )
    return result, body


def _memory(made: Plan) -> int:
    """Bytes that a plan takes without its conversation. What reads raw tool calls keeps the schemas of all tools."""
    return beside_messages(made.sent) if len(pickle.dumps(made.makers)) > _HEAVY_PLAN else 0


def planned(job: PlanJob, known: Read) -> tuple[Plan, Conversation | None]:
    """The plan, and the conversation if its answer is kept. Raises ClientFault."""
    try:
        made, said = continued_plan(
            known.dialect,
            job.upstream,
            known.asked,
            model=job.model,
            settings=job.settings,
            earlier=job.earlier,
            find=job.items.get,
        )
    except RecursionError:
        raise MalformedRequest("nested too deeply") from None
    refuse_doubled(known.request, job.settings)
    return made, said


def refuse_doubled(given: HttpRequest, settings: Settings) -> None:
    """Refuse a name that stands twice in one object where losses are refused. Raises MalformedRequest."""
    if settings.losses == "refuse" and (name := jsonio.doubled(given.body, given.document)):
        raise MalformedRequest(f"{name!r} stands twice in one object; losses are refused")


def rendered(made: Plan, given: HttpRequest, max_body: int) -> tuple[HttpRequest, Note | None]:
    """What is sent, and a note about it if there is something to say. Raises Unrepresentable, TooLarge."""
    note: Note | None = None
    if made.verbatim and made.sent.model == made.asked.model:
        if (name := jsonio.doubled(given.body, given.document)) is None:
            return structs.replace(made.upstream.binding.wrap(made.head()), body=given.body), None
        # The upstream might read the first of the two, which was not checked here.
        note = Note("json.duplicate_keys", "dropped", "", f"{name!r} stands twice in one object; the last one counts")
    try:
        request = made.request()
    except RecursionError:
        raise Unrepresentable("nested too deeply") from None
    if (size := len(request.body)) > max_body:
        what = f"the request has {size} bytes in the upstream's dialect; the limit is {max_body} (server.max_body)"
        raise TooLarge(what)
    return request, note


def counting(made: Plan) -> tuple[HttpRequest, None]:
    """The request that asks the target to count the tokens of this one."""
    call = structs.replace(made.call(), operation="count", stream=False)
    return made.upstream.binding.wrap(call), None


# --- whole answers


def answered(job: AnswerJob, body: bytes) -> tuple[AnswerResult, bytes]:
    """Read an answer and write it for the client. Raises UpstreamViolation, UpstreamFault."""
    kept: list[Answered] = []
    made = job.plan()
    if job.keeps:
        made = listened(made, lambda answer, _: kept.append(answer))
    told, raw = told_whole(made, body, Budget(job.limits))
    return AnswerResult(told, kept[0] if kept else None), b"" if told.notes is None else raw


# --- explaining


def explained(job: ExplainJob, known: Read) -> Refusal:
    """All about a refusal, without secrets. Raises ClientFault if the request cannot be planned any more."""
    made, _ = planned(job.plan, known)
    request, _ = rendered(made, known.request, job.plan.bounds.max_body)
    request = with_headers(request, job.headers)
    words = (known.request, request, job.response, job.fault)
    return remembered(job.way, made, words, Redactor(lambda: job.secrets))
