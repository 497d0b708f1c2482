"""A plan that went through a pickle, as the job process hands it over, reads answers as the plan itself does."""

from __future__ import annotations

import itertools
import pickle
from functools import partial
from typing import Any

import pytest
from msgspec import structs

import dragoman.dialects as registry
from dragoman.dialects.base import Environment
from dragoman.errors import DragomanError
from dragoman.gateway.job_process import JobMessage, JobResult
from dragoman.gateway.job_runner import JobRunner
from dragoman.gateway.jobs import ParsedRequest, PlanJob, PlanResult, ReadJob, ResponseJob, make_plan, plan
from dragoman.gateway.limits import RequestLimits
from dragoman.gateway.planning import Bounds, parse_within_limits, render_planned
from dragoman.gateway.response_modes import translate_whole
from dragoman.model.conversation import without_messages
from dragoman.model.events import ResponseLimits
from dragoman.response_stream import ResponseTranslator, read_whole_reply
from dragoman.translate import Plan, TranslationSettings
from dragoman.wire.http import HttpRequest
from tests.laws.bodies import BODIES
from tests.load.payload import expected_response
from tests.load.upstream import DIALECTS

NAME = "0" * 16
ENVIRONMENT = Environment(new_id=lambda prefix: f"{prefix}1", now=lambda: 1)
BOUNDS = Bounds(RequestLimits(), 32 * 1024 * 1024, "web")
SETTINGS = {
    "usual": TranslationSettings(),
    "reading": TranslationSettings(think_tags=True, raw_tools="auto"),
    "repair": TranslationSettings(repair=True),
}
ALL = [registry.get(name) for name in registry.names()]
JOB_RUNNER = JobRunner(ALL)


def request_of(client: str, *, stream: bool = True, model: str = "claude-sonnet-4.5") -> HttpRequest:
    dialect = registry.get(client)
    call = dialect.binding.unwrap(BODIES[client])
    return dialect.binding.wrap(structs.replace(call, stream=stream, model=model))


def through_pickles(work: Any, body: bytes | None, request_id: str = "req") -> tuple[Any, bytes]:
    """What the job process answers to a job, through the bytes that go between the processes."""
    reply, beside = JOB_RUNNER.run_job(pickle.loads(pickle.dumps(JobMessage(work, request_id))), body)
    found: JobResult = pickle.loads(pickle.dumps(reply))
    assert not found.failed
    if found.error is not None:
        raise found.error
    return found.result, beside


def outcome(planned: Plan, upstream: str) -> list[Any]:
    """Return what the client gets of one reply, streamed and whole."""
    body = b"".join(DIALECTS[upstream](NAME, expected_response(NAME)))
    results: list[Any] = []
    streamed = ResponseTranslator(planned, ENVIRONMENT)
    results.append(b"".join(streamed.feed(body[at : at + 777]) for at in range(0, len(body), 777)) + streamed.close())
    results.append(streamed.notes)
    try:
        reply, notes = read_whole_reply(planned, body, ENVIRONMENT)
        results += [planned.client.codec.render_reply(reply, planned.original, ENVIRONMENT), notes]
    except DragomanError as error:
        results.append(error.fault)
    return results


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize(("client", "upstream"), list(itertools.product(BODIES, DIALECTS)))
def test_a_plan_from_the_job_process_reads_responses_as_one_from_this_process(
    client: str, upstream: str, settings: str
) -> None:
    request = request_of(client)
    head, body = structs.replace(request, body=b""), request.body
    client_dialect, target = registry.get(client), registry.get(upstream)
    job = PlanJob(head, BOUNDS, target, "claude-sonnet-4.5", SETTINGS[settings])
    call = client_dialect.binding.match(request)
    assert call is not None
    known = ParsedRequest(client_dialect, request, parse_within_limits(client_dialect, call, len(body), BOUNDS)[0])
    try:
        planned, _ = make_plan(job, known)
    except DragomanError as error:
        with pytest.raises(type(error)) as caught:
            through_pickles(job, body)
        assert caught.value.fault == error.fault
        return
    read, _ = through_pickles(ReadJob(head, BOUNDS), body)
    assert read.dialect == client
    assert (read.call.model, read.call.stream) == (call.model, call.stream)
    found: PlanResult
    found, beside = through_pickles(job, None)  # the job process remembers what it has read
    sent, note = render_planned(planned, request, BOUNDS.max_body)
    assert found.request is not None
    assert structs.replace(found.request, body=body if found.verbatim else beside) == structs.replace(sent)
    notes = [note for some in found.notes for note in pickle.loads(some)]
    assert (tuple(notes), found.note, found.verbatim) == (planned.notes, note, sent.body is request.body)
    expected_plan = structs.replace(found.plan, client=client_dialect, upstream=target, notes=tuple(notes))
    assert expected_plan.verbatim == planned.verbatim and expected_plan.keeps_frames == planned.keeps_frames
    assert outcome(expected_plan, upstream) == outcome(planned, upstream)


@pytest.mark.parametrize(("client", "upstream"), list(itertools.product(BODIES, DIALECTS)))
def test_a_whole_response_from_the_job_process_is_the_same_as_without_it(
    client: str, upstream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.gateway.response_modes.SYSTEM_ENVIRONMENT", ENVIRONMENT)
    monkeypatch.setattr(
        "dragoman.gateway.response_modes.read_whole_reply", partial(read_whole_reply, environment=ENVIRONMENT)
    )
    request, client_dialect, target = request_of(client, stream=False), registry.get(client), registry.get(upstream)
    call = client_dialect.binding.match(request)
    assert call is not None
    known = ParsedRequest(client_dialect, request, parse_within_limits(client_dialect, call, 1, BOUNDS)[0])
    try:
        planned, _ = make_plan(PlanJob(request, BOUNDS, target, "claude-sonnet-4.5", TranslationSettings()), known)
    except DragomanError:
        return
    plan_left = structs.replace(
        planned, original=without_messages(planned.original), translated=without_messages(planned.translated)
    )
    whole = b"".join(DIALECTS[upstream](NAME, expected_response(NAME)))
    for body in (whole, whole[: len(whole) // 2], b"<html>", b"{"):
        try:
            written = translate_whole(plan_left, body)
        except DragomanError as error:
            with pytest.raises(type(error)) as caught:
                through_pickles(ResponseJob(plan_left, ResponseLimits(), is_saved=False), body)
            assert caught.value.fault == error.fault
            continue
        answered, beside = through_pickles(ResponseJob(plan_left, ResponseLimits(), is_saved=False), body)
        result, raw, found = structs.replace(written, body=b""), written.body, answered
        assert answered.saved is None
        if result.notes is None:  # it passes as it came; an id that the response lacks is made by chance
            result, found, raw = structs.replace(result, id=""), structs.replace(found, id=""), b""
        assert (found, beside) == (result, raw)


def test_every_dialect_is_among_them() -> None:
    assert set(BODIES) >= {name for name in registry.names() if name != "bedrock.invoke"}


def test_a_forgotten_request_is_planned_from_its_body() -> None:
    request = request_of("anthropic")
    job = PlanJob(structs.replace(request, body=b""), BOUNDS, registry.get("openai"), "m", TranslationSettings())
    assert through_pickles(job, None, "another") == ("unknown", b"")
    call = registry.get("anthropic").binding.match(request)
    assert call is not None
    known = ParsedRequest(
        registry.get("anthropic"), request, parse_within_limits(registry.get("anthropic"), call, 1, BOUNDS)[0]
    )
    assert through_pickles(job, request.body)[1] == plan(job, known)[1]
