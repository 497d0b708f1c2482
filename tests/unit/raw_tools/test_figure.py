from __future__ import annotations

import pytest

from tests.unit.raw_tools.figure import figure
from tests.unit.raw_tools.renderers import RENDER
from tests.unit.raw_tools.schemas import HEADERS


@pytest.mark.parametrize("table", RENDER)
def test_all_arguments_are_valid_for_their_schema(table: str) -> None:
    by_reader = table in HEADERS
    valid, equal = figure(table, 300 if by_reader else 30)
    assert valid == 1.0
    # A string that looks like another allowed type is read as that type.
    assert equal > (0.9 if by_reader else 0.8)
