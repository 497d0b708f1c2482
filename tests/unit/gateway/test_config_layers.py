"""Layers: what is merged, what is replaced."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dragoman.gateway.layers import flat, from_environment, nested, stacked
from dragoman.gateway.problems import DEFAULT

_NAMES = st.sampled_from("abc")
_SETTINGS = st.dictionaries(
    _NAMES,
    st.recursive(
        st.integers(0, 3) | st.lists(st.integers(0, 3), max_size=2),
        lambda inner: st.dictionaries(_NAMES, inner, max_size=3) | st.lists(st.dictionaries(_NAMES, inner, max_size=2)),
        max_leaves=8,
    ),
    max_size=3,
)


def merged(low: Any, high: Any) -> Any:
    """What is meant: tables mingle, everything else is replaced."""
    if not isinstance(low, dict) or not isinstance(high, dict):
        return high
    return {**low, **{name: merged(low[name], value) if name in low else value for name, value in high.items()}}


def _flat(tree: dict[str, Any]) -> Any:
    return flat(tree, lambda _: DEFAULT)


@given(_SETTINGS)
def test_a_flat_tree_becomes_the_tree_again(tree: dict[str, Any]) -> None:
    assert nested(_flat(tree)) == tree


@given(_SETTINGS, _SETTINGS)
def test_tables_mingle_and_everything_else_is_replaced(low: dict[str, Any], high: dict[str, Any]) -> None:
    assert nested(stacked(_flat(low), _flat(high))) == merged(low, high)


@given(_SETTINGS, _SETTINGS, _SETTINGS)
def test_it_does_not_matter_which_two_layers_are_stacked_first(a: Any, b: Any, c: Any) -> None:
    one, two, three = map(_flat, (a, b, c))
    assert nested(stacked(one, two, three)) == merged(merged(a, b), c)


def test_variables_find_names_with_hyphens_dots_and_capitals() -> None:
    below = _flat({"upstreams": {"My-Box.1": {"key": "x"}}})
    found, _ = from_environment({"DRAGOMAN_UPSTREAMS__MY_BOX_1__KEY": "y"}, below, ["upstreams"])
    assert list(found) == [("upstreams", "My-Box.1", "key")]


def test_two_variables_that_contradict_each_other_are_no_crash() -> None:
    found, _ = from_environment({"DRAGOMAN_SERVER": "x", "DRAGOMAN_SERVER__PORT": "1"}, {}, ["server"])
    assert nested(found) == {"server": {"port": "1"}}
