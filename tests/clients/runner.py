"""Run one client, headless, in a home and a folder of its own, and end it in time."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Template

from dragoman.simulator import ReceivedRequest, Simulator, parse_script, running_simulator
from tests.clients.client_table import Client
from tests.clients.install import CACHE, LOOPS, ROOT, installed_path
from tests.gateway.harness import KEY, GatewayHarness, start_gateway, upstream_config

LONGEST = 60  # seconds for one run
MODELS = {"kiro": "claude-sonnet-4.5", "bedrock": "anthropic.claude-sonnet-4-5-20250929-v1:0"}
# Every name leads to the one upstream: clients also request small models that are not configured.
_ROUTE = '[[routes]]\nmatch = "*"\nupstream = "{name}"\nmodel = "{model}"\n'


@dataclass(frozen=True)
class SimulatedGateway:
    """A gateway with one simulated upstream behind it."""

    harness: GatewayHarness
    simulator: Simulator
    config: str


@contextlib.contextmanager
def simulated_gateway(target: str, state: Path, script: str = "", model: str = "") -> Iterator[SimulatedGateway]:
    """Run a gateway to a simulated upstream, with its own answers after those of the script."""
    profile = "paranoid" if target == "kiro" else "strict"
    played = parse_script(script) if script else None
    with running_simulator(target, profile=profile, script=played) as simulator:
        text = upstream_config(target, target, simulator.url)
        text += _ROUTE.format(name=target, model=model or MODELS.get(target, "sim-model"))
        with start_gateway(text, state) as harness:
            yield SimulatedGateway(harness, simulator, text)


@dataclass(frozen=True)
class CommandResult:
    """How a command ended."""

    code: int | str
    out: str
    err: str
    seconds: float


@dataclass(frozen=True)
class ToolLoop(CommandResult):
    """How a tool loop went, and what the upstream was asked."""

    token: str
    proof: str
    requests: list[ReceivedRequest]
    log: str

    def wrong(self, client: Client) -> str:
        """What was not as it must be; nothing if all was."""
        with_token = self.requests_with_token
        # A client that reads the list of models makes the gateway read that of the upstream.
        statuses = [each.status for each in self.requests if each.request.method != "GET"]
        if self.code != 0:
            return f"exit {self.code}: {_last(self.err or self.out)}"
        if self.proof != f"{self.token}\n" * client.loops:
            return f"the tool did not run as asked: {_last(self.proof or self.err or self.out)}"
        if self.out.count(self.token) < client.loops:
            return f"the response does not quote the tool's result: {_last(self.out)}"
        if statuses != [200] * (client.calls * client.loops):
            return f"the upstream answered {statuses}, not {client.calls * client.loops} calls with 200"
        if with_token != client.results * client.loops:
            return f"{with_token} upstream calls carry the tool's result, not {client.results * client.loops}"
        return ""

    @property
    def requests_with_token(self) -> int:
        return sum(self.token.encode() in each.body for each in self.requests)

    def keep(self, client: Client, target: str) -> Path:
        """Write the requests, responses and logs of a failed run to a folder, to find the cause."""
        folder = CACHE / "failed" / f"{client.name.replace(' ', '-')}-over-{target}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for name, text in (("out.txt", self.out), ("err.txt", self.err), ("gateway.log", self.log)):
            (folder / name).write_text(text)
        for number, each in enumerate(self.requests):
            (folder / f"upstream-{number}-{each.status}.json").write_bytes(each.body)
        return folder


def _last(text: str) -> str:
    return " ".join(text.strip().splitlines()[-3:])[-300:]


def run_tool_loop(client: Client, here: SimulatedGateway, folder: Path) -> ToolLoop:
    """Run a client's tool loop, with a token that it can only know from the tool. Raises NotInstalled."""
    token = f"token-{secrets.token_hex(12)}"
    work = folder / "work"
    work.mkdir()
    (work / "token.txt").write_text(f"{token}\n")
    before, logged = here.simulator.total, len(here.harness.text)
    done = run(client, here, folder, token)
    proof = work / "proof.txt"
    count = here.simulator.total - before
    return ToolLoop(
        **vars(done),
        token=token,
        proof=proof.read_text() if proof.exists() else "",
        requests=here.simulator.requests[-count:] if count else [],
        log=here.harness.text[logged:],
    )


def run(client: Client, here: SimulatedGateway, folder: Path, token: str) -> CommandResult:
    """Run a client once. Raises NotInstalled."""
    home, work, where = folder / "home", folder / "work", installed_path(client.pin)
    home.mkdir()
    names = {
        "url": here.harness.url,
        "key": KEY,
        "model": client.model,
        "prompt": fill(client.prompt, {"token": token}),
        "home": str(home),
        "place": str(where),
    }
    for path, text in {"dragoman.toml": f"allow_literal_secrets = true\n{here.config}", **client.files}.items():
        (home / path).parent.mkdir(parents=True, exist_ok=True)
        (home / path).write_text(fill(text, names))
    environ = {
        "HOME": str(home),
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "1",
        "NO_COLOR": "1",
        "AWS_EC2_METADATA_DISABLED": "true",
        **{f"LOOP_{name.upper()}": names[name] for name in ("url", "key", "model", "prompt")},
        **{name: fill(value, names) for name, value in client.environ.items()},
    }
    command = [find_program(fill(word, names), where) for word in client.command]
    for run_tool_loop in where.glob("package.json") if client.pin else ():
        for each in LOOPS.glob("*.mjs"):  # a module finds its packages from where it lies
            (run_tool_loop.parent / each.name).write_bytes(each.read_bytes())
    return bounded(command, environ, work, fill(client.stdin, names))


def fill(text: str, names: Mapping[str, str]) -> str:
    """Return the text with `$name` replaced by the value of that name."""
    return Template(text).safe_substitute(names)


def find_program(word: str, where: Path) -> str:
    """A path under the installation, written out."""
    if not word.startswith(("node_modules/", "venv/")):
        return word
    [path] = where.glob(word)
    return str(path)


def bounded(command: list[str], environ: Mapping[str, str], work: Path, stdin: str = "") -> CommandResult:
    """Run a command to its end, or to the end of its time; what it left running ends with it."""
    before = time.monotonic()
    with subprocess.Popen(
        command,
        cwd=work,
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        code: int | str
        try:
            out, err = process.communicate(stdin, timeout=LONGEST)
            code = process.returncode
        except subprocess.TimeoutExpired:
            _end(process.pid)
            out, err = process.communicate(timeout=60)
            code = f"ended after {LONGEST} s"
        finally:
            _end(process.pid)
    return CommandResult(code, out, err, time.monotonic() - before)


def _end(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
