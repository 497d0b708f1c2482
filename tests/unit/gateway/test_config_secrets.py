"""Secrets of the configuration: references are resolved, values are never shown."""

from __future__ import annotations

import copy
import os
import pickle
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from dragoman.gateway.layers import ConfigError
from dragoman.gateway.secret_sources import BadReference, ReferenceContext
from dragoman.gateway.secrets import ConfiguredSecret, SecretUnavailable, literal_secret, parse_reference
from tests.gateway.harness import wait_until
from tests.gateway.test_server_process import is_alive

CANARY = "sk-canary-0123456789"


@pytest.fixture(autouse=True)
def private_umask() -> Iterator[None]:
    old = os.umask(0o077)
    yield
    os.umask(old)


def around(folder: Path, timeout: float = 10.0, **environ: str) -> ReferenceContext:
    return ReferenceContext({"PATH": "/usr/bin:/bin", **environ}, folder, folder, timeout)


def named(text: str, folder: Path = Path("/nowhere"), timeout: float = 10.0, **environ: str) -> ConfiguredSecret:
    found = parse_reference(text, around(folder, timeout, **environ))
    assert found is not None
    return found


def python(code: str) -> str:
    return f'cmd:{sys.executable} -c "{code}"'


def test_each_scheme_of_reference_is_resolved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "key").write_text(f"{CANARY}\n")
    keyring = ModuleType("keyring")
    keyring.get_password = lambda service, name: CANARY if (service, name) == ("a/b", "c") else None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "keyring", keyring)
    for text in ("env:KEY", "file:key", f"file:{tmp_path}/key", "file:~/key", "keyring:a/b/c", f"cmd:echo {CANARY}"):
        assert named(text, tmp_path, KEY=CANARY).reveal() == CANARY


def test_a_secret_is_read_once_at_its_first_use(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("one")
    secret = named("file:key", tmp_path)
    assert secret.revealed is None
    (tmp_path / "key").write_text("two")
    assert secret.reveal() == "two"
    (tmp_path / "key").write_text("three")
    assert secret.reveal() == "two"
    assert [secret.revealed] == ["two"]
    assert secret.refresh()
    assert not secret.refresh()
    assert secret.reveal() == "three"


def test_concurrent_first_uses_run_the_command_once(tmp_path: Path) -> None:
    secret = named(python("open('runs', 'a').write('x'); print('key')"), tmp_path)
    threads = [threading.Thread(target=secret.reveal) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tmp_path / "runs").read_text() == "x"


@pytest.mark.parametrize(
    "secret",
    [literal_secret(CANARY), named("env:KEY", KEY=CANARY), named(f"cmd:echo {CANARY}")],
    ids=["literal", "env", "cmd"],
)
def test_no_representation_shows_the_secret(secret: ConfiguredSecret) -> None:
    assert secret.reveal() == CANARY
    looks = [
        repr(secret),
        str(secret),
        f"{secret}",
        f"{secret!r:>40}",
        f"{[secret]}",
        secret.shown,
        str(vars(type(secret))),
    ]
    assert not [look for look in looks if CANARY in look]
    for write in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="cannot be pickled"):
            write(secret)


def test_an_error_does_not_show_the_secret() -> None:
    with pytest.raises(SecretUnavailable) as caught:
        named(f"cmd:false {CANARY}").reveal()
    assert isinstance(caught.value, ConfigError)
    assert CANARY not in str(caught.value) + repr(caught.value)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("env:NONE", "env:NONE: the environment variable is not set"),
        ("env:EMPTY", "env:EMPTY: the value is empty"),
        ("env:TWO", "env:TWO: the value has more than one line"),
        ("file:none", "file:none: no such file"),
        ("file:.", "file:.: is a directory"),
        ("file:binary", "file:binary: the value is not UTF-8 text"),
        ("file:long", "file:long: the value is longer than"),
        ("keyring:a/b", "keyring:a/b: the package keyring is not installed (pip install keyring)"),
        ("cmd:no-such-command-here", "cmd:no-such-command-here: no such file"),
        ("cmd:false", "cmd:false: the command ended with status 1"),
        ("cmd:true", "cmd:true: the value is empty"),
    ],
)
def test_an_unavailable_secret_is_reported_with_its_reason(
    text: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "keyring", None)
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    (tmp_path / "long").write_text("x" * 70_000)
    with pytest.raises(SecretUnavailable) as caught:
        named(text, tmp_path, EMPTY=" \n", TWO="a\nb").reveal()
    assert str(caught.value).startswith(why)


@pytest.mark.parametrize(
    "text", ["env:", "env:A B", "env:$A", "file:", "keyring:a", "keyring:/a", "keyring:a/", "cmd:", "cmd:'x"]
)
def test_a_malformed_reference_is_refused_at_once(text: str) -> None:
    with pytest.raises(BadReference):
        parse_reference(text, around(Path("/")))


@pytest.mark.parametrize("text", ["sk-1", "", "vault:x", "ENV:X", "https://x"])
def test_other_texts_are_not_references(text: str) -> None:
    assert parse_reference(text, around(Path("/"))) is None


def test_no_shell_reads_a_command(tmp_path: Path) -> None:
    assert named("cmd:echo $HOME;touch${IFS}x `id` *", tmp_path).reveal() == "$HOME;touch${IFS}x `id` *"
    assert list(tmp_path.iterdir()) == []


def test_a_command_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    child = (
        "import pathlib, subprocess, sys, time;"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']);"
        f"part = pathlib.Path({str(pid_file)!r} + '.part'); part.write_text(str(child.pid)); part.rename({str(pid_file)!r});"
        "time.sleep(600)"
    )
    for seconds in (0.5, 2.0, 8.0, 32.0):  # a busy machine may end it before it has a child
        with pytest.raises(SecretUnavailable, match=rf"the command did not end within {seconds:g} s"):
            named(python(child), tmp_path, timeout=seconds).reveal()
        if pid_file.exists():
            break
    wait_until(lambda: not is_alive(int(pid_file.read_text())))


def test_a_child_that_keeps_the_pipe_open_does_not_block(tmp_path: Path) -> None:
    leaves = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])"
    with pytest.raises(SecretUnavailable):  # and not after the child's ten minutes
        named(python(leaves), tmp_path, timeout=1.0).reveal()


def test_arguments_of_a_command_are_masked() -> None:
    assert named(f"cmd:vault read {CANARY}").shown == "cmd:vault ***"


def test_secrets_with_equal_references_are_equal() -> None:
    assert named("env:A") == named("env:A")
    assert named("env:A") != named("env:B")
    assert named("cmd:x a") != named("cmd:x b")
    assert literal_secret("aaaa") == literal_secret("aaaa")
    assert literal_secret("aaaa") != literal_secret("bbbb")
    assert len({literal_secret("aaaa"), literal_secret("aaaa")}) == 1
