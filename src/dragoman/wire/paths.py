"""Names that become part of a request's path: which of them would make it lead elsewhere. Pure."""

from __future__ import annotations

import re
from urllib.parse import unquote

from dragoman.errors import MalformedRequest

_MOST_DECODED = 4  # times that a name may be percent-encoded
_FORBIDDEN = re.compile(r"[\\?#\x00-\x1f\x7f-\x9f]")


def has_dot_segment(path: str) -> bool:
    """Whether a path has a segment `.` or `..`, however it is encoded, or is encoded too often to tell."""
    for _ in range(_MOST_DECODED):
        if any(segment.partition(";")[0] in (".", "..") for segment in path.replace("\\", "/").split("/")):
            return True
        decoded = unquote(path)
        if decoded == path:
            return False
        path = decoded
    return True


def path_name(name: str) -> str:
    """A model's name that is to stand in a path, or stood in one. Raises MalformedRequest."""
    if problem := name_problem(name):
        raise MalformedRequest(f"{name[:80]!r} cannot be a model's name: {problem}", at="model")
    return name


def name_problem(name: str) -> str:
    """Say why a name must not stand in a path; empty if it may. Slashes inside a name are allowed."""
    if has_dot_segment(name):
        return "it has a segment `.` or `..`, which makes a path lead elsewhere"
    for _ in range(_MOST_DECODED):
        if found := _FORBIDDEN.search(name):
            return f"it has the character {found[0]!r}, which no path may have"
        if name and "" in name.split("/"):
            return "it has an empty segment"
        decoded = unquote(name)
        if decoded == name:
            break
        name = decoded
    return ""
