"""The Kiro token as a value: its spellings, its times, and that it keeps its secrets."""

from __future__ import annotations

import asyncio
import json
import pickle
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from dragoman.errors import ConnectFailed
from dragoman.upstream.credentials import CredentialFault, SecretText
from dragoman.upstream.kiro.atomic_files import LockTimeout
from dragoman.upstream.kiro.token import (
    Endpoints,
    Token,
    is_region,
    is_safe_url,
    parse_time,
    parse_token,
    region_of_arn,
    render_time,
    render_token,
    update_document,
)
from tests.unit.upstream.kiro_logins import (
    ARN,
    CHAT,
    IDC,
    NOW,
    SECRETS,
    SignInService,
    credential,
    document,
    json_response,
    write_store,
)

CAMEL = {
    "accessToken": "access-1",
    "refreshToken": "refresh-1",
    "expiresAt": "2027-01-15T08:00:00.000Z",
    "authMethod": "IdC",
    "provider": "Enterprise",
    "clientId": "client-1",
    "clientSecret": "client-secret-1",
    "region": "eu-west-1",
    "profileArn": ARN,
}


def test_both_spellings_are_the_same_token() -> None:
    snake = document(**IDC, provider="Enterprise", region="eu-west-1", profile_arn=ARN, expires_at=render_time(NOW))
    assert parse_token(CAMEL, "a") == parse_token(snake, "b")


def test_our_own_format_has_the_fields_of_the_mock_token_and_round_trips() -> None:
    token = parse_token(CAMEL, "a")
    written = render_token(token)
    assert {"type", "access_token", "refresh_token", "expires_at", "profile_arn"} <= set(written)
    assert written["type"] == "kiro"
    assert parse_token(written, "b") == token


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"authMethod": "social"}, "social"),
        ({"authMethod": "IdC"}, "idc"),
        ({"authMethod": "external_idp"}, "external_idp"),
        ({}, "social"),
        ({"clientIdHash": "abc"}, "idc"),
        ({"tokenEndpoint": "https://login.example/token"}, "external_idp"),
    ],
)
def test_the_kind_is_named_or_follows_from_the_fields(fields: dict[str, str], kind: str) -> None:
    assert parse_token({"accessToken": "a", **fields}, "x").kind == kind


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("2027-01-15T08:00:00.000Z", NOW),
        ("2027-01-15T08:00:00.123456789Z", NOW + 0.123456),
        ("2027-01-15T16:00:00+08:00", NOW),
        ("2027-01-15T08:00:00", NOW),
        (NOW, NOW),
        (NOW * 1000, NOW),
        ("soon", 0.0),
        (None, None),
    ],
)
def test_a_time_is_read_in_every_form(value: object, seconds: float | None) -> None:
    assert parse_time(value) == (seconds if seconds is None else pytest.approx(seconds))  # type: ignore[arg-type]


def test_a_renewed_document_keeps_its_spelling_and_what_we_do_not_know() -> None:
    old: dict[str, Any] = {
        "accessToken": "old",
        "refreshToken": "r",
        "expiresAt": "2020-01-01T00:00:00Z",
        "mystery": [1, {"a": None}],
    }
    token = Token(kind="social", access=SecretText("new"), refresh=SecretText("r2"), expires_at=NOW)
    assert update_document(old, token) == {
        "accessToken": "new",
        "refreshToken": "r2",
        "expiresAt": "2027-01-15T08:00:00.000Z",
        "mystery": [1, {"a": None}],
    }
    assert update_document({"access_token": "old", "expires_at": 1.7e12}, token)["expires_at"] == int(NOW * 1000)


@pytest.mark.parametrize("bad", ["abc...xyz", "two words", "line\nbreak", "tab\there", "ünicode"])
def test_a_token_that_is_cut_or_not_a_header_word_is_refused_unquoted(bad: str) -> None:
    with pytest.raises(CredentialFault) as caught:
        parse_token({"accessToken": bad}, "the file")
    assert "the file" in str(caught.value)
    assert bad not in str(caught.value)


@pytest.mark.parametrize(
    "wrong", [{}, {"accessToken": 7}, {"accessToken": None, "refreshToken": ""}, {"accessToken": []}]
)
def test_a_document_without_a_token_says_what_to_do(wrong: dict[str, object]) -> None:
    with pytest.raises(CredentialFault, match="dragoman auth login kiro"):
        parse_token(wrong, "the file")  # type: ignore[arg-type]


def test_no_secret_is_printed() -> None:
    token = parse_token(document(**IDC), "x")
    shown = f"{token!r} {token} {token.access} {token.refresh!r} {[token]} {[SecretText('access-1')]}"
    assert [secret for secret in SECRETS if secret in shown] == []
    assert token.mask_secrets("echo access-1 refresh-1 client-secret-1") == "echo *** *** ***"
    with pytest.raises(TypeError):
        pickle.dumps(token.access)


@pytest.mark.parametrize("region", ["us-east-1", "eu-central-1", "us-gov-west-1", "ap-southeast-2"])
def test_regions_are_known_by_their_shape(region: str) -> None:
    assert is_region(region)
    assert Endpoints().at("oidc", region) == f"https://oidc.{region}.amazonaws.com"


@pytest.mark.parametrize(
    "region",
    [
        "",
        "us-east-1\n",
        "us-east-1.evil.example",
        "evil.example/#",
        "a@b",
        "US-EAST-1",
        "us-east-1/../x",
        "x" * 99,
        "us--1",
    ],
)
@pytest.mark.parametrize("service", ["social", "oidc", "api"])
def test_no_host_is_built_from_an_invalid_region(region: str, service: str) -> None:
    with pytest.raises(CredentialFault, match="region"):
        Endpoints().at(service, region)


def test_the_api_region_is_the_profiles_and_not_the_sign_ins() -> None:
    assert parse_token(CAMEL, "x").api_region == "eu-central-1"
    assert parse_token(document(region="ap-south-1"), "x").api_region == "us-east-1"
    assert region_of_arn(ARN + "\n") == region_of_arn("arn:aws:s3:::x") == ""


@pytest.mark.parametrize(
    ("url", "safe"),
    [
        ("https://login.example/token", True),
        ("http://127.0.0.1:8788/token", True),
        ("http://login.example/token", False),
        ("https://user:pass@login.example/", False),
        ("file:///etc/passwd", False),
        ("https://", False),
        ("https://a.example:99999/", False),
        ("javascript:alert(1)", False),
    ],
)
def test_credentials_go_only_to_https_or_to_this_machine(url: str, safe: bool) -> None:
    assert is_safe_url(url) is safe


def test_an_endpoint_in_a_file_counts_only_on_this_machine() -> None:
    assert parse_token(document(endpoint="https://evil.example"), "x").endpoint == ""
    assert parse_token(document(endpoint="http://127.0.0.1:1"), "x").endpoint == "http://127.0.0.1:1"


def test_the_document_is_json_of_plain_values() -> None:
    assert json.loads(json.dumps(render_token(parse_token(document(), "x"))))["access_token"] == "access-1"


# --- a failing sign-in service: one call for all waiting requests, then the failure is cached for a while


class Clock:
    now = NOW

    def __call__(self) -> float:
        return self.now


async def test_one_refresh_is_shared_and_its_failure_is_reported_at_once_for_longer_each_time(
    tmp_path: Path,
) -> None:
    """Regression: the service was asked again every 5 s, and each call may take 15 s."""
    service, clock = SignInService(lambda _: ConnectFailed("connection refused")), Clock()
    login = credential(write_store(tmp_path), service.fetch, now=clock)
    failed = await asyncio.gather(*(login.sign(CHAT) for _ in range(5)), return_exceptions=True)
    assert all(isinstance(each, CredentialFault) and not each.is_permanent for each in failed)
    assert len(service.calls) == 1
    for pause in (5.0, 10.0, 20.0, 40.0, 80.0, 120.0, 120.0):
        before = len(service.calls)
        clock.now += pause - 0.1
        with pytest.raises(CredentialFault):
            await login.sign(CHAT)
        assert len(service.calls) == before, f"asked again within {pause} s"
        clock.now += 0.2
        with pytest.raises(CredentialFault):
            await login.sign(CHAT)
        assert len(service.calls) == before + 1


async def test_a_redirect_of_the_sign_in_service_does_not_end_the_login(tmp_path: Path) -> None:
    service = SignInService(lambda _: json_response({}, 302, location="http://portal.example/"))
    login = credential(write_store(tmp_path), service.fetch)
    with pytest.raises(CredentialFault, match="redirect") as failed:
        await login.sign(CHAT)
    assert not failed.value.is_permanent
    assert len(service.calls) == 1


async def test_the_lock_of_another_process_is_waited_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: each request waited 30 s for it."""
    waited: list[object] = []

    @asynccontextmanager
    async def busy_lock(lock: object) -> AsyncIterator[None]:
        waited.append(lock)
        if waited:
            raise LockTimeout("another process has the lock", is_permanent=False)
        yield

    monkeypatch.setattr("dragoman.upstream.kiro.credential.file_lock", busy_lock)
    clock = Clock()
    login = credential(write_store(tmp_path), SignInService(lambda _: json_response({})).fetch, now=clock)
    for _ in range(3):
        with pytest.raises(CredentialFault, match="another process"):
            await login.sign(CHAT)
    assert len(waited) == 1
    clock.now += 31
    for _ in range(3):
        with pytest.raises(CredentialFault):
            await login.sign(CHAT)
    assert len(waited) == 2
