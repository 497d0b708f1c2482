"""Refusal reports are made after the response, in a bounded queue, without delaying other requests."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

import dragoman.dialects as registry
from dragoman.errors import Fault
from dragoman.gateway import explain
from dragoman.gateway.explain import ExplainJob, PendingReport, RefusalLog, ReportQueue, _text, build_report
from dragoman.gateway.jobs import PlanJob
from dragoman.gateway.limits import RequestLimits
from dragoman.gateway.planning import Bounds
from dragoman.gateway.redaction import Redactor
from dragoman.gateway.response_store import ResponseStore
from dragoman.http.exchange import Owner
from dragoman.translate import TranslationSettings
from dragoman.wire.http import HttpRequest, HttpResponse
from tests.gateway.harness import anthropic_body, gateway_with_simulator, wait_for_refusal

BOUNDS = Bounds(RequestLimits(), 32 * 1024 * 1024, "web")
REFUSED = 'then = "last"\n[[turn]]\nstatus = 400\nmessage = "Improperly formed request."'
BODY = b'{"model": "m", "max_tokens": 10, "messages": [{"role": "user", "content": "hi"}]}'


def case(request_id: str, body: bytes = BODY) -> PendingReport:
    plan = PlanJob(HttpRequest("POST", "/v1/messages"), BOUNDS, registry.get("openai"), "m", TranslationSettings())
    way = (request_id, "anthropic", "one")
    job = ExplainJob(plan, way, None, HttpResponse(400, (), b"{}"), Fault("invalid", "no", 400), ())
    return PendingReport(job, registry.get("anthropic"), body, ResponseStore(), Owner("a"), None)


def test_the_client_gets_its_response_before_the_report_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_go_on, began = threading.Event(), threading.Event()

    def slow(*args: Any) -> Any:
        began.set()
        assert may_go_on.wait(30)
        return build_report(*args)

    monkeypatch.setattr(explain, "build_report", slow)
    with gateway_with_simulator(REFUSED, tmp_path, "kiro") as (harness, _):
        body = anthropic_body("claude-sonnet-4.5")
        first, headers, _ = harness.request("/v1/messages", body)
        assert began.wait(10)
        second, more, _ = harness.request("/v1/messages", body)  # other requests are served meanwhile
        assert harness.request("/healthz", method="GET")[0] == 200
        assert (first, second) == (400, 400)
        assert wait_for_refusal(tmp_path, headers["x-request-id"], 0.0) is None
        may_go_on.set()
        assert wait_for_refusal(tmp_path, headers["x-request-id"]) is not None
        assert wait_for_refusal(tmp_path, more["x-request-id"]) is not None


def test_pending_reports_are_made_before_the_gateway_stops(tmp_path: Path) -> None:
    with gateway_with_simulator(REFUSED, tmp_path, "kiro") as (harness, _):
        ids = [
            harness.request("/v1/messages", anthropic_body("claude-sonnet-4.5"))[1]["x-request-id"] for _ in range(3)
        ]
    assert set(RefusalLog(tmp_path / "refusals").ids()) == set(ids)


@pytest.mark.parametrize(("most", "most_bytes"), [(2, 1 << 20), (9, 2 * len(BODY) + 4)])
async def test_the_queue_of_reports_is_limited_in_number_and_bytes(tmp_path: Path, most: int, most_bytes: int) -> None:
    later = ReportQueue(most=most, most_bytes=most_bytes)
    for number in range(5):
        later.add(case(f"req_{number}"), RefusalLog(tmp_path))
    dropped = later.dropped
    await later.close()
    assert later.waiting == 0
    later.add(case("req_9"), RefusalLog(tmp_path))  # the queue has room again
    await later.close()
    assert (dropped, later.dropped) == (3, 3)
    assert set(RefusalLog(tmp_path).ids()) == {"req_0", "req_1", "req_9"}


async def test_a_failing_report_does_not_stop_the_others(tmp_path: Path) -> None:
    later = ReportQueue()
    later.add(case("req_1", b'{"model": "m", "messages": 3}'), RefusalLog(tmp_path))
    later.add(case("req_2"), RefusalLog(tmp_path))
    await later.close()
    assert RefusalLog(tmp_path).ids() == ["req_2"]


@pytest.mark.parametrize("before", range(0, 60, 7))
def test_truncation_of_a_report_shows_no_part_of_a_secret(before: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explain, "_LONGEST_BODY", 2000)
    monkeypatch.setattr(explain, "_LONGEST_SECRET", 100)
    secret = "a-secret-of-the-upstream-0123456789-abcdefghij"
    body = b"x" * (2000 - before) + b" " + secret.encode() + b" " + b"y" * 500
    shown = _text(body, Redactor(lambda: (secret,)))
    assert secret[:6] not in shown
    assert f"the body has {len(body)} bytes" in shown


def test_a_report_that_raises_does_not_block_the_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: a refusal that failed stayed first in the queue forever."""
    messages: list[str] = []

    def fails(job: ExplainJob, known: Any) -> Any:
        if job.request_names[0] == "bad":
            raise ZeroDivisionError
        return build_report(job, known)

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: messages.append(context["message"]))
        explaining = ReportQueue()
        for request_id in ("bad", "good"):
            explaining.add(case(request_id), refusal_log)
        await explaining.close()
        assert (explaining.waiting, explaining._bytes) == (0, 0)

    refusal_log = RefusalLog(tmp_path)
    monkeypatch.setattr(explain, "build_report", fails)
    asyncio.run(main())
    assert (refusal_log.ids(), messages) == (["good"], ["no report about the refused request bad can be written"])
