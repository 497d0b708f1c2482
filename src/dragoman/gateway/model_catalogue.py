"""The catalogue of models of a running gateway: it finds the targets of a model, and lists all models.

Both follow the configuration and the upstreams' own lists (`model_lists`). Targets are cached: the routing of a name
that was seen before is one look-up. The first time that a default model answers for a name, a warning is logged.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dragoman.gateway.access_log import AccessLog
from dragoman.gateway.backend import Backend
from dragoman.gateway.config import Config
from dragoman.gateway.model_entries import (
    FetchedLists,
    ModelEntry,
    known_models,
    unlisted_model,
    without_claude_alias,
)
from dragoman.gateway.model_lists import ModelLists
from dragoman.gateway.targets import LONGEST_QUOTED, Target
from dragoman.gateway.upstream_config import Upstream
from dragoman.wire.jsonio import Json

_REMEMBERED = 256  # names whose targets are cached
_MAX_WARNINGS = 256  # names; clients may send any
_REQUEST_WAIT = 2.0  # seconds that a request waits for the first list of an upstream
LIST_WAIT = 2.0  # seconds that a list waits for the lists of upstreams; Claude Code waits for three


class ModelCatalogue:
    """The models of one configuration and its upstreams."""

    def __init__(
        self, config: Config, backends: dict[str, Backend], folder: Path | None = None, log: AccessLog | None = None
    ) -> None:
        self.cached: dict[str, Sequence[Target]] = {}  # by the names in requests
        self.lists = ModelLists(backends, folder, self._forget, self._report)
        self._config, self._log = config, log
        self._warned: set[str] = set()
        self._entries: list[ModelEntry] | None = None

    @property
    def has_claude_aliases(self) -> bool:
        """Whether Anthropic clients see other models under names that Claude Code lists."""
        return self._config.server.claude_aliases

    def own_name(self, model: str) -> str:
        """Return the name of a model without the ending by which Claude Code lists it."""
        return without_claude_alias(model) if self.has_claude_aliases else model

    async def find(self, model: str) -> Sequence[Target]:
        """Return the targets of a model, first choice first. Raises UnknownModel, MalformedRequest."""
        targets = self.cached.get(model)
        if targets is not None:
            return targets
        own_name = self.own_name(model)
        if upstreams := self._config.routes.lists_to_fetch(own_name):
            await self.lists.fetch(upstreams, _REQUEST_WAIT)
        known = self.lists.names
        targets = self._config.routes.resolve(own_name, known)
        # A name that depends on an unknown list is not cached: the next request asks for the list again.
        if len(model) <= LONGEST_QUOTED and all(name in known for name in upstreams):
            if len(self.cached) >= _REMEMBERED:
                self.cached.clear()
            self.cached[model] = targets
        if targets[0].is_default:
            self._warn(model, targets[0])
        return targets

    async def entries(self, seconds: float | None = LIST_WAIT) -> Sequence[ModelEntry]:
        """Return all models that can be asked for, with the lists of upstreams that arrive within the time.

        With None, no list is fetched.
        """
        if seconds is not None:
            await self.lists.fetch(self.lists.by_upstream, seconds, again=True)
        if self._entries is None:
            self._entries = known_models(self._config, self._fetched())
        return self._entries

    async def entry(self, name: str) -> ModelEntry:
        """Return the entry of a model that can be asked for, in the list or not. Raises UnknownModel."""
        entries, name = await self.entries(), self.own_name(name)
        listed = next((entry for entry in entries if entry.name == name), None)
        return listed or unlisted_model(self._config, self._fetched(), name)

    async def describe(self, seconds: float | None = LIST_WAIT) -> dict[str, Json]:
        """Return the models, the patterns and the state of the upstreams' lists, for `dragoman models`."""
        entries, routes = await self.entries(seconds), self._config.routes
        default = routes.default
        model = None if default is None else default.model or self._config.upstreams[default.upstream].default_model
        return {
            "models": [_row(entry) for entry in entries],
            "patterns": [{"pattern": pattern, "upstream": upstream} for pattern, upstream in routes.patterns()],
            "default": {"upstream": default.upstream, "model": model or None} if default is not None else None,
            "upstreams": [self._upstream_row(upstream) for upstream in self._config.upstreams.values()],
        }

    def _upstream_row(self, upstream: Upstream) -> dict[str, Json]:
        own = self.lists.by_upstream[upstream.name]
        return {
            "name": upstream.name,
            "default_model": upstream.default_model or None,
            "small_model": upstream.small_model or None,
            "list": {
                "fetched_at": own.at if own.models else None,
                "models": len(own.models),
                "problem": own.problem or None,
            },
        }

    def drop_list(self, target: Target) -> None:
        """Drop the list of an upstream that refused a model which was chosen from it."""
        if target.is_default and target.upstream.first_model:
            self.lists.by_upstream[target.upstream.name].forget()

    async def aclose(self) -> None:
        """Cancel the fetches that are under way."""
        await self.lists.aclose()

    def _fetched(self) -> FetchedLists:
        return {name: each.models for name, each in self.lists.by_upstream.items() if each.models}

    def _forget(self) -> None:
        self.cached.clear()
        self._entries = None

    def _report(self, upstream: str, why: str) -> None:
        if self._log is not None:
            self._log.event("debug", "model_list", upstream=upstream, message=f"the list of models is not known: {why}")

    def _warn(self, model: str, target: Target) -> None:
        name = model[:LONGEST_QUOTED]
        if self._log is None or name in self._warned or len(self._warned) >= _MAX_WARNINGS:
            return
        self._warned.add(name)
        upstream = target.upstream.name
        message = (
            f"nothing names the model {name!r}, so {target.model!r} of the upstream {upstream!r} answers."
            f" Add a route for {name!r}, or change models or default_model of [upstreams.{upstream}]."
        )
        self._log.event(
            "warning", "default_model", model=name, upstream=upstream, used_model=target.model, message=message
        )


def _row(entry: ModelEntry) -> dict[str, Json]:
    row: dict[str, Json] = {"id": entry.name, "upstream": entry.upstream, "dialect": entry.dialect}
    row |= {"model": entry.model, "source": entry.source}
    figures = {"window": entry.window, "longest_answer": entry.max_output_tokens}
    return {**row, **{name: value for name, value in figures.items() if value is not None}}
