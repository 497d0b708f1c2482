"""The laws of the filters that give a request its shape: each alone, and all of them in the order of translate.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hypothesis import given, note

from dragoman.filters.calls import RenameTools
from dragoman.filters.results import PairTools, PlainResults
from dragoman.filters.turns import AlternateTurns, FillEmpty, FoldSystem
from dragoman.model.capabilities import Capabilities
from dragoman.model.conversation import Conversation, canonical
from dragoman.model.filter import Facts, Filter, Note, Notes
from tests import strategies

Fitting = Callable[[Capabilities], Sequence[Filter]]

# In the order of translate.py; FoldSystem and FillEmpty stand there only for the targets that need them.
ALL: Fitting = lambda target: [  # noqa: E731
    PairTools(),
    PlainResults(target),
    RenameTools(target),
    *([] if target.system == "native" else [FoldSystem(target)]),
    *([FillEmpty()] if "no_blank_text" in target.traits else []),
    AlternateTurns(target),
]
EACH: dict[str, Fitting] = {
    "pair_tools": lambda _: [PairTools()],
    "plain_results": lambda target: [PlainResults(target)],
    "rename_tools": lambda target: [RenameTools(target)],
    "fold_system": lambda target: [FoldSystem(target)],
    "fill_empty": lambda _: [FillEmpty()],
    "alternate_turns": lambda target: [AlternateTurns(target)],
    "all": ALL,
}
UNTOUCHED = ("model", "output", "thinking", "max_tokens", "stop", "knobs", "choices", "stream", "user", "extra")


def fit(filters: Sequence[Filter], conversation: Conversation) -> tuple[Conversation, list[Note]]:
    notes = Notes()
    for each in filters:
        conversation, _ = each.forward(conversation, notes, Facts())
    return conversation, list(notes)


# One conversation is tried on every filter and law: to make one up takes longer than all of them together.


@given(target=strategies.shapes, asked=strategies.conversations())
def test_fitting_settles_is_noted_and_changes_the_shape_alone(target: Capabilities, asked: Conversation) -> None:
    for name, fitting in EACH.items():
        note(name)
        fitted, notes = fit(fitting(target), asked)
        assert bool(notes) == (fitted != asked)  # there is a note exactly if there is a change
        assert fitted is asked or notes
        assert canonical(fitted) == fitted
        for field in UNTOUCHED:
            assert getattr(fitted, field) == getattr(asked, field)
        again, more = fit(fitting(target), fitted)
        assert more == []
        assert again is fitted


@given(target=strategies.shapes, pair=strategies.conversations_that_go_on())
def test_what_is_appended_leaves_the_prefix_as_it_was(
    target: Capabilities, pair: tuple[Conversation, Conversation]
) -> None:
    for name, fitting in EACH.items():
        note(name)
        earlier, later = (fit(fitting(target), each)[0] for each in pair)
        assert later.messages[: len(earlier.messages)] == earlier.messages
        assert later.system == earlier.system
