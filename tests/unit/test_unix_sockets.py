"""The address of a Unix socket, also for paths that are longer than the system's limit."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from dragoman.http import unix_sockets
from dragoman.http.unix_sockets import socket_address

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Unix sockets")


def test_a_short_path_is_its_own_address() -> None:
    with socket_address(Path("/tmp/a.sock")) as address:
        assert address == "/tmp/a.sock"


@pytest.mark.skipif(sys.platform != "linux", reason="names of open folders")
@pytest.mark.parametrize("length", range(90, 120))
def test_a_socket_is_bound_at_its_path_however_long_that_is(tmp_path: Path, length: int) -> None:
    path = tmp_path / ("f" * max(length - len(str(tmp_path)) - 3, 1)) / "s"
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as listening, socket.socket(socket.AF_UNIX) as client:
        with socket_address(path) as address:
            listening.bind(address)
        listening.listen()
        assert path.is_socket()
        with socket_address(path) as address:
            client.connect(address)


def test_a_path_that_no_name_shortens_is_an_error_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unix_sockets, "_DESCRIPTORS", tmp_path / "absent")
    path = tmp_path / ("f" * 120) / "s"
    with pytest.raises(OSError, match="may have 103 bytes") as raised, socket_address(path):
        pass
    assert raised.value.filename == str(path)
