"""What the benchmark measures is right: every scenario's answer says, after translation, what the upstream said."""

from __future__ import annotations

import json

import pytest

from bench import reading
from bench.answers import KINDS, answer
from bench.exchanges import translated
from bench.scenarios import BARS, BY_NAME, SCENARIOS


@pytest.mark.parametrize("name", BY_NAME)
def test_every_scenario_says_in_the_end_what_its_upstream_said(name: str) -> None:
    scenario = BY_NAME[name]
    raw = translated(name)

    reading.compare(reading.read(raw, streamed=scenario.stream), answer(scenario.upstream).said)


def test_an_answer_that_lost_a_piece_or_merged_two_is_wrong() -> None:
    said = answer("stream").said
    events = list(answer("stream").events)
    lost = reading.read(b"".join(events[:5] + events[6:]), streamed=True)
    merged = b"".join(events[:5]) + events[5].replace(b'"00004 it"', b'"00004 it00005 it"') + b"".join(events[7:])

    with pytest.raises(reading.WrongAnswer, match="text is"):
        reading.compare(lost, said)
    with pytest.raises(reading.WrongAnswer, match="299 pieces, not in 300"):
        reading.compare(reading.read(merged, streamed=True), said)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.startswith("kimi")])
def test_the_raw_call_holds_whole_json(kind: str) -> None:
    assert json.loads(answer(kind).said.arguments)["path"] == "a.py"


def test_every_bar_names_a_figure_that_is_measured() -> None:
    rivals = {scenario.name: scenario.rivals for scenario in SCENARIOS}
    for bar in BARS:
        assert bar.figure in ("cold start", "idle memory") or bar.rival in rivals[bar.figure]
