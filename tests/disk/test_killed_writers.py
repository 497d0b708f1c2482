"""Writers killed at any moment leave the old or the new file, complete and private, and lose no refresh token."""

from __future__ import annotations

import json
import os
import random
import re
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dragoman.gateway.secrets import remove_parts
from dragoman.simulator import Simulator, parse_script, running_simulator
from dragoman.simulator.kiro.tokens import TokenService
from tests.disk.state_kinds import SCOPES, VARIABLES, store_of, write_login

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks, and limits what may be written")
ROOT = Path(__file__).parents[2]
TOKENS = '[tokens]\nrefresh = ["r0"]\nrotate = true\nlifetime = 3600.0\n'
FULL = 200  # a limit in bytes that is smaller than each of the files
STORES = ("own", "ide", "cli")


class ForkServer:
    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self._process, self.folder = process, folder
        self._chance = random.Random(8)

    def order(self, kind: str, url: str = "", **more: Any) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        order = {"kind": kind, "folder": str(self.folder), "url": url, "after": self.moment()} | more
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the nursery died"
        report: dict[str, Any] = json.loads(line)
        return report

    def moment(self) -> float:
        return self._chance.uniform(0.0, 0.03)

    def killed(self, kind: str, url: str = "") -> tuple[list[str], str]:
        """Kill a writer; return its reports and what the reader found."""
        report = self.order(kind, url)
        [found] = report["found"]
        assert not found.startswith("problem"), found
        assert not [word for word in report["said"] if word.startswith("problem")], report["said"]
        return report["said"], found

    def private(self) -> None:
        for path in self.folder.rglob("*"):
            if path.is_file():
                assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path

    def leftovers(self) -> list[Path]:
        return [path for path in self.folder.rglob(".*") if re.search(r"\.dragoman-(part|tmp)$", path.name)]


@contextmanager
def fork_server(folder: Path) -> Iterator[subprocess.Popen[str]]:
    # A bytecode file written under a size limit would be truncated in the shared cache.
    inherited = {name: os.environ.get(name, "") for name in ("PATH", "PYTHONPATH")}
    variables = {**inherited, "HOME": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    with subprocess.Popen(
        [sys.executable, "-m", "tests.disk.fork_server"],
        cwd=ROOT,
        env=variables,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[subprocess.Popen[str]]:
    with fork_server(tmp_path_factory.mktemp("home")) as started:
        yield started


@pytest.fixture
def home(process: subprocess.Popen[str], tmp_path: Path) -> ForkServer:
    return ForkServer(process, tmp_path)


# --- state of the gateway


def test_a_key_is_complete_or_missing_and_a_reported_one_stays(home: ForkServer, kills: int) -> None:
    there = 0
    for _ in range(kills):
        reports, found = home.killed("key")
        how, key = found.split()
        assert re.fullmatch(r"dgm_[A-Za-z0-9_-]{43}", key)
        if reports[-1].startswith("minted"):
            assert found == f"there {reports[-1].split()[1]}"
        there += how == "there"
        home.private()
    assert there
    check_leftovers(home, home.folder / "state")


def test_cooldowns_are_a_consistent_snapshot(home: ForkServer, kills: int) -> None:
    for _ in range(kills):
        _, found = home.killed("cooldowns")
        why = json.loads(found)
        assert len(why) == SCOPES and len(set(why)) == 1
        home.private()
    check_leftovers(home, home.folder / "state")


def test_a_list_of_models_is_one_that_was_written(home: ForkServer, kills: int) -> None:
    for _ in range(kills):
        reported, found = home.killed("models")
        assert json.loads(found) in (int(reported[-1].split()[1]), int(reported[-1].split()[1]) + 1)
        home.private()
    check_leftovers(home, home.folder / "state" / "models")


def test_every_stored_refusal_is_readable_and_no_partial_one_is_shown(home: ForkServer, kills: int) -> None:
    for _ in range(kills):
        reports, found = home.killed("explain")
        whole, count = json.loads(found)
        assert len(whole) == count <= 20
        assert reports[-1].removeprefix("kept ") in whole
        home.private()
    check_leftovers(home, home.folder / "state" / "refusals")


def test_a_configuration_is_the_old_or_the_new_one(home: ForkServer, kills: int) -> None:
    found_both: set[str] = set()
    for done in range(20 * kills):  # on a busy machine the kill may often come before the change
        if done >= kills and len(found_both) == 2:
            break
        reports, found = home.killed("config")
        upstream, end = json.loads(found)
        after = VARIABLES[(VARIABLES.index(reports[-1]) + 1) % 2]
        assert f"{upstream.upper()}_API_KEY" in (reports[-1], after) and end == "whole"
        found_both.add(upstream)
        home.private()
    assert len(found_both) == 2
    check_leftovers(home, home.folder)


def check_leftovers(home: ForkServer, folder: Path) -> None:
    """Check that each kill leaves at most one temporary file, which the next write removes a minute later."""
    remove_parts(folder)
    for part in home.leftovers():
        os.utime(part, (time.time() - 61, time.time() - 61))
    remove_parts(folder)
    assert not home.leftovers()


# --- refresh tokens


class LenientService(TokenService):
    """A service whose refresh token expires only when its successor is used."""

    def _granted(self, old: str) -> dict[str, Any]:
        grant: dict[str, Any] = super()._granted(old)
        self._dead.discard(old)
        self._dead |= {each for each in self._refresh if each not in (old, grant["refreshToken"])}
        return grant


@contextmanager
def sign_in_service(service: type[TokenService]) -> Iterator[tuple[Simulator, list[str]]]:
    """Run a sign-in service; give it and the list of refresh tokens it granted."""
    script = parse_script(TOKENS)
    tokens = ["r0"]

    class Recording(service):  # type: ignore[misc, valid-type]
        def _granted(self, old: str) -> dict[str, Any]:
            grant: dict[str, Any] = super()._granted(old)
            tokens.append(grant["refreshToken"])
            return grant

    with running_simulator("kiro", script=script) as simulator:
        simulator._service._tokens = Recording(script.tokens)  # type: ignore[attr-defined]
        yield simulator, tokens


@pytest.mark.parametrize("store", STORES)
def test_no_kill_ends_a_login(home: ForkServer, kills: int, store: str) -> None:
    """The service accepts the old token if the new one was never used: after every kill the next process continues."""
    with sign_in_service(LenientService) as (simulator, tokens):
        write_login(store, home.folder, "r0")
        for _ in range(kills):
            reports, found = home.killed(f"token-{store}", simulator.url)
            stored, renewed = json.loads(found)
            assert renewed == f"renewed {tokens[-1]}", (reports[-1:], found)
            assert tokens.index(stored) >= tokens.index(reports[-1]), "a token was used before it was on disk"
            if store != "cli":
                home.private()
        assert len(home.leftovers()) <= 1


@pytest.mark.parametrize("store", STORES)
def test_a_used_token_is_on_disk_even_if_its_predecessor_is_revoked(home: ForkServer, kills: int, store: str) -> None:
    """With a strict service only the response in transit can be lost with its reader."""
    lost = 0
    with sign_in_service(TokenService) as (simulator, tokens):
        write_login(store, home.folder, "r0")
        for _ in range(kills):
            reports, found = home.killed(f"token-{store}", simulator.url)
            stored, renewed = json.loads(found)
            assert tokens.index(stored) >= tokens.index(reports[-1]), "a token was used before it was on disk"
            if renewed.startswith("fault"):
                lost += 1
                assert stored == reports[-1] and tokens.index(stored) == len(tokens) - 2, (reports[-1], found)
                write_login(store, home.folder, tokens[-1])
            else:
                assert renewed == f"renewed {tokens[-1]}"
    print(f"{store}: {lost} of {kills} kills met a response on its way")


@pytest.mark.parametrize("store", STORES)
def test_processes_that_race_for_one_rotating_token_lose_none(home: ForkServer, store: str) -> None:
    with sign_in_service(TokenService) as (simulator, tokens):
        write_login(store, home.folder, "r0")
        statuses, seen, report = list[int](), list[set[str]](), dict[str, Any]()
        while len(statuses) < 8:  # a busy machine needs several rounds
            report = home.order(f"token-{store}-shared", simulator.url, race=3, after=[1.0], kills=False)
            statuses = [each.status for each in simulator.requests if each.path == "/refreshToken"]
            seen += [set(words) for words in report["said"]]
    assert set(statuses) == {200}
    assert len(set.union(*seen)) < sum(map(len, seen)), "no writer continued what another had refreshed"
    assert json.loads(report["found"][0])[1] == f"renewed {tokens[-1]}"


def test_a_process_killed_with_the_lock_releases_it(home: ForkServer, kills: int) -> None:
    with sign_in_service(LenientService) as (simulator, tokens):
        write_login("own", home.folder, "r0")
        moments = [home.moment() * 4 for _ in range(kills // 2)]
        report = home.order("token-own-shared", simulator.url, race=3, after=moments, kills=True)
        assert not [word for words in report["said"] for word in words if word.startswith("problem")]
        assert json.loads(report["found"][0])[1] == f"renewed {tokens[-1]}"
        assert {each.status for each in simulator.requests if each.path == "/refreshToken"} == {200}


# --- full disk


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("key", "too large"),
        ("cooldowns", "no problem"),
        ("models", "no problem"),
        ("explain", "kept: False"),
        ("config", "cannot be written"),
    ],
)
def test_on_a_full_disk_the_old_file_stays_and_the_error_is_clear(home: ForkServer, kind: str, says: str) -> None:
    if kind != "key":
        home.killed(kind)
    for part in home.leftovers():
        part.unlink()
    before = {path: path.read_bytes() for path in home.folder.rglob("*") if path.is_file()}
    limit = 20 if kind == "key" else FULL
    [lines] = home.order(kind, limit=limit)["said"]
    assert says in lines.lower() or says in lines
    assert {path: path.read_bytes() for path in home.folder.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("store", ["own", "ide"])
def test_on_a_full_disk_no_token_is_requested(home: ForkServer, store: str) -> None:
    with sign_in_service(TokenService) as (simulator, _):
        write_login(store, home.folder, "r0")
        before = (home.folder / "login" / "default.json").read_bytes()
        [lines] = home.order(f"token-{store}", simulator.url, limit=4096)["said"]
        assert "cannot write" in lines and "so its token is not refreshed" in lines
        assert simulator.total == 0
        assert (home.folder / "login" / "default.json").read_bytes() == before
        assert not home.leftovers()
        assert store_of(store, home.folder).load().refresh.reveal() == "r0"
