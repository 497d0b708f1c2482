"""What refusals are made of: profiles, limits, and the words of a refusal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

from msgspec import Struct

from dragoman.dialects.kiro import rules
from dragoman.dialects.kiro.rules import Grade

Profile: TypeAlias = Literal["official", "observed", "paranoid"]

PROFILES: Mapping[Profile, frozenset[Grade]] = {
    "official": frozenset({"A"}),
    "observed": frozenset({"A", "B"}),
    "paranoid": frozenset({"A", "B", "C", "D"}),
}

IMPROPER = "Improperly formed request."


class Answer(Struct, frozen=True):
    """How the service says no. `whole` replaces the usual `{message, reason}` body."""

    message: str = IMPROPER
    reason: str | None = None
    status: int = 400
    type: str = "ValidationException"
    whole: bytes = b""


class Finding(Struct, frozen=True):
    """One place where a rule is broken. An empty grade, or no answer, means the rule's own."""

    at: str
    detail: str
    grade: Grade | Literal[""] = ""
    answer: Answer | None = None


class Refusal(Struct, frozen=True):
    """A broken rule (0: the plain shape of the request) and what the service answers to it."""

    rule: int
    title: str
    grade: Grade
    at: str
    detail: str
    answer: Answer

    def __str__(self) -> str:
        return f"rule {self.rule} ({self.title}) at {self.at or 'the body'}: {self.detail}"


class Limits(rules.Limits, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The thresholds, as the facts give them. What the facts leave open is a setting with a guess as its default."""

    body_bytes: int = 32 * 1024 * 1024  # rule 44; no figure is known
    payload_tokens: int = 320_000  # rule 43: 1.25 MB of ASCII passed, 1.3 MB did not
    window: int | None = None  # rule 42; None: the model's own
    tool_bytes: int = 2_000_000  # rule 45
    many_images: int = 20  # above this number in one request …
    image_edge: int = 2000  # … no edge may be longer, in pixels
    versionless_history: int = 198
    profile_required: bool = False  # rule 49: the runtime.kiro.dev host needs a profileArn
    profile_arns: tuple[str, ...] = ()  # rule 49: those the token may use; none: any
    signatures: Literal["own", "strict"] = "own"  # rule 40: check those we made; strict: refuse all others
