"""The models that can be asked for by name, and their list in the format of each dialect. Pure."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, TypeAlias

from msgspec import Struct, structs

import dragoman.dialects as registry
from dragoman.dialects.base import Dialect, ListedModel, ModelListing
from dragoman.errors import UnknownModel
from dragoman.gateway.config import Config, ModelTable
from dragoman.gateway.targets import LONGEST_QUOTED, NameList, Target
from dragoman.model.patterns import matches_pattern
from dragoman.wire import jsonio
from dragoman.wire.jsonio import Json

MAX_ENTRIES = 2000
ASSUMED_WINDOW = 200_000  # tokens, of a model whose window is not known; clients would assume more
_SINCE = int(time.time())  # Clients expect a creation date; the real one is unknown.
_NO_FIELDS: Mapping[str, Json] = {}


ModelSource: TypeAlias = Literal["route", "models", "target", "default_model", "small_model", "list", "dialect"]
FetchedLists: TypeAlias = Mapping[str, Sequence[ListedModel]]  # the upstreams' own lists, as far as they are known
_NOT_FETCHED: FetchedLists = {}


class ModelEntry(Struct, frozen=True):
    """A model that can be asked for by name, its upstream, and its limits as far as they are known.

    `source`: a route or the `models` of an upstream have this name; a route or [default] sends other names to it; it is
    the default or small model of its upstream; the upstream lists it; or its dialect knows it.
    """

    name: str
    upstream: str
    dialect: str
    model: str  # as the upstream calls it
    window: int | None = None
    max_output_tokens: int | None = None
    source: ModelSource = "list"
    title: str = ""  # shown to people; empty: the name


def known_models(config: Config, fetched: FetchedLists = _NOT_FETCHED) -> list[ModelEntry]:
    """Return all models that can be asked for by name: those of the configuration, and those that upstreams list.

    A name that leads to another upstream, or to another model, is listed as UPSTREAM/MODEL.
    """
    catalogue = _ModelIndex(config, fetched)
    routes = config.routes
    for name in routes.names():
        catalogue.add(name, "route" if routes.is_route(name) else "models")
    for target in routes.configured_targets():
        catalogue.add_at(target.upstream, target.model, "target")
    for upstream in config.upstreams.values():
        catalogue.add_at(upstream.name, upstream.default_model, "default_model")
        catalogue.add_at(upstream.name, upstream.small_model, "small_model")
    for upstream in config.upstreams.values():
        for model in fetched.get(upstream.name, ()):
            catalogue.add_at(upstream.name, model.name, "list")
        if upstream.name not in fetched:
            for known in upstream.dialect.models:
                catalogue.add_at(upstream.name, known, "dialect")
    return list(catalogue.entries.values())


class _ModelIndex:
    """Collects the entries of all models that can be asked for, each name once."""

    def __init__(self, config: Config, fetched: FetchedLists) -> None:
        self.entries: dict[str, ModelEntry] = {}
        self._config = config
        self._figures = {name: {model.name: model for model in models} for name, models in fetched.items()}
        self._lists = {name: NameList(model.name for model in models) for name, models in fetched.items()}

    def add(self, name: str, source: ModelSource) -> None:
        """Add a name, wherever it leads."""
        if name not in self.entries and len(self.entries) < MAX_ENTRIES:
            self.entries[name] = self._entry(name, self.resolve(name), source)

    def add_at(self, upstream: str, model: str, source: ModelSource) -> None:
        """Add a model of an upstream, under a name that leads to it; none for an empty name."""
        for name in (model, f"{upstream}/{model}") if model else ():
            if name in self.entries and self._leads(self.entries[name], upstream, model):
                return
            if name not in self.entries and len(self.entries) < MAX_ENTRIES:
                target = self._target(name)
                if target is not None and (target.upstream.name, target.model) == (upstream, model):
                    self.entries[name] = self._entry(name, target, source)
                    return

    def _leads(self, entry: ModelEntry, upstream: str, model: str) -> bool:
        return (entry.upstream, entry.model) == (upstream, model)

    def resolve(self, name: str) -> Target:
        """Return the first target of a name. Raises UnknownModel."""
        return self._config.routes.resolve(name, self._lists)[0]

    def _target(self, name: str) -> Target | None:
        try:
            return self.resolve(name)
        except UnknownModel:
            return None

    def _entry(self, name: str, target: Target, source: ModelSource) -> ModelEntry:
        dialect = target.upstream.dialect
        known = dialect.codec.capabilities(target.model)
        listed = self._figures.get(target.upstream.name, {}).get(target.model, ListedModel(""))
        configured = limits_of_model(self._config, name) or limits_of_model(self._config, target.model) or ModelTable()
        return ModelEntry(
            name,
            target.upstream.name,
            dialect.name,
            target.model,
            configured.window or listed.window or known.window,
            configured.longest_answer or listed.max_output_tokens or known.max_output_tokens,
            source,
        )


def limits_of_model(config: Config, name: str) -> ModelTable | None:
    """Return the limits in the configuration: under the model's name, else under the first pattern that matches."""
    model_limits = config.model_limits
    return model_limits.get(name) or next(
        (each for pattern, each in model_limits.items() if matches_pattern(pattern, name)), None
    )


def unlisted_model(config: Config, fetched: FetchedLists, name: str) -> ModelEntry:
    """Return the entry of a name that a pattern matches. Raises UnknownModel for one that a default model answers."""
    catalogue = _ModelIndex(config, fetched)
    catalogue.add(name, "models")
    if catalogue.resolve(name).is_default:
        raise UnknownModel(f"the model {name[:LONGEST_QUOTED]!r} is not in the list of models")
    return catalogue.entries[name]


# Claude Code lists models whose names contain one of these words.
_SHOWN_BY_CLAUDE = re.compile("claude|anthropic", re.IGNORECASE)
_CLAUDE_ALIAS = "-as-claude"


def with_claude_aliases(entries: Iterable[ModelEntry]) -> list[ModelEntry]:
    """Return the entries with names that Claude Code lists: others get an ending, and keep their name as the title."""
    return [
        entry
        if _SHOWN_BY_CLAUDE.search(entry.name)
        else structs.replace(entry, name=entry.name + _CLAUDE_ALIAS, title=entry.name)
        for entry in entries
    ]


def without_claude_alias(name: str) -> str:
    """Return the name of a model that a client may have got from `with_claude_aliases`."""
    return name.removesuffix(_CLAUDE_ALIAS)


def render_models(
    dialect: Dialect, listed: Sequence[ModelEntry], more: Mapping[str, Json] = _NO_FIELDS, since: int = _SINCE
) -> bytes:
    """Return the JSON of a list of models, with further fields of the list itself."""
    shape = _shape(dialect)
    rendered = shape.render_list([_entry(shape, model, since) for model in listed])
    return jsonio.encode({**rendered, **more} if isinstance(rendered, dict) else rendered)


def render_model(dialect: Dialect, model: ModelEntry, since: int = _SINCE) -> bytes:
    """Return the JSON of one entry."""
    return jsonio.encode(_entry(_shape(dialect), model, since))


def _shape(dialect: Dialect) -> ModelListing:
    shape = dialect.listing or registry.get("openai").listing
    assert shape is not None
    return shape


def _entry(shape: ModelListing, model: ModelEntry, since: int) -> Json:
    entry = shape.entry(ListedModel(model.name, model.window, model.max_output_tokens, since, model.title))
    return {name: value for name, value in entry.items() if value is not None}
