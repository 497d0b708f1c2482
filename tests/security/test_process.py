"""Points 36 to 41: what the process does and of what it is made."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from dragoman.cli import checks
from dragoman.cli.checks import Scene
from tests.security.parrot import Parrot

ROOT = Path(__file__).parents[2]
LOCK = ROOT / "requirements" / "run.lock"
TEMPLATES = (
    "jinja2",
    "mako",
    "chameleon",
    "genshi",
    "django",
    "tornado",
    "chevron",
    "pystache",
    "liquid",
    "markupsafe",
)
POINTS = [1, *range(3, 12), *range(13, 17), *range(18, 32), 34, 37, 38, 40, 41]


@pytest.fixture(scope="module")
def watched(bird: Parrot, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    state = tmp_path_factory.mktemp("state")
    command = [sys.executable, "-m", "tests.security.audited", bird.url, str(state)]
    environ = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ} | {"HOME": str(state)}
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return {**found, "state": str(state), "upstream": bird.url.removeprefix("http://")}


def test_point_37_no_request_starts_a_process_loads_code_or_writes_beyond_the_state(watched: dict[str, Any]) -> None:
    network = ("socket.connect", "socket.getaddrinfo")
    acts = [tuple(each) for each in watched["seen"] if each[0] not in network]
    assert [each for each in acts if watched["state"] not in each[1]] == []


def test_point_37_no_request_connects_to_anybody_but_the_upstream(watched: dict[str, Any]) -> None:
    ports = {watched["place"].partition(":")[2], watched["upstream"].partition(":")[2]}
    calls = [place for event, place in watched["seen"] if event.startswith("socket.")]
    assert len(calls) > 100
    strangers = [place for place in calls if "127.0.0.1" not in place or not any(port in place for port in ports)]
    assert strangers == []


def test_point_37_no_template_engine_is_in_the_process(watched: dict[str, Any]) -> None:
    assert set(watched["modules"]).isdisjoint(TEMPLATES)


def test_point_41_nothing_is_called_at_start(watched: dict[str, Any]) -> None:
    assert watched["at_start"] == []


def distributions() -> dict[str, list[str]]:
    """What is locked for run time, each with its hashes."""
    found: dict[str, list[str]] = {}
    name = ""
    for line in LOCK.read_text().splitlines():
        if named := re.match(r"([a-z0-9][a-z0-9._-]*)==\S+", line):
            name = named[1]
            found[name] = []
        found.setdefault(name, []).extend(re.findall(r"--hash=sha256:([0-9a-f]{64})\b", line))
    return found


def test_point_38_few_distributions_run_all_locked_by_hash() -> None:
    found = distributions()
    assert 0 < len(found) <= 25
    assert [name for name, hashes in found.items() if not hashes] == []
    assert set(found).isdisjoint(TEMPLATES)
    written = (ROOT / "SECURITY.md").read_text()
    assert [name for name in found if f"`{name}`" not in written] == []  # each was looked at, and is named


def test_point_38_the_wheel_holds_the_package_and_nothing_else(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    [wheel] = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        package = [name for name in names if name.startswith("dragoman/")]
        others = [name for name in names if name not in package]
        changed = [name for name in package if archive.read(name) != (ROOT / "src" / name).read_bytes()]
    assert changed == []
    assert {name.rpartition(".")[2] for name in package} <= {"py", "typed", "toml", "json", "md"}
    assert all(
        re.fullmatch(r"dragoman-[^/]+\.dist-info/(METADATA|WHEEL|RECORD|entry_points\.txt|licenses/LICENSE)", name)
        for name in others
    ), others
    assert not [name for name in names if name.endswith((".pth", ".so", ".pyd", ".pyc", ".exe", ".sh"))]


def test_point_41_no_code_of_ours_speaks_of_telemetry_or_updates() -> None:
    """Addresses in the source are those of services and of documents; each host is known here."""
    hosts = {
        host
        for path in (ROOT / "src").rglob("*.py")
        for host in re.findall(r"https?://([a-z0-9.-]+\.[a-z]{2,})", path.read_text())
    }
    known = re.compile(
        r"(?:.*\.)?(?:anthropic\.com|openai\.com|openrouter\.ai|moonshot\.ai|googleapis\.com|amazonaws\.com|awsapps\.com|kiro\.dev|example\.com|json-schema\.org|microsoftonline\.com)"
    )
    assert sorted(host for host in hosts if not known.fullmatch(host)) == []


def test_point_36_root_is_a_warning_of_doctor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    scene = Scene({"HOME": str(tmp_path)}, None, offline=True)
    for who, expected in ((0, ["warn"]), (1000, [])):
        monkeypatch.setattr(os, "geteuid", lambda who=who: who)
        assert [each.state for each in checks._user(scene) if each.id == "user"] == expected


def test_point_40_security_md_states_every_promise_with_its_tests() -> None:
    text = (ROOT / "SECURITY.md").read_text()
    assert "private security advisory" in text
    rows = {int(row[1]): row[2] for row in re.finditer(r"^\| (\d+) \| (.+) \|$", text, re.MULTILINE)}
    assert sorted(rows) == sorted([*POINTS, 36])
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    for point, row in rows.items():
        assert f"def test_point_{point}_" in tests, point
        named = re.findall(r"`(tests/[\w/]+\.py)`", row)
        assert named and all((ROOT / name).is_file() for name in named), point
        assert any(f"test_point_{point}_" in (ROOT / name).read_text() for name in named), point
    for page in ("tests/fuzz", "tests/faults"):
        assert page in text and (ROOT / page).is_dir()
