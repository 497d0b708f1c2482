"""What does count in `auto` (D20 as amended): a call is recovered, and the text before it is kept byte for byte."""

from __future__ import annotations

import pytest

from dragoman.filters.raw_tools import TABLES, RawTools
from dragoman.filters.raw_tools.outputs import CallEnded, CallStarted, Remark, Said
from tests.unit.raw_tools.renderers import AT_START, BY_NAME_ONLY, RENDER, CallToWrite
from tests.unit.raw_tools.samples import TEXT, TOOLS, all_cuts, answered, conversation, outputs, stream

_BY_NAME = {table.name: table for table in TABLES}
_FOUND = [table for table in RENDER if table not in BY_NAME_ONLY | AT_START]
SPECIALS = [table for table in _FOUND if _BY_NAME[table].special]
TAGS = [table for table in _FOUND if not _BY_NAME[table].special]
every_special = pytest.mark.parametrize("table", SPECIALS)
every_tag = pytest.mark.parametrize("table", TAGS)


def example(table: str, name: str = "bash", key: str = "command") -> str:
    return RENDER[table]([CallToWrite(name, {key: "ls"}, {})])


def is_call(document: str, shown: str, name: str = "bash") -> None:
    for cut in all_cuts(document):
        told = outputs(cut)
        assert [each.name for each in told if isinstance(each, CallStarted)] == [name], cut
        assert [each.complete for each in told if isinstance(each, CallEnded)] == [True], cut
        assert "".join(each.text for each in told if isinstance(each, Said)) == shown, cut


def is_text(document: str) -> None:
    for cut in all_cuts(document):
        told = outputs(cut)
        assert not any(isinstance(each, CallStarted) for each in told), cut
        assert "".join(each.text for each in told if isinstance(each, Said)) == document, cut


@every_special
@pytest.mark.parametrize(
    "before",
    [
        "",
        "\n",
        "   ",
        "I will look ",
        "I will look. ",
        "I will look:\n\n",
        "a 24\" screen ",
        "It's so. ",
        'It is "so" ',
        "the ` key ",
        "`code` ",
        "- ",
        "* ",
        "1. ",
        "> ",
        "> As you said.",
        "> As you said.\n\n",
        " - ",
        "\n ",
        "- I look at it ",
        "- one\n- two: ",
        "a    ",
        "| a | b |\n|---|---|\n| 1 | 2 |",
        "| ",
        "    ",
        "\t",
        "+ ",
        "```sh\nls\n```\n",
        "```sh\nls\n```",
        "```\n",
        "```\nnever closed\n",
        "~~~text\n",
        "Look:\n~~~text\nls\n",
        "````\n```\n```\n",
        "`<tool_call>` it is:\n",
        "</think>",
    ],
)  # fmt: skip
def test_l24_a_special_token_section_counts_whatever_stands_before_it(table: str, before: str) -> None:
    shown = before.removesuffix("</think>")
    if before == "</think>":
        told = outputs([before + example(table)])
        assert sum(isinstance(each, CallStarted) for each in told) == 1
        return
    is_call(before + example(table), shown)


@every_special
def test_in_an_open_code_block_it_counts_only_for_a_declared_tool_with_its_arguments(table: str) -> None:
    is_text("```\n" + example(table, "unheard_of"))
    is_text("```\n" + example(table, key="other"))
    is_text("```\n" + example(table)[: example(table).index("ls") + 1])


@every_special
def test_a_special_token_section_of_an_undeclared_tool_is_a_call_with_a_note(table: str) -> None:
    is_call("I look.\n" + example(table, "unheard_of"), "I look.\n", "unheard_of")
    told = outputs(["I look.\n" + example(table, "unheard_of")])
    assert any(isinstance(each, Remark) for each in told)


@every_tag
@pytest.mark.parametrize(
    "before",
    [
        "",
        "\n",
        "  ",
        "I will check.",
        "I will check. ",
        "I will check.  ",
        "Sure! ",
        "Why not? ",
        "確認します。",
        "I will check:\n\n",
        "```sh\nls\n```",
        'It\'s `odd` and "quoted".\n',
        "```sh\nls\n```\n",
        "`<tool_call>` it is:\n",
        "</think>",
    ],
)
def test_l25_a_tag_counts_at_a_line_start_and_after_a_sentence(table: str, before: str) -> None:
    is_call(before + example(table), before.removesuffix("</think>"))


@pytest.mark.parametrize("table", [table for table in _FOUND if _BY_NAME[table].section_begin])
def test_l26_without_its_section_a_call_counts_only_when_it_is_whole(table: str) -> None:
    """Closed, for a declared tool, with the arguments that its schema requires; else all of its text comes back."""
    shipped = _BY_NAME[table]
    whole = example(table)
    begin = min((whole.find(mark) for mark in shipped.call_begin if mark in whole), default=-1)
    finish = max((whole.rfind(mark) + len(mark) for mark in shipped.call_end if mark in whole), default=-1)
    if begin < 0 or finish < 0:
        pytest.skip("a call of this format has no markers of its own")
    is_call("I look.\n" + whole[begin:finish], "I look.\n")
    missing = example(table, key="other")
    begin = min(missing.find(mark) for mark in shipped.call_begin if mark in missing)
    finish = max(missing.rfind(mark) + len(mark) for mark in shipped.call_end if mark in missing)
    is_text("I look.\n" + missing[begin:finish] + "\nThat is it.")


@every_special
def test_residue_of_a_marker_beside_a_native_call_is_removed(table: str) -> None:
    """L30: hosted services parse the call and leave a marker of it in the text."""
    shipped = _BY_NAME[table]
    for marker in (*shipped.section_end, *shipped.call_end, *shipped.section_begin):
        document = f"Done. {marker}"
        for cut in all_cuts(document):
            told = outputs(cut, native="call_1")
            assert "".join(each.text for each in told if isinstance(each, Said)).rstrip() == "Done.", cut
            assert [each.rule for each in told if isinstance(each, Remark)] == ["residue"], cut
        fenced = f"```\n{marker}\n```\n"
        assert outputs([fenced], native="call_1") == [Said(fenced, TEXT)]


@pytest.mark.parametrize("table", RENDER)
def test_a_named_table_reads_a_request_without_tools(table: str) -> None:
    told = answered(stream([(TEXT, example(table))]), RawTools(table), conversation(tools=()))
    assert [each.name for each in told.calls] == ["bash"]


@pytest.mark.parametrize("table", RENDER)
def test_a_named_table_reads_quotations_too(table: str) -> None:
    for before, after in [("", "")] if table in AT_START else [("- `", ""), ("```\n", "\n```")]:
        told = outputs([before + example(table) + after], table, TOOLS)
        assert [each.name for each in told if isinstance(each, CallStarted)] == ["bash"]
