"""Logging in by device code, and `dragoman auth` as a person meets it."""

from __future__ import annotations

import asyncio
import io
import json
import stat
import sys
from argparse import ArgumentParser
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from dragoman.cli import auth
from dragoman.errors import Reset
from dragoman.simulator import Simulator, running_simulator
from dragoman.upstream.credentials import CredentialFault, SecretText
from dragoman.upstream.kiro.logins import KiroPaths, find_logins, open_store
from dragoman.upstream.kiro.sign_in import DeviceLogin
from dragoman.upstream.kiro.stores import OwnStore
from dragoman.upstream.kiro.token import Token, render_time
from dragoman.wire.http import HttpRequest, HttpResponse
from tests.unit.upstream.kiro_logins import (
    NOW,
    SignInService,
    cli_database,
    endpoints_of,
    fetch,
    json_response,
    token_script,
)

REGISTERED = {"clientId": "c", "clientSecret": "client-secret-1", "clientSecretExpiresAt": NOW + 86400}
STARTED = {
    "deviceCode": "device-1",
    "userCode": "ABCD-EFGH",
    "verificationUri": "https://device.example/",
    "expiresIn": 60,
    "interval": 5,
}


class Sleeper:
    def __init__(self) -> None:
        self.slept: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.slept.append(seconds)


def service(*polls: HttpResponse | Exception) -> SignInService:
    left = iter(polls)

    def respond(request: HttpRequest) -> HttpResponse | Exception:
        match request.path:
            case "/client/register":
                return json_response(REGISTERED)
            case "/device_authorization":
                return json_response(STARTED)
            case _:
                return next(left)

    return SignInService(respond)


def wait(sign_in: SignInService, sleeper: Sleeper, **more: Any) -> Token:
    async def login() -> Token:
        device = DeviceLogin(sign_in.fetch, sleep=sleeper, **more)
        return await device.wait(await device.begin(), lambda: NOW)

    return asyncio.run(login())


def oauth(code: str, status: int = 400) -> HttpResponse:
    return json_response({"error": code, "error_description": code}, status)


GRANTED = json_response({"accessToken": "a", "refreshToken": "r", "expiresIn": 3600})


def test_a_device_login_polls_at_the_given_interval_and_stores_what_a_refresh_needs() -> None:
    sleeper = Sleeper()
    sign_in = service(oauth("authorization_pending"), oauth("slow_down"), Reset("cut"), oauth("x", 503), GRANTED)
    token = wait(sign_in, sleeper, region="eu-west-1", start_url="https://corp.awsapps.com/start/")
    assert sleeper.slept == [5, 5, 10, 10, 10]
    assert {base for base, _ in sign_in.calls} == {"https://oidc.eu-west-1.amazonaws.com"}
    assert (token.kind, token.region, token.start_url, token.provider) == (
        "idc", "eu-west-1", "https://corp.awsapps.com/start", "Enterprise",
    )  # fmt: skip
    assert (token.client_id, token.client_secret, token.refresh) == (
        "c",
        SecretText("client-secret-1"),
        SecretText("r"),
    )
    assert (token.expires_at, token.client_expires_at) == (NOW + 3600, NOW + 86400)


def test_the_client_is_registered_under_our_own_name() -> None:
    sign_in = service(GRANTED)
    wait(sign_in, Sleeper())
    body = json.loads(sign_in.calls[0][1].body)
    assert (body["clientName"], body["clientType"]) == ("dragoman", "public")
    assert "codewhisperer:conversations" in body["scopes"]
    assert sign_in.calls[0][1].header("user-agent").startswith("dragoman/")


def test_a_login_for_builder_id_says_so() -> None:
    assert wait(service(GRANTED), Sleeper()).is_builder_id


@pytest.mark.parametrize(
    ("polls", "words"),
    [
        ([oauth("access_denied")], "declined"),
        ([oauth("expired_token")], "expired before"),
        ([oauth("authorization_pending")] * 12, "expired before"),
        ([oauth("invalid_grant")], "refused the login"),
        ([HttpResponse(400, (("x-amzn-errortype", "AccessDeniedException"),))], "declined"),
    ],
)
def test_a_login_that_fails_says_why(polls: list[HttpResponse], words: str) -> None:
    with pytest.raises(CredentialFault, match=words):
        wait(service(*polls), Sleeper())


@pytest.mark.parametrize("page", ["http://evil.example/", "javascript:alert(1)", "file:///x"])
def test_no_page_but_https_is_shown_or_opened(page: str) -> None:
    bad = SignInService(
        lambda request: json_response(REGISTERED if "register" in request.path else STARTED | {"verificationUri": page})
    )
    with pytest.raises(CredentialFault, match="https"):
        wait(bad, Sleeper())


@pytest.mark.parametrize(
    "more", [{"region": "evil.example/"}, {"start_url": "http://x.example/start"}, {"start_url": ""}]
)
def test_a_bad_region_or_start_page_is_refused_before_any_call(more: dict[str, str]) -> None:
    sign_in = service()
    with pytest.raises(CredentialFault):
        wait(sign_in, Sleeper(), **more)
    assert sign_in.calls == []


def test_a_device_login_against_the_simulator() -> None:
    async def login(simulator: Simulator) -> Token:
        device = DeviceLogin(fetch, endpoints=endpoints_of(simulator), sleep=Sleeper())
        return await device.wait(await device.begin(), lambda: NOW)

    with running_simulator("kiro", script=token_script(pending=3)) as simulator:
        token = asyncio.run(login(simulator))
    assert token.access.reveal().startswith("sim-access")
    assert [received.path for received in simulator.requests].count("/token") == 4


# --- the command


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "DRAGOMAN_DATA_HOME", "HTTPS_PROXY", "https_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(sys, "platform", "linux")
    return tmp_path


def run(*words: str) -> int:
    parser = ArgumentParser(allow_abbrev=False)
    auth.add_arguments(parser)
    return auth.run(parser.parse_args(words))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No waiting between polls."""
    monkeypatch.setattr(
        "dragoman.upstream.kiro.sign_in.seconds", lambda _value, default: 0.01 if default < 60 else default
    )


@pytest.mark.usefixtures("quick")
def test_login_list_refresh_with_the_simulator(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with running_simulator("kiro", script=token_script(access=[], refresh=[])) as simulator:
        assert run("login", "kiro", "--no-browser", "--endpoint", simulator.url) == 0
        printed = capsys.readouterr()
        assert printed.out == "own:default\n"
        assert "SIM-" in printed.err
        path = KiroPaths().own_file("default")
        assert path.is_relative_to(home)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        before = json.loads(path.read_text())
        assert (before["type"], before["profile_arn"][:8], before["endpoint"]) == ("kiro", "arn:aws:", simulator.url)

        assert run("refresh", "kiro") == 0  # the file remembers the simulator
        after = json.loads(path.read_text())
        assert before["access_token"] != after["access_token"]
        assert before["refresh_token"] != after["refresh_token"]
        capsys.readouterr()

        assert run("list", "--json", "--usage") == 0
        shown = capsys.readouterr()
        row = json.loads(shown.out)[0]
        assert (row["name"], row["state"], row["usage"]["remaining"]) == ("own:default", "ok", 1000)
        assert run("list") == 0
        shown_plainly = capsys.readouterr().out
        assert "own:default" in shown_plainly
        for secret in (after["access_token"], after["refresh_token"], after["client_secret"]):
            assert secret not in printed.out + printed.err + shown.out + shown_plainly


def test_a_practice_login_does_not_replace_a_real_one(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = OwnStore(KiroPaths().own_file("default"))
    store.write({"type": "kiro", "access_token": "a", "refresh_token": "the-real-one", "auth_method": "social"})
    assert run("login", "kiro", "--no-browser", "--endpoint", "http://127.0.0.1:9") == 2
    assert "--name practice" in capsys.readouterr().err
    assert store.load().refresh == SecretText("the-real-one")


def test_logout_removes_the_login_and_nothing_of_other_programs(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    KiroPaths().ide_file.parent.mkdir(parents=True)
    KiroPaths().ide_file.write_text(json.dumps({"accessToken": "a", "refreshToken": "r", "authMethod": "social"}))
    assert run("import", "kiro") == 0
    store = OwnStore(KiroPaths().own_file("other"))
    store.write({"type": "kiro", "access_token": "a", "refresh_token": "r", "auth_method": "social"})
    left = store.path.with_name(f".{store.path.name}.0-0.x.dragoman-tmp")
    left.write_text("a token that a killed process left")
    capsys.readouterr()
    assert run("logout", "kiro", "--name", "other") == 0
    assert "Now own:default is the first login." in capsys.readouterr().err
    assert not store.path.exists() and not left.exists()
    assert run("logout") == 0
    assert "The login of ide itself stays" in capsys.readouterr().err
    assert [login.spec for login in find_logins()] == ["ide"]
    assert run("logout") == 1
    assert "logins of this machine: ide" in capsys.readouterr().err


def test_list_shows_the_date_at_which_a_login_expires(capsys: pytest.CaptureFixture[str]) -> None:
    ends = datetime.now(UTC).replace(microsecond=0) + timedelta(days=40)
    fields = {"access_token": "a", "refresh_token": "r", "auth_method": "social", "expires_at": ends.isoformat()}
    OwnStore(KiroPaths().own_file("default")).write({"type": "kiro", **fields})
    assert run("list") == 0
    assert f"until {ends.astimezone():%Y-%m-%d %H:%M}" in capsys.readouterr().out


def test_no_login_is_exit_status_5_and_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("refresh", "kiro") == 5
    assert "dragoman auth login kiro" in capsys.readouterr().err
    assert run("list") == 0


def test_import_points_at_the_other_programs_login_and_both_share_it(home: Path) -> None:
    database = cli_database(
        home / ".local" / "share" / "kiro-cli" / "data.sqlite3",
        kirocli__social__token={"access_token": "a", "refresh_token": "refresh-1", "expires_at": render_time(0)},
    )
    assert run("import", "kiro") == 0
    own = json.loads(KiroPaths().own_file("default").read_text())
    assert own == {"type": "kiro", "use": "cli"}
    with running_simulator("kiro", script=token_script(refresh=["refresh-1"])) as simulator:
        assert run("refresh", "kiro", "--endpoint", simulator.url) == 0
    assert open_store("own").load() == open_store(f"cli:{database}").load()
    assert open_store("own").load().refresh == SecretText("sim-refresh-1")


def test_import_copies_only_when_asked_and_overwrites_only_when_asked(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    KiroPaths().ide_file.parent.mkdir(parents=True)
    KiroPaths().ide_file.write_text(json.dumps({"accessToken": "a", "refreshToken": "r", "authMethod": "social"}))
    assert run("import", "kiro", "--from", "ide", "--copy") == 0
    assert "may make the other's login invalid" in capsys.readouterr().err
    assert json.loads(KiroPaths().own_file("default").read_text())["refresh_token"] == "r"
    assert run("import", "kiro") == 2
    assert run("import", "kiro", "--replace") == 0
    assert json.loads(KiroPaths().own_file("default").read_text()) == {"type": "kiro", "use": "ide"}


def test_an_api_key_comes_from_standard_input_and_not_from_the_command_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run("import", "kiro", "--api-key", "ksk_secret")
    capsys.readouterr()
    monkeypatch.setattr(sys, "stdin", io.StringIO("ksk_secret\n"))
    assert run("import", "kiro", "--api-key", "--name", "key") == 0
    shown = capsys.readouterr()
    assert "ksk_secret" not in shown.out + shown.err
    assert (open_store("own:key").load().kind, open_store("own:key").load().access) == (
        "api_key",
        SecretText("ksk_secret"),
    )
    assert run("refresh", "kiro", "--from", "own:key") == 0
    assert "needs no refresh" in capsys.readouterr().err


@pytest.mark.parametrize("words", [("--endpoint", "https://evil.example"), ("--endpoint", "http://10.0.0.1")])
def test_an_endpoint_elsewhere_is_refused(words: tuple[str, ...]) -> None:
    assert run("login", "kiro", *words) == 2


def test_a_service_that_cannot_be_reached_is_exit_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("login", "kiro", "--endpoint", "http://127.0.0.1:9") == 1
    assert "127.0.0.1" in capsys.readouterr().err
