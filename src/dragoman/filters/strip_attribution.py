"""StripAttribution: Claude Code's accounting line is not sent to services that do not read it.

Claude Code begins its system prompt with a block like `x-anthropic-billing-header: cc_version=…; cc_entrypoint=cli;`.
It differs between conversations and subagents (older versions: between requests), so a service that reads it as
prompt text can reuse nothing behind it from its prompt cache. Some other clients write it as the first line of a longer
first block: then only the line goes.
"""

from __future__ import annotations

from msgspec import structs

from dragoman.model.blocks import Text
from dragoman.model.conversation import Conversation
from dragoman.model.facts import Facts, Features
from dragoman.model.filter import Filter, MakeBack
from dragoman.model.notes import Notes

PREFIX = "x-anthropic-billing-header:"  # Claude Code itself recognises the block by exactly this


class StripAttribution(Filter):
    name = "strip_attribution"
    concerns: Features = frozenset({"system"})
    only_asks = True  # no answer differs by it, so frames of the same dialect still pass

    def forward(self, conversation: Conversation, notes: Notes, facts: Facts) -> tuple[Conversation, MakeBack | None]:
        system = conversation.system
        if not system or not system[0].text.startswith(PREFIX):
            return conversation, None
        at = system[0].at.path
        while system and system[0].text.startswith(PREFIX):
            system = _without_line(system)
        notes.changed("system.attribution", at, "Claude Code's accounting line is not for this target")
        return structs.replace(conversation, system=system), None


def _without_line(system: tuple[Text, ...]) -> tuple[Text, ...]:
    """The system text without the first line of its first block, and without the block if nothing else is in it."""
    first, *others = system
    rest = first.text.partition("\n")[2]
    return (structs.replace(first, text=rest), *others) if rest.strip() else tuple(others)
