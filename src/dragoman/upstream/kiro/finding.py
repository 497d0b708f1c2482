"""Which store a name means, and which logins this machine has. The database module is loaded only for kiro-cli's."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from dragoman.upstream.credentials import CredentialFault
from dragoman.upstream.kiro.places import Places
from dragoman.upstream.kiro.stores import IdeStore, OwnStore, Store, read_document
from dragoman.upstream.kiro.token import Document, pick

DEFAULT = "default"
_LINKS = ("ide", "cli")


class Found(Struct, frozen=True):
    """A login that exists: `spec` is what `open_store` and the configuration call it."""

    spec: str
    store: Store


def open_store(spec: str = "", places: Places | None = None) -> Store:
    """The store that `spec` means. Raises CredentialFault.

    `own` or `own:NAME` is Dragoman's, `ide` or `ide:PATH` the Kiro IDE's, `cli` or `cli:PATH` kiro-cli's. Empty: the
    first of these that exists.
    """
    places = places or Places()
    if not spec:
        found = find(places)
        if not found:
            raise CredentialFault("no Kiro login was found on this machine. Run `dragoman auth login kiro`.")
        return found[0].store
    kind, _, rest = spec.partition(":")
    match kind:
        case "own":
            return _own(places.own_file(rest or DEFAULT), places)
        case "ide":
            return IdeStore(Path(rest).expanduser() if rest else places.ide_file, places.ide_profile)
        case "cli":
            return _cli(Path(rest).expanduser() if rest else _present(places.cli_files))
        case _:
            raise CredentialFault(f"{spec!r} names no login: use own, ide or cli, such as own:{DEFAULT}.")


def find(places: Places | None = None) -> list[Found]:
    """Every login on this machine, in the order of preference: our own, the IDE's, kiro-cli's."""
    places = places or Places()
    own = sorted(places.own.glob("*.json"), key=lambda path: (path.stem != DEFAULT, path.stem))
    found = [Found(f"own:{path.stem}", _own(path, places)) for path in own]
    if places.ide_file.is_file():
        found.append(Found("ide", open_store("ide", places)))
    if any(path.is_file() for path in places.cli_files):
        found.append(Found("cli", open_store("cli", places)))
    return found


def link(spec: str) -> Document:
    """What our own file holds when it only points at another program's login."""
    return {"type": "kiro", "use": spec}


def _own(path: Path, places: Places) -> Store:
    store = OwnStore(path)
    if not path.is_file():
        return store  # whoever loads it is told what to do
    try:
        spec = pick(read_document(path), "use")
    except CredentialFault:
        return store
    return open_store(spec, places) if spec.partition(":")[0] in _LINKS else store


def _cli(path: Path) -> Store:
    from dragoman.upstream.kiro.cli_store import CliStore  # noqa: PLC0415 - sqlite3 is slow to load and seldom needed

    return CliStore(path)


def _present(paths: tuple[Path, ...]) -> Path:
    return next((path for path in paths if path.is_file()), paths[0])
