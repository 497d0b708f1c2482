"""The key of the gateway: created once, by one process, readable by its user only."""

from __future__ import annotations

import errno
import os
import stat
import sys
import threading
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path

import pytest

from dragoman.gateway.layers import ConfigError
from dragoman.gateway.secrets import (
    ConfiguredSecret,
    app_folders,
    gateway_key,
    literal_secret,
    load_or_create_key,
    read_private,
    write_private,
)

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="modes are those of Unix")


@pytest.fixture
def open_umask() -> Iterator[None]:
    old = os.umask(0)
    yield
    os.umask(old)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.usefixtures("open_umask")
def test_the_first_run_creates_a_key_and_the_next_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "state" / "dragoman" / "key"
    key = load_or_create_key(path).reveal()
    assert key.startswith("dgm_") and len(key) >= 47
    assert (mode(path), mode(path.parent)) == (0o600, 0o700)
    assert load_or_create_key(path).reveal() == key
    assert [found.name for found in path.parent.iterdir()] == ["key"]
    assert load_or_create_key(tmp_path / "other" / "key").reveal() != key


@pytest.mark.usefixtures("open_umask")
def test_the_key_file_is_never_readable_by_others_or_incomplete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, int, bool]] = []
    real = os.fsync

    def watching(descriptor: int) -> None:
        for path in tmp_path.iterdir():
            seen.append((path.name, mode(path), path.name == "key" and not path.read_bytes().endswith(b"!")))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", watching)
    write_private(tmp_path / "key", b"one!")
    write_private(tmp_path / "key", b"two!")
    assert {mode for _, mode, _ in seen} == {0o600}
    assert not [name for name, _, half in seen if half]
    assert len({name for name, _, _ in seen}) == 3  # the key, and a part of it each time


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_private(tmp_path / "key", b"old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_private(tmp_path / "key", b"new")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("key", b"old")]


def _create_key(path: str, queue: object) -> None:
    queue.put(load_or_create_key(Path(path)).reveal())  # type: ignore[attr-defined]


def test_concurrent_threads_create_one_key(tmp_path: Path) -> None:
    path, keys = tmp_path / "state" / "key", []
    barrier = threading.Barrier(8)

    def run() -> None:
        barrier.wait()
        keys.append(load_or_create_key(path).reveal())

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(keys) == 8
    assert set(keys) == {load_or_create_key(path).reveal()}


def test_concurrent_processes_create_one_key(tmp_path: Path) -> None:
    context = get_context("spawn")
    queue = context.Queue()
    processes = [context.Process(target=_create_key, args=(str(tmp_path / "s" / "key"), queue)) for _ in range(2)]
    for process in processes:
        process.start()
    found = {queue.get(timeout=30) for _ in processes}
    for process in processes:
        process.join()
    assert len(found) == 1


def test_a_folder_that_others_can_read_is_made_private(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir(mode=0o755)
    load_or_create_key(tmp_path / "state" / "key")
    assert mode(tmp_path / "state") == 0o700


def test_a_key_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "key"
    load_or_create_key(path)
    path.chmod(0o640)
    with pytest.raises(ConfigError, match="other users can read or change the file") as caught:
        load_or_create_key(path)
    assert "chmod 600" in caught.value.hint


def test_a_symbolic_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("planted-key-of-someone")
    (tmp_path / "elsewhere").chmod(0o600)
    (tmp_path / "key").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError):
        load_or_create_key(tmp_path / "key")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    with pytest.raises(ConfigError):
        load_or_create_key(tmp_path / "dangling")
    assert not (tmp_path / "nowhere").exists()


def test_an_empty_key_file_is_refused(tmp_path: Path) -> None:
    write_private(tmp_path / "key", b"\n")
    with pytest.raises(ConfigError, match="the file has no key"):
        load_or_create_key(tmp_path / "key")


def test_a_folder_that_is_not_writable_is_an_error_with_a_hint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(os, "mkdir", refuse)  # root, as in many containers, may write everywhere
    with pytest.raises(ConfigError, match="permission denied"):
        load_or_create_key(tmp_path / "state" / "dragoman" / "key")


def test_read_private_returns_the_written_bytes(tmp_path: Path) -> None:
    write_private(tmp_path / "x", b"\x00\xff")
    assert read_private(tmp_path / "x") == b"\x00\xff"


def test_a_configured_key_overrides_the_generated_one(tmp_path: Path) -> None:
    key = literal_secret("0123456789abcdef")
    assert gateway_key(key, tmp_path / "key") is key
    assert not (tmp_path / "key").exists()
    assert gateway_key(None, tmp_path / "key").reveal().startswith("dgm_")


@pytest.mark.parametrize(
    "text", ["tiny-key", "changeme-changeme-changeme", "your-api-key-goes-here", "PLACEHOLDER-0123456789"]
)
def test_a_key_that_is_easy_to_guess_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"server\.key: .*too short, too simple, or a placeholder") as caught:
        gateway_key(literal_secret(text), tmp_path / "key")
    assert text not in str(caught.value)


def test_folders_follow_xdg_and_home() -> None:
    found = app_folders({"HOME": "/h"})
    assert (str(found.config_file), str(found.key_file)) == (
        "/h/.config/dragoman/config.toml",
        "/h/.local/state/dragoman/key",
    )
    assert str(found.admin_socket) == "/h/.local/state/dragoman/run/admin.sock"
    environ = {"HOME": "/h", "XDG_CONFIG_HOME": "/c", "XDG_STATE_HOME": "/s", "XDG_RUNTIME_DIR": "/r"}
    found = app_folders(environ)
    assert [str(path) for path in (found.config, found.state, found.runtime)] == [
        "/c/dragoman",
        "/s/dragoman",
        "/r/dragoman",
    ]
    assert app_folders({"HOME": "/h", "XDG_CONFIG_HOME": "relative"}) == app_folders({"HOME": "/h"})


def test_the_key_is_returned_as_a_configured_secret(tmp_path: Path) -> None:
    key = load_or_create_key(tmp_path / "key")
    assert isinstance(key, ConfiguredSecret)
    assert key.reveal() not in repr(key)
