"""TellShapes: notes for a request that its reader accepted in another shape than its dialect's own."""

from __future__ import annotations

from typing import get_args

from msgspec import structs

from dragoman.model.conversation import Conversation
from dragoman.model.facts import Facts, Features
from dragoman.model.filter import Filter, MakeBack
from dragoman.model.naming import SHAPES
from dragoman.model.notes import Action, Notes

_ACTIONS: dict[str, Action] = {action: action for action in get_args(Action)}


class TellShapes(Filter):
    """Readers write no notes: they leave a list of rule, action, place and sentence, which ends here."""

    name = "tell_shapes"
    concerns: Features = frozenset({"shapes"})

    def forward(self, conversation: Conversation, notes: Notes, facts: Facts) -> tuple[Conversation, MakeBack | None]:
        extra = conversation.extra
        shapes = extra.fields.get(SHAPES) if extra is not None else None
        if extra is None or not isinstance(shapes, list):
            return conversation, None
        for shape in shapes:
            match shape:
                case [str(rule), str(action), str(at), str(detail)] if action in _ACTIONS:
                    notes.add(rule, _ACTIONS[action], at, detail)
        fields = {name: value for name, value in extra.fields.items() if name != SHAPES}
        kept = structs.replace(extra, fields=fields, spelling=extra.spelling - {SHAPES}) if fields else None
        return structs.replace(conversation, extra=kept), None
