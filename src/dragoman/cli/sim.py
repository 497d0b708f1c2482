"""`dragoman sim`: run a simulated upstream of any dialect on loopback, with faults if wanted."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from argparse import ArgumentParser, Namespace

import msgspec

import dragoman.dialects as registry
from dragoman.cli.ports import explain_listen_error
from dragoman.cli.terminal import CommandError, named_values, one_line, port_number
from dragoman.errors import LocalMisuse
from dragoman.simulator import ReceivedRequest, Simulator, SimulatorLimits
from dragoman.simulator.faults import FAULTS, FaultProxy, ProxyFault, parse_fault
from dragoman.wire.jsonio import Json
from dragoman.wire.validation import explain_refusal

_PORT = 8788


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `dragoman sim`."""
    parser.add_argument("dialect", metavar="DIALECT", help="kiro, or any dialect that `dragoman dialects` lists")
    parser.add_argument(
        "--profile", default="observed", help="the rules that it enforces: official, observed (default) or paranoid"
    )
    parser.add_argument("--script", metavar="FILE", help="a TOML file of turns (default: a small built-in model)")
    parser.add_argument("--host", default="127.0.0.1", help="the loopback address to listen on (default: 127.0.0.1)")
    parser.add_argument(
        "--port", type=port_number, default=_PORT, help=f"the port; 0 picks a free one (default: {_PORT})"
    )
    parser.add_argument(
        "--limit",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help=f"change a threshold ({', '.join(SimulatorLimits.__struct_fields__)})",
    )
    parser.add_argument(
        "--fault",
        action="append",
        default=[],
        metavar="NAME[:KEY=VALUE,...]",
        help=f"damage the responses, for example cut:event=3,how=reset ({', '.join(FAULTS)})",
    )
    parser.add_argument("--quiet", action="store_true", help="do not print a line for each request")


def run(arguments: Namespace) -> int:
    """Run `dragoman sim`; return the exit status."""
    faults = [parse_fault(text) for text in arguments.fault]
    simulator = Simulator(
        arguments.dialect,
        profile=arguments.profile,
        script=arguments.script,
        limits=_limits(named_values("--limit", arguments.limit)),
        host=arguments.host,
        port=0 if arguments.fault else arguments.port,
        on_exchange=None if arguments.quiet else _print_exchange,
    )
    try:
        asyncio.run(_serve(simulator, faults, arguments))
    except OSError as error:
        raise CommandError(explain_listen_error(arguments.host, arguments.port, error)) from None
    return 0


async def _serve(simulator: Simulator, faults: list[ProxyFault], arguments: Namespace) -> None:
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(simulator)
        url = simulator.url
        if faults:
            proxy = FaultProxy(url, faults, dialect=registry.get(arguments.dialect), port=arguments.port)
            url = (await stack.enter_async_context(proxy)).url
        print(url, flush=True)  # only the address goes to stdout, so that a caller can read it
        stopped = asyncio.Event()
        for each in (
            signal.SIGINT,
            signal.SIGTERM,
        ):  # a shell starts background jobs with SIGINT ignored, so set both handlers
            with contextlib.suppress(NotImplementedError):  # Windows
                asyncio.get_running_loop().add_signal_handler(each, stopped.set)
        await stopped.wait()


def _print_exchange(received: ReceivedRequest) -> None:
    note = f"  {received.note}" if received.note else ""
    ended = f" ({received.ended})" if received.ended != "whole" else ""
    print(one_line(f"{received.method} {received.path} {received.status}{ended}{note}"), file=sys.stderr, flush=True)


def _limits(values: dict[str, Json]) -> SimulatorLimits:
    if isinstance(arns := values.get("profile_arns"), str):
        values = {**values, "profile_arns": [*arns.split(",")]}
    for name in values:
        if name not in SimulatorLimits.__struct_fields__:
            known = ", ".join(SimulatorLimits.__struct_fields__)
            raise LocalMisuse(f"--limit {name}: there is no such limit. The limits are: {known}")
    try:
        return msgspec.convert(values, SimulatorLimits, strict=False)
    except msgspec.ValidationError as error:
        raise LocalMisuse(f"--limit {explain_refusal(error)}") from None
