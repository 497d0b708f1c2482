"""Every key of a TOML text is found, on its line."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.gateway.layers import Key, line_numbers

HARD = '''# a comment = 1
plain = 1 # x = 2
"quoted = key" = "a # b = ] }"
'literal' = 'c:\\' # trailing
a.b . "c.d" = [ # why = not
  1, # two
  "x]", { inline = { deep = 'y' }, other = [ 2 ] },
  [ [], {} ],
]
text = """
fake = 1
[fake]
\\"""  quotes "" inside""""
raw = \'\'\'
[[fake]]
it''s\'\'\'
empty = ""
six = """"""
when = 1979-05-27T07:32:00Z
[table]
key = -1e5
[ table . "sub table" ]
x = true
[[items]]
n = 1
[items.inner]
m = 1
[[items]]
[[items.more]]
k = 1
[[items.more]]
k = 2
[items.inner]
m = 3
'''


def keys_of(tree: Any, at: Key = ()) -> set[Key]:
    found: set[Key] = set()
    if isinstance(tree, dict):
        inner: list[tuple[str | int, Any]] = list(tree.items())
    else:
        inner = list(enumerate(tree)) if isinstance(tree, list) else []
    for name, value in inner:
        found |= {(*at, name)} | keys_of(value, (*at, name))
    return found


@pytest.mark.parametrize("text", [HARD, HARD.replace("\n", "\r\n")], ids=["lf", "crlf"])
def test_every_key_of_a_hard_text_is_found(text: str) -> None:
    assert set(line_numbers(text)) == keys_of(tomllib.loads(text))


@pytest.mark.parametrize(
    ("key", "line"),
    [
        (("plain",), 2),
        (("quoted = key",), 3),
        (("a", "b", "c.d"), 5),
        (("a", "b", "c.d", 2, "inline", "deep"), 7),
        (("a", "b", "c.d", 3), 8),
        (("raw",), 14),
        (("table",), 20),
        (("table", "sub table", "x"), 23),
        (("items", 0), 24),
        (("items", 0, "inner", "m"), 27),
        (("items", 1), 28),
        (("items", 1, "more", 1, "k"), 32),
        (("items", 1, "inner", "m"), 34),
    ],
)
def test_a_key_is_on_its_line(key: Key, line: int) -> None:
    assert line_numbers(HARD)[key] == line


def test_the_projects_own_files_are_read() -> None:
    text = (Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8")
    assert set(line_numbers(text)) == keys_of(tomllib.loads(text))


_WORDS = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=6)
_TREES = st.dictionaries(
    _WORDS,
    st.recursive(
        _WORDS | st.integers(-9, 9) | st.booleans(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_WORDS, inner, max_size=3),
        max_leaves=10,
    ),
    max_size=4,
)


@given(_TREES)
def test_every_key_of_any_tree_is_found(tree: dict[str, Any]) -> None:
    from dragoman.gateway.show import toml

    text = "\n".join(f"# {number}\n{toml(name)} = {toml(value)}" for number, (name, value) in enumerate(tree.items()))
    assert tomllib.loads(text) == tree
    found = line_numbers(text)
    assert set(found) == keys_of(tree)
    assert [found[name,] for name in tree] == [2 * number + 2 for number in range(len(tree))]


@given(st.text(st.sampled_from("[]{}=.,#\"'\n a1\\"), max_size=40))
def test_no_text_at_all_makes_it_stumble(text: str) -> None:
    line_numbers(text)
