"""Jobs of the job process: parse a large request, plan and render it, translate a large response. Pure.

Jobs and results are plain values that can be pickled. They contain neither the request's body, which is sent next to
them, nor the conversation's messages, which the gateway does not need.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from itertools import accumulate

from msgspec import Struct, structs

from dragoman.dialects.base import ApiRequest, Dialect
from dragoman.errors import DragomanError, MalformedRequest
from dragoman.gateway import token_estimate
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

_HEAVY_PLAN = 64 * 1024  # bytes of pickled response filters above which their memory is counted
_HEAVY = 1000  # values in one field
_NOTES = 2000  # notes that the gateway unpickles at a time


# The gateway unpickles conversations on its event loop, so they contain only what it needs, and no messages.


def routing_part(conversation: Conversation) -> Conversation:
    """Return the part of a conversation that the gateway needs to find a target."""
    return structs.replace(without_content(conversation), output=Output(), extra=None)


def reply_context(conversation: Conversation) -> Conversation:
    """Return the part of a conversation that is needed to translate the response: no schemas, no large fields."""
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
    """Parse a request: its dialect and its parameters."""

    request: HttpRequest  # without its body
    bounds: Bounds


class ReadResult(Struct, frozen=True):
    """The facts about a request that the gateway needs to route it.

    `unreadable`: the request cannot be matched. `refusal`: it was matched and breaks a limit or a rule of its dialect.
    Without a `dialect`, no dialect has this path.
    """

    dialect: str | None = None
    call: ApiRequest | None = None  # without its body
    parameters: Conversation | None = None
    unreadable: DragomanError | None = None
    refusal: DragomanError | None = None
    items: tuple[str, ...] = ()  # ids of items of earlier responses that it refers to
    tokens: int | None = None  # the estimate, for a request to count tokens


class PlanJob(Struct, frozen=True):
    """Plan a request for one target and render it."""

    request: HttpRequest  # without its body
    bounds: Bounds
    upstream: Dialect
    model: str
    settings: TranslationSettings
    earlier: StoredConversation | None = None  # the conversation that the request continues
    items: Mapping[str, Sequence[Block]] = {}  # the known items of earlier responses
    counts: bool = False  # render a request to count tokens
    session: str = ""  # of the client


class PlanResult(Struct, frozen=True):
    """A plan without messages and notes, and the rendered request."""

    plan: Plan
    notes: tuple[bytes, ...]  # pickled in portions
    conversation: bytes | None  # the pickled conversation, if the response is stored
    memory: int  # estimated bytes that the plan takes in the gateway; 0 if few
    request: HttpRequest | None = None  # without its body, which is sent separately; None: it cannot be rendered
    refusal: DragomanError | None = None  # why it cannot be rendered
    verbatim: bool = False  # the body is that of the client's request
    note: Note | None = None  # about the rendered request


class ResponseJob(Struct, frozen=True):
    """Translate a large whole response for the client."""

    plan: Plan  # without messages
    limits: ResponseLimits
    is_saved: bool  # also return what the response store keeps


class ParsedRequest(Struct, frozen=True):
    """A parsed request."""

    dialect: Dialect
    request: HttpRequest
    conversation: Conversation


# --- reading


def read(job: ReadJob, body: bytes, router: Router) -> tuple[ReadResult, ParsedRequest | None]:
    """Match and parse a request. Return what the gateway needs, and the parsed request for planning."""
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
        parsed, _ = parse_within_limits(dialect, call, len(body), job.bounds)
    except DragomanError as error:
        return ReadResult(dialect.name, shown, refusal=error), None
    tokens = token_estimate.estimate_tokens(parsed) if call.operation == "count" else None
    items = item_references(dialect, parsed)
    result = ReadResult(dialect.name, shown, routing_part(parsed), items=items, tokens=tokens)
    return result, ParsedRequest(dialect, request, parsed)


# --- planning and rendering


def plan(job: PlanJob, known: ParsedRequest) -> tuple[PlanResult, bytes]:
    """Plan a parsed request for one target. Return the plan and the body to send. Raises ClientFault."""
    planned, saved = make_plan(job, known)
    notes = tuple([pickle.dumps(planned.notes[at : at + _NOTES]) for at in range(0, len(planned.notes), _NOTES)])
    original = (
        without_messages(planned.original)
        if known.dialect.continuation is not None
        else reply_context(planned.original)
    )
    # A filter that reads raw tool calls keeps the schemas of all tools.
    memory = base_memory(planned.translated) if len(pickle.dumps(planned.response_filters)) > _HEAVY_PLAN else 0
    bare_plan = structs.replace(planned, original=original, translated=reply_context(planned.translated), notes=())
    result = PlanResult(bare_plan, notes, None if saved is None else pickle.dumps(saved), memory)
    try:
        request, note = (
            token_count_request(planned) if job.counts else render_planned(planned, known.request, job.bounds.max_body)
        )
    except DragomanError as error:
        return structs.replace(result, refusal=error), b""
    verbatim = request.body is known.request.body
    head = structs.replace(request, body=b"")
    return structs.replace(result, request=head, verbatim=verbatim, note=note), b"" if verbatim else request.body


def make_plan(job: PlanJob, known: ParsedRequest) -> tuple[Plan, Conversation | None]:
    """Return the plan, and the conversation if the response is stored. Raises ClientFault."""
    try:
        planned, saved = continued_plan(
            known.dialect,
            job.upstream,
            structs.replace(known.conversation, session=job.session) if job.session else known.conversation,
            model=job.model,
            settings=job.settings,
            earlier=job.earlier,
            find=job.items.get,
        )
    except RecursionError:
        raise MalformedRequest("the request is nested too deeply") from None
    if job.settings.losses == "refuse":
        refuse_duplicate_keys(known.request)
    return planned, saved


# --- whole responses


def translate_response(job: ResponseJob, body: bytes) -> tuple[WholeResponse, bytes]:
    """Translate a response for the client. Return the result without its body, and the body.

    Raises UpstreamViolation, UpstreamFault.
    """
    written = translate_whole(job.plan, body, ResponseBudget(job.limits), keeps=job.is_saved)
    return structs.replace(written, body=b""), b"" if written.notes is None else written.body
