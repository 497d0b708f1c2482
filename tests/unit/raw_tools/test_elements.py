"""The reader of MiniMax M3: elements that nest, on bodies of calls, in every cut."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.filters.raw_tools.readers import BUFFER_LIMIT
from dragoman.wire.jsonio import Json
from tests.unit.raw_tools.reader_harness import read, read_pieces
from tests.unit.raw_tools.run_reader import ReaderResult
from tests.unit.raw_tools.samples import random_cut

P = "]<]minimax[>["
LINE: dict[str, Json] = {"type": "object", "properties": {"sku": {"type": "string"}, "qty": {"type": "integer"}}}
SCHEMA: dict[str, Json] = {
    "type": "object",
    "properties": {
        "note": {"type": "string"},
        "count": {"type": "integer"},
        "urgent": {"type": "boolean"},
        "mode": {"type": "string", "enum": ["none", "low"]},
        "maybe": {"type": ["string", "null"]},
        "shipping": {"type": "object", "properties": {"city": {"type": "string"}, "zip": {"type": "integer"}}},
        "lines": {"type": "array", "items": LINE},
        "tags": {"type": "array", "items": {"type": "string"}},
        "grid": {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}},
        "meta": {"type": "object", "additionalProperties": {"type": "string"}},
        "free": {"type": "object"},
        "-A": {"type": "integer"},
    },
    "oneOf": [{"properties": {"branch": {"type": "array", "items": {"type": "integer"}}}}],
}


def marked(text: str) -> str:
    """Put the prefix before every tag."""
    return text.replace("<", f"{P}<")


def arguments(found: ReaderResult) -> object:
    assert found.is_over and found.closed and found.valid and not found.failed, found
    return json.loads(found.text)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("", {}),
        ("\n", {}),
        ("<note>Please wait.</note>", {"note": "Please wait."}),
        ("\n<note>a</note>\n<count>7</count>\n", {"note": "a", "count": 7}),
        ("<note> kept \n</note>", {"note": " kept \n"}),
        ('<note>a "quoted" \\ and\nmore</note>', {"note": 'a "quoted" \\ and\nmore'}),
        ("<note>null</note>", {"note": "null"}),
        ("<note></note>", {"note": ""}),
        ("<count> 42\n</count><urgent>true</urgent>", {"count": 42, "urgent": True}),
        ("<-A>3</-A>", {"-A": 3}),
        # null
        ("<maybe>null</maybe>", {"maybe": None}),
        ("<maybe>Null</maybe>", {"maybe": None}),
        ("<maybe>NULL</maybe>", {"maybe": None}),
        ("<maybe>none</maybe>", {"maybe": "none"}),
        ("<maybe>None</maybe>", {"maybe": "None"}),
        ("<maybe>nil</maybe>", {"maybe": "nil"}),
        ("<mode>none</mode>", {"mode": "none"}),
        # objects and arrays
        (
            "<shipping><city>Singapore</city><zip>018956</zip></shipping>",
            {"shipping": {"city": "Singapore", "zip": 18956}},
        ),
        (
            "<lines><item><sku>1</sku><qty>2</qty></item><item><sku>pen</sku></item></lines>",
            {"lines": [{"sku": "1", "qty": 2}, {"sku": "pen"}]},
        ),
        ("<lines>\n<item>\n<sku>1</sku>\n</item>\n</lines>", {"lines": [{"sku": "1"}]}),
        ("<lines><sku>1</sku><qty>2</qty></lines>", {"lines": [{"sku": "1", "qty": 2}]}),
        ("<tags><item>7</item><item>b</item></tags>", {"tags": ["7", "b"]}),
        ("<tags><tag>a</tag><tag>b</tag></tags>", {"tags": ["a", "b"]}),
        ("<tags>a</tags><tags>b</tags><count>1</count>", {"tags": ["a", "b"], "count": 1}),
        ("<tags>a</tags>", {"tags": ["a"]}),
        ('<tags>["a", "b"]</tags>', {"tags": ["a", "b"]}),
        ("<tags></tags><meta></meta>", {"tags": [], "meta": {}}),
        ("<lines><sku>a</sku></lines><lines><sku>b</sku></lines>", {"lines": [{"sku": "a"}, {"sku": "b"}]}),
        ("<grid><item><item>1</item><item>2</item></item><item></item></grid>", {"grid": [[1, 2], []]}),
        ("<meta><source>5</source></meta>", {"meta": {"source": "5"}}),
        ("<free><tag>a</tag><tag>b</tag><one>c</one></free>", {"free": {"tag": ["a", "b"], "one": "c"}}),
        ("<free>text<a>b</a></free>", {"free": {"$text": "text", "a": "b"}}),
        ("<branch><item>1</item></branch>", {"branch": [1]}),
        ('<shipping>{"city": "a"}</shipping>', {"shipping": {"city": "a"}}),
        # what the schema does not have
        ("<other>7</other>", {"other": "7"}),
        ("<other><item>a</item></other>", {"other": ["a"]}),
        ("<other><a><b>c</b></a></other>", {"other": {"a": {"b": "c"}}}),
        ("<other>a</other><other>b</other>", {"other": ["a", "b"]}),
        # other spellings and what is missing
        ('<parameter name="note">a</parameter><parameter name="count">1</parameter>', {"note": "a", "count": 1}),
        ("<note>a<count>1</count>", {"note": "a", "count": 1}),
        ("<shipping><city>a<zip>5</zip></shipping>", {"shipping": {"city": "a", "zip": 5}}),
        ("<count>1<note>a</note>", {"count": 1, "note": "a"}),
        ("<shipping><city>a</shipping><count>1</count>", {"shipping": {"city": "a"}, "count": 1}),
        ("<note>a</wrong></note>", {"note": f"a{P}</wrong>"}),
        ("<count>1</count></count>", {"count": 1}),
        ('{"note": "a"}', {"note": "a"}),
        ("<arguments><note>5</note><count>6</count></arguments>", {"note": "5", "count": 6}),
        ('<input>{"note": "a"}</input>', {"note": "a"}),
        ('<input>{"note": "a"}</input><count>1</count>', {"input": {"note": "a"}, "count": 1}),
    ],
)
def test_documented_bodies(body: str, expected: object) -> None:
    found = read("minimax_m3", marked(body + "</invoke>") + "rest", SCHEMA)
    assert arguments(found) == expected
    assert found.left == "rest"


def test_blanks_between_prefix_and_tag() -> None:
    for gap in (" ", "\n", "\r\n\t"):
        body = f"{P}{gap}<note>a{P}{gap}</note>{P}{gap}<count>1{P}{gap}</count>{P}{gap}</invoke>"
        assert arguments(read("minimax_m3", body, SCHEMA)) == {"note": "a", "count": 1}


def test_end_tags_without_the_prefix() -> None:
    body = f"{P}<note>the news</note>{P}<count>6</count>\n{P}<shipping>{P}<city>a</city>{P}</shipping>{P}</invoke>"
    assert arguments(read("minimax_m3", body, SCHEMA)) == {"note": "the news", "count": 6, "shipping": {"city": "a"}}


def test_an_end_tag_within_a_string_is_text() -> None:
    body = f"{P}<note><note>a</note>{P}</note>{P}<maybe></maybe> b{P}</maybe>{P}</invoke>"
    assert arguments(read("minimax_m3", body, SCHEMA)) == {"note": "<note>a</note>", "maybe": "</maybe> b"}


@pytest.mark.parametrize("stop", ["</tool_call>", "<tool_call>", '<invoke name="g">'])
def test_a_call_without_its_end_is_over_where_another_tag_says_so(stop: str) -> None:
    for inner in ("", "<note>a", "<count>1</count>", "<shipping><city>a"):
        found = read("minimax_m3", marked(inner + stop), SCHEMA)
        assert found.is_over and found.left == marked(stop)
        json.loads(found.text)


@pytest.mark.parametrize("words", ["some words", "{words}", "</note>", "[1]"])
def test_a_call_of_nothing_but_words_has_failed(words: str) -> None:
    found = read("minimax_m3", marked(words + "</invoke>"), SCHEMA)
    assert found.failed and not found.text


def test_what_is_too_long_to_be_buffered_is_sent_as_a_string() -> None:
    inner = marked("<city>a</city>") * (BUFFER_LIMIT // 30)
    body = marked("<shipping>") + inner + marked("</shipping><count>1</count></invoke>")
    for size in (len(body), 4097):
        found = read_pieces("minimax_m3", [body[at : at + size] for at in range(0, len(body), size)], SCHEMA)
        assert json.loads(found.text) == {"shipping": inner, "count": 1}


def test_elements_nest_only_so_deep() -> None:
    body = marked("<free>" + "<a>" * 500 + "x" + "</a>" * 500 + "</free></invoke>")
    for cut in ([body], list(body)):
        json.loads(read_pieces("minimax_m3", cut, SCHEMA).text)


TOKENS = (
    *(
        f"{P}<{tag}>"
        for tag in ("note", "/note", "count", "/count", "shipping", "/shipping", "lines", "/lines", "item")
    ),
    *(f"{P}<{tag}>" for tag in ("/item", "sku", "/sku", "x", "/x", "arguments", "/arguments", "/invoke", "/tool_call")),
    *("</note>", "</count>", "</sku>", P, P[:5], "<", "/", ">", " ", "\n", "7", "words", '{"a":', "}", '"', "null"),
)


@given(tokens=st.lists(st.sampled_from(TOKENS), max_size=24), rng=st.randoms(use_true_random=False))
def test_whatever_comes_is_read_the_same_in_every_cut_and_is_json(tokens: list[str], rng: random.Random) -> None:
    body = "".join(tokens)
    whole = read_pieces("minimax_m3", [body], SCHEMA)
    for cut in (list(body), tokens, random_cut(body, rng)):
        other = read_pieces("minimax_m3", cut, SCHEMA)
        assert (other.failed, other.is_over) == (whole.failed, whole.is_over)
        assert whole.failed or other == whole
    if whole.is_over:
        json.loads(whole.text)
