"""Fit the message of an error to Claude Code, which acts on some messages. Pure.

If the target refuses a feature of a request and the message is exactly `capability_rejected: CLASS`, Claude Code leaves
the feature out and tries again. With another message it fails, or needs up to nine requests. Instead of a message that
contains `x-api-key` it shows "Not logged in", even if the wrong key is that of an upstream. Other clients, and the log,
get the message unchanged.
"""

from __future__ import annotations

import re

from msgspec import structs

from dragoman.errors import Fault
from dragoman.wire.http import HttpRequest

_AGENT = "claude-cli/"
_STATUSES = frozenset({400, 404, 415, 422})
_KEY_HEADER = re.compile("x-api-key", re.IGNORECASE)
_MAX_MESSAGE = 2000  # characters that are searched
_REFUSED = r"(?:not (?:be )?(?:supported|accepted|permitted|allowed)|unsupported|extra inputs|unknown|unrecognized)"
_REFUSES = r"(?:(?:not|n't|cannot) (?:support|accept|take|process)|no endpoints found that support|unsupported|unknown)"


def _refusal_of(what: str) -> str:
    """Return the pattern of a sentence that refuses a thing, before or after its name."""
    return rf"\b{what}\b[^.]{{0,60}}\b{_REFUSED}|{_REFUSES}\b[^.]{{0,60}}\b{what}\b"


# The classes of Claude Code, each with what services write when they do not take the feature.
_CLASSES = tuple(
    (name, re.compile(pattern, re.IGNORECASE))
    for name, pattern in (
        ("structured_outputs_unsupported", _refusal_of(r"(?:output_config\.format|output_format|structured outputs?)")),
        ("effort_unsupported", _refusal_of(r"(?:output_config(?:\.effort)?|(?:reasoning[_.])?effort)")),
        ("thinking_type:adaptive", rf"'adaptive' found|{_refusal_of('adaptive')}"),
        ("document_block", _refusal_of("(?:documents?|pdfs?)")),
        ("image_block", rf"not a multimodal model|at most 0 image|{_refusal_of('(?:images?|image_url)')}"),
    )
)


def is_claude_code(request: HttpRequest) -> bool:
    """Return whether Claude Code sent the request."""
    return request.header("user-agent").startswith(_AGENT)


def fault_for_claude_code(fault: Fault) -> Fault:
    """Return the fault in the words that Claude Code acts on."""
    if fault.kind == "auth":
        return structs.replace(fault, message=_KEY_HEADER.sub("API key", fault.message))
    if fault.kind not in ("invalid", "not_found") or fault.status not in _STATUSES:
        return fault
    message = fault.message[:_MAX_MESSAGE]
    name = next((name for name, pattern in _CLASSES if pattern.search(message)), "")
    if not name:
        return fault
    return structs.replace(fault, kind="invalid", status=400, code="", message=f"capability_rejected: {name}")
