"""drop_foreign, the request half: what only another family understands is left out, each with its note.

See docs/decisions/content.md#d9.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any, Literal

import pytest
from msgspec import structs

import dragoman
import dragoman.dialects as registry
from dragoman.conformance.laws import EMPTY_REQUEST, decode_events, encode_events, fixed_environment
from dragoman.errors import Unrepresentable
from dragoman.filters import CarrySignatures, DropForeign
from dragoman.filters.signatures import MarkedSignature, mark_signature, unmark_signature
from dragoman.gateway.config import build_config
from dragoman.model.assemble import assemble_reply, check, reply_events
from dragoman.model.blocks import (
    Block,
    Extra,
    Location,
    Media,
    Opaque,
    Reasoning,
    Signature,
    Text,
    ToolCall,
    ToolResult,
)
from dragoman.model.capabilities import Capabilities, traits
from dragoman.model.conversation import (
    Choice,
    Conversation,
    Message,
    Reply,
    Role,
    Stop,
    StopReason,
    ToolChoice,
    ToolSpec,
)
from dragoman.model.events import BlockStarted, Events, SignatureAdded
from dragoman.model.filter import Facts, Notes
from dragoman.response_stream import ResponseFilters
from dragoman.simulator import running_simulator
from dragoman.translate import plan
from dragoman.wire.jsonio import Json
from tests.gateway.harness import anthropic_body, start_gateway, upstream_config

TARGET = Capabilities(
    traits=traits("reasoning", "signed_reasoning"),
    signatures=frozenset({"anthropic", "bedrock"}),
    media=frozenset({("image", "base64")}),
)
USER = Message("user", (Text("hi"),))


def fit(conversation: Conversation, *, refuse: bool = False) -> tuple[Conversation, list[str]]:
    notes = Notes(refuse=refuse)
    sent, _ = DropForeign(Capabilities(), "openai", TARGET, "anthropic").forward(conversation, notes, Facts())
    return sent, [f"{note.rule} {note.at}".strip() for note in notes]


def assistant(block: Block) -> Conversation:
    return Conversation("m", (USER, Message("assistant", (block,)), USER))


@pytest.mark.parametrize(
    ("block", "expected", "rule"),
    [
        (Reasoning("t", "openai"), None, "foreign.reasoning"),
        (Reasoning("t", "", None), None, "foreign.reasoning"),
        (Reasoning("t", "anthropic"), None, "reasoning.unsigned"),
        (Reasoning("t", "anthropic", Signature("gemini", "s")), None, "foreign.reasoning"),
        (
            Reasoning("", "anthropic", Signature("anthropic", "s")),
            Reasoning("", "anthropic", Signature("anthropic", "s")),
            "",
        ),
        (
            Reasoning("t", "bedrock", Signature("bedrock", "s")),
            Reasoning("t", "anthropic", Signature("anthropic", "s")),
            "",
        ),
        (Opaque("openai", {}, "odd"), None, "foreign.block"),
        (Opaque("anthropic", {}, "odd"), Opaque("anthropic", {}, "odd"), ""),
        (ToolCall("a", "f", signature=Signature("gemini", "s")), ToolCall("a", "f"), "foreign.signature"),
        (Text("x", signature=Signature("anthropic", "s")), Text("x"), "foreign.signature"),
        (Text("x", citations=(Opaque("openai", {}),)), Text("x"), "foreign.citation"),
        (Text("x", extra=Extra("openai", {"odd": 1})), Text("x"), "foreign.field odd"),
        (Text("x", extra=Extra("openai", {"odd": 1}, frozenset({"odd"}))), Text("x"), ""),
    ],
)
def test_assistant_blocks(block: Block, expected: Block | None, rule: str) -> None:
    sent, rules = fit(assistant(block))
    assert sent.messages[1].blocks == (() if expected is None else (expected,))
    assert rules == ([rule] if rule else [])


def test_an_old_image_is_left_out_and_a_new_one_is_refused() -> None:
    picture = Media("image", "image/png", "url", "https://example.org/x.png", at=Location("messages[0].content[1]"))
    conversation = Conversation("m", (Message("user", (Text("a"), picture)), Message("assistant", (Text("b"),)), USER))
    sent, rules = fit(conversation)
    line = "[image (https://example.org/x.png) left out: this model cannot take it]"
    assert sent.messages[0].blocks[1] == Text(line)
    assert rules == ["media.replaced messages[0].content[1]"]
    with pytest.raises(Unrepresentable, match=r"^messages\[0\]\.content\[1\]: "):
        fit(Conversation("m", (Message("user", (picture,)),)))


def test_media_in_results_never_ends_the_loop_that_called_the_tool() -> None:
    result = ToolResult("a", (Media("document", "application/pdf", "base64", "x", "report", at=Location("there")),))
    sent, rules = fit(Conversation("m", (Message("user", (result,)),)))
    line = Text("[document 'report' left out: this model cannot take it]")
    assert sent.messages[0].blocks == (ToolResult("a", (line,)),)
    assert rules == ["media.replaced there"]


def test_a_text_document_is_sent_as_text() -> None:
    sent, rules = fit(
        Conversation("m", (Message("user", (Media("document", "text/plain", "text", "body", "Title"),)),))
    )
    assert sent.messages[0].blocks == (Text("Title\nbody"),)
    assert rules == ["media.as_text"]


def test_a_part_with_text_of_its_own_is_sent_as_text() -> None:
    data: Json = {"type": "search_result", "title": "Title", "content": [{"type": "text", "text": "body"}]}
    found = Opaque("openai", data, "search_result")
    sent, rules = fit(Conversation("m", (Message("user", (found, ToolResult("a", (found,)))),)))
    assert sent.messages[0].blocks == (Text("Title\nbody"), ToolResult("a", (Text("Title\nbody"),)))
    assert rules == ["foreign.as_text", "foreign.as_text"]


def test_media_of_a_type_the_target_does_not_take() -> None:
    typed = Capabilities(
        media=frozenset({("image", "base64"), ("document", "base64"), ("document", "text")}),
        media_types={"image": frozenset({"image/png"}), "document": frozenset({"application/pdf"})},
    )

    def sent(block: Media) -> Block:
        notes = Notes()
        filter_ = DropForeign(Capabilities(), "openai", typed, "anthropic")
        filtered, _ = filter_.forward(Conversation("m", (Message("user", (block,)),)), notes, Facts())
        return filtered.messages[0].blocks[0]

    png = Media("image", "image/png", "base64", "aGk=")
    assert sent(png) == png
    assert sent(Media("document", "text/csv", "base64", "aGk=", "n")) == Media(
        "document", "text/plain", "text", "hi", "n"
    )
    with pytest.raises(Unrepresentable, match="image/bmp"):
        sent(Media("image", "image/bmp", "base64", "aGk="))
    with pytest.raises(Unrepresentable, match="application/zip"):
        sent(Media("document", "application/zip", "base64", "aGk="))


def test_a_choice_of_a_tool_that_is_gone_is_no_choice() -> None:
    search = Opaque("openai", {"type": "web_search"}, "web_search")
    tool = ToolSpec("f", "", {})
    sent, rules = fit(Conversation("m", (USER,), tools=(search, tool), tool_choice=ToolChoice("any", ("web_search",))))
    assert (sent.tools, sent.tool_choice) == ((tool,), ToolChoice())
    assert rules == ["foreign.tool", "tools.choice tool_choice"]


@pytest.mark.parametrize(("client", "is_kept"), [("openai", False), ("anthropic", True)])
@pytest.mark.parametrize("role", ["assistant", "system"])
def test_an_image_stays_where_the_target_takes_one_in_such_a_turn(role: Role, client: str, is_kept: bool) -> None:
    picture, notes = Media("image", "image/png", "base64", "aGk="), Notes()
    conversation = Conversation("m", (USER, Message(role, (picture,)), USER))
    target = structs.replace(TARGET, media_roles=frozenset({"user"}))
    sent, _ = DropForeign(Capabilities(), client, target, "anthropic").forward(conversation, notes, Facts())
    words = Text("[image left out: this model cannot take it]")
    assert sent.messages[1].blocks == (picture if is_kept else words,)
    assert [note.rule for note in notes] == ([] if is_kept else ["media.replaced"])


def test_losses_can_be_refused() -> None:
    with pytest.raises(Unrepresentable, match="losses are refused"):
        fit(assistant(Reasoning("t", "openai")), refuse=True)


def test_the_targets_own_passes_as_the_same_object() -> None:
    conversation = Conversation(
        "m", (USER,), extra=Extra("anthropic", {"odd": 1}), hints=Extra("anthropic", {"beta": "x"})
    )
    sent, rules = fit(conversation)
    assert sent is conversation
    assert rules == []


# --- Signatures of calls and texts pass through clients of other families and are restored (docs/decisions/signatures.md#d50)

GEMINI = registry.get("gemini")
SIGNED = (
    Reasoning("hm", "gemini"),
    Text("I will look."),
    ToolCall("call_1", "read", '{"path":"a"}', signature=Signature("gemini", "c2lnbmVk")),
    ToolCall("call_2", "read", '{"path":"b"}'),
    ToolCall("call_3", "read", '{"path":"c"}', signature=Signature("gemini", "dGhpcmQ=")),
)
WITH_A_SLOT = [name for name in registry.names() if name not in ("gemini", "kiro", "ollama")]  # Kiro has no clients


def filtered_reply(
    client: str, blocks: tuple[Block, ...], why: StopReason = StopReason.TOOL
) -> tuple[Events, list[str]]:
    filters = ResponseFilters(plan(registry.get(client), GEMINI, EMPTY_REQUEST))
    events = filters.feed(reply_events(Reply("r", "claude-x", (Choice(blocks, Stop(why)),)), filters.keys))
    check(events)
    return events, [note.rule for note in filters.notes]


def sent_back(client: str, blocks: tuple[Block, ...], upstream_config: str = "gemini") -> tuple[Block, ...]:
    """Return the request that the upstream gets when the client sends its history back."""
    dialect = registry.get(client)
    results = tuple(ToolResult(block.id, (Text("ok"),)) for block in blocks if isinstance(block, ToolCall))
    history = Conversation("claude-x", (USER, Message("assistant", blocks), Message("user", (*results, Text("on")))))
    conversation = dialect.codec.parse_request(dialect.codec.render_request(history))
    return plan(dialect, registry.get(upstream_config), conversation).translated.messages[1].blocks


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("client", WITH_A_SLOT)
def test_the_signatures_of_calls_return_through_every_client_that_has_a_slot(client: str, streamed: bool) -> None:
    events, rules = filtered_reply(client, SIGNED)
    assert "signature.no_place" not in rules
    dialect = registry.get(client)
    got = assemble_reply(decode_events(dialect, encode_events(dialect, events))) if streamed else assemble_reply(events)
    seen = dialect.codec.parse_reply(dialect.codec.render_reply(got, EMPTY_REQUEST, fixed_environment()), EMPTY_REQUEST)
    again = sent_back(client, seen.choices[0].blocks)
    calls = [block for block in again if isinstance(block, ToolCall)]
    assert [(call.id, call.name) for call in calls] == [(f"call_{n}", "read") for n in (1, 2, 3)]
    assert [call.signature and call.signature.data for call in calls] == ["c2lnbmVk", None, "dGhpcmQ="]
    assert "".join(block.text for block in again if isinstance(block, Reasoning)) == "hm"
    assert "".join(block.text for block in again if isinstance(block, Text)) == "I will look."


@pytest.mark.parametrize("upstream", ["anthropic", "openai"])
@pytest.mark.parametrize("streamed", [True, False])
def test_signed_thinking_returns_through_a_gemini_client(upstream: str, streamed: bool) -> None:
    signed = (Reasoning("hm", upstream, Signature(upstream, "s1")), ToolCall("call_1", "read", "{}"))
    filters = ResponseFilters(plan(GEMINI, registry.get(upstream), EMPTY_REQUEST))
    events = filters.feed(reply_events(Reply("r", "claude-x", (Choice(signed, Stop(StopReason.TOOL)),)), filters.keys))
    if streamed:
        seen = assemble_reply(decode_events(GEMINI, encode_events(GEMINI, events)))
    else:
        seen = GEMINI.codec.parse_reply(
            GEMINI.codec.render_reply(assemble_reply(events), EMPTY_REQUEST, fixed_environment()), EMPTY_REQUEST
        )
    assert sent_back("gemini", seen.choices[0].blocks, upstream)[0] == Reasoning(
        "hm", upstream, Signature(upstream, "s1")
    )


def test_a_calls_signature_is_sent_in_an_empty_thought_right_before_it() -> None:
    events, _ = filtered_reply("anthropic", SIGNED)
    begun = [event.block for event in events if isinstance(event, BlockStarted)]
    kinds = [type(block).__name__ for block in begun]
    assert kinds == ["Reasoning", "Text", "Reasoning", "ToolCall", "ToolCall", "Reasoning", "ToolCall"]
    carrier = next(
        event.signature
        for event in events
        if isinstance(event, SignatureAdded) and unmark_signature(event.signature.data)
    )
    assert carrier.family == "anthropic"


def test_a_texts_signature_comes_before_the_next_block_and_no_reply_ends_with_a_thought() -> None:
    """`claude -p` prints the last block if it is a text: a thought after it would be an empty reply."""
    text, closing = Text("a", signature=Signature("gemini", "MQ==")), Text("", signature=Signature("gemini", "Mg=="))
    events, rules = filtered_reply("anthropic", (text, Text("b"), closing), StopReason.END)
    begun = [event.block for event in events if isinstance(event, BlockStarted)]
    assert [type(block).__name__ for block in begun] == ["Text", "Reasoning", "Text"]
    assert rules == ["signature.no_place"]
    assert sent_back("anthropic", assemble_reply(events).choices[0].blocks) == (text, Text("b"))


def test_a_signature_without_its_call_is_dropped_with_a_note() -> None:
    carrier = Reasoning("", "anthropic", Signature("anthropic", mark_signature(Signature("gemini", "MQ=="), "gone")))
    notes = Notes()
    filter_ = CarrySignatures(Capabilities(), "anthropic", Capabilities(traits=traits("signed_content")))
    sent, _ = filter_.forward(Conversation("m", (USER, Message("assistant", (carrier, Text("x"))))), notes, Facts())
    assert sent.messages[1].blocks == (Text("x"),)
    assert [note.rule for note in notes] == ["signature.no_call"]


@pytest.mark.parametrize("owner", [None, "", "call_1", "naïve id.with dots"])
def test_a_mark_is_read_as_it_was_written_also_as_bytes(owner: str | None) -> None:
    text = mark_signature(Signature("gemini", "ü/=", "redacted"), owner)
    assert unmark_signature(text) == MarkedSignature(Signature("gemini", "ü/=", "redacted"), owner)
    assert unmark_signature(base64.b64encode(text.encode()).decode()) == unmark_signature(text)
    assert unmark_signature(base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")) == unmark_signature(text)


# --- Claude Code's accounting line reaches Anthropic's own hosts and no other target

LINE = "x-anthropic-billing-header: cc_version=2.1.325.a1b; cc_entrypoint=cli; cc_is_subagent=true;"
TARGETS = [name for name in registry.names() if name != "anthropic"]


def body_with(system: Any, text: str = "hi") -> dict[str, Any]:
    return {"model": "claude-x", "max_tokens": 9, "system": system, "messages": [{"role": "user", "content": text}]}


def blocks(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in texts]


def rules(translation: dragoman.Translated) -> list[tuple[str, str]]:
    return [(note.rule, note.action) for note in translation.notes if note.rule == "system.attribution"]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("system", [blocks(LINE, "Be brief."), f"{LINE}\nBe brief.", blocks(f"{LINE}\nBe brief.")])
def test_the_line_is_removed_for_every_target_but_anthropic(system: Any, target: str) -> None:
    translation = dragoman.translate_request(body_with(system), source="anthropic", target=target)
    assert "billing" not in translation.raw.decode()
    assert "Be brief." in translation.raw.decode()
    assert rules(translation) == [("system.attribution", "changed")]


@pytest.mark.parametrize("target", TARGETS)
def test_a_request_reads_as_if_the_line_had_never_been_there(target: str) -> None:
    with_line = dragoman.translate_request(body_with(blocks(LINE, "Be brief.")), source="anthropic", target=target)
    without = dragoman.translate_request(body_with(blocks("Be brief.")), source="anthropic", target=target)
    assert with_line.raw == without.raw


@pytest.mark.parametrize("system", [blocks(LINE, "Be brief."), f"{LINE}\nBe brief."])
def test_anthropic_gets_the_line_as_it_came(system: Any) -> None:
    translation = dragoman.translate_request(body_with(system), source="anthropic", target="anthropic")
    assert translation.body["system"] == system
    assert translation.notes == []


@pytest.mark.parametrize(
    ("target", "attribution", "sent"),
    [
        ("anthropic", "strip", False),
        ("bedrock", "keep", True),
        ("bedrock.invoke", "keep", True),
        ("kiro", "keep", True),
    ],
)
def test_the_setting_decides(target: str, attribution: Literal["keep", "strip"], sent: bool) -> None:
    body = body_with(blocks(LINE, "Be brief."))
    translation = dragoman.translate_request(body, source="anthropic", target=target, attribution=attribution)
    assert ("billing" in translation.raw.decode()) is sent
    assert bool(rules(translation)) is not sent


@pytest.mark.parametrize("target", TARGETS)
def test_only_the_beginning_of_the_system_text_is_looked_at(target: str) -> None:
    quoted = f"The log says: {LINE}"
    body = body_with(blocks("Be brief.", quoted), LINE)
    translation = dragoman.translate_request(body, source="anthropic", target=target)
    assert translation.raw.decode().count("x-anthropic-billing-header") == 2
    assert rules(translation) == []


def test_a_block_of_the_line_alone_goes_whole() -> None:
    translation = dragoman.translate_request(body_with(f"{LINE}\n"), source="anthropic", target="openai")
    assert translation.body["messages"] == [{"role": "user", "content": "hi"}]


def test_the_attribution_line_is_not_noted_as_a_loss() -> None:
    translation = dragoman.translate_request(
        body_with(blocks(LINE)), source="anthropic", target="openai", losses="refuse"
    )
    assert rules(translation) == [("system.attribution", "changed")]


def test_a_plain_chat_request_loses_the_line_too() -> None:
    body = {"model": "m", "messages": [{"role": "system", "content": LINE}, {"role": "user", "content": "hi"}]}
    translation = dragoman.translate_request(body, source="openai", target="openai")
    assert translation.body["messages"] == [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("table", "attribution"),
    [
        ('preset = "anthropic"\nkey = "x"', "auto"),
        ('dialect = "anthropic"\nbase_url = "https://eu.api.anthropic.com"\nkey = "x"', "auto"),
        ('dialect = "anthropic"\nbase_url = "https://api.moonshot.ai/anthropic"\nkey = "x"', "strip"),
        ('dialect = "anthropic"\nbase_url = "https://notanthropic.com"\nkey = "x"', "strip"),
        ('preset = "anthropic"\nbase_url = "https://api.z.ai/api/anthropic"\nkey = "x"', "strip"),
        ('dialect = "anthropic"\nbase_url = "https://x.test"\nkey = "x"\ntranslation.attribution = "keep"', "keep"),
        ('preset = "anthropic"\nkey = "x"\ntranslation.attribution = "strip"', "strip"),
        ('preset = "simulator"\ndialect = "anthropic"', "auto"),
    ],
)
def test_a_compatible_service_on_another_host_does_not_get_it(table: str, attribution: str) -> None:
    loaded = build_config(f"allow_literal_secrets = true\n[upstreams.a]\n{table}\n", None, {"HOME": "/nowhere"}, {})
    assert loaded.config.upstreams["a"].settings.attribution == attribution


def test_the_gateway_removes_it_where_bytes_would_pass_otherwise(tmp_path: Path) -> None:
    body = {**anthropic_body(), "system": blocks(LINE, "Be brief.")}
    with (
        running_simulator("anthropic") as simulator,
        start_gateway(upstream_config("a", "anthropic", simulator.url), tmp_path) as harness,
    ):
        for stream in (False, True):
            assert harness.request("/v1/messages", {**body, "stream": stream})[0] == 200
        sent = [json.loads(each.body)["system"] for each in simulator.requests]
    assert sent == ["Be brief."] * 2
