"""Prose that quotes these formats never becomes a call in `auto`, and stays as it is.

What holds for every format is in test_prose.py (no call) and test_cases.py (a call).
"""

from __future__ import annotations

import random

import pytest

from dragoman.filters.raw_tools import DeclaredTools, Engine
from dragoman.filters.raw_tools.outputs import Arguments, CallStarted, EngineNote, TextOutput
from dragoman.filters.raw_tools.readers import LIMIT
from tests.unit.raw_tools.renderers import RENDER, CallToWrite
from tests.unit.raw_tools.samples import AB, CB, CE, SB, SE, TEXT, TOOLS, all_cuts, call, outputs, section

_TABLES = ("kimi_k2", "hermes", "qwen_coder", "glm", "invoke", "kimi_k3", "deepseek_v31")
ALL = {table: RENDER[table]([CallToWrite("bash", {"command": "ls"}, {})]) for table in _TABLES}
KIMI, DEEPSEEK = ALL["kimi_k2"], ALL["deepseek_v31"]
TAGS = {name: text for name, text in ALL.items() if name in ("hermes", "qwen_coder", "glm", "invoke")}
SPECIALS = {name: text for name, text in ALL.items() if name not in TAGS}

every_format = pytest.mark.parametrize("example", ALL.values(), ids=ALL)
every_tag = pytest.mark.parametrize("example", TAGS.values(), ids=TAGS)
every_special = pytest.mark.parametrize("example", SPECIALS.values(), ids=SPECIALS)


def stays(document: str) -> None:
    """Not one call, not one character changed, however it is cut."""
    for cut in all_cuts(document):
        assert outputs(cut) == [TextOutput(document, TEXT)], cut


def becomes_a_call(document: str, shown: str | None = None) -> None:
    """One call, however it is cut; `shown` is the text that is left."""
    for cut in all_cuts(document):
        emitted = outputs(cut)
        assert sum(isinstance(output, CallStarted) for output in emitted) == 1, cut
        if shown is not None:
            assert "".join(output.text for output in emitted if isinstance(output, TextOutput)) == shown, cut


@pytest.mark.parametrize("example", [KIMI, DEEPSEEK], ids=["kimi", "deepseek"])
def test_in_an_open_code_block_a_call_counts_only_if_its_arguments_parse(example: str) -> None:
    stays("```\n" + example.replace('"ls"}', '"ls}'))
    stays("```\n" + example.replace('"ls"}', "[1, 2}"))


@every_format
@pytest.mark.parametrize(
    ("before", "after"), [("| V4 | `", "…` |\nmore text."), ("> ", "…\n\nmore text."), ("```\n", "…\n```\n")]
)
def test_a_quoted_call_that_is_never_closed_is_text(example: str, before: str, after: str) -> None:
    """Documentation shows the beginning of a call. Nothing of what follows it is lost."""
    stays(before + example[: example.index("ls") + 2] + after)


@every_tag
def test_in_a_code_block_that_is_never_closed_a_tag_is_text(example: str) -> None:
    stays("```\nnever closed\n" + example)


@every_tag
def test_a_tag_after_a_colon_is_a_call_if_nothing_follows_it(example: str) -> None:
    becomes_a_call(f"I run it now: {example}", "I run it now: ")
    becomes_a_call(f"I run it now: {example}\n", "I run it now: ")


def test_a_placeholder_is_no_call() -> None:
    stays('<tool_call>\n{"name": "bash", "arguments": {...}}\n</tool_call>')
    stays('<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>')
    stays('<tool_call>{"name": "bash", "arguments": ')
    stays("Use <tool_call> and </tool_call>.")
    stays("<function=>")


LINE_QUOTES = ["    ", "\t", "-    ", "+ ", "+", "> ", ">", "> It says "]


@every_special
@pytest.mark.parametrize("before", LINE_QUOTES)
def test_a_special_token_that_its_line_quotes_is_text_if_more_follows(example: str, before: str) -> None:
    """A block quotation, indented code and a line of a diff have no end mark: other text after them closes them."""
    stays(f"{before}{example}\nand more.")
    stays(f"So:\n\n{before}{example}\n\nand more.")
    stays(f"{before}{example} and more.")


@every_special
@pytest.mark.parametrize("before", LINE_QUOTES)
def test_a_special_token_that_its_line_quotes_is_a_call_if_nothing_follows(example: str, before: str) -> None:
    """Nothing closes what seemed to be a quotation."""
    becomes_a_call(before + example, before)
    becomes_a_call(f"So:\n\n{before}{example}\n \n", f"So:\n\n{before}")
    stays(before + example.replace("bash", "get_weather"))
    stays(before + example.replace("command", "other"))


@every_special
@pytest.mark.parametrize(
    ("before", "after"),
    [("| k | ", " |"), ("| ", " | x |"), ('s = "abc ', '"'), ('x("I look.', '")'), ("the `", "` key"), ("“", "”")],
)
def test_a_special_token_in_an_open_quotation_is_a_call_unless_the_line_closes_it(
    example: str, before: str, after: str
) -> None:
    """An odd quotation mark, as in `a 24" screen`, is none."""
    stays(f"{before}{example}{after}")
    stays(f"So:\n\n{before}{example} is it{after}\nand more.")
    becomes_a_call(before + example, before)
    gap = "\n\n" if "`" in before else "\n"  # inline code may go on in the next line
    becomes_a_call(f"{before}{example}{gap}and {after}", f"{before}{gap}and {after}")


@every_special
def test_every_line_of_a_section_in_a_blockquote_or_a_diff(example: str) -> None:
    lines = example.replace("><", ">\n<").split("\n")
    for prefix in ("> ", "+", "    "):
        stays("".join(f"{prefix}{line}\n" for line in lines) + "And so on.\n")
    for prefix in ("> ", "+"):
        stays("".join(f"{prefix}{line}\n" for line in lines))


def test_a_header_without_its_marker_in_an_indented_line() -> None:
    stays(f"    functions.bash:0{AB}{{}} is the rest.")


def test_the_line_does_not_matter_directly_after_a_call() -> None:
    both = f"{KIMI}\n    {section(call('functions.bash:1', '{}'))}"
    for cut in all_cuts(both):
        assert sum(isinstance(output, CallStarted) for output in outputs(cut)) == 2


# --- prose about the markers loses nothing

LONE = [
    (f"The token {SB} starts a section and {CB} starts a call.", "The token  starts a section and  starts a call."),
    (f"Then {CB} starts a call and {CE} ends it.", "Then  starts a call and  ends it."),
    (f"First {SB} the calls {SE} and done.", "First  the calls  and done."),
    (f"{SB} one {SB} two", " one  two"),
    (f"{SB} one {CE} two {SE}", " one  two "),
    (f"{SB}{SE}", ""),
    (f"a{CE}b{AB}c<|im_end|>", "abc"),
    ("<｜tool▁call▁begin｜> then a name, then <｜tool▁sep｜>.", " then a name, then ."),
]


@pytest.mark.parametrize(("document", "text"), LONE)
def test_a_marker_without_a_call_is_text(document: str, text: str) -> None:
    """Text that is no call, and no residue beside a native call, is unchanged."""
    stays(document)


@pytest.mark.parametrize(("document", "text"), LONE)
def test_with_a_named_table_a_marker_without_a_call_is_removed(document: str, text: str) -> None:
    choice = "deepseek" if "｜" in document else "kimi"
    markers = document.count("<")
    for cut in all_cuts(document):
        emitted = outputs(cut, choice)
        assert "".join(output.text for output in emitted if isinstance(output, TextOutput)) == text, cut
        assert [output.rule for output in emitted if isinstance(output, EngineNote)] == ["stray_marker"] * markers, cut


def test_a_call_after_prose_about_the_markers_is_still_one() -> None:
    for cut in all_cuts(f"{SB} starts a section, {CB} starts a call.\n{KIMI}"):
        emitted = outputs(cut)
        assert emitted[-3:-1] == [
            CallStarted("functions.bash:0", "bash", "kimi_k2", TEXT),
            Arguments('{"command": "ls"}'),
        ]


def test_what_waits_for_a_sections_first_call_is_bounded() -> None:
    document = f"{SB}{'word ' * 300}" * 10
    for choice, shown in (("auto", document), ("kimi", "word " * 3000)):
        engine = Engine(choice, DeclaredTools(TOOLS))
        emitted = [output for char in document for output in engine.feed(char)] + engine.close()
        assert "".join(output.text for output in emitted if isinstance(output, TextOutput)) == shown
        noted = any(isinstance(output, EngineNote) and output.rule == "over_limit" for output in emitted)
        assert noted is (choice == "kimi")  # in `auto` nothing changed
        assert engine.peak <= LIMIT + 64  # and the longest marker


PARSER_DIFF = f'''\
-SECTION = "{SB}"
+SECTION = ("{SB}", '{SE}')
+    CALL = re.compile(r"{CB}(.*?){AB}(.*?){CE}", re.DOTALL)
+    assert parse('<tool_call>{{"name": "bash", "arguments": {{}}}}</tool_call>')
@@ -1,4 +1,6 @@
 if text.startswith("<function=bash>"): pass
'''


def test_the_diff_of_a_parser_holds_no_call() -> None:
    assert not any(isinstance(output, CallStarted) for output in outputs([PARSER_DIFF]))
    stays(f"```diff\n{PARSER_DIFF}```\n")


def test_these_pages_hold_no_call() -> None:
    """Our own sources, fenced as a model shows files: the code that recovers calls, and these tests."""
    import inspect
    import sys

    from dragoman.filters.raw_tools import engine, tables
    from tests.unit.raw_tools import cases, documents, test_tables

    rng = random.Random(3)
    for module in (engine, tables, cases, documents, test_tables, sys.modules[__name__]):
        source = f"Here it is:\n\n````python\n{inspect.getsource(module)}\n````\n"
        cuts = sorted(rng.sample(range(len(source)), 400))
        pieces = [source[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(source)], strict=True)]
        assert outputs(pieces) == [TextOutput(source, TEXT)], module.__name__


def test_a_long_line_or_text_is_remembered_in_bounded_space() -> None:
    engine = Engine("auto", DeclaredTools(TOOLS))
    for _ in range(20_000):
        assert engine.feed("a word and ") == [TextOutput("a word and ", TEXT)]
    assert len(engine._context.pieces) < 1000
    long = "x" * 200_000 + "`"
    assert outputs([long[:-1], "`", KIMI, "`"]) == [TextOutput(f"{long}{KIMI}`", TEXT)]
    assert outputs([long[:-1], "`", KIMI])[:2] == [
        TextOutput(long, TEXT),
        CallStarted("functions.bash:0", "bash", "kimi_k2", TEXT),
    ]
