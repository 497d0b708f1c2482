"""The laws of translation. Each is a function that returns if the law holds, and raises LawBroken if not.

The docstrings number the laws. Pure: no I/O.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TypeAlias

from msgspec import structs

import dragoman.dialects as registry
from dragoman.conformance.samples import CONVERSATIONS, STREAMS
from dragoman.dialects.base import Dialect, Environment, StreamReader
from dragoman.errors import DragomanError, Unrepresentable
from dragoman.model.assemble import assemble_reply, check
from dragoman.model.blocks import Block, Reasoning, Text, ToolCall
from dragoman.model.conversation import Conversation, Message, Reply
from dragoman.model.events import BlockEnded, BlockKeys, Events, Failed
from dragoman.model.filter import Notes
from dragoman.response_stream import ResponseFilters, ResponseTranslator, assemble_client_reply
from dragoman.translate import Plan, plan
from dragoman.wire import jsonio

# --- comparison of canonical values; different spellings of the same value are equal


ReplySummary: TypeAlias = tuple[tuple[str, str, tuple[tuple[str, str, bytes], ...]], ...]


def arguments_value(call: ToolCall) -> bytes:
    """Return the arguments in one normal spelling; empty arguments are an empty object."""
    try:
        return jsonio.encode(jsonio.decode(call.arguments or "{}")) if call.form == "json" else call.arguments.encode()
    except jsonio.JsonError:
        return call.arguments.encode("utf-8", "surrogatepass")


def normalize_spelling(conversation: Conversation) -> Conversation:
    """Return the conversation in one normal spelling, so that `==` compares the meaning."""
    messages = tuple(
        structs.replace(message, blocks=tuple(map(_normalize_block, message.blocks)))
        for message in conversation.messages
    )
    return structs.replace(conversation, messages=messages, estimated_tokens=None)


def _normalize_block(block: Block) -> Block:
    if not isinstance(block, ToolCall):
        return block
    return structs.replace(block, arguments=arguments_value(block).decode("utf-8", "surrogatepass"))


def summarize_reply(reply: Reply) -> ReplySummary:
    """Return what must never be lost of each choice: text, reasoning, and every call."""
    return tuple(
        (
            "".join(block.text for block in choice.blocks if isinstance(block, Text)),
            "".join(block.text for block in choice.blocks if isinstance(block, Reasoning)),
            tuple((call.id, call.name, arguments_value(call)) for call in choice.blocks if isinstance(call, ToolCall)),
        )
        for choice in reply.choices
    )


EMPTY_REQUEST = Conversation("", ())  # for replies whose request does not matter


class LawBroken(AssertionError):
    """A law does not hold. The message has the law and the values."""


def fixed_environment() -> Environment:
    """Return an environment without randomness: ids are counted, and the time is constant."""
    counter = itertools.count(1)
    return Environment(new_id=lambda prefix: f"{prefix}{next(counter):04d}", now=lambda: 1_780_000_000)


def _require(holds: bool, law: str, *evidence: object) -> None:
    if not holds:
        raise LawBroken(f"{law}\n" + "\n".join(f"  {each!r}" for each in evidence))


def try_plan(client: Dialect, upstream: Dialect, conversation: Conversation) -> Plan | None:
    """Return the plan, or None if the conversation is empty or the target cannot represent it."""
    if not conversation.messages and not conversation.system:
        return None
    try:
        return plan(client, upstream, conversation)
    except Unrepresentable:
        return None


# --- requests


def planning_is_idempotent(client: Dialect, upstream: Dialect, conversation: Conversation) -> None:
    """1. Planning is idempotent: a second run changes nothing and adds no note."""
    first = try_plan(client, upstream, conversation)
    if first is None:
        return
    again = plan(client, upstream, first.translated)
    _require(
        again.translated == first.translated,
        "a second planning changed the conversation",
        first.translated,
        again.translated,
    )
    _require(not again.notes, "a second planning added notes", again.notes)


def notes_match_changes(client: Dialect, upstream: Dialect, conversation: Conversation) -> None:
    """2. There is a note if and only if something changed."""
    planned = try_plan(client, upstream, conversation)
    if planned is None:
        return
    translated, original = (
        jsonio.encode(_without(normalize_spelling(each), "at", keep_spelling=False))
        for each in (planned.translated, conversation)
    )
    _require(
        (translated == original) != bool(planned.notes),
        "notes and changes disagree",
        planned.notes,
        conversation,
        planned.translated,
    )


def plans_break_no_rule(client: Dialect, upstream: Dialect, conversation: Conversation) -> None:
    """3. A planned request breaks no rule of the upstream dialect."""
    planned = try_plan(client, upstream, conversation)
    if planned is not None:
        breaches = upstream.codec.breaches(planned.call())
        _require(not breaches, f"the planned request breaks rules of {upstream.name}", breaches, planned.translated)


def codec_is_exact(client: Dialect, upstream: Dialect, conversation: Conversation) -> None:
    """4. The codec is exact for planned requests: it reads back what it wrote."""
    planned = try_plan(client, upstream, conversation)
    if planned is None:
        return
    call = upstream.binding.match(upstream.binding.wrap(planned.call()))
    _require(call is not None, "a binding does not match the request that it wrapped", planned.call())
    if call is not None:
        read = upstream.codec.parse_request(call)
        same = _without(normalize_spelling(read), "at", "spelling") == _without(
            normalize_spelling(planned.translated), "at", "spelling"
        )
        _require(same, f"{upstream.name} reads its own request differently", planned.translated, read)


def prefix_is_stable(client: Dialect, upstream: Dialect, conversation: Conversation, more: Sequence[Message]) -> None:
    """6. Turns appended after a user turn do not change the messages before them, so that prompt caches are used."""
    if not conversation.messages or conversation.messages[-1].role != "user" or not more or more[0].role != "assistant":
        return
    short = try_plan(client, upstream, conversation)
    long = try_plan(client, upstream, structs.replace(conversation, messages=(*conversation.messages, *more)))
    if short is None or long is None:
        return
    prefix = _without(
        long.translated.messages[: len(short.translated.messages)], "cache", "at"
    )  # cache markers may move
    _require(
        prefix == _without(short.translated.messages, "cache", "at"),
        "an appended turn changed the turns before it",
        short.translated,
        long.translated,
    )


def own_body_round_trips(dialect: Dialect, body: jsonio.Json) -> None:
    """5. A body keeps every known and unknown field when its own dialect reads and writes it."""
    read = dialect.codec.parse_request(dialect.binding.unwrap(body))
    written = jsonio.decode(dialect.binding.wrap(dialect.codec.render_request(read)).body)
    again = dialect.codec.parse_request(dialect.binding.unwrap(written))
    _require(
        normalize_spelling(again) == normalize_spelling(read),
        f"{dialect.name} lost a part of its own body",
        read,
        again,
    )


# --- responses


def cuts_do_not_matter(planned: Plan, data: bytes, cuts: Iterable[int]) -> None:
    """7. The output does not depend on the cuts of the input, also for invalid input."""
    whole = ResponseTranslator(planned, fixed_environment())
    expected = whole.feed(data) + whole.close()
    translator = ResponseTranslator(planned, fixed_environment())
    edges = [0, *sorted({cut for cut in cuts if 0 < cut < len(data)}), len(data)]
    pieces = [data[start:end] for start, end in itertools.pairwise(edges)]
    got = b"".join(map(translator.feed, pieces)) + translator.close()
    _require(got == expected, "the output depends on the cuts of the input", edges, expected, got)


def nothing_is_lost_in_a_stream(client: Dialect, upstream: Dialect, events: Events) -> None:
    """8 and 9. A stream and a whole reply have the same content, without loss, and events follow the grammar."""
    planned = plan(client, upstream, EMPTY_REQUEST)
    filtered = ResponseFilters(planned, BlockKeys.after(events)).feed(events)
    check(filtered)
    streamed = decode_events(client, encode_events(client, filtered))
    check(streamed)
    if isinstance(filtered[-1], Failed) or isinstance(streamed[-1], Failed):
        _require(
            type(filtered[-1]) is type(streamed[-1]),
            "a failed stream became a successful one, or the reverse",
            filtered,
            streamed,
        )
        return
    exact, shown = assemble_reply(filtered), assemble_reply(_as_shown(filtered))
    summary = summarize_reply(assemble_reply(streamed))
    _require(
        summary in (summarize_reply(exact), summarize_reply(shown)),
        f"{client.name} lost content in a stream",
        shown,
        assemble_reply(streamed),
    )
    expected = assemble_client_reply(planned, filtered, Notes())
    whole = client.codec.parse_reply(
        client.codec.render_reply(expected, EMPTY_REQUEST, fixed_environment()), EMPTY_REQUEST
    )
    _require(
        summarize_reply(whole) == summarize_reply(expected),
        f"{client.name} lost content in a whole reply",
        expected,
        whole,
    )


def _as_shown(events: Events) -> Events:
    """Return the events as most streams can express them: every block end is a normal one.

    See docs/decisions/responses.md#d7.
    """
    return tuple(BlockEnded(event.key) if isinstance(event, BlockEnded) else event for event in events)


def unchanged_frames_pass_verbatim(dialect: Dialect, events: Events) -> None:
    """10. Within one dialect, an unchanged stream is passed on byte for byte."""
    data = encode_events(
        dialect, ResponseFilters(plan(dialect, dialect, EMPTY_REQUEST), BlockKeys.after(events)).feed(events)
    )
    translator = ResponseTranslator(plan(dialect, dialect, EMPTY_REQUEST), fixed_environment())
    got = translator.feed(data) + translator.close()
    _require(got == data, f"{dialect.name} changed a stream of its own dialect", data, got)


def only_own_errors(dialect: Dialect, data: bytes) -> None:
    """11. Arbitrary bytes raise only errors of Dragoman, and their events follow the grammar."""
    check(decode_events(dialect, data))
    for read in (
        lambda: dialect.codec.parse_reply(data, EMPTY_REQUEST),
        lambda: dialect.codec.parse_request(dialect.binding.unwrap(_json(data))),
    ):
        with suppress(DragomanError):
            read()


def encode_events(dialect: Dialect, events: Events) -> bytes:
    """Return the response stream of these events."""
    encoder = dialect.codec.encoder(EMPTY_REQUEST, fixed_environment())
    return b"".join(dialect.binding.encode_frame(payload) for payload in encoder.feed(events))


def decode_events(dialect: Dialect, data: bytes) -> Events:
    """Return the events of a response stream."""
    reader = StreamReader(dialect.binding.frame_decoder(), dialect.codec.decoder(EMPTY_REQUEST, fixed_environment()))
    decoded_frames = [*reader.feed(data), *reader.close()]
    return tuple(event for decoded in decoded_frames for event in decoded.events)


def _json(data: bytes) -> jsonio.Json:
    try:
        return jsonio.decode(data)
    except jsonio.JsonError:
        return data.decode("latin-1")


def _without(value: object, *names: str, keep_spelling: bool = True) -> jsonio.Json:
    """Return a canonical value as JSON, without fields of these names at any depth.

    Without `keep_spelling`, also remove the extra fields that only record a spelling.
    """

    def strip(value: jsonio.Json) -> jsonio.Json:
        if isinstance(value, list):
            return [strip(each) for each in value]
        if not isinstance(value, dict):
            return value
        if not keep_spelling and value.keys() == {"family", "fields", "spelling"}:
            fields, spelling = value["fields"], value["spelling"]
            assert isinstance(fields, dict) and isinstance(spelling, list)
            others = {name: each for name, each in fields.items() if name not in spelling}
            return {"family": value["family"], "fields": others} if others else None
        return {name: strip(each) for name, each in value.items() if name not in names}

    return strip(jsonio.decode(jsonio.encode(value)))


# --- running the laws on the samples

RequestLaw: TypeAlias = Callable[[Dialect, Dialect, Conversation], None]
REQUEST_LAWS: tuple[RequestLaw, ...] = (
    planning_is_idempotent,
    notes_match_changes,
    plans_break_no_rule,
    codec_is_exact,
)
LAWS = (
    *REQUEST_LAWS,
    own_body_round_trips,
    prefix_is_stable,
    cuts_do_not_matter,
    nothing_is_lost_in_a_stream,
    unchanged_frames_pass_verbatim,
    only_own_errors,
)


def run(dialect: Dialect) -> tuple[int, list[str]]:
    """Run every law on every sample, paired with every dialect. Return the number of trials and the failures."""
    trials = list(_trials(dialect))
    failures = []
    for name, trial in trials:
        try:
            trial()
        except (LawBroken, DragomanError) as error:
            failures.append(f"{name}: {error}")
    return len(trials), failures


def _trials(dialect: Dialect) -> Iterable[tuple[str, Callable[[], None]]]:
    others = [registry.get(name) for name in registry.names()]
    for (title, conversation), other in itertools.product(CONVERSATIONS.items(), others):
        for law in REQUEST_LAWS:
            yield f"{law.__name__} {title} from {other.name}", lambda a=law, b=other, c=conversation: a(b, dialect, c)  # type: ignore[misc]
    for title, events in STREAMS.items():
        yield f"same dialect {title}", lambda e=events: unchanged_frames_pass_verbatim(dialect, e)  # type: ignore[misc]
        data = encode_events(
            dialect, ResponseFilters(plan(dialect, dialect, EMPTY_REQUEST), BlockKeys.after(events)).feed(events)
        )
        yield (
            f"cuts {title}",
            lambda d=data: cuts_do_not_matter(plan(dialect, dialect, EMPTY_REQUEST), d, range(len(d))),  # type: ignore[misc]
        )
        for other in others:
            yield (
                f"stream {title} from {other.name}",
                lambda e=events, o=other: nothing_is_lost_in_a_stream(dialect, o, e),  # type: ignore[misc]
            )
    for data in (b"", b"{", b"null", b"data: {}\n\n", b"data: [1]\n\n", b"\x00" * 20, b'{"messages": 1}'):
        yield f"bytes {data!r}", lambda d=data: only_own_errors(dialect, d)  # type: ignore[misc]
