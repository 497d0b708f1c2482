"""Errors, both directions: HTTP refusals, whose type stands in a header, and exceptions in a stream."""

from __future__ import annotations

from dragoman.dialects.kit.faults import FaultTable, unreadable
from dragoman.dialects.kit.values import decoded, members, text
from dragoman.errors import Fault, Kind
from dragoman.model.conversation import Conversation
from dragoman.wire import jsonio
from dragoman.wire.frame import Frame, Payload
from dragoman.wire.http import HttpResponse
from dragoman.wire.jsonio import Json

TYPE_HEADER = "x-amzn-errortype"

_TABLE = FaultTable(
    {
        "invalid": ("ValidationException", 400),
        "context_full": ("ValidationException", 400),
        "auth": ("UnrecognizedClientException", 403),
        "permission": ("AccessDeniedException", 403),
        "not_found": ("ResourceNotFoundException", 404),
        "timeout": ("ModelTimeoutException", 408),
        "too_large": ("RequestEntityTooLargeException", 413),
        "rate_limit": ("ThrottlingException", 429),
        "quota": ("ServiceQuotaExceededException", 400),
        "server": ("InternalServerException", 500),
        "overloaded": ("ServiceUnavailableException", 503),
    },
    {
        "ExpiredTokenException": "auth",
        "ExpiredToken": "auth",
        "InvalidSignatureException": "auth",
        "SignatureDoesNotMatch": "auth",
        "IncompleteSignatureException": "auth",
        "MissingAuthenticationTokenException": "auth",
        "InvalidClientTokenId": "auth",
        "TooManyRequestsException": "rate_limit",
        "ModelNotReadyException": "overloaded",
        "ModelErrorException": "server",
        "ModelStreamErrorException": "server",
        "InternalFailure": "server",
    },
    statuses={424: "server"},
)
fault_type = _TABLE.type_of
# One exception says several things; only its words tell them apart.
_BY_WORDS: tuple[tuple[Kind, str, Kind], ...] = (
    ("invalid", "input is too long", "context_full"),
    ("invalid", "prompt is too long", "context_full"),
    ("invalid", "too many input tokens", "context_full"),
    ("invalid", "exceeds the model's maximum context", "context_full"),
    ("invalid", "model identifier is invalid", "not_found"),
    ("permission", "security token included in the request", "auth"),
    ("permission", "signature", "auth"),
)
# What a person can do about it, where the service's own words do not say it.
_ADVICE: tuple[tuple[str, str], ...] = (
    ("token included in the request is expired", "the AWS credentials have expired: renew them (`aws sso login`)"),
    ("ExpiredToken", "the AWS credentials have expired: renew them (`aws sso login`)"),
    ("token included in the request is invalid", "AWS does not know these credentials: check the profile in use"),
    ("scoped to a valid region", "the request was signed for another region than the endpoint's: set the right region"),
    ("model identifier is invalid", "there is no such model in this region: check the id and the region"),
    ("on-demand throughput", "this model is reached by an inference profile: put us., eu. or apac. before its id"),
    ("don't have access to the model", "access to the model must be granted to the account, in this region"),
    ("ResourceNotFoundException", "there is no such model in this region: check the id and the region"),
)
# The only exceptions that a stream may hold, by kind, and what each means there.
_STREAM: dict[Kind, str] = {
    "rate_limit": "throttlingException",
    "quota": "throttlingException",
    "overloaded": "serviceUnavailableException",
    "server": "internalServerException",
    "timeout": "modelStreamErrorException",
}
_IN_STREAM = frozenset(_STREAM.values()) | {"validationException"}


def parse_fault(response: HttpResponse, sent: Conversation | None = None) -> Fault:
    """What a refusal says, whoever sent it: the service, or a proxy on the way that speaks no JSON."""
    body = decoded(response.body)
    code = error_type(response.header(TYPE_HEADER)) or error_type(text(members(body).get("__type")))
    kind = _TABLE.by_type(code) or _TABLE.by_status(response.status)
    message = _message(body) or (
        f"the upstream refused ({code})" if code else unreadable(response, unquoted=("<", "{", "["))
    )
    return _told(kind, message, response.status, code, response.retry_after)


def exception_fault(frame: Frame) -> Fault:
    """What an exception in a stream says; one that is not in the service's model keeps its name and its words."""
    body = decoded(frame.data)
    code = frame.kind[:1].upper() + frame.kind[1:]
    kind = _TABLE.by_type(code) or "server"
    message = _message(body) or text(members(body).get("originalMessage"))
    return _told(kind, message or f"the upstream's stream failed ({frame.kind or 'no reason given'})", None, code, None)


def error_type(said: str) -> str:
    """The exception's name out of its header: what follows a colon is an address, what precedes a `#` a namespace."""
    return said.partition(":")[0].rpartition("#")[2].strip()


def render_fault(fault: Fault) -> bytes:
    """The body of a refusal. Its type is told by a header, or by the frame's own."""
    return jsonio.encode({"message": fault.message})


def status_of(fault: Fault) -> int:
    """The HTTP status that says this fault in this dialect."""
    if _TABLE.by_type(fault.code) == fault.kind and _TABLE.says(fault.status, fault.kind):
        return fault.status if 400 <= fault.status < 600 else _TABLE.usual_status(fault.kind)
    return _TABLE.usual_status(fault.kind)


def exception_payload(fault: Fault) -> Payload:
    """The exception that ends a stream. Only five are in the service's model, and clients know no others."""
    own = fault.code[:1].lower() + fault.code[1:]
    kind = own if own in _IN_STREAM else _STREAM.get(fault.kind, "validationException")
    body: dict[str, Json] = {"message": fault.message}
    if kind == "modelStreamErrorException":
        body |= {"originalStatusCode": fault.status, "originalMessage": fault.message}
    return Payload(kind.encode(), jsonio.encode(body), error=True)


def _told(kind: Kind, message: str, status: int | None, code: str, wait: float | None) -> Fault:
    words = message.lower()
    kind = next((meant for of, said, meant in _BY_WORDS if of == kind and said in words), kind)
    advice = next((advice for sign, advice in _ADVICE if sign in message or sign in code), "")
    return Fault(
        kind, f"{message} ({advice})" if advice else message, status or _TABLE.usual_status(kind), wait, code=code
    )


def _message(body: Json) -> str:
    return text(members(body).get("message") or members(body).get("Message"))
