"""Token stores: what they read, that they write back in place, and that no moment of a write loses a token."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import sqlite3
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NoReturn

import pytest
from msgspec import structs

from dragoman.upstream.credentials import CredentialFault, SecretText
from dragoman.upstream.kiro.atomic_files import check_replaceable, replace_file
from dragoman.upstream.kiro.cli_store import CliStore
from dragoman.upstream.kiro.credential import KiroCredential
from dragoman.upstream.kiro.logins import KiroPaths, find_logins, open_store
from dragoman.upstream.kiro.stores import ApiKeyStore, IdeStore, OwnStore
from dragoman.upstream.kiro.token import Token, render_time, render_token
from tests.unit.upstream.kiro_logins import ARN, NOW, cli_database, document, write_store

IDE: dict[str, Any] = {
    "accessToken": "access-1",
    "refreshToken": "refresh-1",
    "expiresAt": render_time(NOW),
    "authMethod": "IdC",
    "provider": "Enterprise",
    "clientIdHash": "abc123",
    "region": "eu-west-1",
    "unknown": {"kept": True},
}


def ide(folder: Path, **changed: Any) -> IdeStore:
    path = folder / "kiro-auth-token.json"
    path.write_text(json.dumps(IDE | changed))
    (folder / "abc123.json").write_text(
        json.dumps({"clientId": "c", "clientSecret": "s", "expiresAt": render_time(NOW)})
    )
    (folder / "profile.json").write_text(json.dumps({"arn": ARN, "name": "work"}))
    return IdeStore(path, folder / "profile.json")


def renewed(token: Token) -> Token:
    return structs.replace(token, access=SecretText("access-2"), refresh=SecretText("refresh-2"), expires_at=NOW + 3600)


def test_the_ide_store_joins_token_registration_and_profile(tmp_path: Path) -> None:
    token = ide(tmp_path).load()
    assert (token.kind, token.client_id, token.client_secret, token.region) == (
        "idc",
        "c",
        SecretText("s"),
        "eu-west-1",
    )
    assert (token.profile_arn, token.client_expires_at) == (ARN, NOW)


def test_the_ide_store_writes_back_and_keeps_what_it_does_not_know(tmp_path: Path) -> None:
    store = ide(tmp_path)
    token = store.load()
    store.save(renewed(token), token)
    assert json.loads(store.path.read_text()) == IDE | {
        "accessToken": "access-2",
        "refreshToken": "refresh-2",
        "expiresAt": render_time(NOW + 3600),
    }
    assert stat.S_IMODE(store.path.stat().st_mode) == 0o600


@pytest.mark.parametrize("name", ["../../etc/passwd", "a/b", "", "x" * 200, "a.b"])
def test_a_registration_is_never_looked_for_elsewhere(tmp_path: Path, name: str) -> None:
    store = ide(tmp_path, clientIdHash=name)
    if not name:
        assert store.load().client_id == ""
        return
    with pytest.raises(CredentialFault, match="clientIdHash"):
        store.load()


def test_a_login_that_another_program_replaced_is_not_overwritten(tmp_path: Path) -> None:
    store = write_store(tmp_path)
    was = store.load()
    write_store(tmp_path, refresh_token="theirs", access_token="theirs-too", expires_at=render_time(NOW + 10))
    assert store.save(renewed(was), was).refresh == SecretText("theirs")
    assert store.load().access == SecretText("theirs-too")


def test_a_file_that_is_gone_is_not_made_again(tmp_path: Path) -> None:
    store = write_store(tmp_path)
    was = store.load()
    store.path.unlink()
    with pytest.raises(CredentialFault):
        store.save(renewed(was), was)
    assert not store.path.exists()


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    real = write_store(tmp_path / "real")
    linked = tmp_path / "linked.json"
    linked.symlink_to(real.path)
    store = OwnStore(linked)
    token = store.load()
    store.save(renewed(token), token)
    assert linked.is_symlink()
    assert real.load().access == SecretText("access-2")
    assert store.lock == real.lock  # a process that uses the other name takes the same lock


def test_our_own_file_is_private_or_not_read(tmp_path: Path) -> None:
    store = write_store(tmp_path)
    store.path.chmod(0o640)
    with pytest.raises(CredentialFault, match="chmod 600"):
        store.load()


def test_a_new_login_makes_private_folders_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        store = OwnStore(tmp_path / "credentials" / "kiro" / "default.json")
        store.write(render_token(write_store(tmp_path).load()))
    finally:
        os.umask(before)
    assert stat.S_IMODE(store.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(store.path.parent.stat().st_mode) == 0o700


def test_a_store_that_cannot_be_written_says_so_before_a_refresh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = write_store(tmp_path)

    def full(*_: object, **__: object) -> NoReturn:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(tempfile, "mkstemp", full)
    with pytest.raises(CredentialFault, match=r"Read-only file system.*would be lost"):
        store.prepare()


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff", b"null", b'{"accessToken": 5}'])
def test_a_broken_file_is_a_clear_fault_and_is_not_quoted(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "default.json"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(CredentialFault, match="dragoman auth login kiro"):
        OwnStore(path).load()


_WRITER = """
import sys
from pathlib import Path
from dragoman.upstream.kiro.atomic_files import replace_file
path, turn = Path(sys.argv[1]), 0
print("ready", flush=True)
while True:
    turn += 1
    replace_file(path, b'{"refresh_token": "' + str(turn % 10).encode() * 20000 + b'"}')
"""


def test_a_kill_at_any_moment_leaves_the_old_token_or_the_new(tmp_path: Path) -> None:
    path = tmp_path / "default.json"
    replace_file(path, b'{"refresh_token": "' + b"0" * 20000 + b'"}')
    chance = random.Random(7)
    for _ in range(4):  # tests/disk kills more of them
        writer = subprocess.Popen([sys.executable, "-c", _WRITER, str(path)], stdout=subprocess.PIPE)
        assert writer.stdout is not None
        with writer.stdout as ready:
            ready.readline()
            time.sleep(chance.uniform(0.001, 0.03))
            writer.send_signal(signal.SIGKILL)
            writer.wait()
        token = json.loads(path.read_bytes())["refresh_token"]
        assert len(token) == 20000
        assert len(set(token)) == 1
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    check_replaceable(path)
    assert [*tmp_path.iterdir()] == [path]  # what the killed ones left was swept


# --- kiro-cli


def cli(folder: Path) -> CliStore:
    token = {"access_token": "access-1", "refresh_token": "refresh-1", "expires_at": render_time(NOW), "scopes": ["a"]}
    registration = {"client_id": "c", "client_secret": "s", "region": "eu-west-1"}
    old = token | {"access_token": "left-behind", "expires_at": render_time(NOW - 86400)}
    path = cli_database(
        folder / "kiro-cli" / "data.sqlite3",
        kirocli__odic__token=token,
        kirocli__odic__device_registration=registration,
        codewhisperer__odic__token=old,
    )
    return CliStore(path)


def rows(path: Path) -> dict[str, Any]:
    database = sqlite3.connect(path)
    found = {key: json.loads(value) for key, value in database.execute("SELECT key, value FROM auth_kv")}
    database.close()
    return found


def test_the_cli_store_reads_the_login_that_lives_longest(tmp_path: Path) -> None:
    token = cli(tmp_path).load()
    assert (token.access, token.kind, token.slot) == (SecretText("access-1"), "idc", "kirocli:odic:token")
    assert (token.client_id, token.client_secret, token.region) == ("c", SecretText("s"), "eu-west-1")


def test_the_cli_store_writes_back_to_the_same_key_and_no_other(tmp_path: Path) -> None:
    store = cli(tmp_path)
    before = rows(store.path)
    token = store.load()
    store.prepare()
    store.save(renewed(token), token)
    changed = {"access_token": "access-2", "refresh_token": "refresh-2", "expires_at": render_time(NOW + 3600)}
    key = "kirocli:odic:token"
    assert rows(store.path) == before | {key: before[key] | changed}


def test_the_cli_store_takes_the_profile_from_the_programs_state(tmp_path: Path) -> None:
    store = cli(tmp_path)
    database = sqlite3.connect(store.path)
    database.execute("INSERT INTO state VALUES ('api.codewhisperer.profile', ?)", (json.dumps({"arn": ARN}).encode(),))
    database.commit()
    database.close()
    assert store.load().profile_arn == ARN


def test_a_social_row_is_a_social_login(tmp_path: Path) -> None:
    path = cli_database(tmp_path / "data.sqlite3", kirocli__social__token={"access_token": "a", "profile_arn": ARN})
    assert (CliStore(path).load().kind, CliStore(path).load().profile_arn) == ("social", ARN)


def test_a_row_that_was_logged_out_meanwhile_is_not_brought_back(tmp_path: Path) -> None:
    store = cli(tmp_path)
    token = store.load()
    database = sqlite3.connect(store.path)
    database.execute("DELETE FROM auth_kv WHERE key = ?", (token.slot,))
    database.commit()
    database.close()
    with pytest.raises(CredentialFault, match="another program removed the login"):
        store.save(renewed(token), token)
    assert token.slot not in rows(store.path)


@pytest.mark.parametrize("content", [b"", b"no database at all, but long enough to be looked at" * 20])
def test_a_file_that_is_no_database_is_a_clear_fault(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "data.sqlite3"
    path.write_bytes(content)
    with pytest.raises(CredentialFault, match=r"data\.sqlite3"):
        CliStore(path).load()


def test_one_bad_row_does_not_spoil_the_others(tmp_path: Path) -> None:
    path = cli_database(
        tmp_path / "data.sqlite3",
        kirocli__social__token={"access_token": "cut...off"},
        kirocli__odic__token={"access_token": "good"},
    )
    assert CliStore(path).load().access == SecretText("good")


def test_a_store_that_another_program_is_writing_is_waited_for_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.upstream.kiro.cli_store._BUSY_TIMEOUT", 0.1)
    store = cli(tmp_path)
    other = sqlite3.connect(store.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(CredentialFault, match="locked"):
        store.prepare()
    other.close()
    store.prepare()


# --- which store is meant


def places(home: Path) -> KiroPaths:
    return KiroPaths({"HOME": str(home)}, "linux")


def test_every_login_of_the_machine_is_found_ours_first(tmp_path: Path) -> None:
    here = places(tmp_path)
    assert find_logins(here) == []
    with pytest.raises(CredentialFault, match="dragoman auth login kiro"):
        open_store("", here)
    for folder in (here.own, here.ide_file.parent):
        folder.mkdir(parents=True)
    cli(tmp_path / ".local" / "share")
    ide(here.ide_file.parent)
    for name in ("work", "default"):
        OwnStore(here.own_file(name)).write(document())
    assert [found.spec for found in find_logins(here)] == ["own:default", "own:work", "ide", "cli"]
    assert isinstance(open_store("", here), OwnStore)
    assert isinstance(open_store("ide", here), IdeStore)
    assert isinstance(open_store("cli", here), CliStore)


def test_a_login_made_with_the_simulator_comes_last_and_is_marked(tmp_path: Path) -> None:
    here = places(tmp_path)
    OwnStore(here.own_file("default")).write({**document(), "endpoint": "http://127.0.0.1:9"})
    assert [(found.spec, found.is_simulated) for found in find_logins(here)] == [("own:default", True)]
    assert open_store("", here).label == str(here.own_file("default"))  # the only one
    with pytest.raises(CredentialFault, match=r"own:default is for practice.*dragoman auth login kiro"):
        open_store("", here, is_simulated=False)
    here.ide_file.parent.mkdir(parents=True)
    ide(here.ide_file.parent)
    OwnStore(here.own_file("work")).write(document())
    assert [found.spec for found in find_logins(here)] == ["own:work", "ide", "own:default"]
    assert open_store("", here).label == str(here.own_file("work"))
    shown = KiroCredential(find_logins(here)[-1].store, fetch=None).describe()  # type: ignore[arg-type]
    assert shown["practice"] is True and "for practice with the simulator at http://127.0.0.1:9" in str(shown["source"])


def test_a_login_that_points_at_another_programs_is_that_programs(tmp_path: Path) -> None:
    here = places(tmp_path)
    OwnStore(here.own_file("default")).write({"type": "kiro", "use": "ide"})
    assert isinstance(open_store("own", here), IdeStore)


@pytest.mark.parametrize("name", ["../x", "", "a/b", ".hidden", "x" * 65])
def test_a_login_is_named_by_a_word(tmp_path: Path, name: str) -> None:
    with pytest.raises(CredentialFault, match="not a valid login name"):
        places(tmp_path).own_file(name)


def test_an_unknown_spec_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CredentialFault, match="own, ide or cli"):
        open_store("keychain", places(tmp_path))


@pytest.mark.parametrize("platform", ["linux", "darwin", "win32"])
def test_places_follow_the_platform(platform: str) -> None:
    here = KiroPaths({"HOME": "/h", "APPDATA": "/roaming", "LOCALAPPDATA": "/local"}, platform)
    expected = {
        "linux": ("/h/.config/Kiro", "/h/.local/share/kiro-cli"),
        "darwin": ("/h/Library/Application Support/Kiro", "/h/Library/Application Support/kiro-cli"),
        "win32": ("/roaming/Kiro", "/local/Kiro-Cli"),
    }[platform]
    assert str(here.ide_profile).startswith(expected[0])
    assert str(here.cli_files[0]).startswith(expected[1])
    assert here.ide_file == Path("/h/.aws/sso/cache/kiro-auth-token.json")


def test_an_api_key_is_a_token_that_does_not_end() -> None:
    token = ApiKeyStore(SecretText("ksk_1")).load()
    assert (token.kind, token.expires_at, token.access) == ("api_key", None, SecretText("ksk_1"))
