"""Fields that a dialect does not know: kept for its own family, and written back by it.

One rule of precedence: a kept field wins over what the writer has under its name, and objects are merged, since a known
one may hold unknown fields. What a filter changes on the way it takes out of the kept fields, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dragoman.errors import DragomanError, Unrepresentable
from dragoman.model.blocks import Block, Extra, Media, Opaque, Where
from dragoman.model.capabilities import Capabilities
from dragoman.model.conversation import Conversation, of_the_node, to_keep
from dragoman.wire.fields import Fields
from dragoman.wire.jsonio import Json

_NONE: Mapping[str, Json] = {}


class Kept:
    """The kept fields of one family.

    `is_spelling` tells of a field and its value whether they only say how something was written: nothing is lost
    where another dialect has no such field.
    """

    def __init__(self, family: str, is_spelling: Callable[[str, Json], bool] | None = None) -> None:
        self._family = family
        self._is_spelling = is_spelling

    def extra_of(self, fields: dict[str, Json], spelling: frozenset[str] = frozenset()) -> Extra | None:
        """Return the fields to keep, by the names they are kept under; those in `spelling` are spellings here."""
        if not fields:
            return None
        if self._is_spelling is None:
            return Extra(self._family, fields, spelling & fields.keys() if spelling else spelling)
        said = [name for name, value in fields.items() if name in spelling or self._is_spelling(name, value)]
        return Extra(self._family, fields, frozenset(said))

    def extra(self, fields: Fields) -> Extra | None:
        """Return all fields of a node that were not taken."""
        rest = fields.rest()
        return self.extra_of(to_keep(rest)) if rest else None

    def own_fields(self, extra: Extra | None) -> Mapping[str, Json]:
        """Return the fields kept for this family; those that begin with `~` are never written."""
        return extra.fields if extra is not None and extra.family == self._family else _NONE

    def wire_fields(self, extra: Extra | None) -> dict[str, Json]:
        """Return those that stand on the node itself, by their names on the wire; the result may be changed."""
        return of_the_node(extra.fields) if extra is not None and extra.family == self._family else {}

    def with_extra(self, body: dict[str, Json], extra: Extra | None) -> dict[str, Json]:
        """Write the kept fields of a node back into its body, which is changed."""
        if extra is None or extra.family != self._family:
            return body
        return merged(body, of_the_node(extra.fields))

    def opaque(self, fields: Fields, kind: str) -> Opaque:
        """Return the whole object, of which nothing was taken yet."""
        return Opaque(self._family, fields.rest(), kind, at=Where(fields.at))

    def own_data(self, block: Opaque, blame: type[DragomanError]) -> dict[str, Json]:
        """Return a copy of an opaque block's object. Raises `blame` for one of another family."""
        if block.family != self._family or not isinstance(block.data, dict):
            raise blame(f"{block.kind or 'a block'} of {block.family} has no place here", at=block.at.path)
        return {**block.data}


def merged(body: dict[str, Json], kept: Mapping[str, Json]) -> dict[str, Json]:
    """Put kept fields into a body, which is changed: they win, and objects are merged."""
    for name, value in kept.items():
        known = body.get(name)
        body[name] = merged({**known}, value) if isinstance(known, dict) and isinstance(value, dict) else value
    return body


def cannot(block: Block, message: str) -> Unrepresentable:
    """Return the error for a block that a dialect has no place for."""
    return Unrepresentable(message, at=block.at.path)


def describe(block: Block) -> str:
    """Name a block in a message."""
    match block:
        case Media():
            return f"{block.kind} as {block.how}"
        case Opaque():
            return f"{block.family} {block.kind or 'content'}"
        case _:
            return type(block).__name__


def refuse_unfit(conversation: Conversation, target: Capabilities) -> None:
    """Raise Unrepresentable for a wish that a dialect of these capabilities has no place for. Filters leave none."""
    output, thinking = conversation.output, conversation.thinking
    wishes = {
        "n": conversation.choices == 1 or "choices" in target.traits,
        "previous_response_id": conversation.previous is None,
        "tool_choice": conversation.tool_choice.mode in target.choice_modes and not conversation.tool_choice.names,
        "parallel_tool_calls": conversation.tool_choice.parallel is None or "parallel_flag" in target.traits,
        "user": not conversation.user or "user" in target.traits,
        "knobs": target.knobs >= conversation.knobs.keys(),
        "output": output.kind in target.output and (not output.name or "output_names" in target.traits),
        "thinking": thinking.mode in target.thinking and (thinking.budget is None or "budgets" in target.traits),
    }
    for name, has_place in wishes.items():
        if not has_place:
            raise Unrepresentable(f"there is no place for this {name} here", at=name)
