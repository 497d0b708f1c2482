"""The numbers of rule 6, as data: what the suite scales down is this in earnest."""

from __future__ import annotations

import pytest
from msgspec import Struct, structs

from dragoman.gateway import backend
from dragoman.gateway.config import Server
from dragoman.gateway.upstreams import Timeouts
from dragoman.http import exchange
from dragoman.http import framing as limits
from dragoman.http.client import reply
from dragoman.upstream.kiro import credential
from tests.faults.rows import ROWS


def _default(of: type[Struct], name: str) -> object:
    return next(field.default for field in structs.fields(of) if field.name == name)


DEFAULTS = {
    "DNS": (reply.Timeouts().dns, Timeouts().dns, 3.0),
    "connect": (reply.Timeouts().connect, Timeouts().connect, 5.0),
    "TLS": (reply.Timeouts().tls, Timeouts().tls, 5.0),
    "request write": (reply.Timeouts().write, Timeouts().write, 30.0),
    "first byte": (reply.Timeouts().head, Timeouts().first_byte, 300.0),
    "idle": (reply.Timeouts().idle, Timeouts().idle, 120.0),
    "idle of long-thinking models": (Timeouts().long_idle, 900.0),
    "total": (reply.Timeouts().total, Timeouts().total, 3600.0),
    "client write stall": (exchange.STALL, 60.0),
    "header read": (limits.HEAD_SECONDS, 10.0),
    "keep-alive idle": (limits.IDLE_SECONDS, 75.0),
    "token refresh": (credential._TIMEOUT, backend._REFRESH_SECONDS, 15.0),
    "ping": (_default(Server, "ping"), 15.0),
}


@pytest.mark.parametrize("name", DEFAULTS)
def test_the_default_is_the_rules(name: str) -> None:
    *found, wanted = DEFAULTS[name]
    assert found == [wanted] * len(found)


def test_every_fault_of_the_catalogue_has_a_row() -> None:
    """54 is ruled out (a client that closes its sending side counts as gone); 63-66 are about a ledger we do not have."""
    assert {*range(1, 54), *range(55, 63), *range(67, 72)} <= set(ROWS)
