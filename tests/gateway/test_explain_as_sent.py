"""`dragoman explain` shows what was really sent, names rule 49 of docs/dialects/kiro.md and overload, and works for any recent request."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dragoman.gateway.explain import RecordedMessage, RefusalReport, render_report
from dragoman.simulator import Simulator, parse_script, running_simulator
from dragoman.simulator.kiro.refusals import SimulatorLimits
from tests.gateway.harness import (
    KEY,
    GatewayHarness,
    anthropic_body,
    client_request,
    gateway_with_simulator,
    start_gateway,
    upstream_config,
    wait_for_refusal,
    wait_until,
)
from tests.gateway.test_commands import REFUSED, UserHome, home

__all__ = ["home"]

ARN = "arn:aws:codewhisperer:us-east-1:699475941385:profile/test"
MODEL = "claude-sonnet-4.5"
NO = 'then = "last"\n[[turn]]\nstatus = 400\nmessage = "Improperly formed request."'
IN_STREAM = 'then = "last"\n[[turn]]\nparts = [{ text = "Well" }, { exception = "server", message = "broke" }]'
MASKED = ("authorization", "x-api-key", "x-goog-api-key", "tokentype")
DIALECTS = ("kiro", "anthropic", "openai", "responses", "gemini", "ollama")


@contextmanager
def kiro_gateway(simulator: Simulator, tmp_path: Path, arn: str = ARN, **flags: Any) -> Iterator[GatewayHarness]:
    """Run a gateway with a Kiro login, which adds the profile to each body."""
    stored = tmp_path / "token.json"
    token = {"accessToken": "test_access_token", "refreshToken": "r" * 120, "expiresAt": "2099-01-01T00:00:00.000Z"}
    stored.write_text(json.dumps({**token, "profileArn": arn, "authMethod": "social", "region": "us-east-1"}))
    stored.chmod(0o600)
    text = f'[upstreams.kiro]\npreset = "kiro"\nbase_url = "{simulator.url}"\ncredentials = "ide:{stored}"\n'
    with start_gateway(text, tmp_path, **flags) as harness:
        yield harness


def same_request(report: RefusalReport, simulator: Simulator) -> None:
    """Check that the report has the request as the simulator received it, with secrets masked."""
    received = simulator.requests[-1].request
    query = f"?{received.query}" if received.query else ""
    assert report.sent.line == f"{received.method} {received.path}{query}"
    assert json.loads(report.sent.body) == json.loads(received.body)
    assert report.sent.body.encode() == received.body
    shown = dict(report.sent.headers)
    assert sorted(name for name, _ in report.sent.headers) == sorted(name for name, _ in received.headers)
    for name, value in received.headers:
        assert shown[name] == ("***" if name in MASKED else value), name


@pytest.mark.parametrize("script", [NO, IN_STREAM], ids=["refused", "in the stream"])
@pytest.mark.parametrize("offload", [0, 1], ids=["small", "large"])
def test_the_report_has_the_profile_and_the_headers_that_were_sent(script: str, offload: int, tmp_path: Path) -> None:
    with (
        running_simulator("kiro", script=parse_script(script)) as simulator,
        kiro_gateway(simulator, tmp_path, server__offload=offload) as harness,
    ):
        _, headers, _ = harness.request("/v1/messages", anthropic_body(MODEL, stream=True))
        report = wait_for_refusal(tmp_path, headers["x-request-id"], 60.0)
    assert report is not None
    assert json.loads(report.sent.body)["profileArn"] == ARN
    same_request(report, simulator)
    names = [name for name, _ in report.sent.headers]
    assert {"host", "content-length", "authorization", "amz-sdk-invocation-id", "user-agent"} <= {*names}
    assert dict(report.sent.headers)["authorization"] == "***"
    assert "test_access_token" not in (tmp_path / "refusals" / f"{report.id}.json").read_text()


@pytest.mark.parametrize("client", ["anthropic", "openai", "gemini"])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_report_has_what_every_upstream_received(client: str, dialect: str, tmp_path: Path) -> None:
    more = '[upstreams.one.headers]\nx-team = "blue"\nuser-agent = "mine"'
    with (
        running_simulator(dialect, script=parse_script(NO)) as simulator,
        start_gateway(upstream_config("one", dialect, simulator.url, more), tmp_path) as harness,
    ):
        path, body = client_request(client)
        _, headers, _ = harness.request(path, body)
        report = wait_for_refusal(tmp_path, headers["x-request-id"], 60.0)
    assert report is not None
    same_request(report, simulator)
    assert ("x-team", "blue") in report.sent.headers
    assert dialect == "kiro" or ("user-agent", "mine") in report.sent.headers  # the login of Kiro sets its own


# --- rule 49 of docs/dialects/kiro.md


def test_rule_49_is_named_for_a_missing_profile(tmp_path: Path) -> None:
    """Regression: the report was that the request breaks no known rule."""
    script = 'then = "last"\n[[turn]]\nstatus = 400\nmessage = "profileArn is required for this request."'
    with gateway_with_simulator(script, tmp_path, "kiro") as (harness, _):
        _, headers, _ = harness.request("/v1/messages", anthropic_body(MODEL))
        report = wait_for_refusal(tmp_path, headers["x-request-id"], 60.0)
    assert report is not None
    words = "it is missing, and the service requires it here (docs/dialects/kiro.md, rule 49)"
    assert f"MOST LIKELY: kiro.body.profile_arn at profileArn: {words}" in render_report(report, 300)


def test_rule_49_is_named_for_a_profile_of_another_login(tmp_path: Path) -> None:
    limits = SimulatorLimits(profile_arns=(ARN.replace("test", "other"),))
    with running_simulator("kiro", limits=limits) as simulator, kiro_gateway(simulator, tmp_path) as harness:
        status, headers, _ = harness.request("/v1/messages", anthropic_body(MODEL))
        report = wait_for_refusal(tmp_path, headers["x-request-id"], 60.0)
    assert status == 401 and report is not None
    shown = render_report(report, 300)
    assert "CREDENTIAL: " in shown and "breaks no known rule" not in shown
    assert (
        "perhaps: kiro.body.profile_arn at profileArn: it may be a profile that this login cannot use (docs/dialects/kiro.md, rule 49)"
        in shown
    )


def test_a_profile_that_is_no_arn_is_named(tmp_path: Path) -> None:
    setting = '[upstreams.one.settings]\nprofile_arn = "arn:aws:iam::123456789012:role/x"'
    with (
        running_simulator("kiro") as simulator,
        start_gateway(upstream_config("one", "kiro", simulator.url, setting), tmp_path) as harness,
    ):
        _, headers, _ = harness.request("/v1/messages", anthropic_body(MODEL))
        report = wait_for_refusal(tmp_path, headers["x-request-id"], 60.0)
    assert report is not None
    assert "MOST LIKELY: kiro.body.profile_arn at profileArn" in render_report(report, 300)


# --- errors that the request did not cause


def report_of(kind: str) -> RefusalReport:
    message = RecordedMessage("POST /x", (), "{}")
    return RefusalReport("req_1", 0.0, "anthropic", "one", "kiro", "m", "why", message, message, message, (), (), kind)


@pytest.mark.parametrize(
    ("kind", "word"),
    [
        ("overloaded", "OVERLOAD"),
        ("rate_limit", "RATE LIMIT"),
        ("quota", "QUOTA"),
        ("timeout", "TIMEOUT"),
        ("server", "ERROR OF THE SERVICE"),
        ("auth", "CREDENTIAL"),
        ("permission", "PERMISSION"),
    ],
)
def test_an_error_that_the_request_did_not_cause_is_called_by_its_name(kind: str, word: str) -> None:
    shown = render_report(report_of(kind))
    assert shown.splitlines()[4].startswith(f"{word}: ") and "breaks no known rule" not in shown
    assert "breaks no known rule of kiro" in render_report(report_of("invalid"))


@pytest.mark.parametrize(
    "response",
    [
        'status = 429\nmessage = "I am experiencing high traffic"\nreason = "INSUFFICIENT_MODEL_CAPACITY"',
        'status = 503\nmessage = "no"',
        'status = 500\nmessage = "Encountered unexpectedly high load when processing the request"',
    ],
)
def test_an_overload_is_called_overload(response: str, tmp_path: Path) -> None:
    script = f'then = "last"\n[[turn]]\n{response}'
    with (
        running_simulator("kiro", script=parse_script(script)) as simulator,
        start_gateway(upstream_config("one", "kiro", simulator.url), tmp_path) as harness,
    ):
        _, headers, _ = harness.request("/v1/messages", anthropic_body(MODEL))
        report = wait_for_refusal(tmp_path, headers["x-request-id"], 60.0)
    assert report is not None and "\nOVERLOAD: " in render_report(report, 300)


def test_a_report_of_an_earlier_version_can_be_read(tmp_path: Path) -> None:
    from dragoman.gateway.explain import RefusalLog, encode_report

    report = report_of("invalid")
    fields = json.loads(encode_report(report))
    del fields["kind"]
    RefusalLog(tmp_path).write("req_1", json.dumps(fields).encode())
    assert RefusalLog(tmp_path).load("req_1") == report


# --- the command, for any recent request


@pytest.mark.skipif(sys.platform == "win32", reason="Unix sockets")
def test_explain_works_for_any_recent_request(home: UserHome) -> None:
    script = home.write("script.toml", f'then = "last"\n[[turn]]\ntext = "fine"\n{REFUSED}\n[[turn]]\ntext = "fine"')
    text = f'[upstreams.sim]\npreset = "simulator"\ndialect = "kiro"\nmodels = ["{MODEL}"]\n'
    config = str(home.write("config.toml", f'{text}[upstreams.sim.simulator]\nscript = "{script}"\n'))
    secret = "my secret words"
    with home.serving("--quiet", "--config", config) as served:
        fine = served.say(secret)[1]["x-request-id"]
        refused = served.say(secret)[1]["x-request-id"]
        wait_until(lambda: "THE RESPONSE" in home.run("explain", refused).stdout)
        shown, report = home.run("explain", fine), home.run("explain", refused)
        by_end = home.run("explain", fine[-8:])
        data = json.loads(home.run("explain", fine, "--json").stdout)
        both = json.loads(home.run("explain", refused, "--json").stdout)
        listed = home.run("explain")
        last = home.run("explain", "last").stdout
        missing = home.run("explain", "req_nothing")
    assert by_end.stdout == shown.stdout
    assert f"{fine}  20" in shown.stdout and "  outcome   ok, status 200, stop end" in shown.stdout
    assert "upstream  sim (kiro), credential simulated" in shown.stdout
    assert "[kiro.max_tokens] dropped max_tokens: " in shown.stdout
    assert secret not in shown.stdout and secret in report.stdout  # bodies of refusals only
    assert data["request"]["request_id"] == fine and data["request"]["changes"]
    assert both["request"]["outcome"] == "failed" and both["sent"]["body"]
    assert report.stdout == last and "AS THE GATEWAY SENT IT" in last
    ids = [line.split()[0] for line in listed.stdout.splitlines()]
    assert ids == [refused, fine]  # newest first; the other one lost max_tokens
    assert missing.returncode == 1 and "no request 'req_nothing' is known" in missing.stderr
    without = home.run("explain", refused)
    assert "THE RESPONSE" in without.stdout  # the report is on disk
    assert home.run("explain", fine).returncode == 1
    assert KEY not in shown.stdout
