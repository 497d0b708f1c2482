"""tests/messages.py finds the messages of a module, whatever its helper functions are called."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import messages
from tests.messages import collect, main, render, sources

MODULE = '''
"""A docstring is not a message."""

import re

class Refused(ValueError):
    """Nor is this one."""

class Deeper(Refused): ...

def run(notes, parser, path, size):
    parser.add_argument("--json", help="print JSON")
    parser.add_argument("--quiet", help="quiet")
    notes.dropped("tools.choice", path, f"the target has no choice {size:d}")
    LOG.warning("%s cannot be read", path)
    any_helper(f"{path}: {'no such file' if size else 'cannot be read'}")
    re.compile("not a message at all")
    x = {"content-type": "text/event-stream", "key": "tool_use"}
    if size: raise Deeper("the file is too large: " "write a smaller one")
'''
LABELS = """
Value: TypeAlias = "dict[str, Value] | list[Value]"
KIND_BY_PHRASE: tuple[tuple[str, str], ...] = (("prompt is too long", "context_full"),)

class Role(Enum):
    END = "section end"

class Place:
    def __repr__(self):
        return "Place, is_absent=True and more"

def run(path, error):
    value = cast("dict[str, tuple[int, int]]", find("no such row"))
    if "no such table" in str(error) or error.why == "not yet valid":
        return path / "Application Support"
    return ("content-length: 1\\r\\n", "text/plain; charset=utf-8", "attempt=1; max=1", "<|im_start|> a marker")
"""
TABLE = '''
RULES = Rulebook.parse("pigeon", """
shape | documented | error | a line must be an object
speed | observed | advice | a pigeon may not be late; some services wait
""")
'''


def test_messages_of_every_kind_are_found_and_nothing_else() -> None:
    assert [(each.kind, each.words) for each in collect({"module": MODULE})] == [
        ("help", "print JSON"),
        ("help", "quiet"),
        ("note", "the target has no choice {size}"),
        ("log", "%s cannot be read"),
        ("text", "{path}: (no such file / cannot be read)"),
        ("error", "the file is too large: write a smaller one"),
    ]


def test_types_paths_compared_texts_and_members_of_enums_are_no_messages() -> None:
    assert [(each.kind, each.words) for each in collect({"module": LABELS})] == [("text", "no such row")]


def test_each_sentence_of_a_table_of_rules_is_a_message() -> None:
    assert [(each.kind, each.words) for each in collect({"module": TABLE})] == [
        ("rule", "a line must be an object"),
        ("rule", "a pigeon may not be late; some services wait"),
    ]


PARTS = """

MOST_NAMES = 64
ADVICE = "send fewer of them"

def run(size, when, path):
    what = f"more than {MOST_NAMES} names" if size else f"a name of {size} bytes"
    hint = "; it is private" if path else ""
    loose = "it is used alone too"
    other(loose)
    changed = "one of two texts"
    for changed in size:
        fail(f"{changed} cannot be known")
    raise ValueError(f"{path} has {what}: {ADVICE}{hint}" + f" at {when(size)}")
    fail(f"{loose} and in another")
"""


def test_parts_of_a_message_that_are_texts_are_written_into_it() -> None:
    whole = "{path} has (more than 64 names / a name of {size} bytes): send fewer of them[; it is private] at {when}"
    assert [(each.kind, each.words) for each in collect({"module": PARTS})] == [
        ("text", "send fewer of them"),
        ("text", "it is used alone too"),
        ("text", "one of two texts"),
        ("text", "{changed} cannot be known"),
        ("error", whole),
        ("text", "it is used alone too and in another"),
    ]


def test_a_message_stands_once_a_module_and_cells_are_escaped() -> None:
    twice = 'fail("no file | two _three_")\nfail("no file | two _three_")\n'
    page = render(collect({"a.b": twice, "c": twice}))
    assert page.count("| text | no file \\| two \\_three\\_ |") == 2
    assert [line for line in page.splitlines() if line.startswith("## ")] == ["## a.b", "## c"]


def test_every_module_of_the_package_is_read() -> None:
    found = collect(sources())
    assert {"error", "note", "rule", "log", "help", "text"} == {message.kind for message in found}
    assert len({message.module for message in found}) > 100


def test_the_check_fails_where_the_page_is_not_current(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(messages, "PAGE", tmp_path / "messages.md")
    monkeypatch.setattr(messages, "sources", lambda: {"module": MODULE})
    assert main(["--check"]) == 1
    assert main([]) == 0
    assert main(["--check"]) == 0
    (tmp_path / "messages.md").write_text("another page")
    assert main(["--check"]) == 1
