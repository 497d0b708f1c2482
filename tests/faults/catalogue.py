"""The catalogue: all fault rows, by number."""

from __future__ import annotations

from tests.faults import (
    chaos,
    client_faults,
    connection_faults,
    format_faults,
    login_faults,
    process_faults,
    response_head_faults,
    size_faults,
    stream_faults,
)
from tests.faults.row import FaultRow

_PARTS = (
    connection_faults,
    response_head_faults,
    stream_faults,
    size_faults,
    format_faults,
    client_faults,
    chaos,
    process_faults,
    login_faults,
)
ROWS: dict[int, FaultRow] = {row.number: row for part in _PARTS for row in part.ROWS}
