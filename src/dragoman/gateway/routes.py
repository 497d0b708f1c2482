"""Which upstream answers for a model, and under which name. Pure.

In this order: a route with exactly this name; the first route whose pattern fits; UPSTREAM/MODEL; an upstream that
lists the name; the first upstream with a pattern that fits; the default route; a lone upstream that lists nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches

from msgspec import Struct

from dragoman.errors import MalformedRequest, UnknownModel
from dragoman.gateway.upstreams import Upstream

_LONGEST = 200  # characters of a client's text that an error repeats
_REMEMBERED = 256  # models whose targets are known


class Target(Struct, frozen=True):
    """Whom to ask, and for which model."""

    upstream: Upstream
    model: str


class Aim(Struct, frozen=True):
    """A target as written: without a model it is the one that was asked for."""

    upstream: str
    model: str = ""

    @classmethod
    def parse(cls, text: str) -> Aim:
        """`UPSTREAM` or `UPSTREAM/MODEL`."""
        upstream, _, model = text.partition("/")
        return cls(upstream, model)


class Rule(Struct, frozen=True):
    """Patterns (`*` is any text, `?` any character, nothing else is special) and where they lead, best first."""

    patterns: tuple[str, ...]
    aims: tuple[Aim, ...]


class Routes:
    """All the ways to a target."""

    def __init__(self, upstreams: Mapping[str, Upstream], rules: Sequence[Rule], default: Rule | None) -> None:
        self._upstreams = upstreams
        self._default = default
        own = [Rule(upstream.models, (Aim(name),)) for name, upstream in upstreams.items()]
        self._stages = (_Stage(rules), _Stage(own))
        lone = len(upstreams) == 1 and not rules and not any(rule.patterns for rule in own)
        self._lone = own[0] if lone else None
        self._found: dict[str, Sequence[Target]] = {}

    def resolve(self, model: str) -> Sequence[Target]:
        """The targets for a model, first choice first. Raises UnknownModel, with near names."""
        found = self._found.get(model)
        if found is None:
            found = self._targets(model)
            if len(model) <= _LONGEST:  # clients name any model they like
                if len(self._found) >= _REMEMBERED:
                    self._found.clear()
                self._found[model] = found
        return found

    def _targets(self, model: str) -> Sequence[Target]:
        routed, own = self._stages
        rule = routed.find(model) or self._direct(model) or own.find(model) or self._default or self._lone
        if not model.strip() and (rule is None or not all(aim.model for aim in rule.aims)):
            raise MalformedRequest("the request names no model, and its route has none of its own", at="model")
        if rule is None:
            raise UnknownModel(self._unknown(model))
        asked = model.partition("/")[2] if rule.patterns == _DIRECT else model
        targets = (Target(self._upstreams[aim.upstream], aim.model or asked) for aim in rule.aims)
        return tuple({(target.upstream.name, target.model): target for target in targets}.values())

    def names(self) -> list[str]:
        """The models that are known by name, to be listed."""
        return list(dict.fromkeys(name for stage in self._stages for name in stage.exact))

    def patterns(self) -> list[tuple[str, str]]:
        """The patterns there are, in their order, and the upstream each leads to first."""
        return list({pattern: rule.aims[0].upstream for stage in self._stages for pattern, rule in stage.globs}.items())

    @property
    def default(self) -> Aim | None:
        """Where every other name goes."""
        rule = self._default or self._lone
        return rule.aims[0] if rule else None

    def _direct(self, model: str) -> Rule | None:
        upstream, found, rest = model.partition("/")
        return Rule(_DIRECT, (Aim(upstream),)) if found and rest and upstream in self._upstreams else None

    def _unknown(self, model: str) -> str:
        shown = model if len(model) <= _LONGEST else f"{model[:_LONGEST]}…"
        near = get_close_matches(model[:_LONGEST], list(self._hints()), 3, 0.5)
        text = f"the model {shown!r} is not configured here"
        if near:
            return f"{text}; near it: {', '.join(near)}"
        known = self.names()[:10]
        return f"{text}; known: {', '.join(known)}" if known else f"{text}; no model is known by name"

    def _hints(self) -> Iterator[str]:
        for stage in self._stages:
            yield from stage.exact
            yield from (pattern for pattern, _ in stage.globs if pattern != "*")


_DIRECT = ("/",)  # no pattern: the mark of UPSTREAM/MODEL


class _Stage:
    """Rules of one rank: exact names first, then patterns in their order."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.exact: dict[str, Rule] = {}
        self.globs: list[tuple[str, Rule]] = []
        self._compiled: list[tuple[re.Pattern[str], Rule]] = []
        for rule in rules:
            for pattern in rule.patterns:
                if "*" in pattern or "?" in pattern:
                    self.globs.append((pattern, rule))
                    self._compiled.append((_compiled(pattern), rule))
                else:
                    self.exact.setdefault(pattern, rule)

    def find(self, model: str) -> Rule | None:
        exact = self.exact.get(model)
        if exact is not None:
            return exact
        return next((rule for pattern, rule in self._compiled if pattern.fullmatch(model)), None)


def fits(pattern: str, name: str) -> bool:
    """Whether a name or pattern, as the configuration writes it, means this model."""
    return pattern == name or _compiled(pattern).fullmatch(name) is not None


def _compiled(pattern: str) -> re.Pattern[str]:
    """The pattern as an expression. Brackets stay plain, since clients append [1m] to names of models; groups are
    atomic, since a client chooses the name, and no name may take long to be refused.
    """
    first, *rest = [_literal(part) for part in re.split(r"\*+", pattern)]
    if not rest:
        return re.compile(first, re.DOTALL)
    *middle, last = rest
    return re.compile(first + "".join(f"(?>.*?{part})" for part in middle) + f".*{last}", re.DOTALL)


def _literal(text: str) -> str:
    return "".join("." if char == "?" else re.escape(char) for char in text)
