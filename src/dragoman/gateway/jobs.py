"""What is done with a large request or answer: read it, plan and render it for a target. Pure.

The worker process runs these functions. Jobs and results are plain values that can be pickled. They hold neither the
request's body, which travels beside them, nor the conversation's messages, which the gateway does not need.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from itertools import accumulate

from msgspec import Struct, structs

from dragoman.dialects.base import ApiRequest, Dialect
from dragoman.errors import DragomanError, MalformedRequest
from dragoman.gateway import listing
from dragoman.gateway.limits import base_memory, check_text, tree_levels
from dragoman.gateway.planning import (
    Bounds,
    parse_within_limits,
    refuse_duplicate_keys,
    render_planned,
    token_count_request,
)
from dragoman.gateway.response_modes import WholeResponse, translate_whole
from dragoman.gateway.response_store import StoredConversation, continued_plan, item_references
from dragoman.gateway.routing import Router, UnreadableRequest
from dragoman.model.blocks import Block, Extra
from dragoman.model.conversation import Conversation, Output, ToolSpec, without_content, without_messages
from dragoman.model.events import ResponseBudget, ResponseLimits
from dragoman.model.filter import Note
from dragoman.translate import Plan, TranslationSettings
from dragoman.wire.http import HttpRequest

_HEAVY_PLAN = 64 * 1024  # bytes of a pickled plan that is counted
_HEAVY = 1000  # values in one field
_NOTES = 2000  # that the gateway reads in one turn


# Conversations without their messages, which the gateway makes into objects again while it does nothing else. So they
# hold no more than is needed there.


def routing_part(asked: Conversation) -> Conversation:
    """What the gateway must know to find a target."""
    return structs.replace(without_content(asked), output=Output(), extra=None)


def reply_context(conversation: Conversation) -> Conversation:
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


def _light_extra(extra: Extra | None) -> Extra | None:
    if extra is None:
        return None
    fields = {
        name: value
        for name, value in extra.fields.items()
        if not any(count > _HEAVY for count in accumulate(map(len, tree_levels(value))))
    }
    return extra if len(fields) == len(extra.fields) else structs.replace(extra, fields=fields)


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
    call: ApiRequest | None = None  # without its body
    parameters: Conversation | None = None
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
    settings: TranslationSettings
    earlier: StoredConversation | None = None  # the conversation that the request continues
    items: Mapping[str, Sequence[Block]] = {}  # those items of earlier answers that are known
    counts: bool = False  # render a request to count tokens


class PlanResult(Struct, frozen=True):
    """A plan without messages and notes, and the request that is sent."""

    plan: Plan
    notes: tuple[bytes, ...]  # pickled, some at a time
    conversation: bytes | None  # the conversation, pickled, if the answer is kept
    memory: int  # bytes that the plan takes in the gateway, about, if that is much
    request: HttpRequest | None = None  # without its body, which travels beside it; None: it cannot be rendered
    refusal: DragomanError | None = None  # why not
    verbatim: bool = False  # the body is the client's own
    note: Note | None = None  # about what is sent


class ResponseJob(Struct, frozen=True):
    """Read a large whole answer, and write it for the client."""

    plan: Plan  # without messages
    limits: ResponseLimits
    is_saved: bool  # what the gateway keeps of the answer is wanted, too


class ParsedRequest(Struct, frozen=True):
    """A request that was read."""

    dialect: Dialect
    request: HttpRequest
    conversation: Conversation


# --- reading


def read(job: ReadJob, body: bytes, router: Router) -> tuple[ReadResult, ParsedRequest | None]:
    """Match a request and read all of it; gives what the gateway must know, and what planning needs."""
    request = structs.replace(job.request, body=body)
    try:
        check_text(body, job.bounds.limits)
    except DragomanError as error:
        return ReadResult(unreadable=error), None
    try:
        matched = router.match(request, decoded=True)
    except UnreadableRequest as error:
        return ReadResult(error.dialect.name, unreadable=error.error), None
    if matched is None:
        return ReadResult(), None
    dialect, call = matched.dialect, matched.call
    shown = structs.replace(call, body=None)
    if call.operation not in ("generate", "count"):
        return ReadResult(dialect.name, shown), None
    try:
        asked, _ = parse_within_limits(dialect, call, len(body), job.bounds)
    except DragomanError as error:
        return ReadResult(dialect.name, shown, refusal=error), None
    tokens = listing.estimate_tokens(asked) if call.operation == "count" else None
    result = ReadResult(dialect.name, shown, routing_part(asked), items=item_references(dialect, asked), tokens=tokens)
    return result, ParsedRequest(dialect, request, asked)


# --- planning and rendering


def plan(job: PlanJob, known: ParsedRequest) -> tuple[PlanResult, bytes]:
    """Plan what was read for one target; gives the plan and the body to send. Raises ClientFault."""
    made, said = make_plan(job, known)
    notes = tuple([pickle.dumps(made.notes[at : at + _NOTES]) for at in range(0, len(made.notes), _NOTES)])
    asked = without_messages(made.original) if known.dialect.continuation is not None else reply_context(made.original)
    # What reads raw tool calls keeps the schemas of all tools.
    memory = base_memory(made.translated) if len(pickle.dumps(made.response_filters)) > _HEAVY_PLAN else 0
    bare_plan = structs.replace(made, original=asked, translated=reply_context(made.translated), notes=())
    result = PlanResult(bare_plan, notes, None if said is None else pickle.dumps(said), memory)
    try:
        request, note = (
            token_count_request(made) if job.counts else render_planned(made, known.request, job.bounds.max_body)
        )
    except DragomanError as error:
        return structs.replace(result, refusal=error), b""
    verbatim = request.body is known.request.body
    head = structs.replace(request, body=b"")
    return structs.replace(result, request=head, verbatim=verbatim, note=note), b"" if verbatim else request.body


def make_plan(job: PlanJob, known: ParsedRequest) -> tuple[Plan, Conversation | None]:
    """The plan, and the conversation if its answer is kept. Raises ClientFault."""
    try:
        made, said = continued_plan(
            known.dialect,
            job.upstream,
            known.conversation,
            model=job.model,
            settings=job.settings,
            earlier=job.earlier,
            find=job.items.get,
        )
    except RecursionError:
        raise MalformedRequest("nested too deeply") from None
    if job.settings.losses == "refuse":
        refuse_duplicate_keys(known.request)
    return made, said


# --- whole answers


def translate_response(job: ResponseJob, body: bytes) -> tuple[WholeResponse, bytes]:
    """Read an answer and write it for the client; the body is given beside the rest. Raises UpstreamViolation,
    UpstreamFault.
    """
    written = translate_whole(job.plan, body, ResponseBudget(job.limits), keeps=job.is_saved)
    return structs.replace(written, body=b""), b"" if written.notes is None else written.body
