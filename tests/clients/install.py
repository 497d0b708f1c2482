"""Install the pinned clients into a cache folder: `python -m tests.clients.install NAME...`, or `--lock` to pin anew.

A folder of pins/ is one installation: package.json with package-lock.json, or requirements.in with requirements.lock.
Each has a home of its own, so that no client's dependencies bend another's. Nothing here is imported by Dragoman.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
import venv
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[2]
PINS = Path(__file__).parent / "pins"
LOOPS = Path(__file__).parent / "loops"
CACHE = Path(os.environ.get("DRAGOMAN_CLIENTS_CACHE") or ROOT / "build" / "clients").resolve()
WHEELS = CACHE / "wheels"  # of Dragoman's run-time lock, for `make demo` in a fresh clone
NEWEST = CACHE / "newest"  # the newest versions, beside the pinned ones
RUNS_NEWEST = os.environ.get("DRAGOMAN_CLIENTS_NEWEST") == "1"
NPM = os.environ.get("NPM", "npm")
_LONGEST = 600  # seconds for one installation
# No host in a lock; some clients declare a newer Node than they need.
NPM_FLAGS = ("--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error", "--engine-strict=false")


class NotInstalled(Exception):
    """Why a client is not there."""


def installed_path(pin: str) -> Path:
    """Where a pin is installed. Raises NotInstalled, with the reason if the installer left one."""
    if pin == "":  # what the suite itself is installed with
        return ROOT
    if RUNS_NEWEST and (NEWEST / pin).exists():
        return NEWEST / pin
    home = CACHE / pin
    reason = home / "failed"
    if reason.exists():
        raise NotInstalled(reason.read_text())
    if not _is_there(pin):
        raise NotInstalled(f"{pin} is not installed: `python -m tests.clients.install {pin}`")
    return home


def installed_version(pin: str, pinned: str) -> str:
    """The version that runs: the pinned one, or in a run of the newest versions what was installed then."""
    note = NEWEST / pin / "version"
    return note.read_text() if RUNS_NEWEST and pin and note.exists() else pinned


def install(pin: str) -> str:
    """Install a pin unless it is there. Returns why not, or nothing."""
    home = CACHE / pin
    if _is_there(pin):
        return ""
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    try:
        if (PINS / pin / "package.json").exists():
            _install_npm(pin, home)
        else:
            _install_pip(pin, home)
    except (subprocess.SubprocessError, OSError) as error:
        reason = error.stderr if isinstance(error, subprocess.CalledProcessError) else str(error)
        (home / "failed").write_text(f"{pin} could not be installed: {reason[-2000:]}")
        return str(reason)
    (home / "installed").write_text(_mark(pin))
    return ""


def download_wheels() -> None:
    """Download what `make demo` installs, unless it is there."""
    lock, mark = ROOT / "requirements" / "run.lock", WHEELS / "downloaded"
    digest = hashlib.sha256(lock.read_bytes()).hexdigest()
    if mark.exists() and mark.read_text() == digest:
        return
    shutil.rmtree(WHEELS, ignore_errors=True)
    options = ("--quiet", "--require-hashes", "--only-binary", ":all:", "--dest", str(WHEELS))
    run_command([sys.executable, "-m", "pip", "download", *options, "-r", str(lock)], ROOT)
    mark.write_text(digest)


def _install_npm(pin: str, home: Path) -> None:
    for name in ("package.json", "package-lock.json"):
        shutil.copy(PINS / pin / name, home)
    run_command([NPM, "ci", *NPM_FLAGS], home)


def _install_pip(pin: str, home: Path) -> None:
    python = create_environment(home)
    lock = str(PINS / pin / "requirements.lock")
    run_command([python, "-m", "pip", "install", "--quiet", "--require-hashes", "-r", lock], home)


def create_environment(home: Path) -> str:
    """Create a virtual environment in a folder, and return the path of its Python."""
    venv.create(home / "venv", with_pip=True)
    return str(home / "venv" / "bin" / "python")


def run_command(command: list[str], folder: Path) -> None:
    """Run a command of an installation. Raises SubprocessError."""
    subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, timeout=_LONGEST)


def _is_there(pin: str) -> bool:
    mark = CACHE / pin / "installed"
    return mark.exists() and mark.read_text() == _mark(pin)


def _mark(pin: str) -> str:
    [lock] = [path for path in (PINS / pin).iterdir() if path.name in ("package-lock.json", "requirements.lock")]
    return hashlib.sha256(lock.read_bytes()).hexdigest()


# --- pinning anew


def lock(pin: str, uv: str) -> None:
    """Write a pin's lock: hashes, and no host."""
    folder = PINS / pin
    if (folder / "package.json").exists():
        (folder / "package-lock.json").unlink(missing_ok=True)
        flags = ("--package-lock-only", "--omit-lockfile-registry-resolved")
        run_command([NPM, "install", *flags, *NPM_FLAGS], folder)
        _complete(folder / "package-lock.json")
        return
    options = ("--output-file", "requirements.lock", "--upgrade", "--quiet", "--universal", "--python-version", "3.11")
    plain = ("--generate-hashes", "--no-header", "--no-emit-index-url", "--no-emit-find-links")
    run_command([uv, "pip", "compile", "requirements.in", *options, *plain], folder)


def _complete(path: Path) -> None:
    """Name the optional packages that the registry did not have: `npm ci` wants all, also those of other systems.

    There is no hash to write down for them, so they are for no system at all and are never installed. Whom a package
    wants money from is an address, and nothing that an installation needs.
    """
    written = json.loads(path.read_text())
    packages = written["packages"]
    for package in list(packages.values()):
        package.pop("funding", None)
        for name, version in package.get("optionalDependencies", {}).items():
            packages.setdefault(f"node_modules/{name}", {"version": version, "optional": True, "os": ["none"]})
    path.write_text(json.dumps(written, indent=2) + "\n")


def main() -> int:
    from tests.clients.client_table import select_clients

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=["all"], help="clients, or a set: quick, ci, all")
    parser.add_argument("--lock", metavar="UV", help="write the locks anew, with this uv")
    arguments = parser.parse_args()
    pins = sorted({client.pin for client in select_clients(arguments.names) if client.pin})
    if arguments.lock:
        for pin in pins:
            lock(pin, str(Path(arguments.lock).resolve()))
        return 0
    download_wheels()
    failed = 0
    with ThreadPoolExecutor(2) as pool:  # the network and the unpacking take turns
        for pin, why, seconds in pool.map(_timed, pins):
            if why or seconds > 1:  # what was there already is not worth a line
                print(f"{pin:16} {seconds:5.1f} s  {'FAILED: ' + why if why else 'installed'}", flush=True)
            failed += bool(why)
    return 1 if failed else 0


def _timed(pin: str) -> tuple[str, str, float]:
    before = time.monotonic()
    return pin, install(pin), time.monotonic() - before


if __name__ == "__main__":
    sys.exit(main())
