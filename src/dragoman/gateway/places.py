"""Where files live: the XDG base directories, for us."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

_OURS = "dragoman"


class Places(Struct, frozen=True):
    """Folders of our own. Nothing here is created by asking."""

    home: Path
    config: Path
    state: Path
    runtime: Path

    @property
    def config_file(self) -> Path:
        return self.config / "config.toml"

    @property
    def key_file(self) -> Path:
        """The gateway key that is minted on first run."""
        return self.state / "key"

    @property
    def admin_socket(self) -> Path:
        return self.runtime / "admin.sock"


def places(environ: Mapping[str, str]) -> Places:
    """The folders for this environment. An XDG variable that is no absolute path does not count, as XDG demands."""
    home = Path(environ.get("HOME") or Path.home())
    config = _folder(environ, "XDG_CONFIG_HOME") or home / ".config"
    state = (_folder(environ, "XDG_STATE_HOME") or home / ".local" / "state") / _OURS
    runtime = _folder(environ, "XDG_RUNTIME_DIR")
    # Without a runtime folder: under our own state. A shared one such as /tmp is no place for a socket of power.
    return Places(home, config / _OURS, state, runtime / _OURS if runtime else state / "run")


def expanded(text: str, folder: Path, home: Path) -> Path:
    """A path as a person writes it in a file of that folder: `~` is their home, a relative one begins at the file."""
    if text == "~" or text.startswith("~/"):
        return home / text[2:]
    return folder / text


def _folder(environ: Mapping[str, str], name: str) -> Path | None:
    found = Path(environ.get(name, ""))
    return found if found.is_absolute() else None
