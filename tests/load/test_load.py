"""Small runs of `make load` and `make soak`: every pair of dialects, every response checked, no leaks."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.load.clients import PAIRS, _problem_of
from tests.load.fairness import MAX_RATIO, Fairness, FairnessPart
from tests.load.flood import BODY, large_body
from tests.load.payload import expected_response, name_in_request, request_text
from tests.load.run import LoadPlan, run
from tests.load.upstream import DIALECTS


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")
def test_64_streams_of_mixed_dialects_are_complete_and_leak_nothing(tmp_path: Path) -> None:
    report = run(LoadPlan(64, 2.5, response=0.7, warm=1.0, filling=400), tmp_path)
    assert not report.problems()
    assert report.tally.most == 64 and len(report.tally.pairs) == len(PAIRS)


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")
def test_clients_that_disconnect_or_read_slowly_leak_nothing(tmp_path: Path) -> None:
    report = run(LoadPlan(48, 2.5, response=0.7, warm=1.5, filling=300, chaos=True, slow=0.1), tmp_path)
    assert not report.problems()
    assert report.tally.left


def test_a_mixed_or_truncated_response_is_detected() -> None:
    name, other = "0" * 16, "1" * 16
    whole = b"".join(DIALECTS["openai"](name, expected_response(name)))
    assert _problem_of("openai", name, 200, whole) == ""
    assert "text" in _problem_of("openai", other, 200, whole)
    assert "no clean end" in _problem_of("openai", name, 200, whole.removesuffix(b"data: [DONE]\n\n"))
    request = request_text(name).encode()
    assert name_in_request(request) == name
    assert name_in_request(request + request_text(other).encode()) is None
    assert name_in_request(request.replace(b":end", b"0:end")) is None


# --- the verdict of `make load LOAD=--fairness`; the measurement itself takes half a minute

LOAD = {"bodies": 3, "deltas": 1000, "seconds": 2.0, "problem": []}


def measured(beside: float, same: float, load: dict[str, object] = LOAD, samples: int = 600) -> Fairness:
    waits = [0.001] * (samples - 20)
    return Fairness(
        [
            FairnessPart("alone", [*waits, *[0.002] * 20]),
            FairnessPart("beside", [*waits, *[beside] * 20], dict(LOAD)),
            FairnessPart("same", [*waits, *[same] * 20], dict(load)),
        ]
    )


def test_three_times_the_wait_is_fair_and_more_is_not() -> None:
    assert not measured(0.010, 0.010 * MAX_RATIO).problems()
    assert "more than 3" in measured(0.010, 0.031).problems()[0]
    assert "600" in measured(0.010, 0.020).table()


def test_a_measurement_without_load_or_samples_does_not_count() -> None:
    assert measured(0.010, 0.010, LOAD | {"bodies": 0}).problems() == ["same: there was no load"]
    assert measured(0.010, 0.010, LOAD | {"problem": ["it ended"]}).problems() == ["same: it ended"]
    assert len(measured(0.010, 0.010, samples=400).problems()) == 3


def test_the_large_body_has_its_stated_size_and_is_within_the_limits() -> None:
    body = large_body()
    assert 0.9 * BODY < len(body) < 32 * 1024 * 1024
    assert len(json.loads(body)["messages"]) < 2048
