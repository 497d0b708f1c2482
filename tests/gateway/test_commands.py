"""The commands `serve`, `status`, `doctor`, `explain` and `demo`, run as processes on loopback."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dragoman.simulator import running_simulator
from tests.gateway.harness import wait_until

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals and Unix sockets")

SIMULATED = """
[upstreams.sim]
preset = "simulator"
dialect = "kiro"
models = ["claude-sonnet-4.5"]
"""
REFUSED = """
[[turn]]
status = [400]
message = "Improperly formed request."
"""


class UserHome:
    """A home directory to run commands in. Its path is short, because Unix socket paths are limited."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.key_file = path / ".local/state/dragoman/key"
        self.socket = path / ".local/state/dragoman/run/admin.sock"

    def environ(self, more: dict[str, str]) -> dict[str, str]:
        inherited = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
        return {**inherited, "HOME": str(self.path), **more}

    def run(self, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "dragoman", *words]
        done = subprocess.run(command, env=self.environ(environ), capture_output=True, timeout=60, check=False)
        return subprocess.CompletedProcess(command, done.returncode, done.stdout.decode(), done.stderr.decode())

    def write(self, name: str, text: str) -> Path:
        path = self.path / name
        path.write_text(text)
        return path

    @contextmanager
    def serving(self, *words: str, **environ: str) -> Iterator[ServeProcess]:
        command = [sys.executable, "-m", "dragoman", "serve", "--port", "0", *words]
        log = self.path / "log"
        with log.open("wb") as stderr:
            process = subprocess.Popen(command, env=self.environ(environ), stdout=subprocess.PIPE, stderr=stderr)
        assert process.stdout is not None
        with process, process.stdout as stdout:
            try:
                url = stdout.readline().decode().strip()
                assert url.startswith("http://"), log.read_text()
                yield ServeProcess(self, process, url, log)
            finally:
                process.kill()


class ServeProcess:
    """A running `dragoman serve`."""

    def __init__(self, home: UserHome, process: subprocess.Popen[bytes], url: str, log: Path) -> None:
        self.process, self.url = process, url
        self._home, self._log = home, log

    @property
    def log(self) -> str:
        return self._log.read_text()

    def ask(self, path: str, body: Any = None) -> tuple[int, dict[str, str], Any]:
        connection = http.client.HTTPConnection(self.url.removeprefix("http://"), timeout=60)
        try:
            headers = {"authorization": f"Bearer {self._home.key_file.read_text().strip()}"}
            connection.request("POST" if body else "GET", path, json.dumps(body) if body else None, headers)
            response = connection.getresponse()
            return response.status, {name.lower(): value for name, value in response.getheaders()}, json.load(response)
        finally:
            connection.close()

    def say(self, text: str, model: str = "claude-sonnet-4.5") -> tuple[int, dict[str, str], Any]:
        return self.ask(
            "/v1/messages", {"model": model, "max_tokens": 9, "messages": [{"role": "user", "content": text}]}
        )

    def end(self, how: signal.Signals = signal.SIGINT) -> tuple[int, str]:
        """Stop it; return its exit status and further output. After SIGTERM it listens for three more seconds."""
        assert self.process.stdout is not None
        self.process.send_signal(how)
        rest = self.process.stdout.read().decode()
        return self.process.wait(60), rest


@pytest.fixture
def home() -> Iterator[UserHome]:
    with tempfile.TemporaryDirectory(prefix="dgm") as folder:
        yield UserHome(Path(folder))


def wait_for(true: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not true():
        assert time.monotonic() < until, "it did not come about in time"
        time.sleep(0.01)


def test_serve_needs_no_configuration_prints_client_settings_and_ends_on_sigterm(home: UserHome) -> None:
    with home.serving() as served:
        status, _, reply = served.say("Hello there.")
        assert (status, reply["role"]) == (200, "assistant")
        code, printed = served.end(signal.SIGTERM)
    assert code == 0
    assert f"ANTHROPIC_BASE_URL={served.url} ANTHROPIC_AUTH_TOKEN=" in printed
    assert f"OPENAI_BASE_URL={served.url}/v1" in printed
    assert "env -u ANTHROPIC_API_KEY" in printed
    assert "codex -c model_provider=dragoman" in printed
    assert f"AWS_ENDPOINT_URL_BEDROCK_RUNTIME={served.url}" in printed
    assert "AWS_DEFAULT_REGION=" in printed  # boto3 does not read AWS_REGION
    assert not home.socket.exists()


def test_the_key_is_created_once_with_private_permissions_and_never_printed(home: UserHome) -> None:
    with home.serving() as served:
        key = home.key_file.read_text().strip()
        _, printed = served.end()
    assert home.key_file.stat().st_mode & 0o777 == 0o600
    assert key not in printed + served.log
    place = f"~/{home.key_file.relative_to(home.path)}"
    assert f'"$(cat {place})"' in printed  # the shell replaces this with the key
    with home.serving("--quiet") as served:
        assert served.end() == (0, "")
    assert home.key_file.read_text().strip() == key


def test_serve_names_the_process_that_has_the_port(home: UserHome) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = home.run("serve", "--port", str(port))
    assert (done.returncode, done.stdout) == (1, "")
    assert f"127.0.0.1:{port} is in use by" in done.stderr
    assert sys.platform != "linux" or f"pid {os.getpid()}" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_second_gateway_of_one_user_starts_with_a_socket_of_its_own(home: UserHome) -> None:
    """Regression: the second did not start. `status` finds the first by default, and the other by its port."""
    with home.serving() as first:
        first_port = first.url.rpartition(":")[2]
        with home.serving() as second:
            port = second.url.rpartition(":")[2]
            beside = home.socket.with_name(f"admin-{port}.sock")
            assert "another gateway uses the admin socket" in second.log and str(beside) in second.log
            assert stat.S_IMODE(beside.stat().st_mode) == 0o600
            for words, expected in (((), first), (("--port", port), second), (("--port", first_port), first)):
                found = json.loads(home.run("status", "--json", *words).stdout)
                assert (found["url"], found["pid"]) == (expected.url, expected.process.pid)
            assert f"another gateway runs at {second.url}: dragoman status --port {port}" in home.run("status").stdout
            assert home.run("cooldown", "list", "--port", port).returncode == 0
            assert second.say("hello")[0] == 200
            assert second.end()[0] == 0
        assert not beside.exists() and home.socket.exists()
        assert home.run("status", "--port", port).returncode == 4
        taken = home.run("serve", "--port", first_port)
        assert taken.returncode == 1 and "is in use by" in taken.stderr and "Traceback" not in taken.stderr


def test_when_the_first_ends_status_finds_the_only_other_and_names_several(home: UserHome) -> None:
    with home.serving() as first, home.serving() as second:
        first.end()
        found = json.loads(home.run("status", "--json").stdout)
        assert (found["url"], found["pid"]) == (second.url, second.process.pid)
        with home.serving() as third, home.serving() as fourth:
            third.end()  # it had the usual socket
            done = home.run("status")
            assert done.returncode == 4
            for other in (second, fourth):
                assert f"another gateway runs at {other.url}" in done.stderr


def test_serve_raises_its_limit_of_open_files(home: UserHome) -> None:
    """Each stream needs two files, and the usual soft limit is 1024."""
    code = (
        "import resource as r; _, hard = r.getrlimit(r.RLIMIT_NOFILE); r.setrlimit(r.RLIMIT_NOFILE, (256, hard));"
        "from dragoman.gateway.serve import raise_file_limit; raise_file_limit(); now = r.getrlimit(r.RLIMIT_NOFILE);"
        "print(now[0] == now[1] == hard)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=home.environ({}), capture_output=True, timeout=20, check=True
    )
    assert done.stdout == b"True\n"


def test_serve_warns_as_root(home: UserHome) -> None:
    """Regression: there was no warning. The log goes to stderr, as text on a terminal and as JSON elsewhere."""
    with home.serving() as served:
        served.say("hello")
        report = [json.loads(line) for line in served.log.splitlines() if "as root" in line]
    expected = 1 if os.geteuid() == 0 else 0
    assert len(report) == expected
    assert all(line["level"] == "warning" and "create a user for it" in line["message"] for line in report)


def test_a_configuration_error_names_its_line_and_a_similar_key(home: UserHome) -> None:
    config = home.write("config.toml", '[upstreams.kimi]\npreset = "moonshoot"\nkey = "env:K"\n')
    done = home.run("serve", "--config", str(config))
    assert (done.returncode, done.stdout) == (3, "")
    assert f"{config}:2: " in done.stderr
    assert "did you mean moonshot?" in done.stderr


def test_a_host_beyond_loopback_is_refused_on_the_command_line_too(home: UserHome) -> None:
    done = home.run("serve", "--host", "0.0.0.0", "--port", "0")
    assert done.returncode == 3
    assert "insecure_http" in done.stderr


def test_sighup_applies_a_valid_file_and_ignores_an_invalid_one(home: UserHome) -> None:
    config = home.write("config.toml", SIMULATED)
    with home.serving("--config", str(config)) as served:
        config.write_text(f"{SIMULATED}\nport = 1")
        served.process.send_signal(signal.SIGHUP)
        wait_for(lambda: "reload_refused" in served.log)
        assert served.say("Still there?")[0] == 200
        config.write_text(SIMULATED.replace("sonnet", "opus"))
        served.process.send_signal(signal.SIGHUP)
        wait_for(lambda: '"reloaded"' in served.log)
        models = served.ask("/v1/models")[2]["data"]
        assert models[0]["id"] == "claude-opus-4.5"


def test_status_shows_the_state_of_the_gateway_and_its_upstreams(home: UserHome) -> None:
    config = str(home.write("config.toml", SIMULATED))
    with home.serving("--config", config) as served:
        served.say("Hello.")
        plain = home.run("status", "--config", config)
        report = json.loads(home.run("status", "--json", "--config", config).stdout)
    assert plain.returncode == 0
    assert "ready, up " in plain.stdout
    assert "0 in flight" in plain.stdout
    assert "sim  ok" in plain.stdout
    assert "\x1b" not in plain.stdout
    assert (report["state"], report["pid"]) == ("ready", served.process.pid)


def test_status_without_a_gateway_exits_with_four(home: UserHome) -> None:
    done = home.run("status")
    assert (done.returncode, done.stdout) == (4, "")
    assert "dragoman serve" in done.stderr
    assert json.loads(home.run("status", "--json").stdout)["state"] == "not running"


def test_status_finds_the_gateway_with_a_configuration_that_is_now_invalid(home: UserHome) -> None:
    config = home.write("config.toml", SIMULATED)
    with home.serving("--config", str(config)):
        config.write_text("[upstreams")
        done = home.run("status", "--config", str(config))
    assert done.returncode == 0
    assert "ready" in done.stdout
    assert "config.toml:1" in done.stderr


def test_status_shows_the_kiro_quota_on_request(home: UserHome) -> None:
    with running_simulator("kiro") as simulator:
        store_login(home, endpoint=simulator.url)
        kiro = f'[upstreams.kiro]\ndialect = "kiro"\nbase_url = "{simulator.url}"\ncredentials = "store"\n'
        config = str(home.write("config.toml", kiro))
        with home.serving("--config", config) as served:
            assert served.say("Hello.", "kiro/claude-sonnet-4.5")[0] == 200
            done = home.run("status", "--usage", "--config", config)
    assert "credits left" in done.stdout
    assert "expires in " in done.stdout
    assert "aoa-access" not in done.stdout


SECRETS = {
    "MOONSHOT_API_KEY": "plain-words-that-are-a-key",
    "ANTHROPIC_API_KEY": "sk-ant-0123456789abcdef0123",
    "ANTHROPIC_AUTH_TOKEN": "a-token-of-another-gateway",
    "ANTHROPIC_BASE_URL": "http://127.0.0.1:8787/v1",
    "HTTP_PROXY": "http://someone:hunter2secret@proxy.example:3128",
}
ACCOUNT = "123456789012"


def store_login(home: UserHome, **more: str) -> None:
    store = home.path / ".local/share/dragoman/credentials/kiro"
    store.mkdir(parents=True, mode=0o700)
    login = {
        "type": "kiro",
        "access_token": "aoa-access-of-the-login",
        "refresh_token": "aor-refresh-of-the-login",
        "expires_at": "2090-01-01T00:00:00Z",
        "auth_method": "social",
        "profile_arn": f"arn:aws:codewhisperer:us-east-1:{ACCOUNT}:profile/ABCDEFGHIJKL",
        **more,
    }
    (store / "default.json").write_text(json.dumps(login))
    (store / "default.json").chmod(0o600)


def _config_with_problems(home: UserHome, port: int) -> str:
    """Return a configuration with secrets of every kind, whose upstreams listen on this port."""
    store_login(home)
    return str(
        home.write(
            "config.toml",
            f"""
allow_literal_secrets = true
[upstreams.box]
dialect = "openai"
base_url = "http://127.0.0.1:{port}/v1"
key = ["env:MOONSHOT_API_KEY", "written-in-clear-here", "env:NOWHERE_KEY"]
models = ["plain-words-that-are-a-key"]  # pasted into the wrong place
[upstreams.box.headers]
x-team-token = "the-token-of-the-team"
[upstreams.kiro]
dialect = "kiro"
base_url = "http://127.0.0.1:{port}"
credentials = "store"
[upstreams.kiro.settings]
profile_arn = "arn:aws:codewhisperer:us-east-1:{ACCOUNT}:profile/ABCDEFGHIJKL"
""",
        )
    )


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_the_doctor_report_contains_no_secret(home: UserHome, form: tuple[str, ...]) -> None:
    with home.serving("--quiet") as served:  # creates the key file
        served.end()
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        config = _config_with_problems(home, listening.getsockname()[1])
        done = home.run("doctor", "--share", *form, "--config", config, **SECRETS)
    output = done.stdout + done.stderr
    assert "Traceback" not in output
    secrets = [
        *(value for name, value in SECRETS.items() if name != "ANTHROPIC_BASE_URL"),
        home.key_file.read_text().strip(),
        *("aoa-access-of-the-login", "aor-refresh-of-the-login", "written-in-clear-here", "the-token-of-the-team"),
        *("hunter2secret", ACCOUNT, str(home.path)),
    ]
    assert [secret for secret in secrets if secret in output] == []
    assert "NOWHERE_KEY" in output  # the message must name the missing variable


def test_doctor_reports_each_problem_with_a_remedy(home: UserHome) -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        listening.settimeout(60)
        config = _config_with_problems(home, listening.getsockname()[1])
        done = home.run("doctor", "--json", "--config", config, **SECRETS)
        connection, _ = listening.accept()
        with connection:
            connection.settimeout(60)
            try:
                sent = connection.recv(100)
            except ConnectionResetError:
                sent = b""
    assert sent == b"", "it connects and says nothing"
    report = json.loads(done.stdout)
    found = {(check["id"], check["state"]) for check in report["checks"]}
    assert (done.returncode, report["ok"]) == (3, False)
    assert {
        ("config", "pass"),
        ("reach.box", "pass"),
        ("credentials.box", "fail"),
        ("credentials.kiro", "pass"),
    } <= found
    assert ("clients", "warn") in found
    assert all(check["remedy"] for check in report["checks"] if check["state"] != "pass")
    words = " ".join(check["what"] for check in report["checks"])
    for problem in ("ANTHROPIC_API_KEY is set", "ends in /v1", "NO_PROXY", "NOWHERE_KEY"):
        assert problem in words


def test_doctor_finds_a_readable_key_file_and_an_invalid_configuration(home: UserHome) -> None:
    with home.serving("--quiet") as served:
        served.end()
    home.key_file.chmod(0o644)
    done = home.run("doctor", "--config", str(home.write("config.toml", "[serve]\nport = 1\n")))
    assert done.returncode == 3
    assert "did you mean server?" in done.stdout
    assert f"chmod 600 {home.key_file}" in done.stdout


def test_doctor_reads_the_settings_saved_by_claude_code(home: UserHome) -> None:
    (home.path / ".claude").mkdir()
    home.write(".claude/settings.json", '{"model": "claude-opus-9", "env": {"ANTHROPIC_API_KEY": "sk-of-its-own"}}')
    config = home.write("config.toml", SIMULATED + SIMULATED.replace("upstreams.sim", "upstreams.other"))
    done = home.run("doctor", "--offline", "--config", str(config))
    assert "settings.json sets a key for Claude Code" in done.stdout
    assert "'claude-opus-9' is not configured in this gateway" in done.stdout
    assert "sk-of-its-own" not in done.stdout


def test_doctor_finds_no_problem_on_a_fresh_machine(home: UserHome) -> None:
    done = home.run("doctor", DRAGOMAN_SERVER__PORT="0")
    assert (done.returncode, "FAIL" in done.stdout) == (0, False), done.stdout


def test_explain_shows_both_sides_of_a_refusal_until_it_is_purged(home: UserHome) -> None:
    script = home.write("turns.toml", REFUSED)
    config = home.write("config.toml", f'{SIMULATED}\n[upstreams.sim.simulator]\nscript = "{script}"\n')
    with home.serving("--config", str(config)) as served:
        status, headers, body = served.say("A word that only this request has: xylophone.")
        identity = headers["x-request-id"]
        wait_until(lambda: home.run("explain", identity).returncode == 0)  # the report is written after the response
    assert status == 400
    assert "Improperly formed request." in body["error"]["message"]
    shown = home.run("explain", identity)
    assert shown.returncode == 0
    for words in ("Improperly formed request.", "AS THE CLIENT SENT IT", "AS THE GATEWAY SENT IT", "conversationState"):
        assert words in shown.stdout
    assert identity in home.run("explain").stdout
    assert home.run("explain", "last").stdout == shown.stdout == home.run("explain", identity[:12]).stdout
    report = json.loads(home.run("explain", identity, "--json").stdout)
    assert "xylophone" in report["client_request"]["body"]
    assert "xylophone" in report["sent"]["body"]
    assert home.key_file.read_text().strip() not in json.dumps(report)
    assert "refusals removed: 1" in home.run("explain", "--purge").stderr
    assert home.run("explain", identity).returncode == 1


def test_the_demo_shows_tool_calls_in_both_directions_and_needs_no_setup(home: UserHome) -> None:
    done = home.run("demo")
    assert done.returncode == 0, done.stderr
    for words in (
        "tool_use",
        '"input": {"city": "Oslo"}',
        "conversationState",
        "<|tool_call_begin|>functions.get_weather:0",
        "[raw_tools.recovered]",
        "The tool answered: It is 4 °C",
        "ANTHROPIC_BASE_URL=",
        "codex -c",
    ):
        assert words in done.stdout
    assert "\x1b" not in done.stdout
    assert list(home.path.iterdir()) == []  # the demo leaves no files


def test_the_demo_runs_with_an_ascii_terminal(home: UserHome) -> None:
    assert home.run("demo", "--brief", PYTHONIOENCODING="ascii").returncode == 0
