"""The blocks of docs/clients.md about SDKs and frameworks, and how each is run: as the page says, by `dragoman run`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.clients.install import installed_path
from tests.docs.pages import CLIENTS_PAGE, blocks

# Of each section: the pin it is installed by (none: with the suite), and where Node finds its packages.
PINS = {
    "anthropic": "",
    "@anthropic-ai/sdk": "",
    "openai": "",
    "openai for Node": "",
    "boto3": "",
    "google-genai": "",
    "ai-sdk": "ai-sdk",
    "langchain": "langchain",
    "pydantic-ai": "pydantic-ai",
    "litellm": "litellm",
}


def page_blocks() -> dict[str, tuple[str, str]]:
    """By section: the language and the lines."""
    return {
        block.heading: (block.language, block.text)
        for block in blocks(CLIENTS_PAGE)
        if block.language in ("python", "js")
    }


def run_block(name: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a section's block by `dragoman run_block`, over the simulator. Raises NotInstalled."""
    language, lines = page_blocks()[name]
    pin = PINS[name]
    where = installed_path(pin)
    if language == "js":
        program = "node"
        modules = where / "node_modules" if pin else where / "tests" / "sdk" / "node" / "node_modules"
        (folder / "node_modules").symlink_to(modules)
    else:
        program = str(where / "venv" / "bin" / "python") if pin else sys.executable
    file = folder / ("app.mjs" if language == "js" else "app.py")
    file.write_text(lines, encoding="utf-8")
    return subprocess.run(
        [sys.executable, "-m", "dragoman", "run", "--upstream", "simulator", "--quiet", program, str(file)],
        env={"HOME": str(folder), "PATH": os.environ["PATH"], "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
