"""The TypeScript SDKs and Claude Code itself run whole tool loops through the gateway, against every simulated dialect.

Upstream calls are counted: clients hide bad streams by asking again (facts/clients.md).
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.gateway.house import KEY, House
from tests.gateway.test_clients import RESULT, home, simulators, target

__all__ = ["home", "simulators", "target"]  # fixtures

TESTS = Path(__file__).parent.parent
STOPS = {"anthropic": ["tool_use", "end_turn"], "openai": ["tool_calls", "stop"]}


@pytest.mark.node
@pytest.mark.parametrize("how", ["stream", "whole"])
@pytest.mark.parametrize("sdk", sorted(STOPS))
def test_typescript_sdk_runs_a_tool_loop(home: House, target: str, sdk: str, how: str) -> None:
    done = subprocess.run(
        ["node", "loop.mjs", sdk, how, home.url, KEY, f"to-{target}"],
        cwd=TESTS / "sdk" / "node",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["call"] == ["get_weather", {"city": "Paris"}]
    assert said["stops"] == STOPS[sdk]
    assert RESULT in said["text"]


@pytest.mark.node
def test_claude_code_runs_a_tool_loop(home: House, target: str, tmp_path: Path) -> None:
    """The program itself, headless: the tool must really have run, and each turn be asked for once."""
    [program] = (TESTS / "clients" / "claude" / "node_modules" / "@anthropic-ai").glob("claude-code-*/claude")
    proof = tmp_path / "proof"
    command = json.dumps({"command": f"echo it-ran > {proof}", "description": "prove it"})
    environ = {
        "HOME": str(tmp_path),
        "PATH": os.environ["PATH"],
        "ANTHROPIC_BASE_URL": home.url,
        "ANTHROPIC_AUTH_TOKEN": KEY,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_TELEMETRY": "1",
        "DISABLE_AUTOUPDATER": "1",
        "IS_SANDBOX": "1",  # root may run it so
    }
    done = subprocess.run(
        [str(program), "-p", f"Call Bash {command}", "--model", f"to-{target}", "--allowedTools", "Bash"],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert proof.exists(), (done.stdout, done.stderr)
    assert proof.read_text() == "it-ran\n"
    assert "The tool answered" in done.stdout
