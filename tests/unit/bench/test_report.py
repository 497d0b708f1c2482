"""The report of `make bench`: a limit that is exceeded, or could have been judged and was not, fails the run."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench import chart, report, response_check
from bench.canned_responses import KINDS, canned_response
from bench.codec_costs import (
    MAX_COST_RATIO,
    MAX_STEP_RATIO,
    count_steps,
    find_slower,
    measure_costs,
    reference_work,
    run_exchange,
)
from bench.exchanges import exchange, translated_response
from bench.measure import Cell, Results, WorkersCell
from bench.scenarios import BY_NAME, LIMITS, OURS, RATIO_LIMITS, SCENARIOS, TENSORZERO, Limit


def costing(ms: float) -> Cell:
    return Cell(requests=1000, events=0, cpu=ms, rate=1.0)


def beside(ours: list[float], theirs: list[float]) -> Results:
    """A measured run of scenario A."""
    return Results(cells={"A": {OURS: [*map(costing, ours)], TENSORZERO: [*map(costing, theirs)]}})


def test_a_bar_is_judged_by_the_median_of_the_rounds_own_ratios() -> None:
    noisy = beside([0.4, 4.0, 0.4], [1.0, 10.0, 1.0])  # a slow moment slows both

    assert report.missed(noisy, ["A"], ()) == []
    assert report.missed(beside([0.7, 0.7, 0.1], [1.0, 1.0, 1.0]), ["A"], ()) == [
        "A against tensorzero: 0.70, limit 0.6"
    ]


def test_an_unmeasured_bar_is_missed_unless_its_peer_is_absent() -> None:
    empty = Results()

    assert report.missed(empty, ["A"], ()) == ["A against tensorzero: not measured"]
    assert report.missed(empty, ["A"], {TENSORZERO}) == []
    assert report.unjudged(empty, ["A"], {TENSORZERO}) == ["A"]
    assert report.missed(empty, ["B"], {TENSORZERO}) == []


def test_a_bar_against_ourselves_is_never_excused() -> None:
    absent = {ratio_limit.peer.partition(":")[0] for ratio_limit in RATIO_LIMITS} - {OURS}

    assert report.missed(Results(), [ratio_limit.figure for ratio_limit in RATIO_LIMITS], absent) == [
        "E2 against dragoman:E: not measured"
    ]


def test_our_own_bad_cell_fails_the_run_and_another_gateways_does_not() -> None:
    results = Results(
        problems={"dragoman, F": "3 errors", "dragoman yesterday, F": "3 errors", "litellm, C": "an error"}
    )

    assert report.missed(results, ["F"], ()) == ["dragoman, F: 3 errors"]


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit.figure)
def test_growth_is_judged_and_what_was_not_measured_does_not_pass(limit: Limit) -> None:
    results = Results(figures={each.figure: {OURS: [each.most]} for each in LIMITS})
    assert report.missed(results, ["growth"], ()) == []

    results.figures[limit.figure][OURS] = [limit.most * 1.01]
    assert len(report.missed(results, ["growth"], ())) == 1

    del results.figures[limit.figure]
    assert report.missed(results, ["growth"], ()) == [f"{limit.title}: not measured, limit {limit.most:g}"]
    assert report.missed(results, ["A"], {TENSORZERO}) == []


def test_the_tables_say_who_is_cheaper_and_the_page_keeps_what_stands_around_them(tmp_path: Path) -> None:
    results = beside([0.4], [1.0])
    results.shared = {"A": {1: [WorkersCell(1000, 0.4, 0.1, 1.0)], 2: [WorkersCell(1500, 0.4, 0.1, 0.5)]}}
    block = report.text(results, [OURS], ["A"])
    page = tmp_path / "page.md"
    page.write_text(f"before\n{report.BEGIN}\nlast year\n{report.END}\nafter\n")

    report.write_page(block, "May", 1, page)

    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "last year" not in text
    assert "| holds" in text
    assert "1.5 " in text  # two workers to one


def test_results_for_programs_are_json_without_nan(tmp_path: Path) -> None:
    place = tmp_path / "results.json"

    report.saved(beside([0.4], [1.0]), place)

    saved = json.loads(place.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert saved["cells"]["A"][OURS][0]["us_an_event"] is None


def test_the_chart_says_whose_figure_of_another_scenario_it_shows() -> None:
    results = Results(cells={"D": {OURS: [costing(1.0)], "litellm:C": [costing(200.0)]}})

    assert chart.rows(results) == {"D": [(OURS, 1.0), ("litellm, its C", 200.0)]}
    assert ">litellm, its C<" in chart.svg(chart.rows(results))


def test_the_chart_has_a_bar_for_every_gateway_the_longer_the_dearer_and_is_xml(tmp_path: Path) -> None:
    place = tmp_path / "picture.svg"
    assert chart.write(Results(), place) == ""
    assert "(picture.svg)" in chart.write(beside([0.04], [0.4]), place)

    chart_text = place.read_text()

    bars = [node for node in ElementTree.fromstring(chart_text).iter() if node.tag.endswith("rect")]
    short, long = (float(bar.get("width", 0)) for bar in bars)
    assert short < long
    assert "NaN" not in chart_text


# --- The guard against slow codecs: it can fail, and it does not fail for nothing


def test_a_codec_that_does_its_work_twice_is_too_slow_and_the_same_codec_is_not() -> None:
    work = run_exchange(exchange("C"))

    def twice() -> None:
        work()
        work()

    tasks = {"as it was": work, "again": work, "twice": twice}
    counted = {name: float(count_steps(each)) for name, each in tasks.items()}
    assert set(find_slower(counted, dict.fromkeys(counted, counted["as it was"]), MAX_STEP_RATIO)) == {"twice"}
    assert counted["again"] == counted["as it was"]


def test_work_of_c_is_seen_in_the_cpu() -> None:
    """A regular expression that reads for long is one instruction."""
    text, looks = "a" * 2000, re.compile("a*b")  # quadratic
    tasks = {"none": reference_work, "much": lambda: (reference_work(), looks.search(text))}
    measured = measure_costs(tasks, turns=5)
    assert set(find_slower(measured, dict.fromkeys(measured, measured["none"]))) == {"much"}


def test_more_than_may_be_is_too_much() -> None:
    found = find_slower({"a": MAX_COST_RATIO * 10.1, "b": MAX_COST_RATIO * 9.9, "new": 99.0}, {"a": 10.0, "b": 10.0})

    assert found == {"a": pytest.approx(MAX_COST_RATIO * 1.01)}


# --- the benchmark measures correct responses: each translated response has the content of the upstream's response


@pytest.mark.parametrize("name", BY_NAME)
def test_every_scenario_keeps_the_content_of_the_upstream_response(name: str) -> None:
    scenario = BY_NAME[name]
    raw = translated_response(name)

    response_check.compare(
        response_check.read(raw, streamed=scenario.stream), canned_response(scenario.upstream).content
    )


def test_a_reply_that_lost_a_piece_or_merged_two_is_wrong() -> None:
    content = canned_response("stream").content
    events = list(canned_response("stream").events)
    lost = response_check.read(b"".join(events[:5] + events[6:]), streamed=True)
    merged = b"".join(events[:5]) + events[5].replace(b'"00004 it"', b'"00004 it00005 it"') + b"".join(events[7:])

    with pytest.raises(response_check.WrongResponse, match="text is"):
        response_check.compare(lost, content)
    with pytest.raises(response_check.WrongResponse, match="299 pieces, not in 300"):
        response_check.compare(response_check.read(merged, streamed=True), content)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.startswith("kimi")])
def test_the_raw_call_holds_whole_json(kind: str) -> None:
    assert json.loads(canned_response(kind).content.arguments)["path"] == "a.py"


def test_every_bar_names_a_figure_that_is_measured() -> None:
    peers = {scenario.name: scenario.peers for scenario in SCENARIOS}
    for ratio_limit in RATIO_LIMITS:
        assert ratio_limit.figure in ("cold start", "idle memory") or ratio_limit.peer in peers[ratio_limit.figure]
