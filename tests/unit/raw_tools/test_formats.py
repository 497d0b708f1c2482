"""The documented outputs of every format: whole, cut at every character, in the named table and in `auto`."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from dragoman.filters.raw_tools import TABLES
from dragoman.filters.raw_tools.outputs import Output, Said
from tests.unit.raw_tools import formats, formats_known, formats_more
from tests.unit.raw_tools.formats_known import Sample
from tests.unit.raw_tools.samples import REASONING, TEXT, all_cuts, calls_of, outputs, value_of

EVERY_FORMAT = [*formats_known.FORMATS.items(), *formats.FORMATS.items(), *formats_more.FORMATS.items()]
SAMPLES = [(table, sample) for table, samples in EVERY_FORMAT for sample in samples]
_BY_NAME_ONLY = {table.name for table in TABLES if table.by_name_only}
_AT_START = {table.name for table in TABLES if table.at_start}
every_sample = pytest.mark.parametrize(
    ("table", "sample"), SAMPLES, ids=[f"{table}-{number}" for number, (table, _) in enumerate(SAMPLES)]
)


def _check(sample: Sample, whole: Sequence[Output]) -> None:
    found = calls_of(whole)
    assert [(name, arguments) for name, arguments, _ in found] == [
        (name, value_of(arguments)) for name, arguments in sample.calls
    ]
    for carrier, text in ((TEXT, sample.said), (REASONING, sample.reasoning)):
        shown = "".join(each.text for each in whole if isinstance(each, Said) and each.carrier is carrier)
        assert shown == text, carrier
    for at, (_, arguments, complete) in enumerate(found):
        assert complete is not None, "a call that began has an end"
        if sample.last_complete is not None and at == len(found) - 1:
            assert complete is sample.last_complete
        if complete:
            assert isinstance(arguments, dict), "D7: a complete call has arguments that parse"


@every_sample
def test_in_its_own_table(table: str, sample: Sample) -> None:
    whole = outputs([sample.text], table, sample.tools)
    _check(sample, whole)
    for cut in all_cuts(sample.text):
        assert outputs(cut, table, sample.tools) == whole, cut


@every_sample
def test_in_auto(table: str, sample: Sample) -> None:
    whole = outputs([sample.text], "auto", sample.tools)
    for cut in all_cuts(sample.text):
        assert outputs(cut, "auto", sample.tools) == whole, cut
    if table not in _BY_NAME_ONLY and sample.auto:
        _check(sample, whole)


@every_sample
def test_in_reasoning_it_is_the_same_call(table: str, sample: Sample) -> None:
    """Where a call begins does not matter (facts/kimi.md, 1.2): the calls are those of the text."""
    if table in _AT_START:  # begins the answer, which reasoning is not
        return
    whole = outputs([(REASONING, sample.text)], table, sample.tools)
    assert calls_of(whole) == calls_of(outputs([sample.text], table, sample.tools))


def test_every_table_has_its_samples() -> None:
    tried = {table for table, _ in SAMPLES}
    assert {table.name for table in TABLES} - tried == set()


def test_the_known_tables_have_six_samples_or_more() -> None:
    assert all(len(samples) >= 6 for samples in formats_known.FORMATS.values())
