"""A sign-in service in trouble: one call for all who wait, then the failure is told at once for a while (S5)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from dragoman.errors import ConnectFailed
from dragoman.upstream.credentials import CredentialFault
from dragoman.upstream.kiro.durable import LockHeld
from tests.unit.upstream.kiro_world import CHAT, NOW, Service, credential, own, told


class Clock:
    now = NOW

    def __call__(self) -> float:
        return self.now


async def test_s5_one_refresh_is_shared_and_its_failure_told_at_once_for_longer_each_time(tmp_path: Path) -> None:
    """S5: the service was asked again every 5 s, and each call may take 15 s."""
    service, clock = Service(lambda _: ConnectFailed("nobody listens")), Clock()
    login = credential(own(tmp_path), service.fetch, now=clock)
    failed = await asyncio.gather(*(login.sign(CHAT) for _ in range(5)), return_exceptions=True)
    assert all(isinstance(each, CredentialFault) and not each.lasting for each in failed)
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
    service = Service(lambda _: told({}, 302, location="http://portal.example/"))
    login = credential(own(tmp_path), service.fetch)
    with pytest.raises(CredentialFault, match="redirect") as failed:
        await login.sign(CHAT)
    assert not failed.value.lasting
    assert len(service.calls) == 1


async def test_s5_the_lock_of_another_process_is_waited_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S5: each request waited 30 s for it."""
    waited: list[object] = []

    @asynccontextmanager
    async def held(lock: object) -> AsyncIterator[None]:
        waited.append(lock)
        if waited:
            raise LockHeld("another process has the lock", lasting=False)
        yield

    monkeypatch.setattr("dragoman.upstream.kiro.credential.locked", held)
    clock = Clock()
    login = credential(own(tmp_path), Service(lambda _: told({})).fetch, now=clock)
    for _ in range(3):
        with pytest.raises(CredentialFault, match="another process"):
            await login.sign(CHAT)
    assert len(waited) == 1
    clock.now += 31
    for _ in range(3):
        with pytest.raises(CredentialFault):
            await login.sign(CHAT)
    assert len(waited) == 2
