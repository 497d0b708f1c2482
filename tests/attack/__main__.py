"""`make attack`: run each attack against its own gateway, and print the experience of a well-behaved client.

The client sends short requests one after another, from the address of the attackers, on new and on keep-alive
connections in turn. Checked: every request of the client gets the right response; memory stays below its bound;
no response reaches the wrong request; afterwards files and tasks are back at their level. Times are only printed.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from dragoman.simulator import running_simulator
from tests.attack.attacks import ATTACKS, MIB, Attack, Target
from tests.attack.good_client import ClientResults, GoodClient
from tests.gateway.harness import KEY
from tests.load.gateway import Gateway, Measurement, peak_memory, start_and_read, start_gateway_process

KINDS = ("echo", "poison", "arguments", "calls", "choices", "text", "deltas")
MEMORY = 1024 * MIB  # four times the 256 MiB of `server.limits.in_flight`
MODELS = {"kiro": "claude-sonnet-4.5", "gemini": "gemini-2.5-pro"}  # the models of simulators, by dialect
# The limit of open files under which the gateway runs: a common default, and less for smaller floods.
_FILES, _FEW_FILES = 1024, 256
_LIMITED = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({0}, {0}))"
_LEAST = 20  # requests of the client that must be answered during the attack
_MAX_SECONDS = 60.0  # the longest that an attack may take
_SETTLED = 20.0  # seconds for files and tasks to be released
_FORBIDDEN = ("hidden requests that were served", "ended without an error")


@dataclass
class Outcome:
    name: str
    seen: ClientResults
    target: Target
    peak: int
    start: Measurement
    end: Measurement
    job_processes: int  # for large requests

    def problems(self) -> list[str]:
        found = self.seen.problems()
        if self.seen.right < _LEAST:
            found.append(f"only {self.seen.right} responses while the attack lasted")
        found += [f"{count} {kind}" for kind in _FORBIDDEN if (count := self.target.got[kind])]
        if self.target.left > 0:
            found.append(f"{self.target.left} parts of the attack had no response within {_MAX_SECONDS:g} s")
        if self.peak > MEMORY:
            found.append(f"memory rose to {self.peak / MIB:.0f} MiB")
        if (left := self.end.files - self.start.files - self.job_processes) > 0:  # each has a socket
            found.append(f"{left} files are left open")
        if self.end.tasks > self.start.tasks:
            found.append(f"{self.end.tasks - self.start.tasks} tasks are left over")
        return found


def configuration(good: int, bad: int, simulators: Mapping[str, str]) -> str:
    text = f'allow_literal_secrets = true\n[server]\nkey = "{KEY}"\nport = 0\n'
    for name, port in (("good", good), ("bad", bad)):
        text += f'[upstreams.{name}]\ndialect = "openai"\nbase_url = "http://127.0.0.1:{port}"\nkey = "upstream-secret-{name}"\n'
        text += 'limits.concurrency = 1024\ntranslation.raw_tools = "auto"\ntranslation.think_tags = true\n'
    for dialect, model in MODELS.items():
        text += f'[upstreams.{dialect}]\ndialect = "{dialect}"\nbase_url = "{simulators[dialect]}"\nkey = "upstream-secret"\n'
        text += f'[[routes]]\nmatch = "to-{dialect}"\nupstream = "{dialect}"\nmodel = "{model}"\n'
    for kind in KINDS:
        upstream = "good" if kind == "echo" else "bad"
        text += f'[[routes]]\nmatch = "to-{kind}"\nupstream = "{upstream}"\nmodel = "{kind}"\n'
    return text


async def attacked(gateway: Gateway, attack: Attack, target: Target, seconds: float) -> ClientResults:
    """Attack for some seconds, and until everything was tried once and the client got `_LEAST` responses.

    This takes at most `_MAX_SECONDS`.
    """
    visitor, loop = GoodClient(gateway.port), asyncio.get_running_loop()
    attacking = asyncio.ensure_future(attack(target))
    began = loop.time()
    while loop.time() < began + seconds or (
        (visitor.seen.right < _LEAST or target.left > 0) and loop.time() < began + _MAX_SECONDS
    ):
        await visitor.ask()
    attacking.cancel()
    await asyncio.wait([attacking])
    return visitor.seen


def run(attack: Attack, seconds: float, *, short: bool) -> Outcome:
    first = _LIMITED.format(_FEW_FILES if short else _FILES)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        good, bad = (stack.enter_context(start_and_read("tests.attack.upstream")) for _ in range(2))
        simulators = {name: stack.enter_context(running_simulator(name)).url for name in MODELS}
        gateway = stack.enter_context(start_gateway_process(folder, configuration(good, bad, simulators), first))
        ports = {good, bad, *(int(url.rpartition(":")[2]) for url in simulators.values())}
        start = gateway.at_rest(ports, 0, 0, 1.0)
        gateway.forget_peak()
        target = Target(gateway.port, 0.1 if short else 1.0)
        seen = asyncio.run(attacked(gateway, attack, target, seconds))
        children = gateway.children()
        end = gateway.at_rest(ports, start.files + len(children), start.tasks, _SETTLED)
        peak = gateway.peak() + sum(peak_memory(child) for child in children)
        return Outcome(attack.__name__.replace("_", " "), seen, target, peak, start, end, len(children))


def line(outcome: Outcome) -> str:
    seen = outcome.seen
    counts = f"{seen.right:7}{len(seen.refused):9}{len(seen.lost):6}{len(seen.wrong):7}"
    times = "".join(f"{seconds * 1000:9.1f}" for seconds in (seen.percentile(0.5), seen.percentile(0.99)))
    got = ", ".join(f"{count} {kind}" for kind, count in outcome.target.got.most_common(4) if count)
    return f"{outcome.name:22}{counts}{times}{outcome.peak / MIB:9.0f}  {got}"


def main() -> int:
    names = [attack.__name__ for attack in ATTACKS]
    parser = argparse.ArgumentParser(prog="python -m tests.attack", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"which: {', '.join(names)}; without one, all")
    parser.add_argument("--seconds", type=float, help="seconds that each attack lasts (15; 2 in the short form)")
    parser.add_argument("--short", action="store_true", help="a tenth of the size, for CI")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(names):
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    print(f"open files: {_FEW_FILES if arguments.short else _FILES} for the gateway, {hard} for the attackers")
    print(
        f"{'attack':22}{'right':>7}{'refused':>9}{'lost':>6}{'wrong':>7}{'p50 ms':>9}{'p99 ms':>9}{'MiB':>9}  the attackers got"
    )
    failed = False
    for attack in ATTACKS:
        if arguments.names and attack.__name__ not in arguments.names:
            continue
        outcome = run(attack, arguments.seconds or (2.0 if arguments.short else 15.0), short=arguments.short)
        print(line(outcome), flush=True)
        for problem in outcome.problems():
            failed = True
            print(f"  FAILED: {problem}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
