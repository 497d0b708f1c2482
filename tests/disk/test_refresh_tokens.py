"""When a new refresh token is written: before its first use, at the end of a process, and after a kill."""

from __future__ import annotations

import asyncio
import errno
import json
import sqlite3
import threading
from pathlib import Path
from typing import Any, NoReturn

import pytest

from dragoman.simulator import Simulator
from dragoman.simulator.faults import FaultProxy
from dragoman.simulator.faults.response import Latency
from dragoman.upstream.credentials import CredentialFault
from dragoman.upstream.kiro import stores
from dragoman.upstream.kiro.atomic_files import write_pending
from dragoman.upstream.kiro.cli_store import CliStore
from dragoman.upstream.kiro.stores import OwnStore
from dragoman.upstream.kiro.token import Token
from tests.disk.state_kinds import store_of, write_login
from tests.faults.runner import run_servers
from tests.gateway.harness import StreamClient, anthropic_body, start_gateway, wait_until
from tests.unit.upstream.kiro_logins import (
    SignInService,
    credential,
    document,
    grant_tokens,
    json_response,
    write_store,
)


def stored(store: OwnStore) -> str:
    return str(json.loads(store.path.read_bytes())["refresh_token"])


def full(*_: object, **__: object) -> NoReturn:
    raise OSError(errno.ENOSPC, "No space left on device")


async def test_no_caller_gets_a_token_that_is_not_on_disk(tmp_path: Path) -> None:
    writing, may_write = threading.Event(), threading.Event()

    class Slow(OwnStore):
        def save(self, token: Token, was: Token) -> Token:
            writing.set()
            assert may_write.wait(60)
            return super().save(token, was)

    store = Slow(write_store(tmp_path).path)

    login = credential(store, SignInService(grant_tokens(refreshToken="refresh-2")).fetch)
    first = asyncio.create_task(login.token())
    await asyncio.to_thread(writing.wait, 5)
    second = asyncio.create_task(login.token())
    await asyncio.sleep(0.05)
    assert not first.done() and not second.done()
    may_write.set()
    assert (await second).access.reveal() == "access-2"
    assert stored(store) == "refresh-2"


async def test_a_token_that_did_not_fit_on_disk_is_written_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = write_store(tmp_path)

    login = credential(store, SignInService(grant_tokens(refreshToken="refresh-2")).fetch)
    with monkeypatch.context() as patched:
        patched.setattr(stores, "replace_file", full)
        assert (await login.token()).access.reveal() == "access-2"
        await login.aclose()
    assert stored(store) == "refresh-1"
    assert login.describe()["unsaved"] is True and "No space left" in str(login.describe()["problem"])
    await login.aclose()
    assert login.describe()["unsaved"] is False
    assert stored(store) == "refresh-2"


async def test_a_full_disk_is_detected_before_a_token_is_requested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, service = write_store(tmp_path), SignInService(grant_tokens())
    monkeypatch.setattr("os.fsync", full)

    with pytest.raises(CredentialFault, match=r"No space left on device.*not refreshed"):
        await credential(store, service.fetch).token()
    assert not service.calls and stored(store) == "refresh-1"
    assert [path.name for path in tmp_path.iterdir() if "tmp" in path.name] == []


# --- a kill between the two steps of a write


def rotates(live: str) -> SignInService:
    """Return a service that accepts only one refresh token."""

    def respond(request: Any) -> Any:
        if json.loads(request.body)["refreshToken"] != live:
            return json_response({"message": "Bad credentials"}, 401)
        return json_response({"accessToken": "access-9", "refreshToken": "refresh-9", "expiresIn": 3600})

    return SignInService(respond)


def test_a_replacement_that_was_killed_before_its_last_step_is_finished(tmp_path: Path) -> None:
    store = write_store(tmp_path)
    new = json.dumps(document(refresh_token="refresh-2")).encode()
    write_pending(store.path, store.path.read_bytes(), new)
    asyncio.run(credential(store, rotates("refresh-2").fetch).token())
    assert stored(store) == "refresh-9"
    assert sorted(path.name for path in tmp_path.iterdir()) == [".default.json.dragoman-lock", "default.json"]


@pytest.mark.parametrize("how", ["torn", "overtaken", "of another time"])
def test_a_partial_or_foreign_temporary_file_is_ignored(tmp_path: Path, how: str) -> None:
    store = write_store(tmp_path)
    new = json.dumps(document(refresh_token="refresh-2")).encode()
    ahead = write_pending(store.path, b"something else" if how == "of another time" else store.path.read_bytes(), new)
    if how == "torn":
        ahead.write_bytes(new[:-20])
    if how == "overtaken":  # by a program that does not use our lock
        store.path.write_bytes(json.dumps(document(refresh_token="refresh-3")).encode())
    live = "refresh-3" if how == "overtaken" else "refresh-1"
    asyncio.run(credential(store, rotates(live).fetch).token())
    assert stored(store) == "refresh-9" and not ahead.exists()


def test_a_database_row_killed_before_its_commit_is_written(tmp_path: Path) -> None:
    write_login("cli", tmp_path, "refresh-1")
    store = store_of("cli", tmp_path)
    assert isinstance(store, CliStore)
    database = sqlite3.connect(store.path)
    [[row]] = database.execute("SELECT value FROM auth_kv")
    database.close()
    write_pending(store.path, row.encode(), row.replace("refresh-1", "refresh-2").encode())
    asyncio.run(credential(store, rotates("refresh-2").fetch).token())
    assert store.load().refresh.reveal() == "refresh-9"
    assert [path.name for path in store.path.parent.iterdir() if "tmp" in path.name] == []


# --- the gateway


def test_a_stopping_gateway_waits_for_a_refresh(tmp_path: Path) -> None:
    simulator = Simulator("kiro", script=None)
    write_login("own", tmp_path, "r0")
    path = tmp_path / "login" / "default.json"
    with run_servers([simulator]), run_servers([proxy := FaultProxy(simulator.url, [Latency(first=0.7)])]):
        path.write_text(json.dumps(json.loads(path.read_bytes()) | {"endpoint": proxy.url}))
        text = f'[upstreams.one]\npreset = "kiro"\nbase_url = "{simulator.url}"\ncredentials = "ide:{path}"\n'
        with start_gateway(text, tmp_path) as harness:
            client = StreamClient(harness, "/v1/messages", anthropic_body("claude-sonnet-4-5"))
            wait_until(lambda: simulator.total >= 1)
            client.leave()
    assert json.loads(path.read_bytes())["access_token"] == "sim-access-1"
