"""Choose the models that `dragoman run` sets for a client: of its own family if an upstream serves one. Pure.

The client's own names are kept if they are served. Otherwise the model is, in this order: the default model of an
upstream if it is of the client's family; a listed model of the family; the default model of an upstream. `auto`, which
lets the service choose, is never chosen: clients need a model whose window they know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from msgspec import Struct

from dragoman.errors import UnknownModel
from dragoman.gateway.config import Config
from dragoman.gateway.model_entries import ModelEntry, known_models, unlisted_model
from dragoman.gateway.model_names import first_chat_model, is_small, words_of
from dragoman.gateway.targets import NameList, default_model, served_name
from dragoman.gateway.upstream_config import Upstream
from dragoman.wire.jsonio import Json

_CHOSEN_BY_SERVICE = "auto"


class ModelChoice(Struct, frozen=True):
    """The names to request; empty if no upstream is known to have a model.

    `window` is for a client that does not know these models: the smallest of their context windows.
    """

    model: str = ""
    small_model: str = ""
    window: int | None = None


class KnownModels:
    """The models of a configuration, with the upstreams' own lists as far as they are known."""

    def __init__(self, config: Config, entries: Sequence[ModelEntry] = ()) -> None:
        self.config = config
        self.entries = list(entries) or known_models(config)
        listed: dict[str, list[str]] = {}
        for entry in self.entries:
            if entry.source == "list":
                listed.setdefault(entry.upstream, []).append(entry.model)
        self.lists: Mapping[str, NameList] = {name: NameList(models) for name, models in listed.items()}

    @classmethod
    def from_document(cls, config: Config, document: Json) -> KnownModels:
        """Read the models from the document of a gateway's admin interface."""
        rows = document.get("models") if isinstance(document, dict) else None
        return cls(config, [entry for row in (rows if isinstance(rows, list) else ()) for entry in _entries(row)])

    def is_named(self, name: str) -> bool:
        """Return whether a route, a pattern or a list has this name."""
        routes, upstreams = self.config.routes, self.config.upstreams.values()
        named = (served_name(each, name, self.lists.get(each.name)) for each in upstreams)
        return self.is_served(name) and (routes.is_routed(name) or any(named))

    def is_served(self, name: str) -> bool:
        """Return whether an upstream serves this name itself; also if nothing is known about its models."""
        try:
            target = self.config.routes.resolve(name, self.lists)[0]
        except UnknownModel:
            return False
        upstream, known = target.upstream, self.lists.get(target.upstream.name)
        if target.is_default:
            return False
        if known is not None:
            return bool(served_name(upstream, target.model, known))
        dialect = upstream.dialect
        is_known = target.model in dialect.models or bool(dialect.codec.capabilities(target.model).window)
        return is_known or not dialect.models

    def choose(self, family: str, usable: Callable[[Upstream], bool]) -> ModelChoice:
        """Return the models for a client of this family, from upstreams that are usable."""
        upstreams = [each for each in self._by_preference() if usable(each)]
        for upstream, model in (*self._of_family(family, upstreams), *self._defaults(upstreams)):
            small = upstream.small_model
            if small and family and family in words_of(model) and family not in words_of(small):
                small = ""
            return ModelChoice(self._name(upstream, model), self._name(upstream, small) if small else "")
        return ModelChoice()

    def needs_lists(self, family: str, usable: Callable[[Upstream], bool]) -> bool:
        """Return whether the choice may depend on lists that are not known."""
        upstreams = [each for each in self._by_preference() if usable(each)]
        if next(self._of_family(family, upstreams), None) is not None:
            return False
        return any(_may_list(each, family) for each in upstreams if each.name not in self.lists)

    def window_of(self, name: str) -> int | None:
        """Return the context window of a model that can be asked for by this name, if it is known."""
        found = next((entry for entry in self.entries if entry.name == name), None)
        if found is None:
            with suppress(UnknownModel):
                found = unlisted_model(self.config, {}, name)
        return found.window if found is not None else None

    def _by_preference(self) -> Sequence[Upstream]:
        default, upstreams = self.config.routes.default, self.config.upstreams
        first = [upstreams[default.upstream]] if default is not None else []
        return [*first, *(each for each in upstreams.values() if each not in first)]

    def _of_family(self, family: str, upstreams: Sequence[Upstream]) -> Iterator[tuple[Upstream, str]]:
        for upstream in upstreams:
            if family and family in words_of(upstream.default_model):
                yield upstream, upstream.default_model
        for upstream in upstreams:
            names = [entry.model for entry in self.entries if entry.upstream == upstream.name]
            of_family = [name for name in names if family and family in words_of(name)]
            large = first_chat_model(name for name in of_family if not is_small(name))
            if model := large or first_chat_model(of_family):
                yield upstream, model

    def _defaults(self, upstreams: Iterable[Upstream]) -> Iterator[tuple[Upstream, str]]:
        default = self.config.routes.default
        for upstream in upstreams:
            named = default.model if default is not None and default.upstream == upstream.name else ""
            model = named or default_model(upstream, "", self.lists.get(upstream.name)) or self._first_listed(upstream)
            if model:
                yield upstream, model

    def _first_listed(self, upstream: Upstream) -> str:
        names = (entry.model for entry in self.entries if entry.upstream == upstream.name)
        return first_chat_model(name for name in names if name != _CHOSEN_BY_SERVICE)

    def _name(self, upstream: Upstream, model: str) -> str:
        """Return a name by which a client gets this model of this upstream."""
        wanted = (upstream.name, model)
        names = [entry.name for entry in self.entries if (entry.upstream, entry.model) == wanted]
        return model if model in names else names[0] if names else f"{upstream.name}/{model}"


def _may_list(upstream: Upstream, family: str) -> bool:
    """Return whether an upstream's own list may have a model of the family, or its only models."""
    if upstream.dialect.model_list is None:
        return False
    if not upstream.default_model and not upstream.models:
        return True
    patterns = [words_of(pattern) for pattern in upstream.models]
    return bool(family) and (not patterns or any(not words or family in words for words in patterns))


def _entries(row: Json) -> Iterator[ModelEntry]:
    if isinstance(row, dict):
        texts = {key: row.get(key) for key in ("id", "upstream", "dialect", "model", "source")}
        name, upstream, dialect, model, source = map(str, texts.values())
        window, longest = row.get("window"), row.get("longest_answer")
        yield ModelEntry(
            name,
            upstream,
            dialect,
            model,
            window if isinstance(window, int) else None,
            longest if isinstance(longest, int) else None,
            "list" if source == "list" else "models",
        )
