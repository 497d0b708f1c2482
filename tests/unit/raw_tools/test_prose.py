"""Prose about the formats never becomes a call in `auto`, and every byte of it is kept."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from dragoman.filters.raw_tools import TABLES, RawTools
from dragoman.filters.raw_tools.outputs import Channel, TextOutput
from dragoman.model.conversation import ToolSpec
from dragoman.model.filter import Facts, Notes
from tests.unit.raw_tools.renderers import RENDER, CallToWrite
from tests.unit.raw_tools.samples import (
    REASONING,
    TEXT,
    TOOLS,
    all_cuts,
    conversation,
    outputs,
    run_filter,
    stream,
    tool,
)

ROOT = Path(__file__).parents[3]
PROSE = Path(__file__).parent / "prose"
_LOOSE = ("bash", "read", "read_file", "write", "search", "task", "now", "get_weather", "f", "example")
DECLARED = (*(ToolSpec(name, schema={"type": "object", "properties": {}}) for name in _LOOSE), tool("edit", "path"))
STRICT = (*TOOLS, tool("read", "path"), tool("write", "path", "content"))
_TAGS = {table.name for table in TABLES if not table.special}

# Texts as they are: pages, and sources that hold no example at the beginning of a line.
PAGES = sorted(
    [
        *PROSE.iterdir(),
        *(ROOT / "docs").rglob("*.md"),
        *ROOT.glob("*.md"),
        *(ROOT / "src" / "dragoman" / "filters" / "raw_tools").glob("*.py"),
        ROOT / "src" / "dragoman" / "raw_tools.py",
    ]
)
# Sources that a model shows in a code block.
SOURCES = sorted((ROOT / "tests" / "unit" / "raw_tools").glob("*.py"))
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
every_source = pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
every_table = pytest.mark.parametrize("table", RENDER)


def pieces_of(text: str, rng: random.Random) -> list[str]:
    pieces, at = [], 0
    while at < len(text):
        size = rng.randint(1, 12)
        pieces.append(text[at : at + size])
        at += size
    return pieces


def stays(text: str, tools: tuple[ToolSpec, ...] = DECLARED) -> None:
    rng = random.Random(len(text))
    for channel in Channel:
        assert outputs([(channel, text)], tools=tools) == [TextOutput(text, channel)]
        cut = [(channel, piece) for piece in pieces_of(text, rng)]
        assert outputs(cut, tools=tools) == [TextOutput(text, channel)]


@every_page
@pytest.mark.parametrize("tools", [DECLARED, STRICT], ids=["loose", "strict"])
def test_a_page_holds_no_call(page: Path, tools: tuple[ToolSpec, ...]) -> None:
    stays(page.read_text(encoding="utf-8"), tools)


@every_page
def test_a_reply_that_quotes_a_page_has_no_note(page: Path) -> None:
    """The whole filter: text and reasoning, no rule noted, the stop reason as it was."""
    text = page.read_text(encoding="utf-8")
    rng = random.Random(1)
    for channel in (TEXT, REASONING):
        filtered = run_filter(
            stream([(channel, piece) for piece in pieces_of(text, rng)]), request=conversation(tools=DECLARED)
        )
        assert filtered.text(channel) == text
        assert filtered.calls == []
        assert filtered.rules == frozenset()


@every_source
def test_a_source_in_a_code_block_holds_no_call(source: Path) -> None:
    fence = "`" * 12
    stays(f"Here it is:\n\n{fence}python\n{source.read_text(encoding='utf-8')}\n{fence}\n\nThat is the file.\n")


# --- every format, in every way that prose quotes


def example(table: str, name: str = "bash") -> str:
    return RENDER[table]([CallToWrite(name, {"command": "ls"}, {})])


def one_line(table: str) -> str:
    return example(table).replace("\n", "")


def lines(prefix: str, text: str) -> str:
    return "".join(f"{prefix}{line}\n" for line in text.split("\n"))


def quiet(document: str) -> None:
    """Not one call, not one character changed, however it is cut."""
    for cut in all_cuts(document):
        assert outputs(cut, tools=STRICT) == [TextOutput(document, TEXT)], cut


@every_table
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("A call looks like this:\n\n````\n", "\n````\n\nThat is all."),
        ("````xml\n", "\n````\n"),
        ("````xml\n", "\n````"),
        ("~~~\n", "\n~~~\n"),
        ("- so:\n  ~~~text\n  ", "\n  ~~~\n"),
        ("`````\n````\n", "\n````\n`````\nfine"),
        ("> ~~~\n> ", "\n> ~~~\n\nfine"),
        ("- so:\n  ````text\n  ", "\n  ````\n"),
        ("````\n", " and\nmore\n````"),
    ],
    ids=[
        "fence", "language", "at the end", "tildes", "in a list", "nested", "in a block quotation", "a fence in a list",
        "text before the end",
    ],
)  # fmt: skip
def test_in_a_code_block_that_closes(table: str, before: str, after: str) -> None:
    quiet(before + example(table) + after)
    if "```" not in example(table):
        quiet((before + example(table) + after).replace("````", "```"))


@every_table
@pytest.mark.parametrize(
    ("opening", "closing"),
    [("`", "`"), ("`` ", " ``"), ('"', '"'), ("'", "'"), ("“", "”"), ("«", "»"), ("「", "」")],
)
def test_in_inline_code_and_in_quotation_marks(table: str, opening: str, closing: str) -> None:
    if "`" in one_line(table) and "`" in opening:
        opening, closing = "````` ", " `````"
    quiet(f"The model writes {opening}{one_line(table)}{closing} and stops.")
    quiet(f"The model writes this. {opening}{one_line(table)}{closing}")


@every_table
@pytest.mark.parametrize("prefix", ["> ", "    ", "\t"])
def test_in_a_block_quotation_or_an_indented_block_with_text_after_it(table: str, prefix: str) -> None:
    quiet(f"So:\n\n{lines(prefix, example(table))}\nand so on.")


@every_table
def test_in_a_table(table: str) -> None:
    quiet(f"| name | looks like |\n|---|---|\n| {table} | `` {one_line(table).replace('`', '')} `` |\n\nA table.")


@every_table
def test_the_first_half_of_a_call_in_a_sentence(table: str) -> None:
    """What never becomes a whole call is given back, and so is the text after it."""
    whole = one_line(table)
    for end in range(1, max(2, len(whole) // 3)):
        if table == "kimi_k2" and "bash:0<|tool_call_argument_begin|>" in whole[:end]:
            break
        quiet(f"It begins with {whole[:end]} and what follows is a name.")


@pytest.mark.parametrize("table", [table for table in RENDER if table in _TAGS])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("The format is ", " and it repeats."),
        ("The format is ", ""),
        ("The format is: ", "\n\nThat is it."),
        ("The format is: ", " and it repeats."),
        ("> ", ""),
        ("| ", " |"),
        ("It is called (", ")."),
        ("+", "\n+more"),
        ("-", "\n-more"),
        ("<p>", "</p>\n"),
    ],
)
def test_a_tag_in_the_middle_of_a_line(table: str, before: str, after: str) -> None:
    quiet(before + one_line(table) + after)


@pytest.mark.parametrize("table", ["hermes", "qwen_coder", "glm", "invoke"])
@pytest.mark.parametrize("prefix", ["+", "-", " +", "+    ", "    ", "\t"])
def test_a_tag_in_a_diff_or_an_indented_block(table: str, prefix: str) -> None:
    before = "" if prefix.strip() else "So:\n\n"
    quiet(before + "\n".join(prefix + line for line in example(table).split("\n")))


@pytest.mark.parametrize("table", [table for table in RENDER if table in _TAGS])
def test_a_tag_for_a_tool_that_is_not_declared(table: str) -> None:
    quiet(example(table, "get_weather"))
    quiet(f"So:\n{example(table, 'get_weather')}\nThat is it.")


@pytest.mark.parametrize("table", [table for table in RENDER if table in _TAGS])
def test_a_tag_beside_a_native_call(table: str) -> None:
    document = f"So.\n{example(table)}\n"
    for cut in all_cuts(document):
        assert outputs(cut, tools=STRICT, native="call_1") == [TextOutput(document, TEXT)], cut


@every_table
def test_where_the_request_declares_no_tools_auto_reads_nothing(table: str) -> None:
    document = f"So.\n{example(table)}\nThat is it."
    request = conversation(tools=())
    _, make_back = RawTools("auto").forward(request, Notes(), Facts())
    if make_back is None:  # the reply does not even pass through the filter
        return
    filtered = run_filter(stream([(TEXT, document)]), request=request)
    assert (filtered.text(), filtered.calls, filtered.rules) == (document, [], frozenset())
