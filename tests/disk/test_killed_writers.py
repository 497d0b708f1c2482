"""A kill at any moment leaves the old or the new, whole and private; and no refresh token is lost."""

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
FULL = 200  # bytes: less than any of the files
STORES = ("own", "ide", "cli")


class Nursery:
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
        told: dict[str, Any] = json.loads(line)
        return told

    def moment(self) -> float:
        return self._chance.uniform(0.0, 0.03)

    def killed(self, kind: str, url: str = "") -> tuple[list[str], str]:
        """What the writer had said, and what the reader found."""
        told = self.order(kind, url)
        [found] = told["found"]
        assert not found.startswith("trouble"), found
        assert not [word for word in told["said"] if word.startswith("trouble")], told["said"]
        return told["said"], found

    def private(self) -> None:
        for path in self.folder.rglob("*"):
            if path.is_file():
                assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path

    def leftovers(self) -> list[Path]:
        return [path for path in self.folder.rglob(".*") if re.search(r"\.dragoman-(part|tmp)$", path.name)]


@contextmanager
def nursery(folder: Path) -> Iterator[subprocess.Popen[str]]:
    # A bytecode file that is written with no room would be half a file, in everybody's cache.
    surroundings = {"PATH": os.environ.get("PATH", ""), "HOME": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    with subprocess.Popen(
        [sys.executable, "-m", "tests.disk.fork_server"],
        cwd=ROOT,
        env=surroundings,
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
    with nursery(tmp_path_factory.mktemp("home")) as started:
        yield started


@pytest.fixture
def home(process: subprocess.Popen[str], tmp_path: Path) -> Nursery:
    return Nursery(process, tmp_path)


# --- what the gateway itself writes


def test_a_key_is_whole_or_not_there_and_one_that_was_told_stays(home: Nursery, kills: int) -> None:
    there = 0
    for _ in range(kills):
        said, found = home.killed("key")
        how, key = found.split()
        assert re.fullmatch(r"dgm_[A-Za-z0-9_-]{43}", key)
        if said[-1].startswith("minted"):
            assert found == f"there {said[-1].split()[1]}"
        there += how == "there"
        home.private()
    assert there
    swept(home, home.folder / "state")


def test_cooldowns_are_those_of_one_moment(home: Nursery, kills: int) -> None:
    for _ in range(kills):
        _, found = home.killed("cooldowns")
        why = json.loads(found)
        assert len(why) == SCOPES and len(set(why)) == 1
        home.private()
    swept(home, home.folder / "state")


def test_every_refusal_that_was_kept_can_be_read_and_no_half_one_is_shown(home: Nursery, kills: int) -> None:
    for _ in range(kills):
        said, found = home.killed("explain")
        whole, count = json.loads(found)
        assert len(whole) == count <= 20
        assert said[-1].removeprefix("kept ") in whole
        home.private()
    swept(home, home.folder / "state" / "refusals")


def test_a_configuration_is_the_one_before_or_the_one_after(home: Nursery, kills: int) -> None:
    found_both: set[str] = set()
    for done in range(20 * kills):  # on a busy machine the kill may come before the change many times
        if done >= kills and len(found_both) == 2:
            break
        said, found = home.killed("config")
        upstream, end = json.loads(found)
        after = VARIABLES[(VARIABLES.index(said[-1]) + 1) % 2]
        assert f"{upstream.upper()}_API_KEY" in (said[-1], after) and end == "whole"
        found_both.add(upstream)
        home.private()
    assert len(found_both) == 2
    swept(home, home.folder)


def swept(home: Nursery, folder: Path) -> None:
    """What the killed ones left is a part each at most, and is gone a minute later with the next write there."""
    remove_parts(folder)
    for part in home.leftovers():
        os.utime(part, (time.time() - 61, time.time() - 61))
    remove_parts(folder)
    assert not home.leftovers()


# --- refresh tokens


class Forgiving(TokenService):
    """As careful services do it: a refresh token ends when the one that came after it is used, not before."""

    def _granted(self, old: str) -> dict[str, Any]:
        given: dict[str, Any] = super()._granted(old)
        self._dead.discard(old)
        self._dead |= {each for each in self._refresh if each not in (old, given["refreshToken"])}
        return given


@contextmanager
def signing_in(service: type[TokenService]) -> Iterator[tuple[Simulator, list[str]]]:
    """A sign-in service, and the refresh tokens that it gave, in their order."""
    script = parse_script(TOKENS)
    given = ["r0"]

    class Telling(service):  # type: ignore[misc, valid-type]
        def _granted(self, old: str) -> dict[str, Any]:
            told: dict[str, Any] = super()._granted(old)
            given.append(told["refreshToken"])
            return told

    with running_simulator("kiro", script=script) as simulator:
        simulator._service._tokens = Telling(script.tokens)  # type: ignore[attr-defined]
        yield simulator, given


@pytest.mark.parametrize("store", STORES)
def test_no_kill_ends_a_login(home: Nursery, kills: int, store: str) -> None:
    """With a service that forgives an answer that nobody took: after every kill, the next process goes on."""
    with signing_in(Forgiving) as (simulator, given):
        write_login(store, home.folder, "r0")
        for _ in range(kills):
            said, found = home.killed(f"token-{store}", simulator.url)
            stored, renewed = json.loads(found)
            assert renewed == f"renewed {given[-1]}", (said[-1:], found)
            assert given.index(stored) >= given.index(said[-1]), "a token was used before it was on disk"
            if store != "cli":
                home.private()
        assert len(home.leftovers()) <= 1


@pytest.mark.parametrize("store", STORES)
def test_a_token_that_was_used_is_on_disk_even_if_the_one_before_is_burned(
    home: Nursery, kills: int, store: str
) -> None:
    """With a service that forgives nothing, only the answer that was still on its way can be lost with its reader."""
    lost = 0
    with signing_in(TokenService) as (simulator, given):
        write_login(store, home.folder, "r0")
        for _ in range(kills):
            said, found = home.killed(f"token-{store}", simulator.url)
            stored, renewed = json.loads(found)
            assert given.index(stored) >= given.index(said[-1]), "a token was used before it was on disk"
            if renewed.startswith("fault"):
                lost += 1
                assert stored == said[-1] and given.index(stored) == len(given) - 2, (said[-1], found)
                write_login(store, home.folder, given[-1])
            else:
                assert renewed == f"renewed {given[-1]}"
    print(f"{store}: {lost} of {kills} kills met an answer on its way")


@pytest.mark.parametrize("store", STORES)
def test_processes_that_race_for_one_rotating_token_burn_none(home: Nursery, store: str) -> None:
    with signing_in(TokenService) as (simulator, given):
        write_login(store, home.folder, "r0")
        statuses, seen, told = list[int](), list[set[str]](), dict[str, Any]()
        while len(statuses) < 8:  # a busy machine takes several rounds
            told = home.order(f"token-{store}-shared", simulator.url, race=3, after=[1.0], kills=False)
            statuses = [each.status for each in simulator.requests if each.path == "/refreshToken"]
            seen += [set(words) for words in told["said"]]
    assert set(statuses) == {200}
    assert len(set.union(*seen)) < sum(map(len, seen)), "nobody took up what another had refreshed"
    assert json.loads(told["found"][0])[1] == f"renewed {given[-1]}"


def test_a_process_that_is_killed_with_the_lock_leaves_it_to_the_others(home: Nursery, kills: int) -> None:
    with signing_in(Forgiving) as (simulator, given):
        write_login("own", home.folder, "r0")
        moments = [home.moment() * 4 for _ in range(kills // 2)]
        told = home.order("token-own-shared", simulator.url, race=3, after=moments, kills=True)
        assert not [word for words in told["said"] for word in words if word.startswith("trouble")]
        assert json.loads(told["found"][0])[1] == f"renewed {given[-1]}"
        assert {each.status for each in simulator.requests if each.path == "/refreshToken"} == {200}


# --- no room


@pytest.mark.parametrize(
    ("kind", "says"),
    [("key", "too large"), ("cooldowns", "no trouble"), ("explain", "kept: False"), ("config", "cannot be written")],
)
def test_without_room_the_old_file_stays_and_the_error_is_clear(home: Nursery, kind: str, says: str) -> None:
    if kind != "key":
        home.killed(kind)
    for part in home.leftovers():
        part.unlink()
    before = {path: path.read_bytes() for path in home.folder.rglob("*") if path.is_file()}
    limit = 20 if kind == "key" else FULL
    [said] = home.order(kind, limit=limit)["said"]
    assert says in said.lower() or says in said
    assert {path: path.read_bytes() for path in home.folder.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("store", ["own", "ide"])
def test_without_room_no_token_is_asked_for(home: Nursery, store: str) -> None:
    with signing_in(TokenService) as (simulator, _):
        write_login(store, home.folder, "r0")
        before = (home.folder / "login" / "default.json").read_bytes()
        [said] = home.order(f"token-{store}", simulator.url, limit=4096)["said"]
        assert "cannot write" in said and "so its token is not refreshed" in said
        assert simulator.total == 0
        assert (home.folder / "login" / "default.json").read_bytes() == before
        assert not home.leftovers()
        assert store_of(store, home.folder).load().refresh.reveal() == "r0"
