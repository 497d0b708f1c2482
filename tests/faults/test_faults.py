"""Every fault of the catalogue, with the pairs of dialects that it is about: the client gets the truth, in time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.conftest import WHOLE
from tests.faults.rows import ROWS
from tests.faults.stage import Case, Pair
from tests.faults.table import Row

CASES = [
    pytest.param(row, pair, id=f"{row.number}-{pair.client}-{pair.upstream}")
    for row in ROWS.values()
    for pair in row.cases(whole=WHOLE)
]


@pytest.mark.parametrize(("row", "pair"), CASES)
def test_fault(row: Row, pair: Pair, tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    case = Case(pair, tmp_path, WHOLE)
    try:
        row.run(case)
    finally:
        record_property("fault", row.number)
        record_property("probes", max(case.probes, 1))
        record_property("troubles", [kind for kind, _ in case.troubles])
    assert not case.troubles, "\n".join(f"{kind} {told}" for kind, told in case.troubles)
