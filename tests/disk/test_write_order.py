"""The order of fsync and rename: the content is on disk before its name, and the name before any use of it.

A kill cannot show this, because the system still writes the data of a killed process; so the calls are recorded.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dragoman.gateway.secrets import write_private
from dragoman.upstream.kiro.atomic_files import replace_file

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="asks /proc what a descriptor is of")
NEW = b'{"token": "new"}' * 1000


def _first(path: Path, data: bytes) -> None:
    path.unlink()
    write_private(path, data, replace=False)


WRITERS: list[Callable[[Path, bytes], None]] = [replace_file, write_private, _first]


@pytest.mark.parametrize("write", WRITERS, ids=["a login", "a file of ours", "a first key"])
def test_content_is_synced_before_the_rename_and_the_folder_after_it(
    write: Callable[[Path, bytes], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, calls = tmp_path / "file", list[str]()
    write_private(path, b"old")
    sync, rename, link = os.fsync, os.replace, os.link

    def synced(handle: int) -> None:
        found = Path(f"/proc/self/fd/{handle}").readlink()
        whole = found.is_file() and found.read_bytes() == NEW
        calls.append("folder" if found == tmp_path else "content" if whole and found != path else f"odd {found.name}")
        sync(handle)

    def named(how: Callable[..., None]) -> Callable[..., None]:
        def call(source: str, target: str, *args: object, **kwargs: object) -> None:
            if Path(target) == path:
                calls.append("name")
            how(source, target, *args, **kwargs)

        return call

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", named(rename))
    monkeypatch.setattr(os, "link", named(link))
    write(path, NEW)
    assert calls == ["content", "name", "folder"]
    assert path.read_bytes() == NEW
    assert path.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in tmp_path.iterdir()] == ["file"]
