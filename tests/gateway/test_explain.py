"""The refusal log and `dragoman explain`: private, bounded, and with the likeliest rule first."""

from __future__ import annotations

import stat
import time
from pathlib import Path

import pytest

from dragoman.dialects.rulebook import Breach
from dragoman.gateway.explain import (
    MAX_REPORT_BYTES,
    MAX_REPORTS,
    RecordedMessage,
    RefusalLog,
    RefusalReport,
    encode_report,
    render_report,
)
from dragoman.model.filter import Note
from tests.gateway.harness import KEY, anthropic_body, gateway_with_simulator, wait_for_refusal

REFUSED = '[[turn]]\nstatus = 400\nmessage = "Improperly formed request."'


def refusal(identity: str = "req_1", body: str = "{}", breaches: tuple[Breach, ...] = ()) -> RefusalReport:
    sent = RecordedMessage("POST /x", (("a", "b"),), body)
    note = Note("turn.placeholder", "added", "messages[0]", "a turn was added")
    return RefusalReport(
        identity,
        0.0,
        "anthropic",
        "one",
        "kiro",
        "m",
        "Improperly formed request.",
        sent,
        sent,
        sent,
        (note,),
        breaches,
    )


def write_report(refusal_log: RefusalLog, report: RefusalReport) -> bool:
    return refusal_log.write(report.id, encode_report(report))


def test_the_newest_twenty_reports_are_kept(tmp_path: Path) -> None:
    refusal_log = RefusalLog(tmp_path / "refusals")
    for number in range(MAX_REPORTS + 5):
        assert write_report(refusal_log, refusal(f"req_{number}"))
    assert len(refusal_log.ids()) == MAX_REPORTS
    assert refusal_log.load(f"req_{MAX_REPORTS + 4}") is not None
    assert refusal_log.load("req_0") is None


def test_reports_are_limited_to_sixteen_megabytes_and_one_day(tmp_path: Path) -> None:
    now = 0.0

    refusal_log = RefusalLog(tmp_path, now=lambda: time.time() + now)
    for number in range(6):
        write_report(
            refusal_log, refusal(f"req_{number}", "x" * (MAX_REPORT_BYTES // 9))
        )  # each report contains three bodies
    assert 0 < sum(path.stat().st_size for path in tmp_path.glob("*.json")) <= MAX_REPORT_BYTES
    assert refusal_log.ids()
    now = 24 * 3600 + 5
    assert refusal_log.ids() == []


def test_report_files_are_private_and_ids_cannot_be_paths(tmp_path: Path) -> None:
    refusal_log = RefusalLog(tmp_path / "refusals")
    write_report(refusal_log, refusal())
    assert stat.S_IMODE((tmp_path / "refusals").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "refusals" / "req_1.json").stat().st_mode) == 0o600
    assert not write_report(refusal_log, refusal("../req_2"))
    assert refusal_log.load("../refusals/req_1") is None


def test_the_refusal_log_can_be_purged_and_disabled(tmp_path: Path) -> None:
    refusal_log = RefusalLog(tmp_path)
    write_report(refusal_log, refusal())
    assert (refusal_log.purge(), refusal_log.ids()) == (1, [])
    refusal_log.enabled = False
    assert not write_report(refusal_log, refusal())
    assert refusal_log.ids() == []


def test_the_likeliest_rule_comes_first() -> None:
    text = render_report(
        refusal(breaches=(Breach("kiro.r12", "history[3]", "a result without its call"), Breach("kiro.r2", "", "b")))
    )
    lines = text.splitlines()
    assert "Improperly formed request." in lines[2]
    assert lines[4] == "MOST LIKELY: kiro.r12 at history[3]: a result without its call (inferred)"
    assert lines[5] == "also broken: kiro.r2: b (inferred)"
    assert "[turn.placeholder] added messages[0]: a turn was added" in text
    assert "AS THE CLIENT SENT IT" in text and "│ AS THE GATEWAY SENT IT" in text


def test_control_characters_in_reports_are_not_printed() -> None:
    assert "\x1b" not in render_report(refusal(body="\x1b[2J\x1b]0;owned\x07"))


@pytest.mark.parametrize("enabled", [True, False])
def test_the_gateway_records_a_refusal_of_an_upstream(enabled: bool, tmp_path: Path) -> None:
    with gateway_with_simulator(REFUSED, tmp_path, "kiro", explain=enabled) as (harness, _):
        body = anthropic_body("claude-sonnet-4.5", f"my key is {KEY}", metadata={"user_id": "u"})
        status, headers, _ = harness.request("/v1/messages", body, authorization="Bearer something-else")
        assert status == 400
        report = wait_for_refusal(tmp_path, headers["x-request-id"], 5.0 if enabled else 0.0)
        if not enabled:
            assert report is None
            return
    assert report is not None
    assert (report.client, report.dialect, report.model) == ("anthropic", "kiro", "claude-sonnet-4.5")
    assert len(report.notes) == int(headers["dragoman-notes"])
    assert "conversationState" in report.sent.body and '"messages"' in report.client_request.body
    assert report.response.line == "400" and "Improperly formed" in report.response.body
    everything = (tmp_path / "refusals" / f"{report.id}.json").read_text()
    assert KEY not in everything and "something-else" not in everything and "the-upstream-secret" not in everything


def test_a_key_is_masked_in_every_place_of_a_report(tmp_path: Path) -> None:
    shaped = "sk-ant-0123456789abcdefgh"
    with gateway_with_simulator(
        'then = "last"\n[[turn]]\nstatus = 400\nmessage = "no"', tmp_path, "openai", explain=True
    ) as (harness, _):
        path = f"/v1beta/models/{shaped}:generateContent?%6bey=something-else&x={KEY}"
        body = {"contents": [{"role": "user", "parts": [{"text": "hi"}]}], shaped: KEY, KEY: shaped}
        status, headers, _ = harness.request(path, body)
        assert status == 400
        report = wait_for_refusal(tmp_path, headers["x-request-id"])
    assert report is not None
    assert report.client_request.line == "POST /v1beta/models/***:generateContent?%6bey=***&x=***"
    assert (report.model, "***" in str(report.notes)) == ("***", True)
    everything = (tmp_path / "refusals" / f"{report.id}.json").read_text()
    assert not [secret for secret in (shaped, "something-else", KEY) if secret in everything]


def test_a_refusal_inside_a_stream_is_recorded_too(tmp_path: Path) -> None:
    script = '[[turn]]\nparts = [{ text = "Well" }, { wait = 0.1 }, { exception = "server", message = "broke" }]'
    with gateway_with_simulator(script, tmp_path, "kiro") as (harness, _):
        _, headers, body = harness.request("/v1/messages", anthropic_body("claude-sonnet-4.5", stream=True))
        assert b"event: error" in body
        harness.log_lines()
        report = wait_for_refusal(tmp_path, headers["x-request-id"])
        assert report is not None and "broke" in report.fault
