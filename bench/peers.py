"""Install the peers at their pinned versions, each into its own folder: `make bench-peers`."""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

from bench.gateways import PEERS, ROUTER_PACKAGE, VERSIONS
from bench.scenarios import LITELLM, ROUTER, TENSORZERO


def _python(folder: Path, *requirements: str) -> None:
    venv.create(folder, with_pip=True, clear=True)
    _run([str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", *requirements])


def _tensorzero(folder: Path) -> None:
    _python(folder, f"tensorzero=={VERSIONS[TENSORZERO]}")


def _litellm(folder: Path) -> None:
    """Install with uv, which can override the certifi version: a mirror may lack the one that LiteLLM requires."""
    _python(folder, "uv")
    override = folder / "override.txt"
    override.write_text("certifi\n")
    # httptools is the C parser that uvicorn uses if it is installed: peers are measured at their best.
    requirements = [f"litellm[proxy]=={VERSIONS[LITELLM]}", "httptools", "--override", str(override)]
    _run(
        [
            str(folder / "bin" / "uv"),
            "pip",
            "install",
            "--quiet",
            "--python",
            str(folder / "bin" / "python"),
            *requirements,
        ]
    )


def _router(folder: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise FileNotFoundError("npm was not found")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    package = f"{ROUTER_PACKAGE}@{VERSIONS[ROUTER]}"
    options = ["--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error", "--save-exact"]
    _run([npm, "install", "--prefix", str(folder), *options, package])


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True)


INSTALLERS: dict[str, Callable[[Path], None]] = {TENSORZERO: _tensorzero, ROUTER: _router, LITELLM: _litellm}


def main(names: list[str]) -> int:
    """Install the named peers, or all; return 1 if one fails."""
    failed = 0
    for name in names or list(INSTALLERS):
        folder = PEERS / name
        mark = folder / ".installed"
        if mark.exists() and mark.read_text() == VERSIONS[name]:
            print(f"{name} {VERSIONS[name]} is already installed")
            continue
        print(f"installing {name} {VERSIONS[name]}", flush=True)
        try:
            INSTALLERS[name](folder)
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"{name} was not installed: {error}", file=sys.stderr)
            failed += 1
            continue
        mark.write_text(VERSIONS[name])
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
