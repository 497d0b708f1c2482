"""`dragoman run` with real processes: the client is a small script, and the home directory must not change."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shlex
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from dragoman.simulator import running_simulator
from tests.gateway.harness import fixed_response_server
from tests.gateway.test_commands import UserHome, home, wait_for

__all__ = ["home"]

PAGE = Path(__file__).parents[2] / "docs/clients.md"
SIMULATED = ("--upstream", "simulator")

# The client script: it records its arguments and environment, then runs the code of the test.
RECORD = """
import json, os, sys
print(json.dumps({"env": dict(os.environ), "argv": sys.argv[1:]}), file=open(os.environ["RECORD"], "w"), flush=True)
"""
ASK_ANTHROPIC = """
import anthropic
answer = anthropic.Anthropic().messages.create(
    model="claude-sonnet-4.5", max_tokens=99, messages=[{"role": "user", "content": "Hello there."}])
print(answer.content[0].text)
"""
ASK_OPENAI = """
import openai
answer = openai.OpenAI().chat.completions.create(model="gpt-9", messages=[{"role": "user", "content": "Hello there."}])
print(answer.choices[0].message.content)
"""
ASK_PLAINLY = """
import urllib.request
body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hello there."}]}
request = urllib.request.Request(os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages", json.dumps(body).encode())
request.add_header("authorization", "Bearer " + os.environ["ANTHROPIC_AUTH_TOKEN"])
print(json.load(urllib.request.urlopen(request))["content"][0]["text"])
"""
# Print every command line on this machine that contains the key.
LOOK_FOR_THE_KEY = """
import glob
key = (os.environ.get("ANTHROPIC_AUTH_TOKEN") or os.environ["DRAGOMAN_KEY"]).encode()
for file in glob.glob("/proc/[0-9]*/cmdline"):
    try:
        if key in open(file, "rb").read():
            print("seen in", file)
    except OSError:
        pass
print("looked")
"""


def client(home: UserHome, name: str, script: str) -> Path:
    """Create a program with this name on the PATH of the home directory."""
    folder = home.path / "bin"
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!{sys.executable}\n{RECORD}{script}")
    path.chmod(0o755)
    return path


def environ(home: UserHome, **more: str) -> dict[str, str]:
    """Return an environment without the machine's keys, with the programs of the home directory first."""
    path = f"{home.path / 'bin'}:{os.environ['PATH']}"
    return home.environ({"PATH": path, "RECORD": "/dev/null", **more})


def run(home: UserHome, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dragoman", "run", *words]
    return subprocess.run(
        command, env=environ(home, **more), capture_output=True, text=True, timeout=60, check=False, cwd=home.path
    )


def recorded(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def tree(folder: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.lstat().st_mode, path.lstat().st_mtime_ns) for path in sorted(folder.rglob("*"))}


def closed(url: str) -> bool:
    import socket

    host, _, port = url.removeprefix("http://").partition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) != 0


# --- the environment of the child


def test_claude_uses_a_private_gateway_that_ends_with_it_and_the_home_is_unchanged(
    home: UserHome, tmp_path: Path
) -> None:
    client(home, "claude", ASK_ANTHROPIC)
    (home.path / ".claude").mkdir()
    home.write(".claude/settings.json", "{}")
    before = tree(home.path)
    record = tmp_path / "record"
    stray = {"ANTHROPIC_API_KEY": "sk-ant-real", "ANTHROPIC_BASE_URL": "http://127.0.0.1:9"}
    done = run(home, *SIMULATED, "claude", "--", "-p", "hi", RECORD=str(record), **stray)
    assert (done.returncode, done.stdout) == (0, "You said: Hello there.\n"), done.stderr
    assert done.stderr.count("\n") == 1
    assert tree(home.path) == before
    started = recorded(record)
    assert started["argv"] == ["-p", "hi"]
    assert "ANTHROPIC_API_KEY" not in started["env"]
    assert not started["env"]["ANTHROPIC_BASE_URL"].endswith("/v1")
    assert closed(started["env"]["ANTHROPIC_BASE_URL"])


STRAY = {
    "claude": ("ANTHROPIC_API_KEY", "CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_VERTEX", "CLAUDE_CODE_USE_FOUNDRY"),
    "gemini": ("GOOGLE_GENAI_USE_GCA",),
    "mine": ("ANTHROPIC_AUTH_TOKEN", "GOOGLE_API_KEY"),
}


@pytest.mark.parametrize("name", STRAY)
def test_variables_that_override_ours_are_removed_even_with_keep(name: str, home: UserHome, tmp_path: Path) -> None:
    script = client(home, name, "")
    record = tmp_path / "record"
    keep_options = [word for each in STRAY[name] for word in ("--keep", each)]
    done = run(
        home,
        *SIMULATED,
        *keep_options,
        str(script),
        RECORD=str(record),
        HARMLESS="stays",
        **dict.fromkeys(STRAY[name], "1"),
    )
    assert done.returncode == 0, done.stderr
    env = recorded(record)["env"]
    assert not [each for each in STRAY[name] if each in env]
    assert env["HARMLESS"] == "stays"


def test_any_other_command_gets_the_variables_of_every_sdk(home: UserHome, tmp_path: Path) -> None:
    script = client(home, "mine", ASK_OPENAI + ASK_ANTHROPIC)
    record = tmp_path / "record"
    done = run(home, *SIMULATED, str(script), RECORD=str(record))
    assert done.stdout == "You said: Hello there.\n" * 2, done.stderr
    env = recorded(record)["env"]
    assert env["OPENAI_BASE_URL"] == env["OPENAI_API_BASE"] == env["ANTHROPIC_BASE_URL"] + "/v1"
    assert env["AWS_ENDPOINT_URL_BEDROCK_RUNTIME"] == env["GOOGLE_GEMINI_BASE_URL"] == env["ANTHROPIC_BASE_URL"]
    run(home, *SIMULATED, str(client(home, "other", "")), RECORD=str(record), AWS_PROFILE="work")
    assert "AWS_ACCESS_KEY_ID" not in recorded(record)["env"]


@pytest.mark.parametrize("name", ["claude", "opencode"])
def test_no_command_line_contains_the_key(home: UserHome, name: str) -> None:
    client(home, name, LOOK_FOR_THE_KEY)
    assert run(home, *SIMULATED, name).stdout == "looked\n"


def test_each_run_has_its_own_key_that_is_not_written_to_disk(home: UserHome, tmp_path: Path) -> None:
    client(home, "claude", "")
    keys, log = set(), home.path / "log"
    for number in range(2):
        record = tmp_path / str(number)
        run(home, *SIMULATED, "--log", str(log), "claude", RECORD=str(record))
        keys.add(recorded(record)["env"]["ANTHROPIC_AUTH_TOKEN"])
    assert len(keys) == 2
    written = b"".join(path.read_bytes() for path in home.path.rglob("*") if path.is_file())
    assert not any(key.encode() in written for key in keys)
    assert stat.S_IMODE(log.stat().st_mode) == 0o600


def test_the_child_gets_no_upstream_key_without_keep(home: UserHome, tmp_path: Path) -> None:
    client(home, "claude", "")
    home.write("c.toml", '[upstreams.a]\ndialect = "openai"\nbase_url = "http://127.0.0.1:9"\nkey = "env:MY_OWN"\n')
    record = tmp_path / "record"
    secrets = {"MY_OWN": "1", "OPENAI_API_KEY": "2", "DRAGOMAN_LOG__LEVEL": "error", "ANY_COMMAND": "3"}
    run(home, "--config", "c.toml", "claude", RECORD=str(record), **secrets)
    assert set(recorded(record)["env"]) & set(secrets) == {"ANY_COMMAND"}
    run(home, "--config", "c.toml", "--keep", "OPENAI_API_KEY", "claude", RECORD=str(record), **secrets)
    assert set(recorded(record)["env"]) & set(secrets) == {"ANY_COMMAND", "OPENAI_API_KEY"}


def test_the_child_uses_no_proxy_for_loopback(home: UserHome, tmp_path: Path) -> None:
    client(home, "claude", ASK_PLAINLY)
    record = tmp_path / "record"
    more = {"HTTP_PROXY": "http://127.0.0.1:9", "HTTPS_PROXY": "http://127.0.0.1:9", "NO_PROXY": "intra.example"}
    done = run(home, *SIMULATED, "claude", RECORD=str(record), **more)
    assert done.stdout == "You said: Hello there.\n", done.stderr
    assert recorded(record)["env"]["NO_PROXY"] == "intra.example,127.0.0.1,localhost,::1"


def test_unknown_model_names_are_replaced_by_a_known_model(home: UserHome, tmp_path: Path) -> None:
    client(home, "claude", "")
    home.write("c.toml", '[upstreams.sim]\npreset = "simulator"\ndialect = "openai"\nmodels = ["m-1"]\n')
    record = tmp_path / "record"
    run(home, "--config", "c.toml", "claude", RECORD=str(record))
    env = recorded(record)["env"]
    names = ("ANTHROPIC_MODEL", *(f"ANTHROPIC_DEFAULT_{size}_MODEL" for size in ("OPUS", "SONNET", "HAIKU")))
    assert {env.get(name) for name in names} == {"m-1"}
    run(home, *SIMULATED, "claude", RECORD=str(record))
    env = recorded(record)["env"]  # the simulated Kiro has no claude-opus-5-5, and knows the other two
    assert {name: env.get(name) for name in names} == dict.fromkeys(names[:2], "claude-sonnet-4.5") | {
        names[2]: None,
        names[3]: None,
    }


# What each client is set up with over each upstream: its model, and its small model where it has one.
CHOICES = [
    ("moonshot", "claude", {"ANTHROPIC_MODEL": "kimi-k2.5", "ANTHROPIC_DEFAULT_HAIKU_MODEL": "kimi-k2.5"}),
    ("moonshot", "gemini", {"GEMINI_MODEL": "kimi-k2.5"}),
    ("kiro", "claude", {"ANTHROPIC_MODEL": "claude-sonnet-4.5", "ANTHROPIC_DEFAULT_HAIKU_MODEL": None}),
    ("kiro", "gemini", {"GEMINI_MODEL": "claude-sonnet-4.5"}),  # never `auto`: gemini-cli fails with it
    ("kiro", "aider", {"AIDER_MODEL": "openai/claude-sonnet-4.5", "AIDER_WEAK_MODEL": "openai/claude-haiku-4.5"}),
    ("kiro", "qwen", {"OPENAI_MODEL": "qwen3-coder-next"}),
    ("kiro", "goose", {"GOOSE_MODEL": "claude-sonnet-4.5"}),
    ("anthropic", "claude", {"ANTHROPIC_MODEL": None, "ANTHROPIC_DEFAULT_HAIKU_MODEL": None}),
    ("gemini", "gemini", {"GEMINI_MODEL": "gemini-2.5-pro"}),
    ("openai", "claude", {"ANTHROPIC_MODEL": "gpt-5", "ANTHROPIC_DEFAULT_HAIKU_MODEL": "gpt-5-mini"}),
    ("vllm", "claude", {"ANTHROPIC_MODEL": "sim-model", "ANTHROPIC_DEFAULT_HAIKU_MODEL": "sim-model"}),
    ("vllm", "gemini", {"GEMINI_MODEL": "sim-model"}),
]
SIMULATED_DIALECTS = {"kiro": "kiro", "anthropic": "anthropic", "gemini": "gemini"}


@pytest.mark.parametrize(
    ("preset", "name", "expected"), CHOICES, ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_client_gets_a_model_of_its_family_or_the_upstreams_default(
    preset: str, name: str, expected: dict[str, str | None], home: UserHome, tmp_path: Path
) -> None:
    client(home, name, "")
    record = tmp_path / "record"
    with running_simulator(SIMULATED_DIALECTS.get(preset, "openai")) as simulator:
        home.write("c.toml", f'[upstreams.u]\npreset = "{preset}"\nbase_url = "{simulator.url}"\nkey = "env:K"\n')
        done = run(home, "--config", "c.toml", name, RECORD=str(record), K="k")
    assert done.returncode == 0, done.stderr
    env = recorded(record)["env"]
    assert {key: env.get(key) for key in expected} == expected


def models_response(**fields: object) -> bytes:
    body = json.dumps({"data": [{"id": "kimi-k2.5", **fields}]}).encode()
    head = (
        f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body


WINDOW = "CLAUDE_CODE_MAX_CONTEXT_TOKENS"


@pytest.mark.parametrize(
    ("fields", "more", "expected"),
    [
        ({"context_length": 262144}, "", "262144"),  # as Moonshot, OpenRouter and others list it
        ({"context_length": 262144}, '[models."kimi-*"]\nwindow = 100000\n', "100000"),
        ({}, "", "200000"),
    ],
)
def test_claude_code_gets_the_window_of_a_model_that_it_does_not_know(
    fields: dict[str, object], more: str, expected: str, home: UserHome, tmp_path: Path
) -> None:
    """It assumed a million tokens, so it did not compact before the service refused the request."""
    client(home, "claude", "")
    record = tmp_path / "record"
    with fixed_response_server(models_response(**fields)) as url:
        text = f'[upstreams.u]\npreset = "moonshot"\nbase_url = "{url}"\nkey = "env:K"\n{more}'
        home.write("c.toml", text)
        assert run(home, "--config", "c.toml", "claude", RECORD=str(record), K="k").returncode == 0
        assert recorded(record)["env"][WINDOW] == expected
        run(home, "--config", "c.toml", "claude", RECORD=str(record), K="k", **{WINDOW: "5000"})
        assert recorded(record)["env"][WINDOW] == "5000"


def test_claude_code_keeps_what_it_knows_about_its_own_models(home: UserHome, tmp_path: Path) -> None:
    client(home, "claude", "")
    home.write("c.toml", '[upstreams.u]\npreset = "openrouter"\nbase_url = "http://127.0.0.1:9"\nkey = "env:K"\n')
    record = tmp_path / "record"
    run(home, "--config", "c.toml", "claude", RECORD=str(record), K="k")
    env = recorded(record)["env"]
    assert env["ANTHROPIC_MODEL"] == "anthropic/claude-sonnet-4.5" and WINDOW not in env


@pytest.mark.parametrize(("preset", "model"), [("kiro", "gpt-5.6-sol"), ("moonshot", "kimi-k2.5"), ("openai", "")])
def test_codex_gets_a_model_of_its_family(preset: str, model: str, home: UserHome, tmp_path: Path) -> None:
    client(home, "codex", "")
    home.write("c.toml", f'[upstreams.u]\npreset = "{preset}"\nbase_url = "http://127.0.0.1:9"\nkey = "env:K"\n')
    record = tmp_path / "record"
    run(home, "--config", "c.toml", "codex", RECORD=str(record), K="k")
    arguments = recorded(record)["argv"]
    assert [word for word in arguments if word.startswith("model=")] == ([f'model="{model}"'] if model else [])


def test_the_family_is_found_at_another_upstream_that_has_a_key(home: UserHome, tmp_path: Path) -> None:
    client(home, "codex", "")
    text = '[upstreams.kimi]\npreset = "moonshot"\nbase_url = "http://127.0.0.1:9"\nkey = "env:K"\n'
    text += '[upstreams.gpt]\npreset = "openai"\nbase_url = "http://127.0.0.1:9"\n'
    home.write("c.toml", f'{text}models = ["gpt-5"]\nkey = "env:G"\n')
    record = tmp_path / "record"
    for key, model in (("g", "gpt-5"), ("", "kimi-k2.5")):
        run(home, "--config", "c.toml", "codex", RECORD=str(record), K="k", G=key)
        assert f'model="{model}"' in recorded(record)["argv"]


def test_without_any_known_model_the_client_is_not_started(home: UserHome) -> None:
    client(home, "gemini", "")
    home.write("c.toml", '[upstreams.u]\ndialect = "openai"\nbase_url = "http://127.0.0.1:9"\n')
    done = run(home, "--config", "c.toml", "gemini")
    assert done.returncode == 2
    for words in ("gemini-cli needs a model", "--model NAME", "default_model", "dragoman models"):
        assert words in done.stderr
    assert run(home, "--config", "c.toml", "--model", "m", "gemini").returncode == 0


def test_a_saved_setting_that_overrides_the_environment_is_reported(home: UserHome) -> None:
    client(home, "claude", "")
    (home.path / ".claude").mkdir()
    home.write(".claude/settings.json", '{"model": "my-old", "env": {"ANTHROPIC_BASE_URL": "http://else.where"}}')
    home.write("c.toml", '[upstreams.sim]\npreset = "simulator"\nmodels = ["m-1"]\n')
    output = run(home, "--config", "c.toml", "claude").stderr
    assert "my-old" in output
    assert "sets ANTHROPIC_BASE_URL" in output


# --- exit status and signals


def test_the_exit_status_of_the_child_is_returned(home: UserHome) -> None:
    client(home, "claude", "sys.exit(23)")
    assert run(home, *SIMULATED, "claude").returncode == 23


def test_a_child_killed_by_a_signal_gives_128_plus_its_number(home: UserHome) -> None:
    client(home, "claude", "os.kill(os.getpid(), 9)")
    assert run(home, *SIMULATED, "claude").returncode == 137


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_is_forwarded_and_the_gateway_runs_until_the_child_ends(
    home: UserHome, number: signal.Signals, tmp_path: Path
) -> None:
    """Without a terminal; a terminal would send ctrl-C to the child itself."""
    ready = tmp_path / "ready"
    script = f"""
import signal, time
def last(number, frame):
    {ASK_PLAINLY.replace(chr(10), chr(10) + "    ")}
    sys.exit(7)
signal.signal({int(number)}, last)
open({str(ready)!r}, "w").close()
time.sleep(20)
"""
    client(home, "claude", script)
    program = (
        "import os, signal, sys; signal.signal(int(sys.argv[1]), signal.SIG_DFL); os.execv(sys.argv[2], sys.argv[2:])"
    )
    command = [sys.executable, "-m", "dragoman", "run", *SIMULATED, "claude"]
    with subprocess.Popen(  # independent of the signals that the test runner ignores
        [sys.executable, "-c", program, str(int(number)), *command],
        env=environ(home),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        wait_for(ready.exists)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (7, b"You said: Hello there.\n"), err


def test_signals_ignored_by_us_are_ignored_by_the_child(home: UserHome, tmp_path: Path) -> None:
    client(home, "claude", "import signal; print(signal.getsignal(1) is signal.SIG_IGN)")
    command = f"trap '' HUP; exec {shlex.join([sys.executable, '-m', 'dragoman', 'run', *SIMULATED, 'claude'])}"
    done = subprocess.run(["sh", "-c", command], env=environ(home), capture_output=True, timeout=60, check=False)
    assert done.stdout == b"True\n"


class Terminal:
    """A terminal with a program in its foreground."""

    def __init__(self, command: list[str], env: dict[str, str]) -> None:
        self.pid, self._master = pty.fork()
        if self.pid == 0:  # pragma: no cover
            os.execvpe(command[0], command, env)
        self.text = ""

    def read_until(self, mark: str, seconds: float = 15) -> None:
        until = time.monotonic() + seconds
        while mark not in self.text:
            assert time.monotonic() < until, self.text
            if select.select([self._master], [], [], 0.1)[0]:
                self._read()

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def end(self) -> int:
        while self._read():
            pass
        os.close(self._master)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def _read(self) -> bool:
        try:
            piece = os.read(self._master, 65536)
        except OSError:  # no process has it open any more
            return False
        self.text += piece.decode()
        return bool(piece)


def test_the_child_owns_the_terminal_and_decides_what_ctrl_c_means(home: UserHome) -> None:
    script = """
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
print("a terminal", sys.stdin.isatty(), sys.stdout.isatty(), os.tcgetpgrp(0) == os.getpgrp(), flush=True)
print("interrupted by", signal.sigtimedwait({signal.SIGINT}, 10).si_pid, flush=True)
print("said:", input(), flush=True)
sys.exit(11)
"""
    client(home, "claude", script)
    terminal = Terminal([sys.executable, "-m", "dragoman", "run", *SIMULATED, "claude"], environ(home))
    terminal.read_until("a terminal True True True")
    terminal.type("\x03")
    terminal.read_until("interrupted by 0")  # sent by the terminal itself
    terminal.type("hello\n")
    terminal.read_until("said: hello")
    assert terminal.end() == 11
    assert "Traceback" not in terminal.text


def test_ctrl_c_of_a_terminal_is_not_forwarded_again(home: UserHome) -> None:
    """Two signals at once may arrive as one, so the test checks which signals we sent."""
    script = """
import os, sys
from dragoman.cli.run import run_child
sent, plain = [], os.kill
os.kill = lambda pid, number: (sent.append(number), plain(pid, number))
code = "import signal; signal.signal(2, lambda *_: None); print('ready', flush=True); input()"
run_child([sys.executable, "-c", code], dict(os.environ))
print("sent", sent)
"""
    terminal = Terminal([sys.executable, "-c", script], environ(home))
    terminal.read_until("ready")
    terminal.type("\x03")
    os.kill(terminal.pid, signal.SIGUSR1)  # this signal goes only to our process
    terminal.read_until("sent")
    terminal.end()
    assert f"sent [{int(signal.SIGUSR1)}]" in terminal.text


def test_a_child_that_suspends_itself_returns_the_terminal_to_the_shell(home: UserHome) -> None:
    client(
        home, "claude", 'import signal; print("here", flush=True); os.kill(os.getpid(), signal.SIGSTOP); sys.exit(3)'
    )
    terminal = Terminal([sys.executable, "-m", "dragoman", "run", *SIMULATED, "claude"], environ(home))
    terminal.read_until("here")
    _, status = os.waitpid(terminal.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    os.kill(terminal.pid, signal.SIGCONT)
    assert terminal.end() == 3


# --- with a gateway that already runs


def test_a_running_gateway_is_used_and_stays_up(home: UserHome, tmp_path: Path) -> None:
    client(home, "claude", ASK_PLAINLY)
    record = tmp_path / "record"
    with home.serving() as served:
        done = run(home, "claude", RECORD=str(record))
        assert done.stdout == "You said: Hello there.\n", done.stderr
        env = recorded(record)["env"]
        assert env["ANTHROPIC_BASE_URL"] == served.url
        assert env["ANTHROPIC_AUTH_TOKEN"] == home.key_file.read_text().strip()
        assert served.say("still there?")[0] == 200
        run(home, "--private", *SIMULATED, "claude", RECORD=str(record))
        assert recorded(record)["env"]["ANTHROPIC_BASE_URL"] != served.url


def test_a_gateway_with_an_older_configuration_is_not_used(home: UserHome, tmp_path: Path) -> None:
    """Regression: `run` used a stale gateway after `init`, and `doctor` called it ok."""
    client(home, "claude", ASK_PLAINLY)
    record, file = tmp_path / "record", home.path / ".config/dragoman/config.toml"
    file.parent.mkdir(parents=True)
    with home.serving() as served:
        assert run(home, "claude", RECORD=str(record)).returncode == 0
        assert recorded(record)["env"]["ANTHROPIC_BASE_URL"] == served.url
        assert "`dragoman reload`" in home.run("init", "--yes").stderr
        file.write_text('[upstreams.sim]\npreset = "simulator"\n')  # as `init` does with a key
        done = run(home, "claude", RECORD=str(record))
        assert done.stdout == "You said: Hello there.\n", done.stderr
        assert recorded(record)["env"]["ANTHROPIC_BASE_URL"] != served.url
        assert "has an older configuration" in done.stderr and "`dragoman reload`" in done.stderr
        checks = json.loads(home.run("doctor", "--offline", "--json").stdout)["checks"]
        [found] = [each for each in checks if each["id"] == "gateway"]
        assert (found["state"], "older configuration" in found["what"]) == ("warn", True)
        served.process.send_signal(signal.SIGHUP)
        wait_for(lambda: '"reloaded"' in served.log)
        run(home, "claude", RECORD=str(record))
        assert recorded(record)["env"]["ANTHROPIC_BASE_URL"] == served.url
        file.write_text('[upstreams.other]\npreset = "simulator"\n')
        assert "changed after the gateway had loaded it" in run(home, "claude", RECORD=str(record)).stderr
        assert recorded(record)["env"]["ANTHROPIC_BASE_URL"] != served.url


def test_the_printed_variables_work_in_a_shell(home: UserHome) -> None:
    client(home, "claude", ASK_PLAINLY)
    printing = shlex.join([sys.executable, "-m", "dragoman", "run", "--print-env", "claude"])
    with home.serving():
        done = subprocess.run(
            ["sh", "-c", f'eval "$({printing})" && claude'],
            env=environ(home, ANTHROPIC_API_KEY="stray"),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.stdout == "You said: Hello there.\n", done.stderr


def test_a_key_without_a_file_is_printed_with_a_warning(home: UserHome) -> None:
    key = "0123456789abcdef-of-a-command"
    (home.path / ".config/dragoman").mkdir(parents=True)
    home.write(".config/dragoman/config.toml", f'[server]\nkey = "cmd:echo {key}"\n')
    with home.serving():
        done = run(home, "--print-env", "claude")
    assert f"export ANTHROPIC_AUTH_TOKEN={key}\n" in done.stdout
    assert "secret" in done.stderr


def test_printing_needs_a_running_gateway(home: UserHome) -> None:
    done = run(home, "--print-env", "claude")
    assert (done.returncode, done.stdout) == (4, "")
    assert "dragoman serve" in done.stderr


def sections() -> dict[str, str]:
    found = re.findall(r"^## (\w+)\n.*?```sh\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return dict(found)


def test_the_page_shows_for_each_client_what_is_printed(home: UserHome) -> None:
    text = re.findall(r"```toml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)[0]
    (home.path / ".config/dragoman").mkdir(parents=True)
    home.write(".config/dragoman/config.toml", text)
    import dragoman.dialects as registry
    from dragoman.cli.client_setup import ANY_COMMAND, CLIENTS, ClientSetup

    shown = sections()
    recipes: dict[str, ClientSetup] = {recipe.name: recipe for recipe in CLIENTS} | {"python3": ANY_COMMAND}
    assert set(shown) == set(recipes)
    with home.serving(MOONSHOT_API_KEY="sk", DRAGOMAN_UPSTREAMS__KIMI__BASE_URL="http://127.0.0.1:9") as served:
        for name, recipe in recipes.items():
            if recipe.dialect and recipe.dialect not in registry.names():
                continue
            printed = run(home, "--print-env", name).stdout
            expected = printed.replace(served.url, "http://127.0.0.1:8787").replace(str(home.path), "~")
            assert expected == shown[name], name


# --- missing programs, upstreams and models


def test_a_missing_program_is_127_with_install_instructions(home: UserHome) -> None:
    path = f"{home.path}/bin"
    done = run(home, *SIMULATED, "claude", PATH=path)
    assert done.returncode == 127
    assert "npm install -g @anthropic-ai/claude-code" in done.stderr
    assert run(home, *SIMULATED, "no-such-program").returncode == 127


def test_a_file_that_is_not_executable_is_126(home: UserHome) -> None:
    path = client(home, "claude", "")
    path.write_bytes(b"\x7fELF no program")
    assert run(home, *SIMULATED, "claude").returncode == 126


def test_without_an_upstream_it_says_what_to_set_and_starts_nothing(home: UserHome, tmp_path: Path) -> None:
    client(home, "claude", "")
    record = tmp_path / "record"
    for more in ({}, {"ANTHROPIC_API_KEY": "dgm_the-key-of-a-gateway-is-no-upstream"}):
        done = run(home, "claude", RECORD=str(record), **more)
        assert done.returncode == 5
        for word in ("ANTHROPIC_API_KEY", "dragoman auth login kiro", "dragoman init", "dragoman demo"):
            assert word in done.stderr
    assert not record.exists()
    done = run(home, "--upstream", "moonshot", "claude")
    assert done.returncode == 5
    assert "MOONSHOT_API_KEY" in done.stderr


def test_keys_in_the_environment_are_used_and_named(home: UserHome, tmp_path: Path) -> None:
    client(home, "claude", "")
    record = tmp_path / "record"
    done = run(home, "claude", RECORD=str(record), MOONSHOT_API_KEY="sk-1", OPENAI_API_KEY="sk-2")
    assert done.returncode == 0
    assert "MOONSHOT_API_KEY is set" in done.stderr
    assert "OPENAI_API_KEY is set" in done.stderr
    assert "sk-" not in done.stderr
    assert "MOONSHOT_API_KEY" not in recorded(record)["env"]


def test_an_unknown_upstream_is_a_usage_error(home: UserHome) -> None:
    client(home, "claude", "")
    done = run(home, "--upstream", "moonshto", "claude")
    assert done.returncode == 2
    assert "moonshot" in done.stderr


def test_a_client_that_needs_a_model_is_not_started_without_one(home: UserHome) -> None:
    client(home, "aider", "")
    home.write("c.toml", '[upstreams.box]\npreset = "vllm"\n')
    done = run(home, "--config", "c.toml", "aider")
    assert done.returncode == 2
    assert "--model" in done.stderr
    assert run(home, "--config", "c.toml", "--model", "m", "aider").returncode == 0
