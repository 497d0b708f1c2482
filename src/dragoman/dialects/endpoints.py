"""Endpoints other than chat: embeddings, images, audio and others, which a gateway relays without translation. Pure.

A relayed request goes only to an upstream whose dialect has the same endpoint, so its body needs no translation. The
gateway reads the name of the model, which is in the path or in the body (JSON or a form), and nothing else.
"""

from __future__ import annotations

import re
from functools import cached_property
from urllib.parse import quote, unquote

from msgspec import Struct

from dragoman.wire.http import check_path_name

_MODEL = "{model}"


class RelayedEndpoint(Struct, frozen=True):
    """One endpoint; `path` is without the prefix of its API, and `{model}` in it stands for the name of the model."""

    name: str  # in the log and the ledger
    path: str
    generates: bool = False  # it returns text of a model, so a request may set `max_tokens`

    @property
    def has_model_in_path(self) -> bool:
        """Whether the path names the model; otherwise the body does."""
        return _MODEL in self.path

    def path_for(self, model: str) -> str:
        """Return the path, without the prefix, of a request for this model. Raises MalformedRequest."""
        if not self.has_model_in_path:
            return self.path
        return self.path.replace(_MODEL, quote(check_path_name(model), safe=""))


class RelayedEndpoints(Struct, frozen=True, dict=True):
    """The endpoints of a dialect; `prefix` is the begin of their paths at the service."""

    prefix: str
    endpoints: tuple[RelayedEndpoint, ...]

    def match(self, path: str) -> tuple[RelayedEndpoint, str] | None:
        """Return the endpoint of a path and the model in it; None for another path. Raises MalformedRequest."""
        for each, pattern in self._patterns:
            if (found := pattern.search(path)) is not None:
                return each, check_path_name(unquote(found[1])) if each.has_model_in_path else ""
        return None

    def ends(self) -> set[str]:
        """Return the ends of the paths of all endpoints; only these paths need `match`."""
        whole = [each.path for each in self.endpoints if not each.has_model_in_path]
        methods = [each.path.partition(_MODEL)[2] for each in self.endpoints if each.has_model_in_path]
        return {f"{begin}{path}" for path in whole for begin in (self.prefix, "/v1")} | set(methods)

    @cached_property
    def _patterns(self) -> tuple[tuple[RelayedEndpoint, re.Pattern[str]], ...]:
        begin = rf"(?:^|{re.escape(self.prefix)}|/v1)"  # Base URLs of clients end with /v1 or without it.
        ends = [re.escape(each.path).replace(re.escape(_MODEL), "(.+)") for each in self.endpoints]
        return tuple((each, re.compile(f"{begin}{end}/*$")) for each, end in zip(self.endpoints, ends, strict=True))


OPENAI_ENDPOINTS = RelayedEndpoints(
    "/v1",
    (
        RelayedEndpoint("embeddings", "/embeddings"),
        RelayedEndpoint("rerank", "/rerank"),
        RelayedEndpoint("moderations", "/moderations"),
        RelayedEndpoint("images", "/images/generations"),
        RelayedEndpoint("images", "/images/edits"),
        RelayedEndpoint("images", "/images/variations"),
        RelayedEndpoint("speech", "/audio/speech"),
        RelayedEndpoint("transcriptions", "/audio/transcriptions"),
        RelayedEndpoint("translations", "/audio/translations"),
        RelayedEndpoint("completions", "/completions", generates=True),
    ),
)
GEMINI_ENDPOINTS = RelayedEndpoints(
    "/v1beta",
    (
        RelayedEndpoint("embeddings", f"/models/{_MODEL}:embedContent"),
        RelayedEndpoint("embeddings", f"/models/{_MODEL}:batchEmbedContents"),
        RelayedEndpoint("images", f"/models/{_MODEL}:predict"),
    ),
)
OLLAMA_ENDPOINTS = RelayedEndpoints(
    "",
    (
        RelayedEndpoint("embeddings", "/api/embed"),
        RelayedEndpoint("embeddings", "/api/embeddings"),
        RelayedEndpoint("completions", "/api/generate", generates=True),
    ),
)

# Endpoints that store data at a service, by the first part of their paths after the version, and why they are refused.
_STATEFUL = {
    "files": "files",
    "uploads": "files",
    "batches": "batches",
    "fine_tuning": "fine-tuning jobs",
    "vector_stores": "vector stores",
    "assistants": "assistants",
    "threads": "threads",
    "containers": "containers",
    "evals": "evaluations",
    "videos": "video jobs",
}
_BATCH_ENDS = (":batchGenerateContent", ":asyncBatchEmbedContent")


def refusal_of(path: str) -> str:
    """Return why a gateway has no endpoint of this path, for one that a client may expect; otherwise empty."""
    parts = [part for part in path.split("/") if part]
    if parts and (parts[0].startswith("v1") or parts[0] == "upload"):
        parts = [part for part in parts if not part.startswith("v1") and part != "upload"]
    if parts[:1] == ["realtime"]:
        return f"{path} is not supported: this gateway has no realtime sessions. Connect to the service itself."
    what = "batches" if parts[:2] == ["messages", "batches"] or path.endswith(_BATCH_ENDS) else ""
    what = what or (_STATEFUL.get(parts[0], "") if parts else "")
    if not what:
        return ""
    return (
        f"{path} is not supported: {what} are stored at one service, and this gateway may send each request to another"
        " one. Use the service itself for them, and the gateway for requests with their data inside."
    )
