"""`dragoman completion`: the candidates, and the scripts in real shells."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from dragoman.cli import COMMANDS, make_parser
from dragoman.cli.completion import complete
from tests.gateway.terminal import terminal, tmux
from tests.gateway.test_commands import SIMULATED, UserHome, home

__all__ = ["home", "tmux"]

# A line up to the cursor, and some candidates for its last word; `!` before one that must not be offered.
LINES = {
    "": ["demo", "serve", "completion", "!--help"],
    "re": ["reload", "!run"],
    "-": ["--help", "--version", "!serve"],
    "unknown ": [],
    "status ": ["--json", "--config"],
    "status --j": ["--json", "!--config"],
    "status --config ": [],
    "status --config x ": ["--json"],
    "translate --from ": ["anthropic", "openai", "kiro"],
    "translate --from=g": ["--from=gemini", "!--from=openai"],
    "translate --from = g": ["gemini", "!openai"],  # as bash splits it
    "translate --from =": ["anthropic"],
    "translate --from anthropic --what s": ["stream"],
    "translate --from anthropic ": [],  # a file
    "check --strict --dialect ki": ["kiro"],
    "sim ": ["kiro", "ollama"],
    "keys ": ["create", "rotate"],
    "keys cr": ["create", "!list"],
    "keys create name --": ["--owner", "--limit", "!--grace"],
    "keys rotate --": ["--grace", "!--owner"],
    "cooldown ": ["list", "clear"],
    "cooldown clear ": ["simulator"],
    "keys create name --upstream ": ["simulator"],
    "run ": ["claude", "codex"],
    "run --quiet cl": ["claude"],
    "run --": ["--model", "--print-env"],
    "run claude --": [],  # the client's own options
    "run claude -- ": [],
    "raw-tools try kimi": ["kimi_k2"],
    "explain ": ["last"],
    "log up": ["upstream:", "upstream_dialect:", "!status:"],
    "log -f status:200 to": ["tool:", "total:"],
    "config ": ["check", "show", "path"],
    "serve --worker": ["--workers", "!--worker"],
    "completion ": ["bash", "zsh", "fish"],
}


@pytest.mark.parametrize("line", LINES)
def test_the_candidates_of_a_line(line: str, home: UserHome, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(home.path))
    found = complete(["dragoman", *line.split(" ")])
    for candidate in LINES[line]:
        assert (candidate.removeprefix("!") in found) is not candidate.startswith("!")
    assert bool(found) == bool(LINES[line])


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_offers_what_its_parser_accepts(name: str) -> None:
    found = complete(["dragoman", name, "--"])
    assert "--help" in found and all(found.values())
    usage = make_parser(name)[0].format_help()
    assert all(option in usage for option in found)


def test_a_broken_configuration_offers_nothing_and_prints_nothing(home: UserHome) -> None:
    config = str(home.write("config.toml", "not TOML"))
    done = home.run("completion", "bash", "dragoman", "cooldown", "clear", "", DRAGOMAN_CONFIG=config)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_requests_of_the_running_gateway_are_offered(home: UserHome) -> None:
    with home.serving("--config", str(home.write("config.toml", SIMULATED))) as served:
        served.say("Hello")
        offered = home.run("completion", "fish", "dragoman", "explain", "").stdout.splitlines()
    assert [line.split("\t")[1][:3] for line in offered] == ["the", "200"]
    assert offered[1].startswith("req_")


# --- real shells


def _need(shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")


def _program(home: UserHome) -> str:
    """Put a script `dragoman` into a folder of its own, and return the value of PATH that finds it first."""
    folder = home.path / "bin"
    folder.mkdir()
    script = folder / "dragoman"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -m dragoman "$@"\n')
    script.chmod(0o755)
    return f"{folder}:{home.environ({})['PATH']}"


def _shell(home: UserHome, *command: str) -> list[str]:
    environ = home.environ({"PATH": _program(home)})
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_bash_calls_the_function_for_the_line(home: UserHome) -> None:
    _need("bash")
    words = "COMP_WORDS=(dragoman translate --from = g); COMP_CWORD=4; _dragoman; echo ${COMPREPLY[@]}"
    assert _shell(home, "bash", "--norc", "-c", f'eval "$(dragoman completion bash)"; {words}') == ["gemini"]


def test_fish_offers_candidates_with_descriptions_or_files(home: UserHome) -> None:
    _need("fish")
    home.write("request.json", "{}")
    lines = ("dragoman rel", "dragoman keys ro", "dragoman translate --from=gem", f"dragoman check {home.path}/req")
    asked = "; ".join(f"complete -C '{line}'" for line in lines)
    assert _shell(home, "fish", "--no-config", "-c", f"dragoman completion fish | source; {asked}") == [
        f"reload\t{COMMANDS['reload']}",
        "rotate\tgive a key a new secret; id, limits and usage stay",
        "--from=gemini",
        f"{home.path}/request.json",
    ]


SHELLS = {
    "bash": ("bash --norc --noprofile", 'eval "$(dragoman completion bash)"'),
    "zsh": ("zsh -f", 'autoload -U compinit; compinit -u -D; eval "$(dragoman completion zsh)"'),
    "fish": ("fish --no-config", "dragoman completion fish | source"),
}


@pytest.mark.usefixtures("tmux")
@pytest.mark.parametrize("shell", SHELLS)
def test_the_tab_key_completes_commands_values_and_files(shell: str, home: UserHome) -> None:
    _need(shell)
    start, load = SHELLS[shell]
    home.write("request.json", "{}")
    with terminal(home, 100, 30, f"env PATH={_program(home)} {start}") as screen:
        screen.type(f"cd {home.path}; {load}; echo load''ed", "Enter")
        screen.wait_for("loaded")
        screen.type("clear", "Enter", "dragoman transl", "Tab")
        screen.wait_for("dragoman translate")
        screen.type("--from resp", "Tab")
        screen.wait_for("translate --from responses")
        screen.type("--to oll", "Tab")
        screen.wait_for("--to ollama")
        screen.type("requ", "Tab")
        screen.wait_for("--to ollama request.json")
