"""How the gateway says no: a fault in a client's own dialect, as an HTTP answer. Pure."""

from __future__ import annotations

from msgspec import structs

from dragoman.dialects.base import Dialect
from dragoman.errors import Fault, Kind
from dragoman.wire.http import HttpResponse

BUG = Fault("server", "the gateway itself failed; its log says more under this request id", 500)
ENDING = Fault("overloaded", "the gateway is shutting down", 503, retry_after=1.0)

_WAITS: dict[Kind, float] = {"quota": 60.0}  # for a 429 whose upstream did not say how long
_USUAL_WAIT = 2.0
# What the gateway itself says about a request is no dialect's affair.
_OF_HTTP = frozenset({405, 408, 414, 415, 417, 421, 426, 431, 505})


def refusal_of(dialect: Dialect, fault: Fault) -> HttpResponse:
    """A fault as an HTTP answer in a client's dialect. A 429 always says when to come back: clients retry by it."""
    response = dialect.binding.refuse(fault, dialect.codec.render_fault(fault))
    bad_gateway = fault.violation and fault.status == 502  # whatever statuses the dialect knows
    if fault.status in _OF_HTTP or bad_gateway:
        return structs.replace(response, status=fault.status)
    if response.status == 429 and not response.header("retry-after"):
        wait = str(int(_WAITS.get(fault.kind, _USUAL_WAIT)))
        return structs.replace(response, headers=(*response.headers, ("retry-after", wait)))
    return response
