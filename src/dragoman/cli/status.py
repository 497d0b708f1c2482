"""`dragoman status`: how the running gateway is, asked over its private socket."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from pathlib import Path

from dragoman.cli.terminal import EXIT_NOT_RUNNING, Paint, one_line, print_error, replace_unencodable
from dragoman.errors import DragomanError
from dragoman.gateway.config import load_config
from dragoman.gateway.layers import ConfigError
from dragoman.gateway.secrets import app_folders
from dragoman.gateway.upstream_config import Login
from dragoman.wire import jsonio
from dragoman.wire.jsonio import Json, JsonError

_HEALTH = {"ok": "green", "unused": "dim", "cooling": "yellow", "failing": "red"}
_STATES = {"ok": "green", "expired": "red", "missing": "red", "login needed": "red", "expiring": "yellow"}


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--config", metavar="FILE", type=Path, help="the one the gateway was started with")
    add_port(parser)
    parser.add_argument("--usage", action="store_true", help="ask Kiro how much of each login's quota is left")
    parser.add_argument("--json", action="store_true", help="as JSON")


def add_port(parser: ArgumentParser) -> None:
    """The option that names one of several gateways of one user."""
    parser.add_argument("--port", type=int, help="the gateway on this port, if several run")


def run(arguments: Namespace) -> int:
    replace_unencodable(sys.stdout)
    socket = admin_socket(arguments.config, arguments.port)
    found = fetch_status(socket)
    elsewhere = _others(socket) if arguments.port is None else []
    if found is None:
        if arguments.json:
            print(jsonio.encode_pretty({"state": "not running", "admin_socket": str(socket)}).decode())
        print("\n".join(elsewhere), end="\n" if elsewhere else "", file=sys.stderr)
        return print_error(f"no gateway answers at {socket}. `dragoman serve` starts one.", EXIT_NOT_RUNNING)
    if arguments.usage:
        asyncio.run(_add_usage(found, arguments.config))
    if arguments.json:
        print(jsonio.encode_pretty(found).decode())
    else:
        print("\n".join([*render_status(found, time.time(), Paint(sys.stdout)), *elsewhere]))
    return 0


def admin_socket(file: Path | None, port: int | None = None) -> Path:
    """Where the gateway of this configuration listens; of one that has a mistake by now, the usual place.

    With a port: where the gateway on it does, which has a socket of its own if it was not the first.
    """
    try:
        place = load_config(file, os.environ).server.admin_socket
    except ConfigError as error:
        place = app_folders(os.environ).admin_socket
        print(f"{error}\ndragoman: the configuration has a mistake; asking at {place}.", file=sys.stderr)
    return place if port is None else _of_port(place, port)


def _of_port(place: Path, port: int) -> Path:
    from dragoman.gateway import admin

    first = fetch_status(place) or {}
    return place if str(first.get("url")).endswith(f":{port}") else admin.fallback_socket(place, port)


def _others(place: Path) -> list[str]:
    """A line for each further gateway of this user."""
    from dragoman.gateway import admin

    urls = [str((fetch_status(path) or {}).get("url")) for path in admin.other_sockets(place)]
    return [f"another gateway runs at {url}: dragoman status --port {url.rpartition(':')[2]}" for url in urls]


def fetch_status(socket: Path) -> dict[str, Json] | None:
    """The status of the gateway that listens there; None if none does."""
    found = query_admin(socket)
    return found if isinstance(found, dict) else None


def query_admin(socket: Path, what: str = "/status", method: str = "GET") -> Json:
    """What the gateway that listens there answers; None if none does."""
    from dragoman.gateway import admin

    try:
        return jsonio.decode(admin.send_admin_request(socket, what, method))
    except (OSError, JsonError):
        return None


# --- the quota


def store_name(login: Login) -> str:
    """What a Kiro login of the configuration is called among the stores."""
    source = {"auto": "", "store": "own"}.get(login.source, login.source)
    return f"{source}:{login.detail}" if source and login.detail else source


async def _add_usage(found: dict[str, Json], file: Path | None) -> None:
    """Put what is left of each Kiro login beside its credential."""
    try:
        upstreams = load_config(file, os.environ).upstreams
    except ConfigError:
        return
    for row in objects_in(found.get("upstreams")):
        upstream = upstreams.get(str(row.get("name")))
        for login in upstream.logins if upstream is not None and upstream.dialect.codec.family == "kiro" else ():
            name = f"{login.source}:{login.detail}".rstrip(":")
            for credential in objects_in(row.get("credentials")):
                if credential.get("name") == name:
                    credential.update(await _usage(login))


async def _usage(login: Login) -> dict[str, Json]:
    from dragoman.upstream.credentials import open_fetch
    from dragoman.upstream.kiro.credential import KiroCredential
    from dragoman.upstream.kiro.logins import open_store

    try:
        async with open_fetch(os.environ) as fetch:
            usage = await KiroCredential(open_store(store_name(login)), fetch, name="kiro").usage()
    except DragomanError as error:
        return {"problem": f"its quota cannot be read: {error}"}
    return {"usage": usage.describe()}


# --- for people


def render_status(found: dict[str, Json], now: float, paint: Paint) -> Iterator[str]:
    """The status as lines."""
    state = str(found.get("state"))
    since = _number(found.get("started_at"))
    up = f"up {render_duration(now - since)}, since {render_time_of_day(since, now)}" if since else ""
    words = [paint(state, "bold"), up, f"{found.get('in_flight')} in flight", f"pid {found.get('pid')}"]
    yield f"dragoman {found.get('version')}: " + ", ".join(word for word in words if word)
    yield f"configuration: {found.get('config') or 'none, the simulator answers'}"
    for name in ("reload_refused", "refused"):  # why the last reload changed nothing
        if found.get(name):
            yield paint(f"the last reload was refused: {one_line(found[name])}", "red")
    if any(row.get("cooldowns") for row in objects_in(found.get("upstreams"))):
        yield paint("some upstreams are left alone; `dragoman render_cooldown clear` asks them again", "yellow")
    if found.get("dropped_log_lines"):
        yield paint(f"{found['dropped_log_lines']} log lines could not be written", "yellow")
    for upstream in objects_in(found.get("upstreams")):
        yield ""
        yield from _upstream(upstream, now, paint)


def _upstream(row: dict[str, Json], now: float, paint: Paint) -> Iterator[str]:
    health = str(row.get("health"))
    busy = f"{row.get('active')} running" + (f", {row.get('waiting')} waiting" if row.get("waiting") else "")
    answered = _number(row.get("last_ok_at"))
    last = f", last answer {render_duration(now - answered)} ago" if answered else ""
    place = "in the gateway" if row.get("kind") == "simulator" else row.get("base_url")
    yield f"{paint(str(row.get('name')), 'bold')}  {paint(health, _HEALTH.get(health, 'dim'))}  {busy}{last}"
    yield f"  {row.get('dialect')}, {one_line(place)}"
    if failed := _number(row.get("last_error_at")):
        in_a_row = f", {row['failures']} in a row" if row.get("failures") else ""
        yield f"  last error {render_duration(now - failed)} ago{in_a_row}: {one_line(row.get('last_error'))}"
    for each in objects_in(row.get("cooldowns")):
        yield paint(f"  {render_cooldown(each, now)}", "yellow")
    for each in objects_in(row.get("credentials")):
        yield f"  {_credential(each, now, paint)}"


def render_cooldown(row: dict[str, Json], now: float) -> str:
    """One pause as a line: what rests, until when, and why."""
    scope = one_line(", ".join(str(part) for part in (row.get("credential"), row.get("models") or "all models")))
    until, next_try = _number(row.get("until")), _number(row.get("next_try"))
    over = f"for {render_duration(until - now)}" if until else "until a try goes well"
    tried = (
        "a try is under way"
        if row.get("state") == "probing"
        else f"next try in {render_duration((next_try or now) - now)}"
    )
    return f"{scope}: {row.get('state')} {over}, {tried}; {row.get('kind')}: {one_line(row.get('why'))}"


def _credential(row: dict[str, Json], now: float, paint: Paint) -> str:
    state = str(row.get("state") or "")
    words = [
        f"credential {row.get('name')}",
        one_line(row.get("source") or ""),
        paint(state, _STATES.get(state, "dim")),
    ]
    if ends := _number(row.get("expires_at")):
        left = ends - now
        words.append(
            f"ends in {render_duration(left)}"
            if left > 0
            else f"ended {render_duration(-left)} ago, renewed when needed"
        )
    usage = row.get("usage")
    if isinstance(usage, dict):
        words.append(f"{usage.get('remaining')} of {usage.get('limit')} credits left")
    if row.get("problem"):
        words.append(paint(one_line(row["problem"]), "red"))
    return "  ".join(word for word in words if word)


def objects_in(value: Json) -> Iterator[dict[str, Json]]:
    """The objects of a list; none of anything else."""
    return (each for each in (value if isinstance(value, list) else ()) if isinstance(each, dict))


def _number(value: Json) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None


def render_duration(seconds: float) -> str:
    """`3 s`, `12 min`, `5 h 20 min`, `3 d 4 h`."""
    whole = max(round(seconds), 0)
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if whole < 120:
        return f"{whole} s"
    if minutes < 120:
        return f"{minutes} min"
    if hours < 48:
        return f"{hours} h {minutes % 60} min"
    return f"{days} d {hours % 24} h"


def render_time_of_day(at: float, now: float) -> str:
    """A time of day, with its date if that is not today's."""
    form = "%H:%M:%S" if now - at < 12 * 3600 else "%Y-%m-%d %H:%M"
    return time.strftime(form, time.localtime(at))
