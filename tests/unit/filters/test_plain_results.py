from __future__ import annotations

import pytest
from msgspec import structs

import dragoman.dialects as registry
from dragoman.errors import Unrepresentable
from dragoman.filters.results import PlainResults
from dragoman.model.blocks import Block, Cache, Media, Opaque, Text, ToolResult, Where
from dragoman.model.capabilities import Capabilities, traits
from dragoman.model.conversation import Conversation, Message
from dragoman.model.filter import Facts, Note, Notes
from dragoman.translate import Settings, plan
from dragoman.wire.jsonio import Json
from tests.growth import Work, grows_linearly
from tests.unit.filters.talk import applied

PLAIN = Capabilities()
RICH = Capabilities(result_media=frozenset({"image", "document"}), traits=traits("result_errors"))
IMAGE = Media("image", "image/png", "base64", "aGk=", cache=Cache(), at=Where("the image"))
PDF = Media("document", "application/pdf", "base64", "JVBERg==")
UNREADABLE = Opaque("anthropic", {"type": "image"}, "unreadable media", at=Where("the blur"))


def plain(target: Capabilities, *blocks: Block) -> tuple[tuple[Block, ...], list[Note]]:
    fitted, notes = applied(PlainResults(target), Conversation("m", (Message("user", blocks),)))
    return fitted.messages[0].blocks, notes


def test_rich_results_pass_where_the_target_takes_them() -> None:
    blocks = (ToolResult("a", (Text("A"), IMAGE), is_error=True), Text("next"))
    assert plain(RICH, *blocks) == (blocks, [])


def test_media_of_all_results_stand_after_the_results_in_order() -> None:
    one, two = ToolResult("a", (Text("A"), IMAGE, Text("B"))), ToolResult("b", (Text("C"), PDF))
    blocks, notes = plain(PLAIN, one, two, Text("next"))
    assert blocks == (
        ToolResult("a", (Text("A"), Text("(image 1 below)"), Text("B"))),
        ToolResult("b", (Text("C"), Text("(document 1 below)"))),
        IMAGE,
        PDF,
        Text("next"),
    )
    assert [(note.rule, note.at) for note in notes] == [
        ("result.media_lifted", "the image"),
        ("result.media_lifted", ""),
    ]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ((IMAGE,), ("(image 1 below)",)),
        ((IMAGE, IMAGE), ("(image 1 below)", "(image 2 below)")),
        ((IMAGE, PDF), ("(image 1 below)", "(document 1 below)")),
        ((Text("see"), IMAGE), ("see", "(image 1 below)")),
    ],
)
def test_a_result_says_where_its_media_is(content: tuple[Text | Media, ...], said: tuple[str, ...]) -> None:
    blocks, _ = plain(PLAIN, ToolResult("a", content))
    assert blocks[0] == ToolResult("a", tuple(map(Text, said)))


def test_l10_each_of_two_parallel_results_names_its_own_image() -> None:
    other = structs.replace(IMAGE, data="aGkgaGk=")
    blocks, _ = plain(PLAIN, ToolResult("a", (IMAGE,)), ToolResult("b", (Text("B"), other)), Text("next"))
    assert blocks == (
        ToolResult("a", (Text("(image 1 below)"),)),
        ToolResult("b", (Text("B"), Text("(image 2 below)"))),
        IMAGE,
        other,
        Text("next"),
    )


def test_media_of_a_kind_that_results_cannot_hold_is_lifted_alone() -> None:
    sound = Media("audio", "audio/wav", "base64", "UklGRg==")
    blocks, _ = plain(RICH, ToolResult("a", (IMAGE, sound)))
    assert blocks == (ToolResult("a", (IMAGE, Text("(audio 1 below)"))), sound)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ((Text("boom"),), (Text("Error: boom"),)),
        ((Text("boom", Cache()), Text("bang")), (Text("Error: boom", Cache()), Text("bang"))),
        ((), (Text("Error"),)),
        ((Text(" "), Text("boom")), (Text(" "), Text("Error: boom"))),
        ((IMAGE,), (Text("Error: (image 1 below)"),)),
    ],
)
def test_an_error_says_so_in_words(content: tuple[Text | Media, ...], said: tuple[Text, ...]) -> None:
    blocks, notes = plain(PLAIN, ToolResult("a", content, is_error=True, at=Where("here")))
    assert blocks[0] == ToolResult("a", said, is_error=False)
    assert [note.at for note in notes if note.rule == "result.error_text"] == ["here"]


@pytest.mark.parametrize("target", [PLAIN, RICH])
def test_unreadable_media_is_left_out_everywhere(target: Capabilities) -> None:
    blocks, notes = plain(target, ToolResult("a", (Text("A"), UNREADABLE)))
    assert blocks == (ToolResult("a", (Text("A"),)),)
    assert [(note.rule, note.action, note.at) for note in notes] == [("result.unreadable_media", "dropped", "the blur")]


def test_l1_a_result_of_unreadable_media_alone_says_so() -> None:
    blocks, _ = plain(RICH, ToolResult("a", (UNREADABLE,)))
    assert blocks == (ToolResult("a", (Text("[media left out: it cannot be read]"),)),)


def test_unreadable_media_is_refused_where_losses_are() -> None:
    asked = Conversation("m", (Message("user", (ToolResult("a", (UNREADABLE,)),)),))
    with pytest.raises(Unrepresentable, match="the blur"):
        PlainResults(RICH).forward(asked, Notes(refuse=True), Facts())


def test_other_unknown_parts_stay() -> None:
    blocks = (ToolResult("a", (Opaque("anthropic", {"type": "search_result"}, "search_result"),)),)
    assert plain(PLAIN, *blocks) == (blocks, [])


def with_images(count: int) -> Work:
    client, target = registry.get("anthropic"), registry.get("openai")
    source: Json = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
    image: Json = {"type": "image", "source": source}
    call: Json = {"type": "tool_use", "id": "1", "name": "f", "input": {}}
    result: Json = {"type": "tool_result", "tool_use_id": "1", "content": [image] * count}
    talk: Json = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result]},
    ]
    asked = client.codec.parse_request(client.binding.unwrap({"model": "m", "max_tokens": 1, "messages": talk}))
    return lambda: plan(client, target, asked, model="m", settings=Settings())


def test_s3_images_in_results_are_counted_once() -> None:
    grows_linearly(with_images, 100)
