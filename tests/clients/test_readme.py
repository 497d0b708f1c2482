"""A fresh clone, `make demo`, and the README's three lines serve Claude Code, Codex and gemini-cli.

The clients ask for the models that they ask for on their own. Everything is a process, as a newcomer starts it:
`dragoman sim openai` in place of the service, `dragoman serve` with the configuration, and the client. Only the address
of the preset is changed, by the environment.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.clients.client_table import PROGRAMS, Client, select_clients
from tests.clients.conftest import NAMES
from tests.clients.fresh_clone import FreshClone, make_fresh_clone
from tests.clients.install import ROOT, NotInstalled, installed_path
from tests.clients.runner import bounded, fill, find_program

_OWN_CHOICE = ("--model", "$model")
# By hand each client asks for the model that it likes best; `dragoman run` sets one. The tools of Codex depend on it.
BY_HAND = ("claude-2.1.197", "claude", "codex default", "gemini")
BY_RUN = ("claude-2.1.197", "claude", "codex", "gemini")


def _cases(names: tuple[str, ...], by_run: bool) -> Iterator[object]:
    for client in select_clients(NAMES):
        if client in PROGRAMS and client.name in names:
            command = tuple(word for word in client.command if word not in _OWN_CHOICE)
            name = f"{client.name.replace(' ', '-')}-{'by-run' if by_run else 'by-hand'}"
            yield pytest.param(replace(client, command=command), by_run, id=name)


@pytest.fixture(scope="session")
def clone(tmp_path_factory: pytest.TempPathFactory) -> FreshClone:
    place = tmp_path_factory.getbasetemp()
    return make_fresh_clone(place.parent if "PYTEST_XDIST_WORKER" in os.environ else place)


@contextmanager
def started(environ: dict[str, str], log: Path, command: list[str]) -> Iterator[str]:
    """Run a command of ours; yield the address that it prints first."""
    with (
        log.open("wb") as errors,
        subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            found = re.search(r"http://\S+", line)
            assert found is not None, log.read_text()
            yield found[0]
        finally:
            process.kill()


@pytest.fixture
def home() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="dgm") as folder:  # short: the path of a Unix socket is limited
        yield Path(folder)


def environment(home: Path, **more: str) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": str(home), "NO_COLOR": "1", **more}


def test_make_demo_says_what_it_does_before_it_does_it(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\ncase "$*" in *"-m venv"*) exit 7;; esac\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    command = ["make", "demo", f"DEMO={tmp_path}/demo", f"PYTHON={python}"]
    # Under `make test` the variables of that make would change what this one prints.
    outer = {name: value for name, value in os.environ.items() if not name.startswith("MAKE") and name != "MFLAGS"}
    done = subprocess.run(command, cwd=ROOT, env=outer, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert done.stdout.splitlines()[:2] == [
        f"Installing Dragoman into {tmp_path}/demo, once. It needs five packages, and takes some seconds.",
        "  1/2 make the environment",
    ]


def test_make_demo_in_a_fresh_clone_installs_the_run_time_lock_and_shows_both_conversations(
    clone: FreshClone,
) -> None:
    assert clone.shown.startswith("Installing Dragoman into build/demo, once.")
    assert "Both tool calls arrived complete." in clone.shown
    python = clone.folder / "build/demo/bin/python"
    listed = subprocess.run(
        [python, "-m", "pip", "list", "--format=freeze"], capture_output=True, text=True, check=True
    )
    installed = {line.partition("==")[0].lower().replace("_", "-") for line in listed.stdout.splitlines()}
    locked = set(re.findall(r"^([\w.-]+)==", (clone.folder / "requirements/run.lock").read_text(), re.MULTILINE))
    assert installed - {"pip", "setuptools", "wheel"} == locked


@pytest.mark.parametrize(("client", "by_run"), [*_cases(BY_HAND, False), *_cases(BY_RUN, True)])
def test_the_readmes_configuration_serves_a_tool_loop(
    client: Client, by_run: bool, clone: FreshClone, home: Path
) -> None:
    try:
        place = installed_path(client.pin)
    except NotInstalled as error:
        pytest.fail(str(error), pytrace=False)
    (home / ".config/dragoman").mkdir(parents=True)
    (home / ".config/dragoman/config.toml").write_text(clone.configuration)
    work, token = home / "work", f"token-{secrets.token_hex(12)}"
    work.mkdir()
    (work / "token.txt").write_text(f"{token}\n")
    with started(environment(home), home / "sim.log", clone.command("sim", "openai", "--port", "0")) as service:
        keys = {"MOONSHOT_API_KEY": "sk-1", "DRAGOMAN_UPSTREAMS__KIMI__BASE_URL": service}
        with started(environment(home, **keys), home / "log", clone.command("serve", "--port", "0")) as url:
            key = (home / ".local/state/dragoman/key").read_text().strip()
            names = {"url": url, "key": key, "prompt": client.prompt, "home": str(home), "place": str(place)}
            files = {} if by_run else client.files
            for path, text in files.items():
                (home / path).parent.mkdir(parents=True, exist_ok=True)
                (home / path).write_text(fill(text.replace('model = "$model"\n', ""), names))
            command = [find_program(fill(word, names), place) for word in client.command]
            given = {name: fill(value, names) for name, value in client.environ.items()}
            if by_run:
                given = {
                    name: value for name, value in given.items() if not name.startswith(("ANTHROPIC_", "DRAGOMAN_"))
                }
                command = clone.command("run", command[0], "--", *command[1:])
            done = bounded(command, environment(home, **given), work, fill(client.stdin, names))
        log = (home / "log").read_text()
    assert done.code == 0, (done.out, done.err, log)
    assert (work / "proof.txt").read_text() == f"{token}\n", (done.out, done.err)
    assert token in done.out
    lines = [json.loads(line) for line in log.splitlines()]
    calls = [line for line in lines if line["event"] == "request" and line.get("operation") == "generate"]
    assert {(line["status"], line["used_model"]) for line in calls} == {(200, "kimi-k2.5")}
    warned = {line["model"] for line in lines if line["event"] == "default_model"}
    assert warned == {line["model"] for line in calls if line["model"] != "kimi-k2.5"}
    assert bool(warned) is not by_run
    assert not [line for line in lines if line.get("outcome") == "refused"]  # no probe of the client either
