"""`dragoman sim`: it prints its address, answers, tells each exchange, and complains in sentences."""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from dragoman.cli import sim
from tests.unit.simulator.kiro_cases import body, user


def parsed(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    sim.add_arguments(parser)
    return parser.parse_args(arguments)


def test_it_serves_until_it_is_interrupted(tmp_path: Path) -> None:
    script = tmp_path / "script.toml"
    script.write_text('[[turn]]\ntext = "scripted"')
    code = (
        "import argparse, sys; from dragoman.cli import sim; p = argparse.ArgumentParser(); sim.add_arguments(p); "
        "sys.exit(sim.run(p.parse_args(sys.argv[1:])))"
    )
    command = [sys.executable, "-c", code, "kiro", "--port", "0", "--script", str(script), "--limit", "tool_count=3"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        headers = {"authorization": "Bearer t"}
        good = httpx.post(f"{url}/generateAssistantResponse", json=body(), headers=headers)
        bad = httpx.post(f"{url}/generateAssistantResponse", json=body(user("")), headers=headers)
        missing = httpx.post(f"{url}/nowhere", json={}, headers=headers)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=60)
    assert b"scripted" in good.content
    assert (bad.status_code, missing.status_code) == (200, 404)  # the default profile has no rule 6
    assert told.splitlines()[0] == "POST /generateAssistantResponse 200"
    assert "POST /nowhere 404  rule 0 (the operation exists) at path" in told


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["kyro"], "unknown dialect 'kyro'"),
        (["kiro", "--profile", "soft"], "unknown profile 'soft'"),
        (["kiro", "--host", "0.0.0.0"], "loopback only"),
        (["kiro", "--script", "/none.toml"], "cannot read the script"),
        (["kiro", "--limit", "tool_count=many"], "--limit: Expected `int`"),
        (["kiro", "--limit", "tools=1"], "--limit: Object contains unknown field `tools`"),
    ],
)
def test_a_wrong_argument_is_a_sentence_and_status_2(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sim.run(parsed(*arguments)) == 2
    assert complaint in capsys.readouterr().err
