"""Faults 67 and 70: a clock that jumps, and logins that must be renewed while everybody waits for them."""

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

from dragoman.simulator import Simulator, parse
from dragoman.simulator.faults import FaultProxy
from dragoman.simulator.faults.answer import Hang, Status
from tests.faults.hearing import refusal
from tests.faults.judging import Probe, judge
from tests.faults.leaving import scaled
from tests.faults.listening import Told, Wrong, ask
from tests.faults.processes import exchange
from tests.faults.stage import Case, Pair, configuration, covering, nothing_left, question, running
from tests.faults.table import Row
from tests.gateway.house import KEY, house

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
    """The wall clock, which may be put forward and back; the monotonic one goes on."""

    def __init__(self) -> None:
        self.ahead = 0.0
        self._real = time.time

    def __call__(self) -> float:
        return self._real() + self.ahead


@contextmanager
def clock() -> Iterator[Clock]:
    """In place of `time.time`, also where it was taken as a default before."""
    made, real = Clock(), time.time
    modules = [module for path, module in list(sys.modules.items()) if path.startswith("dragoman.")]
    kinds: set[Any] = {each for module in modules for each in vars(module).values() if isinstance(each, type)}
    defaults = [found for kind in kinds if (found := getattr(kind.__init__, "__kwdefaults__", None))]
    with ExitStack() as stack:
        stack.enter_context(patch("time.time", made))
        for found in defaults:
            taken = {name: made for name, value in found.items() if value is real}
            stack.enter_context(patch.dict(found, taken))
        yield made


def clock_jumps(case: Case) -> None:
    for ahead in (3600.0, -3600.0):
        with case.probe(f"a login, {ahead:+g} s"), nothing_left(), clock() as now:
            _login_lives_on(case, now, ahead)
        with case.probe(f"a cooldown, {ahead:+g} s"), nothing_left(), clock() as now:
            _cooldown_ends(case, now, ahead)
        with case.probe(f"a signature, {ahead:+g} s"), nothing_left(), clock() as now:
            _signature_is_refused(case, now, ahead)


def _login_lives_on(case: Case, now: Clock, ahead: float) -> None:
    script = parse('then = "last"\n[tokens]\nrefresh = ["r1"]\nrotate = true\n[[turn]]\ntext = "fine"\n')
    simulator = Simulator("kiro", script=script)
    with running([simulator]):
        soon = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(time.time() + 1800))
        text = _kiro(simulator.url, _login(case.folder, simulator.url, expires=soon))
        with house(text, case.folder_for(f"login{ahead:g}")) as home:
            for moment in (0.0, ahead, ahead, 0.0):
                now.ahead = moment
                judge(case.pair.client, Probe("it"), exchange(home.url, case.pair.client), "fine", ())
        asked = [each.path for each in simulator.requests].count("/refreshToken")
        if asked != (1 if ahead > 0 else 0):
            raise Wrong(f"{asked} refreshes")


def _cooldown_ends(case: Case, now: Clock, ahead: float) -> None:
    simulator = Simulator(case.pair.upstream, script=parse('then = "last"\n[[turn]]\ntext = "fine"\n'))
    with running([simulator]):
        proxy = FaultProxy(simulator.url, [Status(code=429, retry_after="1", times=1)])
        with running([proxy]):
            text = configuration([(case.pair.upstream, proxy.url)])
            with house(text, case.folder_for(f"cool{ahead:g}")) as home:
                first = exchange(home.url, case.pair.client)
                judge(case.pair.client, Probe("it", may="either"), first, "fine", ())
                now.ahead = ahead
                time.sleep(1.2)
                judge(case.pair.client, Probe("it"), exchange(home.url, case.pair.client), "fine", ())


def _signature_is_refused(case: Case, now: Clock, ahead: float) -> None:
    """A client that signs, and a clock that is wrong: it is told so, and served when the clock is right again."""
    simulator = Simulator(case.pair.upstream, script=parse('then = "last"\n[[turn]]\ntext = "fine"\n'))
    with (
        running([simulator]),
        house(configuration([(case.pair.upstream, simulator.url)]), case.folder_for(f"signed{ahead:g}")) as home,
    ):
        request = question("bedrock")
        for moment in (0.0, ahead, 0.0):
            draft = AWSRequest("POST", home.url + request.path, dict(request.headers), request.body)
            SigV4Auth(Credentials("anybody", KEY), "bedrock", "eu-west-3").add_auth(draft)
            headers = tuple((name.lower(), value) for name, value in draft.headers.items())
            now.ahead = moment
            told = ask(home.url, structs.replace(request, headers=headers), "", 5)
            if not moment:
                judge("bedrock", Probe("it"), told, "fine", ())
            elif told.status not in (401, 403) or "clock" not in refusal("bedrock", told):
                raise Wrong(f"{told.status} {told.body[:200]!r} for a signature of another hour")


# --- 70

GRANTS = '[tokens]\naccess = ["none"]\nrefresh = ["r1"]\nrotate = true\n[pace]\nchunk = 50\n'
PAST = "2020-01-01T00:00:00.000Z"


def refreshed(case: Case) -> None:
    count = 200 if case.whole else 40
    said = f'then = "last"\n{GRANTS}[[turn]]\ntext = "fine"\n'
    fine: Callable[[Told], object] = lambda told: judge(case.pair.client, Probe("it"), told, "fine", ())  # noqa: E731
    for label, expires in (("expired", PAST), ("refused by the service", "2099-01-01T00:00:00.000Z")):
        simulator = Simulator("kiro", script=parse(said))
        with case.probe(f"{count} requests at once, {label}"), nothing_left(), running([simulator]):
            text = _kiro(simulator.url, _login(case.folder, simulator.url, expires=expires))
            text = text.replace("credentials", "limits.concurrency = 256\ncredentials")
            with house(text, case.folder_for(label)) as home, ThreadPoolExecutor(count) as pool:
                for told in pool.map(lambda _: exchange(home.url, case.pair.client, 30), range(count)):
                    fine(told)
            asked = [each.path for each in simulator.requests].count("/refreshToken")
            if asked != 1:
                raise Wrong(f"{asked} refreshes for {count} requests")
            case.probes += count
    _sign_in_is_down(case, said)
    simulator = Simulator("kiro", script=parse(said))
    with case.probe("two gateways and one rotating token"), nothing_left(), running([simulator]):
        text = _kiro(simulator.url, _login(case.folder, simulator.url, expires=PAST))
        with (
            house(text, case.folder_for("a")) as one,
            house(text, case.folder_for("b")) as two,
            ThreadPoolExecutor(20) as pool,
        ):
            for told in pool.map(lambda at: exchange((one, two)[at % 2].url, case.pair.client, 30), range(20)):
                fine(told)
        grants = [each for each in simulator.requests if each.path == "/refreshToken"]
        if [each.status for each in grants] != [200] * len(grants):
            raise Wrong(f"a refresh token was burned: {grants}")


def _sign_in_is_down(case: Case, said: str) -> None:
    for label, fault, within in (
        ("500", Status(code=500), 15.0),
        ("invalid_grant", Status(code=400, body="json"), 15.0),
        ("HTML", Status(code=200, body="html"), 15.0),
        ("hangs", Hang(), 15.0),
    ):
        simulator = Simulator("kiro", script=parse(said))
        scale = scaled(_REFRESH_SECONDS=0.5, _TIMEOUT=0.5)  # of 15 s
        with case.probe(f"the sign-in service: {label}"), scale, nothing_left(), running([simulator]):
            sign_in = FaultProxy(simulator.url, [fault])
            with running([sign_in]):
                login = _login(case.folder, sign_in.url, expires=PAST, name=f"{label}.json")
                with house(_kiro(simulator.url, login), case.folder_for(f"down-{label}")) as home:
                    told = exchange(home.url, case.pair.client, within)
                    judge(case.pair.client, Probe("it", may="error"), told)
                    if json.loads(login.read_text())["refreshToken"] != "r1":
                        raise Wrong("the refresh token was thrown away")


ROWS = [
    Row(67, "the clock jumps by an hour", "logins and cooldowns go on", clock_jumps, covering()[:2]),
    Row(
        70,
        "tokens: a storm, a sign-in service in trouble, a race",
        "one refresh; errors; none burned",
        refreshed,
        [Pair("anthropic", "kiro"), Pair("openai", "kiro")],
    ),
]
