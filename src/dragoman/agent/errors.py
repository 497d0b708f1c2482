"""What is wrong with an answer of the service, for people who handle its raw responses."""

from __future__ import annotations

from typing import Any

from dragoman.errors import Fault, UpstreamViolation


class BedrockResponseError(UpstreamViolation):
    """A response of Bedrock that is malformed or lacks a required field.

    `response` is the raw response, or the part of it that is malformed, for debugging. It may be anything: a response
    can be malformed by being no object. It is never part of the message, so that logs do not hold conversations.
    """

    def __init__(self, message: str, response: Any = None, field: str | None = None) -> None:
        told = f"{message} (field: {field})" if field else message
        super().__init__(message, fault=Fault(self.kind, told, self.status, at=field or ""))
        self.response = response
        self.field = field
