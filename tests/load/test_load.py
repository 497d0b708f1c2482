"""`make load` and `make soak`, small: every pair of dialects, every answer checked, and nothing left behind."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.load.clients import PAIRS, _trouble
from tests.load.payload import answer, named_in, question
from tests.load.run import Plan, run
from tests.load.upstream import DIALECTS


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")
def test_64_streams_of_mixed_dialects_lose_nothing_and_leave_nothing(tmp_path: Path) -> None:
    report = run(Plan(64, 2.5, answer=0.7, warm=1.0, filling=400), tmp_path)
    assert not report.troubles()
    assert report.tally.most == 64 and len(report.tally.pairs) == len(PAIRS)


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")
def test_clients_that_leave_and_clients_that_dawdle_leave_nothing(tmp_path: Path) -> None:
    report = run(Plan(48, 2.5, answer=0.7, warm=1.5, filling=300, chaos=True, slow=0.1), tmp_path)
    assert not report.troubles()
    assert report.tally.left


def test_a_mixed_or_cut_answer_would_be_noticed() -> None:
    name, other = "0" * 16, "1" * 16
    whole = b"".join(DIALECTS["openai"](name, answer(name)))
    assert _trouble("openai", name, 200, whole) == ""
    assert "text" in _trouble("openai", other, 200, whole)
    assert "no clean end" in _trouble("openai", name, 200, whole.removesuffix(b"data: [DONE]\n\n"))
    asked = question(name).encode()
    assert named_in(asked) == name
    assert named_in(asked + question(other).encode()) is None
    assert named_in(asked.replace(b":end", b"0:end")) is None
