"""Which operation a request asks for, over either wire protocol (facts 1.1, 1.9)."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from dragoman.simulator.kiro.verdict import Answer, Refusal
from dragoman.wire.http import HttpRequest

Operation: TypeAlias = Literal["generate", "usage", "models", "profiles", "mcp"]


class Route(Struct, frozen=True):
    operation: Operation
    protocol: Literal["rest", "target"]


_PATHS: dict[tuple[str, str], Operation] = {
    ("POST", "generateassistantresponse"): "generate",
    ("POST", "sendmessagestreaming"): "generate",
    ("GET", "getusagelimits"): "usage",
    ("POST", "getusagelimits"): "usage",
    ("GET", "listavailablemodels"): "models",
    ("POST", "listavailablemodels"): "models",
    ("GET", "listavailableprofiles"): "profiles",
    ("POST", "listavailableprofiles"): "profiles",
    ("POST", "mcp"): "mcp",
}
_TARGETS: dict[str, Operation] = {
    "AmazonCodeWhispererStreamingService.GenerateAssistantResponse": "generate",
    "AmazonQDeveloperStreamingService.SendMessage": "generate",
    "AmazonCodeWhispererService.GetUsageLimits": "usage",
    "AmazonCodeWhispererService.ListAvailableModels": "models",
    "AmazonCodeWhispererService.ListAvailableProfiles": "profiles",
}
_TARGET_TYPES = ("application/x-amz-json-1.0", "application/x-amz-json-1.1")


def protocol(request: HttpRequest) -> Literal["rest", "target"]:
    return "target" if request.header("x-amz-target") else "rest"


def route(request: HttpRequest) -> Route | Refusal:
    """The operation, or the refusal of one that does not exist or comes as the wrong content type."""
    target, path = request.header("x-amz-target"), request.path.strip("/").replace("-", "").lower()
    kind = request.header("content-type").partition(";")[0].strip().lower()
    if target and request.path == "/":
        operation = _TARGETS.get(target) if request.method == "POST" else None
        if operation is None:
            return _unknown(400, "x-amz-target", f"no operation {target!r}")
        if kind not in _TARGET_TYPES:
            return _unknown(400, "content-type", f"{kind or 'nothing'}, not {_TARGET_TYPES[0]}")
        return Route(operation, "target")
    operation = _PATHS.get((request.method, path))
    if operation is None:
        return _unknown(404, "path", f"no operation at {request.method} {request.path}")
    if request.method == "POST" and kind != "application/json":
        return _unknown(400, "content-type", f"{kind or 'nothing'}, not application/json")
    return Route(operation, "rest")


def _unknown(status: int, at: str, detail: str) -> Refusal:
    answer = Answer(
        "The requested operation is not recognized by the service.", None, status, "UnknownOperationException"
    )
    return Refusal(0, "the operation exists", "A", at, detail, answer)
