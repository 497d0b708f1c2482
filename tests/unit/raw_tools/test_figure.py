from __future__ import annotations

import pytest

from tests.unit.raw_tools.figure import figure
from tests.unit.raw_tools.renderers import RENDER


@pytest.mark.parametrize("table", RENDER)
def test_all_arguments_are_valid_for_their_schema(table: str) -> None:
    valid, equal = figure(table, 30)
    assert valid == 1.0
    assert equal > 0.8  # a string that looks like another allowed type is read as that type
