"""Errors where only Responses have them: those that failed, and what Codex acts on. Others are the service's."""

from __future__ import annotations

from dragoman.dialects.kit.openai_errors import KINDS, TOLD_WAIT, JsonObject, fault_of
from dragoman.dialects.responses.nodes import object_of
from dragoman.errors import Fault, Kind

# The code of a response that failed.
_CODES: dict[Kind, str] = {
    "invalid": "invalid_prompt",
    "auth": "invalid_api_key",
    "permission": "permission_denied",
    "not_found": "model_not_found",
    "too_large": "invalid_prompt",
    "rate_limit": "rate_limit_exceeded",
    "quota": "insufficient_quota",
    "overloaded": "server_is_overloaded",
    "context_full": "context_length_exceeded",
    "timeout": "server_error",
    "server": "server_error",
}


def failure_of(response: JsonObject) -> Fault | None:
    """The fault of a response that failed, or of an error that came as a success; None if there is none."""
    error = response.get("error")
    if not error and response.get("object") != "error":
        return None
    return fault_of({"error": error} if error else response, None)


def render_failure(fault: Fault) -> JsonObject:
    """The error of a response that failed, in the codes that Codex acts on; it reads the wait from the words."""
    code = _CODES[fault.kind]
    if KINDS.get(fault.code) == fault.kind and fault.code != "invalid_request_error":
        code = fault.code
    message = fault.message
    if fault.kind == "rate_limit" and fault.retry_after is not None and not TOLD_WAIT.search(message):
        message = f"{message} (try again in {fault.retry_after:g}s)"
    return object_of({"code": code, "message": message})
