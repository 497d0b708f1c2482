"""The targets of a model: which upstream answers a request, and under which name. Pure.

In this order: a route with exactly this name; the first route whose pattern fits; UPSTREAM/MODEL; an upstream that
lists the name in `models`; the first upstream with a pattern that fits; an upstream whose own list has the name; the
default route; the only upstream. The last two take any name: one that the upstream does not know is replaced by the
upstream's default model, or by its small model if the name means a small one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import TypeAlias

from msgspec import Struct

from dragoman.errors import MalformedRequest, UnknownModel
from dragoman.gateway.model_names import first_chat_model, is_small, spelling_key
from dragoman.gateway.upstream_config import Upstream
from dragoman.model.patterns import compiled_pattern, is_pattern, matches_pattern

LONGEST_QUOTED = 200  # characters of a client's text that an error quotes
_MAX_SHOWN = 10  # names and patterns in an error
_LONG_CONTEXT = "[1m]"  # Claude Code appends it to a name to say that the window is that long; services do not know it


class Target(Struct, frozen=True):
    """An upstream, and the name of the model there.

    `is_default`: nothing names the requested model, and this one answers in its place.
    """

    upstream: Upstream
    model: str
    is_default: bool = False


class RouteTarget(Struct, frozen=True):
    """A target as configured; without a model, the name in the request is used."""

    upstream: str
    model: str = ""

    @classmethod
    def parse(cls, text: str) -> RouteTarget:
        """Parse `UPSTREAM` or `UPSTREAM/MODEL`."""
        upstream, _, model = text.partition("/")
        return cls(upstream, model)


class RouteRule(Struct, frozen=True):
    """Patterns (`*` is any text, `?` any character, nothing else is special) and their targets, first choice first."""

    patterns: tuple[str, ...]
    targets: tuple[RouteTarget, ...]


class NameList:
    """The models that an upstream itself lists, in its order."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = tuple(dict.fromkeys(names))
        self._by_key = {spelling_key(name): name for name in reversed(self.names)}
        self._exact = frozenset(self.names)

    def find(self, name: str) -> str:
        """Return the listed name of a model, which may be spelled otherwise or have a date; empty if it is unknown."""
        return name if name in self._exact else self._by_key.get(spelling_key(name), "")


OwnLists: TypeAlias = Mapping[str, NameList]  # the lists that are known, by the names of the upstreams
_NO_LISTS: OwnLists = {}


class Routes:
    """Finds the targets of a model, by the routes of the configuration and the lists of the upstreams."""

    def __init__(
        self, upstreams: Mapping[str, Upstream], rules: Sequence[RouteRule], default: RouteRule | None
    ) -> None:
        self._upstreams = upstreams
        self._rules, self._default = rules, default
        own = [RouteRule(upstream.models, (RouteTarget(name),)) for name, upstream in upstreams.items()]
        self._stages = (_Stage(rules), _Stage(own))
        self._only_upstream = RouteRule((), own[0].targets) if len(upstreams) == 1 else None

    def resolve(self, model: str, lists: OwnLists = _NO_LISTS) -> Sequence[Target]:
        """Return the targets of a model, first choice first. Raises UnknownModel, with similar names."""
        if model.endswith(_LONG_CONTEXT) and model not in self.names():
            model = model.removesuffix(_LONG_CONTEXT)
        rule, name = self._routed(model)
        if rule is not None:
            chosen = [Target(self._upstreams[each.upstream], each.model or name) for each in rule.targets]
        elif (own := self._own(model, lists)) is not None:
            chosen = [own]
        elif (last := self._default or self._only_upstream) is not None:
            chosen = [_any_name(self._upstreams[each.upstream], model, each.model, lists) for each in last.targets]
        else:
            chosen = []
        if not model.strip() and not (chosen and all(target.model.strip() for target in chosen)):
            message = "the request names no model and its route sets none. Add `model` to the request or to the route."
            raise MalformedRequest(message, at="model")
        if not chosen:
            raise UnknownModel(self._unknown(model))
        return tuple({(target.upstream.name, target.model): target for target in chosen}.values())

    def _routed(self, model: str) -> tuple[RouteRule | None, str]:
        """Return the route of a model, and the name of the model there if the route sets none."""
        routed, _ = self._stages
        if (rule := routed.find(model)) is not None:
            return rule, model
        upstream, slash, rest = model.partition("/")
        is_direct = slash and rest and upstream in self._upstreams
        return (RouteRule((), (RouteTarget(upstream),)) if is_direct else None), rest

    def _own(self, model: str, lists: OwnLists) -> Target | None:
        """Return the target at an upstream that names the model: in `models`, its own list, or as a default model."""
        fitting = [self._upstreams[rule.targets[0].upstream] for rule in self._stages[1].find_all(model)]
        for upstream in fitting:
            if not _is_refuted(upstream, model, lists.get(upstream.name)):
                return Target(upstream, model)
        for name, upstream in self._upstreams.items():
            if (known := lists.get(name)) is not None and (listed := known.find(model)):
                return Target(upstream, listed)
        for upstream in self._upstreams.values():
            if model and model in (upstream.default_model, upstream.small_model):
                return Target(upstream, model)
        return _any_name(fitting[0], model, "", lists) if fitting else None

    def lists_to_fetch(self, model: str) -> list[str]:
        """Return the upstreams whose own lists decide about this name."""
        if self._routed(model)[0] is not None:
            return []
        rule = self._stages[1].find(model)
        if rule is None:
            is_known = self._only_upstream is not None and any(each.default_model for each in self._upstreams.values())
            return [name for name, upstream in self._upstreams.items() if upstream.first_model and not is_known]
        upstream = self._upstreams[rule.targets[0].upstream]
        return [upstream.name] if _is_doubtful(upstream, model) else []

    def names(self) -> list[str]:
        """Return the models that are known by name."""
        return list(dict.fromkeys(name for stage in self._stages for name in stage.exact))

    def is_routed(self, name: str) -> bool:
        """Return whether a route or UPSTREAM/MODEL leads this name somewhere."""
        return self._routed(name)[0] is not None

    def is_route(self, name: str) -> bool:
        """Return whether a route has exactly this name."""
        return name in self._stages[0].exact

    def configured_targets(self) -> Iterator[RouteTarget]:
        """Yield the targets of the routes and of the default route that name a model."""
        rules = [*self._rules, *([self._default] if self._default else [])]
        return (target for rule in rules for target in rule.targets if target.model)

    def patterns(self) -> list[tuple[str, str]]:
        """Return the patterns in their order, each with its first upstream."""
        return list(
            {pattern: rule.targets[0].upstream for stage in self._stages for pattern, rule in stage.globs}.items()
        )

    @property
    def default(self) -> RouteTarget | None:
        """The target of all other models; without a model, if each name may get another one."""
        rule = self._default or self._only_upstream
        return rule.targets[0] if rule else None

    def _unknown(self, model: str) -> str:
        shown = model if len(model) <= LONGEST_QUOTED else f"{model[:LONGEST_QUOTED]}…"
        patterns = [*dict.fromkeys(glob for stage in self._stages for glob, _ in stage.globs if glob != "*")]
        known = self.names()
        near = get_close_matches(model[:LONGEST_QUOTED], [*known, *patterns], 3, 0.5)
        parts = [f"the model {shown!r} is not configured in this gateway"]
        parts += [f"similar names: {', '.join(near)}"] if near else []
        parts += [f"known models: {_some(known)}"] if known and not near else []
        parts += [f"patterns: {_some(patterns)}"] if patterns else []
        remedy = f"Ask for UPSTREAM/MODEL (upstreams: {_some([*self._upstreams])}), or add a route or [default] for it."
        return f"{'; '.join(parts)}. {remedy} `dragoman models` lists the names."


def _some(names: Sequence[str]) -> str:
    return ", ".join(name[:60] for name in names[:_MAX_SHOWN]) + (", …" if len(names) > _MAX_SHOWN else "")


def default_model(upstream: Upstream, name: str, known: NameList | None) -> str:
    """Return the model of an upstream that answers for a name which it does not know; empty if none is known."""
    if upstream.small_model and is_small(name):
        return upstream.small_model
    if upstream.default_model:
        return upstream.default_model
    exact = first_chat_model(each for each in upstream.models if not is_pattern(each))
    return exact or (first_chat_model(known.names) if known is not None and upstream.first_model else "")


def _is_doubtful(upstream: Upstream, name: str) -> bool:
    """Return whether a pattern is no proof: the dialect knows the models of its service, and this is none of them."""
    dialect = upstream.dialect
    if not dialect.models or name in upstream.models or name in dialect.models or "*" in upstream.models:
        return False
    return dialect.codec.capabilities(name).window is None


def _is_refuted(upstream: Upstream, name: str, known: NameList | None) -> bool:
    """Return whether the upstream's own list shows that a pattern promises too much."""
    return known is not None and _is_doubtful(upstream, name) and not known.find(name)


def served_name(upstream: Upstream, name: str, known: NameList | None) -> str:
    """Return the name of a model at an upstream that is known to serve it; else empty.

    It is known by `models`, as a default model, by the upstream's own list or, without that, by its dialect.
    """
    if any(matches_pattern(each, name) for each in upstream.models) and not _is_refuted(upstream, name, known):
        return name
    if name in (upstream.default_model, upstream.small_model):
        return name
    if known is not None:
        return known.find(name)
    return name if upstream.dialect.models and not _is_doubtful(upstream, name) else ""


def _any_name(upstream: Upstream, name: str, model: str, lists: OwnLists) -> Target:
    """Return the target of a name that nothing names: `model` if it is set, else a model of the upstream."""
    known = lists.get(upstream.name)
    if not model and (served := served_name(upstream, name, known)):
        return Target(upstream, served)
    model = model or (default_model(upstream, name, known) if name.strip() else "") or name
    return Target(upstream, model, model != name)


class _Stage:
    """Rules of one rank: exact names first, then patterns in their order."""

    def __init__(self, rules: Sequence[RouteRule]) -> None:
        self.exact: dict[str, RouteRule] = {}
        self.globs: list[tuple[str, RouteRule]] = []
        for rule in rules:
            for pattern in rule.patterns:
                if is_pattern(pattern):
                    self.globs.append((pattern, rule))
                else:
                    self.exact.setdefault(pattern, rule)

    def find(self, model: str) -> RouteRule | None:
        return next(self.find_all(model), None)

    def find_all(self, model: str) -> Iterator[RouteRule]:
        if (exact := self.exact.get(model)) is not None:
            yield exact
        yield from (rule for pattern, rule in self.globs if compiled_pattern(pattern).fullmatch(model))
