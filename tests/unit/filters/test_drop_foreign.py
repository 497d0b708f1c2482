"""drop_foreign, the request half: what only another family understands is left out, each with its note (D9)."""

from __future__ import annotations

import pytest
from msgspec import structs

from dragoman.errors import Unrepresentable
from dragoman.filters import DropForeign
from dragoman.model.blocks import Block, Extra, Media, Opaque, Reasoning, Seal, Text, ToolCall, ToolResult, Where
from dragoman.model.capabilities import Capabilities, traits
from dragoman.model.conversation import Conversation, Message, Role, ToolChoice, ToolSpec
from dragoman.model.filter import Facts, Notes
from dragoman.wire.jsonio import Json

TARGET = Capabilities(
    traits=traits("reasoning", "sealed_reasoning"),
    seals=frozenset({"anthropic", "bedrock"}),
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
    ("block", "kept", "rule"),
    [
        (Reasoning("t", "openai"), None, "foreign.reasoning"),
        (Reasoning("t", "", None), None, "foreign.reasoning"),
        (Reasoning("t", "anthropic"), None, "reasoning.unsealed"),
        (Reasoning("t", "anthropic", Seal("gemini", "s")), None, "foreign.reasoning"),
        (Reasoning("", "anthropic", Seal("anthropic", "s")), Reasoning("", "anthropic", Seal("anthropic", "s")), ""),
        (Reasoning("t", "bedrock", Seal("bedrock", "s")), Reasoning("t", "anthropic", Seal("anthropic", "s")), ""),
        (Opaque("openai", {}, "odd"), None, "foreign.block"),
        (Opaque("anthropic", {}, "odd"), Opaque("anthropic", {}, "odd"), ""),
        (ToolCall("a", "f", seal=Seal("gemini", "s")), ToolCall("a", "f"), "foreign.seal"),
        (Text("x", seal=Seal("anthropic", "s")), Text("x"), "foreign.seal"),
        (Text("x", citations=(Opaque("openai", {}),)), Text("x"), "foreign.citation"),
        (Text("x", extra=Extra("openai", {"odd": 1})), Text("x"), "foreign.field odd"),
        (Text("x", extra=Extra("openai", {"odd": 1}, frozenset({"odd"}))), Text("x"), ""),
    ],
)
def test_assistant_blocks(block: Block, kept: Block | None, rule: str) -> None:
    sent, rules = fit(assistant(block))
    assert sent.messages[1].blocks == (() if kept is None else (kept,))
    assert rules == ([rule] if rule else [])


def test_no_old_image_bricks_a_conversation_but_a_new_one_is_refused() -> None:
    picture = Media("image", "image/png", "url", "https://example.org/x.png", at=Where("messages[0].content[1]"))
    asked = Conversation("m", (Message("user", (Text("a"), picture)), Message("assistant", (Text("b"),)), USER))
    sent, rules = fit(asked)
    line = "[image (https://example.org/x.png) left out: this model cannot take it]"
    assert sent.messages[0].blocks[1] == Text(line)
    assert rules == ["media.replaced messages[0].content[1]"]
    with pytest.raises(Unrepresentable, match=r"^messages\[0\]\.content\[1\]: "):
        fit(Conversation("m", (Message("user", (picture,)),)))


def test_l1_media_in_results_never_ends_the_loop_that_called_the_tool() -> None:
    result = ToolResult("a", (Media("document", "application/pdf", "base64", "x", "report", at=Where("there")),))
    sent, rules = fit(Conversation("m", (Message("user", (result,)),)))
    line = Text("[document 'report' left out: this model cannot take it]")
    assert sent.messages[0].blocks == (ToolResult("a", (line,)),)
    assert rules == ["media.replaced there"]


def test_a_text_document_is_given_as_text() -> None:
    sent, rules = fit(
        Conversation("m", (Message("user", (Media("document", "text/plain", "text", "body", "Title"),)),))
    )
    assert sent.messages[0].blocks == (Text("Title\nbody"),)
    assert rules == ["media.as_text"]


def test_what_says_something_is_given_as_text() -> None:
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
        told, _ = filter_.forward(Conversation("m", (Message("user", (block,)),)), notes, Facts())
        return told.messages[0].blocks[0]

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


@pytest.mark.parametrize(("client", "kept"), [("openai", False), ("anthropic", True)])
@pytest.mark.parametrize("role", ["assistant", "system"])
def test_an_image_stays_where_the_target_takes_one_in_such_a_turn(role: Role, client: str, kept: bool) -> None:
    picture, notes = Media("image", "image/png", "base64", "aGk="), Notes()
    asked = Conversation("m", (USER, Message(role, (picture,)), USER))
    target = structs.replace(TARGET, media_roles=frozenset({"user"}))
    sent, _ = DropForeign(Capabilities(), client, target, "anthropic").forward(asked, notes, Facts())
    words = Text("[image left out: this model cannot take it]")
    assert sent.messages[1].blocks == (picture if kept else words,)
    assert [note.rule for note in notes] == ([] if kept else ["media.replaced"])


def test_losses_can_be_refused() -> None:
    with pytest.raises(Unrepresentable, match="losses are refused"):
        fit(assistant(Reasoning("t", "openai")), refuse=True)


def test_the_targets_own_passes_as_the_same_object() -> None:
    asked = Conversation("m", (USER,), extra=Extra("anthropic", {"odd": 1}), hints=Extra("anthropic", {"beta": "x"}))
    sent, rules = fit(asked)
    assert sent is asked
    assert rules == []
