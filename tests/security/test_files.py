"""Points 16, 19 and 20 of SECURITY.md: permissions of files, core dumps, and the environment of child processes."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dragoman.cli.client_setup import CLIENTS, fill_setup
from dragoman.cli.detection import upstream_variables
from dragoman.cli.model_choice import ModelChoice
from dragoman.cli.run import child_environment
from dragoman.gateway.explain import RefusalLog, encode_report
from dragoman.gateway.layers import ConfigError
from dragoman.gateway.secret_sources import ReferenceContext
from dragoman.gateway.secrets import (
    SecretUnavailable,
    load_or_create_key,
    make_private_folder,
    parse_reference,
    read_private,
    write_private,
)
from dragoman.upstream.credentials import CredentialFault, SecretText
from dragoman.upstream.kiro.stores import OwnStore
from dragoman.upstream.kiro.token import Token, render_token
from tests.gateway.harness import parse_config
from tests.gateway.test_explain import refusal

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="modes and links are those of Unix")


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    old = os.umask(0)
    yield
    os.umask(old)


def token() -> Token:
    return Token(kind="social", access=SecretText("an-access-token"), refresh=SecretText("a-refresh-token"))


WRITERS: dict[str, Callable[[Path], object]] = {
    "key": lambda folder: load_or_create_key(folder / "file"),
    "login": lambda folder: OwnStore(folder / "file").write(render_token(token())),
    "refusal": lambda folder: RefusalLog(folder).write("file", encode_report(refusal("file"))),
}


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("name", WRITERS)
def test_point_16_files_are_0600_in_folders_of_0700_whatever_the_umask(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "a"
    WRITERS[name](folder)
    assert {mode(path) for path in folder.iterdir()} == {0o600}
    assert mode(folder) == 0o700


@pytest.mark.parametrize("name", WRITERS)
def test_point_16_an_existing_state_folder_is_made_private(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "a"
    folder.mkdir(mode=0o777)
    WRITERS[name](folder)
    assert mode(folder) == 0o700


@pytest.mark.parametrize("name", WRITERS)
def test_point_16_a_file_is_created_under_a_temporary_name_and_no_link_is_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    opened: list[tuple[str, int, int]] = []
    real = os.open

    def watching(path: str, flags: int, mode: int = 0o777, **more: int) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR):
            opened.append((os.fspath(path), flags, mode))
        return real(path, flags, mode, **more)

    monkeypatch.setattr(os, "open", watching)
    WRITERS[name](tmp_path / "a")
    encode_report = [each for each in opened if "lock" not in each[0]]
    assert encode_report
    for path, flags, mode in encode_report:
        assert flags & os.O_EXCL and flags & os.O_CREAT and flags & os.O_NOFOLLOW, path
        assert mode == 0o600
        assert Path(path).name not in ("file", "file.json")  # a complete file is renamed into place


def test_point_16_a_link_in_the_place_of_a_key_is_neither_read_nor_written(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("another-file-of-the-user-0123456789")
    victim.chmod(0o600)
    for target in (victim, tmp_path / "nowhere"):
        link = tmp_path / "key"
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        with pytest.raises(ConfigError):
            load_or_create_key(link)
        with pytest.raises(OSError):
            read_private(link)
    assert victim.read_text() == "another-file-of-the-user-0123456789"
    assert not (tmp_path / "nowhere").exists()
    write_private(tmp_path / "key", b"new")  # replaces the link, not its target
    assert victim.read_text() == "another-file-of-the-user-0123456789"
    assert not (tmp_path / "key").is_symlink()


@pytest.mark.parametrize("loose", [0o640, 0o604, 0o620, 0o602, 0o660, 0o666, 0o644])
def test_point_16_secrets_that_others_can_read_are_refused(tmp_path: Path, loose: int) -> None:
    load_or_create_key(tmp_path / "key")
    (tmp_path / "key").chmod(loose)
    with pytest.raises(ConfigError, match="other users can read"):
        load_or_create_key(tmp_path / "key")
    store = OwnStore(tmp_path / "login.json")
    store.write(render_token(token()))
    (tmp_path / "login.json").chmod(loose)
    if loose & 0o077:
        with pytest.raises(CredentialFault, match="chmod 600"):
            store.load()
    named = parse_reference("file:key", ReferenceContext({}, tmp_path, tmp_path))
    assert named is not None
    with pytest.raises(SecretUnavailable, match="other users can read"):
        named.reveal()
    (tmp_path / "key").chmod(0o600)
    assert named.reveal().startswith("dgm_")


def test_point_16_a_folder_of_another_user_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    with pytest.raises(ConfigError, match="another user"):
        make_private_folder(tmp_path)
    path = tmp_path / "file"
    path.touch(0o600)
    with pytest.raises(ConfigError, match="another user"):
        read_private(path)


def test_point_16_a_file_that_is_readable_by_its_group_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Services get secrets this way: owned by root, readable by the service's group, never by all users."""
    path = tmp_path / "key"
    path.write_text("a-secret-of-a-service")
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    for mode, good in ((0o640, True), (0o440, True), (0o644, False), (0o660, False)):
        path.chmod(mode)
        named = parse_reference("file:key", ReferenceContext({}, tmp_path, tmp_path))
        assert named is not None
        if good:
            assert named.reveal() == "a-secret-of-a-service"
        else:
            with pytest.raises(SecretUnavailable):
                named.reveal()


def test_point_19_a_crash_leaves_no_core() -> None:
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_CORE, (resource.getrlimit(resource.RLIMIT_CORE)[1],) * 2);"
        "from dragoman.cli import main; main(['dialects', '--json']);"
        "import sys; print(resource.getrlimit(resource.RLIMIT_CORE)[0], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr.strip() == "0"


def test_point_20_a_started_client_gets_no_upstream_key() -> None:
    text = """
[upstreams.a]
preset = "anthropic"
[upstreams.b]
dialect = "openai"
base_url = "https://b.test"
key = ["env:B_KEY", "env:B_SECOND"]
headers.x-team-token = "env:TEAM"
proxy = "env:PROXY_OF_B"
"""
    names = ("ANTHROPIC_API_KEY", "B_KEY", "B_SECOND", "TEAM", "PROXY_OF_B")
    environ = {name: f"secret-of-{name}" for name in names}
    hidden = upstream_variables(parse_config(text))
    for recipe in CLIENTS:
        setup = fill_setup(
            recipe, url="http://u", key="k", choice=ModelChoice("m"), requested="", is_served=lambda _: True, listed=[]
        )
        child = child_environment({**environ, "PATH": "/bin"}, setup, hidden)
        assert "secret-of" not in json.dumps(child)
        assert child["PATH"] == "/bin"
