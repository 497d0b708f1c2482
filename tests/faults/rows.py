"""All faults, by number."""

from __future__ import annotations

from tests.faults import (
    answering,
    chaos,
    connecting,
    framing,
    leaving,
    logins,
    processes,
    sizing,
    streaming,
)
from tests.faults.table import Row

_PARTS = (connecting, answering, streaming, sizing, framing, leaving, chaos, processes, logins)
ROWS: dict[int, Row] = {row.number: row for part in _PARTS for row in part.ROWS}
