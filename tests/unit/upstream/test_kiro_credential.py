"""The Kiro credential: one refresh for all waiting requests, no lost token, and messages that say what to do."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from msgspec import structs

from dragoman.errors import ConnectFailed
from dragoman.gateway.secrets import ConfiguredSecret, literal_secret, plain_value
from dragoman.gateway.upstream_credentials import ConfiguredKey, SecretSetting
from dragoman.simulator import running_simulator
from dragoman.upstream.credentials import CredentialFault, SecretText
from dragoman.upstream.kiro.cli_store import CliStore
from dragoman.upstream.kiro.credential import KiroCredential
from dragoman.upstream.kiro.stores import ApiKeyStore, OwnStore, TokenStore
from dragoman.upstream.kiro.token import Endpoints, Token, render_time
from dragoman.wire.http import HttpRequest, HttpResponse
from tests.unit.upstream.kiro_logins import (
    ARN,
    CHAT,
    IDC,
    NOW,
    SECRETS,
    SignInService,
    cli_database,
    credential,
    endpoints_of,
    fetch,
    grant_tokens,
    json_response,
    token_script,
    write_store,
)

DEAD = json_response({"error": "invalid_grant", "error_description": "Invalid refresh token provided"}, 400)
BROKEN = json_response({"message": "oh no"}, 500)
LIVE = render_time(NOW + 3600)


def bearer(request: HttpRequest) -> str:
    return request.header("authorization").removeprefix("Bearer ")


def paths(simulator: Any) -> list[str]:
    return [received.path for received in simulator.requests]


# --- one refresh


@pytest.mark.parametrize(("kind", "path"), [({}, "/refreshToken"), (IDC, "/token")])
async def test_ten_parallel_requests_with_an_expired_token_make_exactly_one_refresh_call(
    tmp_path: Path, kind: dict[str, str], path: str
) -> None:
    with running_simulator("kiro", script=token_script(access=["none"], refresh=["refresh-1"])) as simulator:
        subject = credential(write_store(tmp_path, **kind), fetch, endpoints=endpoints_of(simulator))
        signed = await asyncio.gather(*(subject.sign(CHAT) for _ in range(10)))
    assert paths(simulator) == [path]
    assert len({bearer(request) for request in signed}) == 1
    assert bearer(signed[0]).startswith("sim-access-")


async def test_a_stored_login_carries_a_conversation_past_the_end_of_its_tokens(tmp_path: Path) -> None:
    """Each token is good for two calls; the service's 403 makes the next one be fetched, and it rotates each time."""
    clock = [NOW]
    with running_simulator("kiro", script=token_script(refresh=["refresh-1"], uses=2, lifetime=86400)) as simulator:
        store = write_store(tmp_path)
        subject = credential(store, fetch, endpoints=endpoints_of(simulator), now=lambda: clock[0])
        for _ in range(6):
            request = await subject.sign(HttpRequest("GET", "/ListAvailableModels"))
            response = await fetch(simulator.url, request)
            if response.status == 403:
                clock[0] += 3600
                assert await subject.on_refusal(response.status, request)
                response = await fetch(simulator.url, await subject.sign(HttpRequest("GET", "/ListAvailableModels")))
            assert response.status == 200
    assert paths(simulator).count("/refreshToken") == 3
    assert store.load().refresh == (await subject.token()).refresh


async def test_two_hundred_refusals_make_one_refresh(tmp_path: Path) -> None:
    service = SignInService(grant_tokens(), delay=0.01)
    subject = credential(write_store(tmp_path, expires_at=LIVE), service.fetch)
    signed = await asyncio.gather(*(subject.sign(CHAT) for _ in range(200)))
    assert all(await asyncio.gather(*(subject.on_refusal(403, request) for request in signed[:150])))
    assert all([await subject.on_refusal(403, request) for request in signed[150:]])
    assert len(service.calls) == 1


async def test_many_requests_share_one_refresh_without_the_token_that_was_refused(tmp_path: Path) -> None:
    service = SignInService(grant_tokens())
    subject = credential(write_store(tmp_path, expires_at=LIVE), service.fetch)
    await subject.sign(CHAT)
    assert all([await subject.on_refusal(401) for _ in range(5)])
    assert len(service.calls) == 1


async def test_a_service_that_refuses_every_token_gets_a_limited_number_of_refreshes(tmp_path: Path) -> None:
    service = SignInService(grant_tokens())
    subject = credential(write_store(tmp_path, expires_at=LIVE), service.fetch)
    renewed = [await subject.on_refusal(403, await subject.sign(CHAT)) for _ in range(5)]
    assert renewed == [True] + [False] * 4
    assert len(service.calls) == 1


@pytest.mark.parametrize("status", [400, 402, 404, 429, 500])
async def test_other_refusals_renew_nothing(tmp_path: Path, status: int) -> None:
    service = SignInService(grant_tokens())
    subject = credential(write_store(tmp_path, expires_at=LIVE), service.fetch)
    assert not await subject.on_refusal(status, await subject.sign(CHAT))
    assert service.calls == []


@pytest.mark.parametrize(("left", "calls"), [(601, 0), (599, 1), (0, 1)])
def test_a_token_is_renewed_ten_minutes_early(tmp_path: Path, left: float, calls: int) -> None:
    service = SignInService(grant_tokens())
    asyncio.run(credential(write_store(tmp_path, expires_at=render_time(NOW + left)), service.fetch).sign(CHAT))
    assert len(service.calls) == calls


async def test_a_caller_that_is_cancelled_does_not_cancel_the_refresh(tmp_path: Path) -> None:
    store = write_store(tmp_path)
    subject = credential(store, SignInService(grant_tokens(refreshToken="refresh-2"), delay=0.2).fetch)
    caller = asyncio.create_task(subject.sign(CHAT))
    await asyncio.sleep(0.05)
    caller.cancel()
    await subject.aclose()
    assert store.load().refresh == SecretText("refresh-2")


# --- nothing is lost


def test_the_old_refresh_token_is_kept_when_none_is_returned(tmp_path: Path) -> None:
    with running_simulator("kiro", script=token_script(refresh=["refresh-1"], rotate=False)) as simulator:
        store = write_store(tmp_path)
        token = asyncio.run(credential(store, fetch, endpoints=endpoints_of(simulator)).token())
    assert token.refresh == SecretText("refresh-1")
    assert (store.load().refresh, store.load().access.reveal()[:10]) == (SecretText("refresh-1"), "sim-access")


async def test_a_token_that_another_program_refreshed_is_picked_up_without_a_call(tmp_path: Path) -> None:
    clock = [NOW]
    service = SignInService(grant_tokens())
    subject = credential(write_store(tmp_path, expires_at=LIVE), service.fetch, now=lambda: clock[0])
    await subject.sign(CHAT)
    write_store(tmp_path, access_token="theirs", refresh_token="theirs-too", expires_at=render_time(NOW + 7200))
    clock[0] += 3599
    assert bearer(await subject.sign(CHAT)) == "theirs"
    assert service.calls == []


async def test_a_refused_token_that_another_program_has_replaced_needs_no_call(tmp_path: Path) -> None:
    service = SignInService(grant_tokens())
    subject = credential(write_store(tmp_path, expires_at=LIVE), service.fetch)
    request = await subject.sign(CHAT)
    write_store(tmp_path, access_token="theirs", expires_at=render_time(NOW + 7200))
    assert await subject.on_refusal(401, request)
    assert bearer(await subject.sign(CHAT)) == "theirs"
    assert service.calls == []


def test_a_refresh_token_that_another_program_used_up_meanwhile_is_no_disaster(tmp_path: Path) -> None:
    """The IDE takes no lock of ours: it refreshes between our reading of the file and our call."""

    def respond(_: HttpRequest) -> HttpResponse:
        write_store(tmp_path, access_token="theirs", refresh_token="theirs-too", expires_at=render_time(NOW + 7200))
        return DEAD

    service = SignInService(respond)
    assert bearer(asyncio.run(credential(write_store(tmp_path), service.fetch).sign(CHAT))) == "theirs"
    assert len(service.calls) == 1


class Stubborn:
    """A store whose disk is full for a while: writing can begin but not be done."""

    def __init__(self, store: OwnStore) -> None:
        self._store = store
        self.full = True
        self.label, self.lock = store.label, store.lock

    def load(self) -> Token:
        return self._store.load()

    def version(self) -> object:
        return self._store.version()

    def prepare(self) -> None:
        self._store.prepare()

    def save(self, token: Token, previous: Token) -> Token:
        if self.full:
            raise CredentialFault("cannot write: No space left on device")
        return self._store.save(token, previous)


async def test_a_refreshed_token_that_cannot_be_written_is_used_and_written_later(tmp_path: Path) -> None:
    clock = [NOW]
    numbers = iter(range(2, 9))
    service = SignInService(
        lambda _: json_response(
            {"accessToken": f"access-{(n := next(numbers))}", "refreshToken": f"refresh-{n}", "expiresIn": 3600}
        )
    )
    inner = write_store(tmp_path)
    store = Stubborn(inner)
    subject = credential(store, service.fetch, now=lambda: clock[0])
    assert bearer(await subject.sign(CHAT)) == "access-2"
    assert subject.describe()["unsaved"]
    assert "No space left" in str(subject.describe()["problem"])
    clock[0] += 3500  # another refresh while the disk is still full: it starts from what is in memory
    assert bearer(await subject.sign(CHAT)) == "access-3"
    store.full = False
    clock[0] += 31
    assert bearer(await subject.sign(CHAT)) == "access-3"
    assert (subject.describe()["unsaved"], subject.describe()["problem"]) == (False, "")
    assert [json.loads(request.body)["refreshToken"] for _, request in service.calls] == ["refresh-1", "refresh-2"]
    assert (inner.load().access, inner.load().refresh) == (SecretText("access-3"), SecretText("refresh-3"))


def test_a_login_that_cannot_be_written_is_not_refreshed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = write_store(tmp_path)
    monkeypatch.setattr(store, "prepare", lambda: (_ for _ in ()).throw(CredentialFault("cannot write it")))
    service = SignInService(grant_tokens())
    with pytest.raises(CredentialFault, match="cannot write"):
        asyncio.run(credential(store, service.fetch).sign(CHAT))
    assert service.calls == []


def test_a_good_token_is_used_from_a_place_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = write_store(tmp_path, expires_at=LIVE)
    monkeypatch.setattr("dragoman.upstream.kiro.credential.file_lock", None)
    assert bearer(asyncio.run(credential(store, SignInService(grant_tokens()).fetch).sign(CHAT))) == "access-1"


def test_kiro_clis_own_row_is_renewed(tmp_path: Path) -> None:
    path = cli_database(
        tmp_path / "data.sqlite3",
        kirocli__odic__token={"access_token": "a", "refresh_token": "refresh-1", "expires_at": render_time(NOW)},
        kirocli__odic__device_registration={"client_id": "c", "client_secret": "s"},
    )
    with running_simulator("kiro", script=token_script(refresh=["refresh-1"])) as simulator:
        asyncio.run(credential(CliStore(path), fetch, endpoints=endpoints_of(simulator)).sign(CHAT))
    assert CliStore(path).load().refresh == SecretText("sim-refresh-1")


# --- failures and their messages


def fault_of(subject: KiroCredential) -> CredentialFault:
    with pytest.raises(CredentialFault) as caught:
        asyncio.run(subject.sign(CHAT))
    return caught.value


def test_a_dead_refresh_token_says_to_log_in_and_is_not_tried_again(tmp_path: Path) -> None:
    async def twice(subject: KiroCredential) -> list[str]:
        return [str(await asyncio.gather(subject.sign(CHAT), return_exceptions=True)) for _ in range(2)]

    with running_simulator("kiro", script=token_script(refresh=["another"])) as simulator:
        subject = credential(write_store(tmp_path), fetch, endpoints=endpoints_of(simulator))
        messages = asyncio.run(twice(subject))
        assert all("dragoman auth login kiro" in words for words in messages)
        assert paths(simulator) == ["/refreshToken"]
        assert subject.describe()["state"] == "login needed"
        write_store(tmp_path, refresh_token="another")  # the person has logged in
        assert bearer(asyncio.run(subject.sign(CHAT))).startswith("sim-access")
    assert fault_of(credential(write_store(tmp_path), SignInService(lambda _: DEAD).fetch)).fault.status == 401


def test_a_login_of_another_region_is_reported(tmp_path: Path) -> None:
    response = json_response({"error": "invalid_request", "error_description": "Invalid token provided"}, 400)
    service = SignInService(lambda _: response)
    fault = fault_of(credential(write_store(tmp_path, **IDC, region="eu-west-1"), service.fetch))
    assert "eu-west-1" in str(fault)
    assert "--region" in str(fault)
    assert service.calls[0][0] == "https://oidc.eu-west-1.amazonaws.com"


def test_a_correction_of_the_region_is_tried_although_the_token_is_the_same(tmp_path: Path) -> None:
    def respond(_: HttpRequest) -> HttpResponse:
        wrong = "eu-west-1" in service.calls[-1][0]
        return (
            json_response({"error": "invalid_request"}, 400)
            if wrong
            else json_response({"accessToken": "access-2", "expiresIn": 60})
        )

    service = SignInService(respond)
    subject = credential(write_store(tmp_path, **IDC, region="eu-west-1"), service.fetch)
    fault_of(subject)
    write_store(tmp_path, **IDC, region="us-east-1")
    assert bearer(asyncio.run(subject.sign(CHAT))) == "access-2"


@pytest.mark.parametrize("region", ["evil.example/x?", "us-east-1\n", "../.."])
@pytest.mark.parametrize("kind", [{}, IDC])
def test_no_call_goes_to_a_host_made_of_a_bad_region(tmp_path: Path, region: str, kind: dict[str, str]) -> None:
    service = SignInService(grant_tokens())
    if region.strip() != region:
        region += "x"  # stores strip; an inner line break does not go away
    assert "region" in str(fault_of(credential(write_store(tmp_path, **kind, region=region), service.fetch)))
    assert service.calls == []


@pytest.mark.parametrize(
    ("response", "words"),
    [
        (json_response({"error": "invalid_client"}, 400), "client registration"),
        (json_response({"message": "x"}, 401), "no longer valid"),
        (HttpResponse(403, (("x-amzn-errortype", "InvalidGrantException:http://x"),), b""), "no longer valid"),
    ],
)
def test_what_lasts_says_to_log_in(tmp_path: Path, response: HttpResponse, words: str) -> None:
    fault = fault_of(credential(write_store(tmp_path, **IDC), SignInService(lambda _: response).fetch))
    assert words in str(fault)
    assert "dragoman auth login kiro" in str(fault)
    assert (fault.is_permanent, fault.fault.kind) == (True, "auth")


@pytest.mark.parametrize(
    "problem", [BROKEN, json_response({}, 429), json_response({}), ConnectFailed("no route"), json_response([1])]
)
def test_what_passes_is_no_reason_to_log_in(tmp_path: Path, problem: HttpResponse | Exception) -> None:
    fault = fault_of(credential(write_store(tmp_path), SignInService(lambda _: problem).fetch))
    assert (fault.is_permanent, fault.fault.status) == (False, 503)
    assert "login" not in str(fault)


def test_a_token_that_still_lives_is_used_while_the_sign_in_service_is_down(tmp_path: Path) -> None:
    subject = credential(write_store(tmp_path, expires_at=render_time(NOW + 60)), SignInService(lambda _: BROKEN).fetch)
    assert bearer(asyncio.run(subject.sign(CHAT))) == "access-1"
    assert (subject.describe()["state"], "oh no" in str(subject.describe()["problem"])) == ("expiring", True)


def test_a_service_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.upstream.kiro.credential._TIMEOUT", 0.05)
    fault = fault_of(credential(write_store(tmp_path), SignInService(grant_tokens(), delay=5).fetch))
    assert "did not respond" in str(fault)
    assert not fault.is_permanent


def test_a_login_without_a_refresh_token_or_registration_says_what_it_lacks(tmp_path: Path) -> None:
    service = SignInService(grant_tokens())
    assert "no refresh token" in str(fault_of(credential(write_store(tmp_path, refresh_token=""), service.fetch)))
    assert "registration" in str(fault_of(credential(write_store(tmp_path, auth_method="idc"), service.fetch)))
    assert service.calls == []


def test_a_missing_login_is_described_and_not_raised(tmp_path: Path) -> None:
    described = credential(OwnStore(tmp_path / "none.json"), fetch).describe()
    assert (described["state"], "dragoman auth login kiro" in str(described["problem"])) == ("missing", True)


async def test_secrets_are_in_no_log_no_description_and_no_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    echo = json_response({"error": "odd", "error_description": "access-1 refresh-1 client-secret-1"}, 400)
    caplog.set_level(logging.DEBUG)
    for response in (echo, json_response({"accessToken": "access-1", "refreshToken": "refresh-1"})):
        subject = credential(write_store(tmp_path, **IDC), SignInService(lambda _, it=response: it).fetch)  # type: ignore[misc]
        (error,) = await asyncio.gather(subject.sign(CHAT), return_exceptions=True)
        shown = f"{error if isinstance(error, Exception) else ''} {subject.describe()} {vars(subject)} {caplog.text}"
        assert [secret for secret in SECRETS if secret in shown] == []


# --- a login that changes while its token is valid


def _kiro_cli(folder: Path, access: str) -> CliStore:
    row = {"access_token": access, "refresh_token": f"refresh-of-{access}", "expires_at": LIVE}
    return CliStore(cli_database(folder / "data.sqlite3", kirocli__social__token=row))


@pytest.mark.parametrize("kind", ["own", "kiro-cli"])
async def test_a_login_that_was_replaced_is_noticed_within_seconds(tmp_path: Path, kind: str) -> None:
    clock, service = [NOW], SignInService(grant_tokens())
    store: TokenStore = write_store(tmp_path, expires_at=LIVE) if kind == "own" else _kiro_cli(tmp_path, "access-1")
    subject = credential(store, service.fetch, now=lambda: clock[0])
    assert bearer(await subject.sign(CHAT)) == "access-1"
    if kind == "own":
        write_store(tmp_path, access_token="another", refresh_token="refresh-of-another", expires_at=LIVE)
    else:
        (tmp_path / "data.sqlite3").unlink()
        _kiro_cli(tmp_path, "another")
    assert bearer(await subject.sign(CHAT)) == "access-1"  # looked at every few seconds only
    clock[0] += 6
    assert bearer(await subject.sign(CHAT)) == "another"
    assert service.calls == []


async def test_an_unchanged_login_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, reads, read = [NOW], [0], OwnStore.load

    def load(store: OwnStore) -> Token:
        reads[0] += 1
        return read(store)

    monkeypatch.setattr(OwnStore, "load", load)
    subject = credential(
        write_store(tmp_path, expires_at=LIVE), SignInService(grant_tokens()).fetch, now=lambda: clock[0]
    )
    for _ in range(50):
        await subject.sign(CHAT)
        clock[0] += 3
    assert reads == [1]


async def test_a_login_that_was_removed_is_not_used_any_more(tmp_path: Path) -> None:
    clock = [NOW]
    store = write_store(tmp_path, expires_at=LIVE)
    subject = credential(store, SignInService(grant_tokens()).fetch, now=lambda: clock[0])
    await subject.sign(CHAT)
    store.remove()
    clock[0] += 6
    for _ in range(2):
        with pytest.raises(CredentialFault, match="dragoman auth login kiro"):
            await subject.sign(CHAT)
    write_store(tmp_path, expires_at=LIVE)
    assert bearer(await subject.sign(CHAT)) == "access-1"


# --- what is sent


def signed(
    store: TokenStore, using: SignInService | None = None, request: HttpRequest = CHAT, **more: Any
) -> HttpRequest:
    return asyncio.run(credential(store, (using or SignInService(grant_tokens())).fetch, **more).sign(request))


def test_headers_name_only_this_client(tmp_path: Path) -> None:
    store = write_store(tmp_path, expires_at=LIVE)
    request = structs.replace(
        CHAT, headers=(("user-agent", "KiroIDE"), ("authorization", "Bearer the-clients"), ("accept", "x"))
    )
    first, second = signed(store, request=request), signed(store, request=request)
    assert [value for name, value in first.headers if name == "authorization"] == ["Bearer access-1"]
    assert first.header("user-agent").startswith("dragoman/")
    assert first.header("x-amz-user-agent").startswith("dragoman/")
    assert (first.header("accept"), first.header("tokentype", "none")) == ("x", "none")
    assert first.header("amz-sdk-invocation-id") != second.header("amz-sdk-invocation-id")


def test_an_api_key_is_sent_as_one_without_a_profile_and_never_renewed() -> None:
    subject = credential(ApiKeyStore(SecretText("ksk_1")), SignInService(grant_tokens()).fetch, profile="auto")
    request = asyncio.run(subject.sign(CHAT))
    assert (bearer(request), request.header("tokentype"), request.body) == ("ksk_1", "API_KEY", CHAT.body)
    assert not asyncio.run(subject.on_refusal(403, request))


def test_an_external_provider_is_asked_by_form_at_its_own_endpoint(tmp_path: Path) -> None:
    with running_simulator("kiro", script=token_script(refresh=["refresh-1"])) as simulator:
        extra = {"auth_method": "external_idp", "client_id": "c", "scopes": ["a", "b"]}
        store = write_store(tmp_path, **extra, token_endpoint=f"{simulator.url}/token")
        request = asyncio.run(
            credential(store, fetch, endpoints=Endpoints("http://nowhere", "http://nowhere")).sign(CHAT)
        )
    form = parse_qs(simulator.requests[0].request.body.decode())
    assert form == {
        "grant_type": ["refresh_token"],
        "refresh_token": ["refresh-1"],
        "client_id": ["c"],
        "scope": ["a b"],
    }
    assert request.header("tokentype") == "EXTERNAL_IDP"
    assert store.load().refresh == SecretText("sim-refresh-1")


@pytest.mark.parametrize("endpoint", ["http://login.example/t", "ftp://x/", "", "https://a@b/"])
def test_an_external_provider_that_is_not_https_gets_nothing(tmp_path: Path, endpoint: str) -> None:
    service = SignInService(grant_tokens())
    store = write_store(tmp_path, auth_method="external_idp", token_endpoint=endpoint)
    assert "https" in str(fault_of(credential(store, service.fetch)))
    assert service.calls == []


def _lists(*arns: str) -> Callable[[HttpRequest], HttpResponse]:
    return lambda _: json_response({"profiles": [{"arn": arn, "profileName": "p"} for arn in arns]})


BUILDER = {**IDC, "provider": "BuilderId"}


@pytest.mark.parametrize(
    ("kind", "host", "sent"),
    [
        ({}, "https://q.us-east-1.amazonaws.com", True),
        (BUILDER, "https://q.us-east-1.amazonaws.com", False),
        (BUILDER, "https://runtime.us-east-1.kiro.dev", True),
        ({**IDC, "provider": "Enterprise"}, "https://q.us-east-1.amazonaws.com", True),
    ],
)
def test_the_profile_is_sent_where_it_must_be_and_not_where_it_hurts(
    tmp_path: Path, kind: dict[str, str], host: str, sent: bool
) -> None:
    store = write_store(tmp_path, **kind, profile_arn=ARN, expires_at=LIVE)
    body = json.loads(signed(store, profile="auto", base_url=host).body)
    assert body == {"conversationState": {}} | ({"profileArn": ARN} if sent else {})


async def test_a_profile_that_is_not_known_is_looked_up_once_in_both_regions(tmp_path: Path) -> None:
    service = SignInService(_lists(ARN))
    subject = credential(write_store(tmp_path, **IDC, expires_at=LIVE), service.fetch, profile="auto")
    requests = [*await asyncio.gather(*(subject.sign(CHAT) for _ in range(5))), await subject.sign(CHAT)]
    assert {json.loads(request.body)["profileArn"] for request in requests} == {ARN}
    hosts = [base for base, _ in service.calls]
    assert hosts == ["https://q.us-east-1.amazonaws.com", "https://q.eu-central-1.amazonaws.com"]


def test_one_region_that_refuses_does_not_hide_the_profile_of_the_other(tmp_path: Path) -> None:
    service = SignInService(
        lambda _: json_response({"message": "no"}, 403) if len(service.calls) == 1 else _lists(ARN)(_)
    )
    assert (
        json.loads(signed(write_store(tmp_path, **IDC, expires_at=LIVE), service, profile="auto").body)["profileArn"]
        == ARN
    )


def test_without_any_profile_the_request_is_sent_and_the_service_may_say_why(tmp_path: Path) -> None:
    for response in (_lists(), lambda _: json_response({}, 500), _lists("arn:aws:s3:::bucket")):
        assert (
            signed(write_store(tmp_path, **IDC, expires_at=LIVE), SignInService(response), profile="auto").body
            == CHAT.body
        )


def test_a_profile_in_the_body_is_unchanged_and_one_in_an_argument_is_not_mistaken_for_it(tmp_path: Path) -> None:
    store = write_store(tmp_path, profile_arn=ARN, expires_at=LIVE)
    named = structs.replace(CHAT, body=b'{"conversationState":{},"profileArn":"mine"}')
    nested = structs.replace(CHAT, body=b'{"conversationState":{"input":{"profileArn":"an argument"}}}')
    assert signed(store, profile="auto", request=named).body == named.body
    assert json.loads(signed(store, profile="auto", request=nested).body)["profileArn"] == ARN


def test_the_query_for_models_names_the_profile(tmp_path: Path) -> None:
    store = write_store(tmp_path, profile_arn=ARN, expires_at=LIVE)
    request = HttpRequest("GET", "/ListAvailableModels", "origin=AI_EDITOR&nextToken=a%2Fb")
    query = signed(store, profile="auto", request=request).query
    assert query.startswith("origin=AI_EDITOR&nextToken=a%2Fb&profileArn=arn%3Aaws%3A")


async def test_a_signed_conversation_of_our_own_dialect_passes_a_host_that_needs_the_profile(tmp_path: Path) -> None:
    from dragoman.dialects import get
    from dragoman.simulator import SimulatorLimits

    dialect = get("kiro")
    body = {"model": "claude-sonnet-4.5", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
    conversation = get("anthropic").codec.parse_request(get("anthropic").binding.unwrap(body))  # type: ignore[arg-type]
    conversation = structs.replace(conversation, max_tokens=None, stream=True)
    request = dialect.binding.wrap(dialect.codec.render_request(conversation))
    with running_simulator("kiro", profile="paranoid", limits=SimulatorLimits(profile_required=True)) as simulator:
        store = write_store(tmp_path, **IDC, endpoint=simulator.url)
        subject = credential(store, fetch, profile="auto")
        response = await fetch(simulator.url, await subject.sign(request))
    assert (response.status, paths(simulator)) == (200, ["/token", "/", "/generateAssistantResponse"])


def test_the_quota_is_read(tmp_path: Path) -> None:
    with running_simulator("kiro") as simulator:
        store = write_store(tmp_path, expires_at=LIVE, profile_arn=ARN)
        usage = asyncio.run(credential(store, fetch, endpoints=endpoints_of(simulator)).usage())
    assert (usage.used, usage.limit, usage.remaining, usage.plan) == (0, 1000, 1000, "SIMULATED")
    assert f"profileArn={ARN.replace(':', '%3A').replace('/', '%2F')}" in simulator.requests[0].request.query


def test_a_free_trial_counts_while_it_lasts(tmp_path: Path) -> None:
    def respond(status: str) -> HttpResponse:
        trial = {"freeTrialStatus": status, "currentUsage": 5, "usageLimit": 500}
        return json_response({"usageBreakdownList": [{"currentUsage": 10, "usageLimit": 50, "freeTrialInfo": trial}]})

    store = write_store(tmp_path, expires_at=LIVE, profile_arn=ARN)
    for status, left in (("ACTIVE", 535), ("EXPIRED", 40)):
        service = SignInService(lambda _, status=status: respond(status))  # type: ignore[misc]
        assert asyncio.run(credential(store, service.fetch).usage()).remaining == left


async def test_a_configured_key_signs_in_the_style_of_its_upstream() -> None:
    key, request = literal_secret("sk-1"), structs.replace(CHAT, headers=(("x-api-key", "clients"),))

    def configured(secret: ConfiguredSecret, header: str) -> ConfiguredKey:
        return ConfiguredKey(SecretSetting("u", "key", "[upstreams.u] key", secret), header)

    assert (await configured(key, "authorization").sign(request)).header("authorization") == "Bearer sk-1"
    assert (await configured(key, "x-api-key").sign(request)).headers == (("x-api-key", "sk-1"),)
    assert await configured(key, "authorization").on_refusal(401) is False
    assert await configured(plain_value(""), "authorization").sign(CHAT) == CHAT
