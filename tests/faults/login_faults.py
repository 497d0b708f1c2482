"""Faults 67 and 70: a clock that jumps, and logins that are refreshed while requests wait."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from msgspec import structs

from dragoman.simulator import Simulator, parse_script
from dragoman.simulator.faults import FaultProxy
from dragoman.simulator.faults.response import Hang, Status
from tests.faults.checks import Probe, check_response
from tests.faults.client_faults import override_constants
from tests.faults.http_client import RawResponse, WrongResponse, send_request
from tests.faults.process_faults import exchange
from tests.faults.response_parsers import parse_refusal
from tests.faults.row import FaultRow
from tests.faults.runner import Case, Pair, check_no_leaks, client_request, configuration, covering_pairs, run_servers
from tests.gateway.harness import KEY, start_gateway

# --- 67


def _login(folder: Path, endpoint: str, *, expires: str, name: str = "token.json") -> Path:
    stored = folder / name
    token = {"accessToken": "old", "refreshToken": "r1", "expiresAt": expires, "region": "us-east-1"}
    token |= {"authMethod": "social", "endpoint": endpoint}
    stored.write_text(
        json.dumps(token | {"profileArn": "arn:aws:codewhisperer:us-east-1:699475941385:profile/TESTTESTTEST"})
    )
    stored.chmod(0o600)
    return stored


def _kiro(url: str, login: Path) -> str:
    return f'[upstreams.u0]\npreset = "kiro"\nbase_url = "{url}"\ncredentials = "ide:{login}"\n[[routes]]\nmatch = "m0"\nupstream = "u0"\nmodel = "claude-sonnet-4.5"\n'


class Clock:
    """A wall clock that can be set; the monotonic clock is unchanged."""

    def __init__(self) -> None:
        self.ahead = 0.0
        self._real = time.time

    def __call__(self) -> float:
        return self._real() + self.ahead


@contextmanager
def clock() -> Iterator[Clock]:
    """Replace `time.time`, also where it is a default argument."""
    clock_double, real = Clock(), time.time
    modules = [module for path, module in list(sys.modules.items()) if path.startswith("dragoman.")]
    kinds: set[Any] = {each for module in modules for each in vars(module).values() if isinstance(each, type)}
    defaults = [found for kind in kinds if (found := getattr(kind.__init__, "__kwdefaults__", None))]
    with ExitStack() as stack:
        stack.enter_context(patch("time.time", clock_double))
        for found in defaults:
            taken = {name: clock_double for name, value in found.items() if value is real}
            stack.enter_context(patch.dict(found, taken))
        yield clock_double


def clock_jumps(case: Case) -> None:
    for ahead in (3600.0, -3600.0):
        with case.probe(f"a login, {ahead:+g} s"), check_no_leaks(), clock() as now:
            _login_lives_on(case, now, ahead)
        with case.probe(f"a cooldown, {ahead:+g} s"), check_no_leaks(), clock() as now:
            _cooldown_ends(case, now, ahead)
        with case.probe(f"a signature, {ahead:+g} s"), check_no_leaks(), clock() as now:
            _signature_is_refused(case, now, ahead)


def _login_lives_on(case: Case, now: Clock, ahead: float) -> None:
    script = parse_script('then = "last"\n[tokens]\nrefresh = ["r1"]\nrotate = true\n[[turn]]\ntext = "fine"\n')
    simulator = Simulator("kiro", script=script)
    with run_servers([simulator]):
        soon = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(time.time() + 1800))
        text = _kiro(simulator.url, _login(case.folder, simulator.url, expires=soon))
        with start_gateway(text, case.folder_for(f"login{ahead:g}")) as harness:
            for moment in (0.0, ahead, ahead, 0.0):
                now.ahead = moment
                check_response(case.pair.client, Probe("it"), exchange(harness.url, case.pair.client), "fine", ())
        refreshes = [each.path for each in simulator.requests].count("/refreshToken")
        if refreshes != (1 if ahead > 0 else 0):
            raise WrongResponse(f"{refreshes} refreshes")


def _cooldown_ends(case: Case, now: Clock, ahead: float) -> None:
    simulator = Simulator(case.pair.upstream, script=parse_script('then = "last"\n[[turn]]\ntext = "fine"\n'))
    with run_servers([simulator]):
        proxy = FaultProxy(simulator.url, [Status(code=429, retry_after="1", times=1)])
        with run_servers([proxy]):
            text = configuration([(case.pair.upstream, proxy.url)])
            with start_gateway(text, case.folder_for(f"cool{ahead:g}")) as harness:
                first = exchange(harness.url, case.pair.client)
                check_response(case.pair.client, Probe("it", may="either"), first, "fine", ())
                now.ahead = ahead
                time.sleep(1.2)
                check_response(case.pair.client, Probe("it"), exchange(harness.url, case.pair.client), "fine", ())


def _signature_is_refused(case: Case, now: Clock, ahead: float) -> None:
    """With a wrong clock a signed request is refused with the reason; with the right clock it is served."""
    simulator = Simulator(case.pair.upstream, script=parse_script('then = "last"\n[[turn]]\ntext = "fine"\n'))
    with (
        run_servers([simulator]),
        start_gateway(
            configuration([(case.pair.upstream, simulator.url)]), case.folder_for(f"signed{ahead:g}")
        ) as harness,
    ):
        request = client_request("bedrock")
        for moment in (0.0, ahead, 0.0):
            draft = AWSRequest("POST", harness.url + request.path, dict(request.headers), request.body)
            SigV4Auth(Credentials("anybody", KEY), "bedrock", "eu-west-3").add_auth(draft)
            headers = tuple((name.lower(), value) for name, value in draft.headers.items())
            now.ahead = moment
            response = send_request(harness.url, structs.replace(request, headers=headers), "", 5)
            if not moment:
                check_response("bedrock", Probe("it"), response, "fine", ())
            elif response.status not in (401, 403) or "clock" not in parse_refusal("bedrock", response):
                raise WrongResponse(f"{response.status} {response.body[:200]!r} for a signature of another hour")


# --- 70

GRANTS = '[tokens]\naccess = ["none"]\nrefresh = ["r1"]\nrotate = true\n[pace]\nchunk = 50\n'
PAST = "2020-01-01T00:00:00.000Z"


def refreshed(case: Case) -> None:
    count = 200 if case.whole else 40
    script = f'then = "last"\n{GRANTS}[[turn]]\ntext = "fine"\n'
    fine: Callable[[RawResponse], object] = lambda response: check_response(  # noqa: E731
        case.pair.client, Probe("it"), response, "fine", ()
    )
    for label, expires in (("expired", PAST), ("refused by the service", "2099-01-01T00:00:00.000Z")):
        simulator = Simulator("kiro", script=parse_script(script))
        with case.probe(f"{count} requests at once, {label}"), check_no_leaks(), run_servers([simulator]):
            text = _kiro(simulator.url, _login(case.folder, simulator.url, expires=expires))
            text = text.replace("credentials", "limits.concurrency = 256\ncredentials")
            with start_gateway(text, case.folder_for(label)) as harness, ThreadPoolExecutor(count) as pool:
                for response in pool.map(lambda _: exchange(harness.url, case.pair.client, 30), range(count)):
                    fine(response)
            refreshes = [each.path for each in simulator.requests].count("/refreshToken")
            if refreshes != 1:
                raise WrongResponse(f"{refreshes} refreshes for {count} requests")
            case.probes += count
    _sign_in_is_down(case, script)
    simulator = Simulator("kiro", script=parse_script(script))
    with case.probe("two gateways and one rotating token"), check_no_leaks(), run_servers([simulator]):
        text = _kiro(simulator.url, _login(case.folder, simulator.url, expires=PAST))
        with (
            start_gateway(text, case.folder_for("a")) as one,
            start_gateway(text, case.folder_for("b")) as two,
            ThreadPoolExecutor(20) as pool,
        ):
            for response in pool.map(lambda at: exchange((one, two)[at % 2].url, case.pair.client, 30), range(20)):
                fine(response)
        grants = [each for each in simulator.requests if each.path == "/refreshToken"]
        if [each.status for each in grants] != [200] * len(grants):
            raise WrongResponse(f"a refresh token was burned: {grants}")


def _sign_in_is_down(case: Case, script: str) -> None:
    for label, fault, within in (
        ("500", Status(code=500), 15.0),
        ("invalid_grant", Status(code=400, body="json"), 15.0),
        ("HTML", Status(code=200, body="html"), 15.0),
        ("hangs", Hang(), 15.0),
    ):
        simulator = Simulator("kiro", script=parse_script(script))
        scale = override_constants(_REFRESH_SECONDS=0.5, _TIMEOUT=0.5)  # instead of 15 s
        with case.probe(f"the sign-in service: {label}"), scale, check_no_leaks(), run_servers([simulator]):
            sign_in = FaultProxy(simulator.url, [fault])
            with run_servers([sign_in]):
                login = _login(case.folder, sign_in.url, expires=PAST, name=f"{label}.json")
                with start_gateway(_kiro(simulator.url, login), case.folder_for(f"down-{label}")) as harness:
                    response = exchange(harness.url, case.pair.client, within)
                    check_response(case.pair.client, Probe("it", may="error"), response)
                    if json.loads(login.read_text())["refreshToken"] != "r1":
                        raise WrongResponse("the refresh token was thrown away")


ROWS = [
    FaultRow(67, "the clock jumps by an hour", "logins and cooldowns go on", clock_jumps, covering_pairs()[:2]),
    FaultRow(
        70,
        "tokens: a storm, a sign-in service that fails, a race",
        "one refresh; errors; none burned",
        refreshed,
        [Pair("anthropic", "kiro"), Pair("openai", "kiro")],
    ),
]
