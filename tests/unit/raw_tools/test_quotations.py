"""Prose that quotes these formats never becomes a call in `auto`, and stays as it is."""

from __future__ import annotations

import random

import pytest

from dragoman.filters.raw_tools import Engine, Tools
from dragoman.filters.raw_tools.outputs import Arguments, CallStarted, Remark, Said
from tests.unit.raw_tools.samples import AB, CB, CE, SB, SE, TEXT, TOOLS, all_cuts, call, end, outputs, section

KIMI = section(call("functions.bash:0", '{"command": "ls"}'))
HERMES = '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>'
QWEN = f"<tool_call>\n<function=bash>\n<parameter=command>\nls\n{end('parameter')}\n{end('function')}\n</tool_call>"
GLM = "<tool_call>bash\n<arg_key>command</arg_key>\n<arg_value>ls</arg_value>\n</tool_call>"
INVOKE = f'<function_calls>\n<invoke name="bash">\n<parameter name="command">ls{end("parameter")}\n{end("invoke")}\n</function_calls>'
K3 = '<|open|>tools<|sep|><|open|>call tool="bash" index="0"<|sep|><|close|>call<|sep|><|close|>tools<|sep|>'
DEEPSEEK = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>bash<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
ALL = {"kimi": KIMI, "hermes": HERMES, "qwen": QWEN, "glm": GLM, "invoke": INVOKE, "k3": K3, "deepseek": DEEPSEEK}
TAGS = {name: text for name, text in ALL.items() if name in ("hermes", "qwen", "glm", "invoke")}

every_format = pytest.mark.parametrize("example", ALL.values(), ids=ALL)
every_tag = pytest.mark.parametrize("example", TAGS.values(), ids=TAGS)


def stays(document: str) -> None:
    """Not one call, not one character changed, however it is cut."""
    for cut in all_cuts(document):
        assert outputs(cut) == [Said(document, TEXT)], cut


def becomes_a_call(document: str) -> None:
    for cut in all_cuts(document):
        assert sum(isinstance(output, CallStarted) for output in outputs(cut)) == 1, cut


@every_format
@pytest.mark.parametrize(
    "around",
    [
        ("A call looks like this:\n\n```\n", "\n```\n\nThat is all."),
        ("```xml\n", "\n```\n"),
        ("~~~\n", "\n~~~\n"),
        ("- so:\n  ```text\n  ", "\n  ```\n"),
        ("````\n```\n", "\n```\n````\nfine"),
        ("```\nnever closed\n", ""),
    ],
    ids=["fence", "language", "tildes", "in a list", "nested", "open"],
)
def test_in_a_code_block(example: str, around: tuple[str, str]) -> None:
    stays(around[0] + example + around[1])


@every_format
def test_in_inline_code_and_in_quotes(example: str) -> None:
    line = example.replace("\n", "")
    for opening, closing in (("`", "`"), ('"', '"'), ("'", "'"), ("“", "”"), ("`` ", " ``")):
        stays(f"The model writes {opening}{line}{closing} and stops.")


@every_tag
def test_a_tag_in_the_middle_of_a_sentence(example: str) -> None:
    stays(f"The format is {example} and it repeats.")
    stays(f"The format is: {example}")
    stays(f"> {example}")
    stays(f"| {example} |")


@every_tag
def test_a_tag_in_a_diff(example: str) -> None:
    for sign in ("+", "-", " +", "+    "):
        stays("\n".join(sign + line for line in example.split("\n")))


@every_tag
def test_a_tag_in_an_indented_block(example: str) -> None:
    stays("So:\n\n" + "\n".join("    " + line for line in example.split("\n")))
    stays("So:\n\n" + "\n".join("\t" + line for line in example.split("\n")))


@every_tag
def test_a_call_of_a_tool_that_nobody_declared(example: str) -> None:
    stays(example.replace("bash", "get_weather"))


def test_a_placeholder_is_no_call() -> None:
    stays('<tool_call>\n{"name": "bash", "arguments": {...}}\n</tool_call>')
    stays('<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>')
    stays('<tool_call>{"name": "bash", "arguments": ')
    stays("Use <tool_call> and </tool_call>.")
    stays("<function=>")


SPECIALS = {name: text for name, text in ALL.items() if name not in TAGS}
every_special = pytest.mark.parametrize("example", SPECIALS.values(), ids=SPECIALS)


@every_special
@pytest.mark.parametrize(
    "before",
    ["    ", "\t", "-    ", "+ ", "+", " - ", "> ", ">", "> It says ", "| k | ", "| ", 's = "abc ', 'x("I look.'],
)
def test_a_special_token_that_its_line_quotes(example: str, before: str) -> None:
    stays(f"{before}{example}")
    stays(f"So:\n\n{before}{example}\nand more.")


@every_special
def test_every_line_of_a_section_in_a_blockquote_or_a_diff(example: str) -> None:
    for prefix in ("> ", "+", "    "):
        stays("".join(f"{prefix}{line}\n" for line in example.replace("><", ">\n<").split("\n")))


def test_a_header_without_its_marker_in_an_indented_line() -> None:
    stays(f"    functions.bash:0{AB}{{}} is the rest.")


@every_special
@pytest.mark.parametrize(
    "before",
    [
        " ",
        "   ",
        "I will look. ",
        "I will look ",
        "\n ",
        "- I look at it ",
        "- one\n- two: ",
        "| a | b |\n|---|---|\n| 1 | 2 |",
        "> As you said.",
        "> As you said.\n\n",
        'It is "so" ',
        "a    ",
    ],
)
def test_a_special_token_after_prose_is_a_call(example: str, before: str) -> None:
    becomes_a_call(before + example)


def test_the_line_does_not_matter_directly_after_a_call() -> None:
    both = f"{KIMI}\n    {section(call('functions.bash:1', '{}'))}"
    for cut in all_cuts(both):
        assert sum(isinstance(output, CallStarted) for output in outputs(cut)) == 2


# --- prose about the markers loses nothing but the markers


@pytest.mark.parametrize(
    ("document", "text", "strays"),
    [
        (
            f"The token {SB} starts a section and {CB} starts a call.",
            "The token  starts a section and  starts a call.",
            2,
        ),
        (f"Then {CB} starts a call and {CE} ends it.", "Then  starts a call and  ends it.", 2),
        (f"First {SB} the calls {SE} and done.", "First  the calls  and done.", 2),
        (f"{SB} one {SB} two", " one  two", 1),
        (f"{SB} one {CE} two {SE}", " one  two ", 3),
        ("<｜tool▁call▁begin｜> then a name, then <｜tool▁sep｜>.", " then a name, then .", 2),
    ],
)
@pytest.mark.parametrize("choice", ["auto", "kimi", "deepseek"])
def test_what_is_no_call_is_text_again(document: str, text: str, strays: int, choice: str) -> None:
    if choice != "auto" and (choice == "deepseek") != ("｜" in document):
        return
    whole = outputs([document], choice)
    for cut in all_cuts(document):
        told = outputs(cut, choice)
        assert told == whole, cut
        assert "".join(output.text for output in told if isinstance(output, Said)) == text
        assert [output.rule for output in told if isinstance(output, Remark)] == ["stray_marker"] * strays


def test_a_call_after_prose_about_the_markers_is_still_one() -> None:
    for cut in all_cuts(f"{SB} starts a section, {CB} starts a call.\n{KIMI}"):
        told = outputs(cut)
        assert told[-3:-1] == [CallStarted("functions.bash:0", "bash", "kimi_k2", TEXT), Arguments('{"command": "ls"}')]


def test_what_waits_for_a_sections_first_call_is_bounded() -> None:
    told = outputs([f"{SB}{'word ' * 100}" * 50])
    assert "".join(output.text for output in told if isinstance(output, Said)) == "word " * 5000
    assert any(isinstance(output, Remark) and output.rule == "over_limit" for output in told)


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
        assert outputs(pieces) == [Said(source, TEXT)], module.__name__


# --- and yet: what is meant is a call


@every_format
@pytest.mark.parametrize(
    "before",
    [
        "",
        "\n",
        "Let me look.\n\n",
        "Let me look.",
        'It\'s `odd` and "quoted".\n',
        "```sh\nls\n```\n",
        "```sh\nls\n```",
        "</think>",
        "  ",
        "`<tool_call>` it is:\n",
    ],
)
def test_what_is_not_quoted_is_a_call(example: str, before: str) -> None:
    becomes_a_call(before + example)


@every_format
def test_by_name_quotations_do_not_matter(example: str) -> None:
    name = next(name for name, text in ALL.items() if text is example)
    table = {"qwen": "qwen_coder", "k3": "kimi_k3"}.get(name, name)
    assert any(isinstance(output, CallStarted) for output in outputs([f"```\n{example}\n```"], table))


@every_tag
def test_a_tag_does_not_count_once_the_reply_holds_a_native_call(example: str) -> None:
    engine = Engine("auto", Tools(TOOLS))
    engine.native("call_1")
    assert [*engine.feed(example), *engine.close()] == [Said(example, TEXT)]


def test_a_special_token_counts_even_beside_a_native_call() -> None:
    engine = Engine("auto", Tools(TOOLS))
    engine.native("call_1")
    assert any(isinstance(output, CallStarted) for output in engine.feed(KIMI))


def test_a_long_line_or_text_is_remembered_in_bounded_space() -> None:
    engine = Engine("auto", Tools(TOOLS))
    for _ in range(20_000):
        assert engine.feed("a word and ") == [Said("a word and ", TEXT)]
    assert len(engine._said.pieces) < 1000
    assert outputs(["x" * 200_000, "`", KIMI])[-1] == Said("x" * 200_000 + "`" + KIMI, TEXT)
