"""The laws of translation, each a function that returns if it holds and raises Broken if not.

"fit" is `translate.plan`. The numbers are those of ARCHITECTURE.md.
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

# --- when two canonical values say the same, whatever their spelling


ReplySummary: TypeAlias = tuple[tuple[str, str, tuple[tuple[str, str, bytes], ...]], ...]


def arguments_value(call: ToolCall) -> bytes:
    """Arguments as a JSON value: empty is an empty object, and spelling does not count."""
    try:
        return jsonio.encode(jsonio.decode(call.arguments or "{}")) if call.form == "json" else call.arguments.encode()
    except jsonio.JsonError:
        return call.arguments.encode("utf-8", "surrogatepass")


def normalize_spelling(conversation: Conversation) -> Conversation:
    """The conversation with every spelling settled, so that `==` asks whether two say the same."""
    messages = tuple(
        structs.replace(message, blocks=tuple(map(_alike_block, message.blocks))) for message in conversation.messages
    )
    return structs.replace(conversation, messages=messages, estimated_tokens=None)


def _alike_block(block: Block) -> Block:
    if not isinstance(block, ToolCall):
        return block
    return structs.replace(block, arguments=arguments_value(block).decode("utf-8", "surrogatepass"))


def summarize_reply(reply: Reply) -> ReplySummary:
    """What must never be lost: text, reasoning, and every call, for each choice."""
    return tuple(
        (
            "".join(block.text for block in choice.blocks if isinstance(block, Text)),
            "".join(block.text for block in choice.blocks if isinstance(block, Reasoning)),
            tuple((call.id, call.name, arguments_value(call)) for call in choice.blocks if isinstance(call, ToolCall)),
        )
        for choice in reply.choices
    )


EMPTY_REQUEST = Conversation("", ())  # an unknown request


class LawBroken(AssertionError):
    """A law that does not hold, with what it was tried on."""


def fixed_environment() -> Environment:
    """A world in which nothing is random: ids count, and it is always the same moment."""
    counter = itertools.count(1)
    return Environment(new_id=lambda prefix: f"{prefix}{next(counter):04d}", now=lambda: 1_780_000_000)


def _hold(truth: bool, law: str, *evidence: object) -> None:
    if not truth:
        raise LawBroken(f"{law}\n" + "\n".join(f"  {each!r}" for each in evidence))


def try_plan(client: Dialect, upstream: Dialect, asked: Conversation) -> Plan | None:
    """The plan, or None where there is nothing to say or the target's own clear refusal is the answer."""
    if not asked.messages and not asked.system:
        return None
    try:
        return plan(client, upstream, asked)
    except Unrepresentable:
        return None


# --- requests


def planning_is_idempotent(client: Dialect, upstream: Dialect, asked: Conversation) -> None:
    """1. Fitting settles: a second run changes nothing and notes nothing."""
    first = try_plan(client, upstream, asked)
    if first is None:
        return
    again = plan(client, upstream, first.translated)
    _hold(again.translated == first.translated, "fitting twice is not fitting once", first.translated, again.translated)
    _hold(not again.notes, "a second fitting noted something", again.notes)


def notes_tell_changes(client: Dialect, upstream: Dialect, asked: Conversation) -> None:
    """2. No note without a change, no change without a note."""
    made = try_plan(client, upstream, asked)
    if made is None:
        return
    sent, given = (
        jsonio.encode(_without(normalize_spelling(each), "at", spelt=False)) for each in (made.translated, asked)
    )
    _hold((sent == given) != bool(made.notes), "notes and changes disagree", made.notes, asked, made.translated)


def plans_break_no_rule(client: Dialect, upstream: Dialect, asked: Conversation) -> None:
    """3. What fits breaks no rule of the dialect."""
    made = try_plan(client, upstream, asked)
    if made is not None:
        breaches = upstream.codec.breaches(made.call())
        _hold(not breaches, f"what fits breaks rules of {upstream.name}", breaches, made.translated)


def codec_is_exact(client: Dialect, upstream: Dialect, asked: Conversation) -> None:
    """4. On what fits the codec is exact: what it renders it reads as the same."""
    made = try_plan(client, upstream, asked)
    if made is None:
        return
    call = upstream.binding.match(upstream.binding.wrap(made.call()))
    _hold(call is not None, "a binding does not match what it wrapped", made.call())
    if call is not None:
        read = upstream.codec.parse_request(call)
        same = _without(normalize_spelling(read), "at", "spelling") == _without(
            normalize_spelling(made.translated), "at", "spelling"
        )
        _hold(same, f"{upstream.name} reads what it wrote otherwise", made.translated, read)


def prefix_is_stable(client: Dialect, upstream: Dialect, asked: Conversation, more: Sequence[Message]) -> None:
    """6. Appending turns after a user turn keeps the fitted messages as a prefix, so that prompt caches stay warm."""
    if not asked.messages or asked.messages[-1].role != "user" or not more or more[0].role != "assistant":
        return
    short = try_plan(client, upstream, asked)
    long = try_plan(client, upstream, structs.replace(asked, messages=(*asked.messages, *more)))
    if short is None or long is None:
        return
    kept = _without(long.translated.messages[: len(short.translated.messages)], "cache", "at")  # marks may move
    _hold(
        kept == _without(short.translated.messages, "cache", "at"),
        "an appended turn changed the turns before it",
        short.translated,
        long.translated,
    )


def own_body_round_trips(dialect: Dialect, body: jsonio.Json) -> None:
    """5. A dialect's own body comes back with every known and unknown field."""
    read = dialect.codec.parse_request(dialect.binding.unwrap(body))
    written = jsonio.decode(dialect.binding.wrap(dialect.codec.render_request(read)).body)
    again = dialect.codec.parse_request(dialect.binding.unwrap(written))
    _hold(
        normalize_spelling(again) == normalize_spelling(read),
        f"{dialect.name} loses something of its own body",
        read,
        again,
    )


# --- answers


def cuts_do_not_matter(made: Plan, data: bytes, cuts: Iterable[int]) -> None:
    """7. Output bytes do not depend on how the input was cut, violations included."""
    whole = ResponseTranslator(made, fixed_environment())
    expected = whole.feed(data) + whole.close()
    answer = ResponseTranslator(made, fixed_environment())
    edges = [0, *sorted({cut for cut in cuts if 0 < cut < len(data)}), len(data)]
    pieces = [data[start:end] for start, end in itertools.pairwise(edges)]
    got = b"".join(map(answer.feed, pieces)) + answer.close()
    _hold(got == expected, "the output depends on the cut", edges, expected, got)


def nothing_is_lost_in_a_stream(client: Dialect, upstream: Dialect, events: Events) -> None:
    """8 and 9. Streamed equals whole, the grammar is kept on the way, and text, reasoning and calls all arrive."""
    made = plan(client, upstream, EMPTY_REQUEST)
    told = ResponseFilters(made, BlockKeys.after(events)).feed(events)
    check(told)
    streamed = decode_events(client, encode_events(client, told))
    check(streamed)
    if isinstance(told[-1], Failed) or isinstance(streamed[-1], Failed):
        _hold(
            type(told[-1]) is type(streamed[-1]),
            "a failed stream came out as a good one, or the other way",
            told,
            streamed,
        )
        return
    said, shown = assemble_reply(told), assemble_reply(_as_shown(told))
    seen = summarize_reply(assemble_reply(streamed))
    _hold(
        seen in (summarize_reply(said), summarize_reply(shown)),
        f"{client.name} lost something in a stream",
        shown,
        assemble_reply(streamed),
    )
    wanted = assemble_client_reply(made, told, Notes())
    whole = client.codec.parse_reply(
        client.codec.render_reply(wanted, EMPTY_REQUEST, fixed_environment()), EMPTY_REQUEST
    )
    _hold(
        summarize_reply(whole) == summarize_reply(wanted),
        f"{client.name} lost something in a whole reply",
        wanted,
        whole,
    )


def _as_shown(events: Events) -> Events:
    """The events as most streams show them: they have no way to say that a block's end never came.

    See docs/decisions/answers.md#d7.
    """
    return tuple(BlockEnded(event.key) if isinstance(event, BlockEnded) else event for event in events)


def unchanged_frames_pass_verbatim(dialect: Dialect, events: Events) -> None:
    """10. Within one dialect, a stream in which nothing changes is passed on byte for byte."""
    data = encode_events(
        dialect, ResponseFilters(plan(dialect, dialect, EMPTY_REQUEST), BlockKeys.after(events)).feed(events)
    )
    answer = ResponseTranslator(plan(dialect, dialect, EMPTY_REQUEST), fixed_environment())
    got = answer.feed(data) + answer.close()
    _hold(got == data, f"{dialect.name} to itself changed a stream", data, got)


def only_own_errors(dialect: Dialect, data: bytes) -> None:
    """11. Arbitrary bytes raise only our errors, and a stream of them ends by the grammar."""
    check(decode_events(dialect, data))
    for read in (
        lambda: dialect.codec.parse_reply(data, EMPTY_REQUEST),
        lambda: dialect.codec.parse_request(dialect.binding.unwrap(_json(data))),
    ):
        with suppress(DragomanError):
            read()


def encode_events(dialect: Dialect, events: Events) -> bytes:
    encoder = dialect.codec.encoder(EMPTY_REQUEST, fixed_environment())
    return b"".join(dialect.binding.encode_frame(payload) for payload in encoder.feed(events))


def decode_events(dialect: Dialect, data: bytes) -> Events:
    reader = StreamReader(dialect.binding.frame_decoder(), dialect.codec.decoder(EMPTY_REQUEST, fixed_environment()))
    steps = [*reader.feed(data), *reader.close()]
    return tuple(event for step in steps for event in step.events)


def _json(data: bytes) -> jsonio.Json:
    try:
        return jsonio.decode(data)
    except jsonio.JsonError:
        return data.decode("latin-1")


def _without(value: object, *names: str, spelt: bool = True) -> jsonio.Json:
    """A canonical value as JSON, without fields of these names at any depth.

    Unless `spelt`, also without the fields that only say how something was spelt.
    """

    def strip(value: jsonio.Json) -> jsonio.Json:
        if isinstance(value, list):
            return [strip(each) for each in value]
        if not isinstance(value, dict):
            return value
        if not spelt and value.keys() == {"family", "fields", "spelling"}:
            fields, spelling = value["fields"], value["spelling"]
            assert isinstance(fields, dict) and isinstance(spelling, list)
            kept = {name: each for name, each in fields.items() if name not in spelling}
            return {"family": value["family"], "fields": kept} if kept else None
        return {name: strip(each) for name, each in value.items() if name not in names}

    return strip(jsonio.decode(jsonio.encode(value)))


# --- the kit

RequestLaw: TypeAlias = Callable[[Dialect, Dialect, Conversation], None]
REQUEST_LAWS: tuple[RequestLaw, ...] = (planning_is_idempotent, notes_tell_changes, plans_break_no_rule, codec_is_exact)
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
    """Try every law on every sample, with every known dialect at the other end. Gives the count and the failures."""
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
    for (title, asked), other in itertools.product(CONVERSATIONS.items(), others):
        for law in REQUEST_LAWS:
            yield f"{law.__name__} {title} from {other.name}", lambda a=law, b=other, c=asked: a(b, dialect, c)  # type: ignore[misc]
    for title, events in STREAMS.items():
        yield f"at home {title}", lambda e=events: unchanged_frames_pass_verbatim(dialect, e)  # type: ignore[misc]
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
