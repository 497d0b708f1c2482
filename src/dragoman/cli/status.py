"""`dragoman status`: show the state of the running gateway, read from its admin socket.

`cooldown`, `doctor`, `explain`, `log`, `reload`, `run` and `top` use the functions that find and query the socket, and
the ones that render durations and cooldowns.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from pathlib import Path

from dragoman.cli.layout import count_of
from dragoman.cli.terminal import (
    EXIT_NOT_RUNNING,
    CommandError,
    Paint,
    notice_if_slow,
    one_line,
    port_number,
    print_error,
    replace_unencodable,
    say,
)
from dragoman.errors import DragomanError
from dragoman.gateway.config import load_config
from dragoman.gateway.layers import ConfigError
from dragoman.gateway.secrets import app_folders
from dragoman.gateway.upstream_config import Login
from dragoman.wire import jsonio
from dragoman.wire.jsonio import Json, JsonError

_HEALTH = {"ok": "green", "unused": "dim", "cooling": "yellow", "failing": "red"}
_BY_URGENCY = ("failing", "cooling", "ok", "unused")
_STATES = {"ok": "green", "expired": "red", "missing": "red", "login needed": "red", "expiring": "yellow"}


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `dragoman status`."""
    add_gateway_options(parser)
    parser.add_argument("--usage", action="store_true", help="request from Kiro how much quota each login has left")
    parser.add_argument("--json", action="store_true", help="print JSON")


def add_gateway_options(parser: ArgumentParser) -> None:
    """Add the options that select one of several gateways of one user."""
    parser.add_argument(
        "--config", metavar="FILE", type=Path, help="the configuration that the gateway was started with"
    )
    parser.add_argument("--port", type=port_number, help="the gateway on this port, if several run")


def no_gateway(socket: Path) -> CommandError:
    """Return the error that no gateway listens on a socket; it names the others of this user."""
    lines = [
        f"no gateway is running: {socket} does not answer. Start one with `dragoman serve`.",
        *_other_gateways(socket),
    ]
    return CommandError("\n".join(lines), EXIT_NOT_RUNNING)


def run(arguments: Namespace) -> int:
    """Run `dragoman status`; return the exit status."""
    replace_unencodable(sys.stdout)
    socket = admin_socket(arguments.config, arguments.port)
    status = fetch_status(socket)
    elsewhere = _other_gateways(socket) if arguments.port is None else []
    if status is None:
        if arguments.json:
            print(jsonio.encode_pretty({"state": "not running", "admin_socket": str(socket)}).decode())
        raise no_gateway(socket)
    if arguments.usage:
        with notice_if_slow("asking Kiro for the quota"):
            asyncio.run(_add_usage(status, arguments.config))
    if arguments.json:
        print(jsonio.encode_pretty(status).decode())
    else:
        for line in (*render_status(status, time.time(), Paint(sys.stdout)), *elsewhere):
            say(line, rest="      ")
    return 0


def admin_socket(file: Path | None, port: int | None = None) -> Path:
    """Return the path of the admin socket of the gateway that uses this configuration.

    If the configuration cannot be read, return the default path and print a warning. `port` selects the gateway on
    that port: only the first gateway of a user has the configured path, each further one, such as that of `dragoman
    run`, has its own. Without it, the only gateway of the user is found, whatever its path is.
    """
    return find_socket(configured_socket(file), port)


def configured_socket(file: Path | None) -> Path:
    """Return the configured admin socket, or the default one, with a warning, if the configuration cannot be read."""
    try:
        return load_config(file, os.environ).server.admin_socket
    except ConfigError as error:
        place = app_folders(os.environ).admin_socket
        print_error("the configuration is not valid; asking the gateway at its usual address.", 0, error)
        return place


def find_socket(place: Path, port: int | None) -> Path:
    """Return the admin socket of the gateway on this port, or of the only gateway; `place` is the configured one."""
    from dragoman.gateway import admin

    if port is None:
        return admin.find_socket(place)
    first = fetch_status(place) or {}
    return place if str(first.get("url")).endswith(f":{port}") else admin.fallback_socket(place, port)


def _other_gateways(place: Path) -> list[str]:
    """Return a line for each further gateway of this user."""
    from dragoman.gateway import admin

    urls = [str((fetch_status(path) or {}).get("url")) for path in admin.other_sockets(place)]
    return [f"another gateway runs at {url}: dragoman status --port {url.rpartition(':')[2]}" for url in urls]


def fetch_status(socket: Path) -> dict[str, Json] | None:
    """Return the status of the gateway that listens on this socket, or None if there is none."""
    status = query_admin(socket)
    return status if isinstance(status, dict) else None


def query_admin(socket: Path, path: str = "/status", method: str = "GET", timeout: float = 5.0) -> Json:
    """Return the response of the gateway that listens on this socket, or None if there is none."""
    from dragoman.gateway import admin

    try:
        with notice_if_slow("waiting for the gateway"):
            return jsonio.decode(admin.send_admin_request(socket, path, method, timeout))
    except (OSError, JsonError):
        return None


# --- the quota


def store_name(login: Login) -> str:
    """Return the name that `open_store` uses for a Kiro login of the configuration."""
    source = {"auto": "", "store": "own"}.get(login.source, login.source)
    return f"{source}:{login.detail}" if source and login.detail else source


async def _add_usage(status: dict[str, Json], file: Path | None) -> None:
    """Add the remaining quota of each Kiro login to its credential in the status."""
    try:
        upstreams = load_config(file, os.environ).upstreams
    except ConfigError:
        return
    for row in objects_in(status.get("upstreams")):
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
        return {"problem": f"the quota is not available: {error}"}
    return {"usage": usage.describe()}


# --- text output


def render_status(status: dict[str, Json], now: float, paint: Paint) -> Iterator[str]:
    """Yield the status as lines of text."""
    state = str(status.get("state"))
    started_at = _number(status.get("started_at"))
    up = f"up {render_duration(now - started_at)}, since {render_time_of_day(started_at, now)}" if started_at else ""
    parts = [paint(state, "bold"), up, f"{status.get('in_flight')} in flight", f"pid {status.get('pid')}"]
    yield f"dragoman {status.get('version')}: " + ", ".join(part for part in parts if part)
    yield f"configuration: {status.get('config') or 'none; the simulator is the only upstream'}"
    for name in ("reload_refused", "refused"):  # the reason why the last reload was refused
        if status.get(name):
            yield paint(f"the last reload was refused: {one_line(status[name])}", "red")
    settings = status.get("restart_needed")
    for setting in settings if isinstance(settings, list) else ():
        yield paint(f"{one_line(setting)}: restart needed", "yellow")
    if any(row.get("cooldowns") for row in objects_in(status.get("upstreams"))):
        yield paint("Some upstreams are in cooldown. `dragoman cooldown clear` ends it.", "yellow")
    if dropped := _number(status.get("dropped_log_lines")):
        yield paint(f"{count_of(int(dropped), 'log line')} could not be written", "yellow")
    if isinstance(recording := status.get("recording"), dict):
        yield from _recording(recording, paint)
    if isinstance(accounts := status.get("accounts"), dict):
        yield from _accounts(accounts, paint)
    by_name: dict[str, list[dict[str, Json]]] = {}
    for upstream in objects_in(status.get("upstreams")):
        by_name.setdefault(str(upstream.get("name")), []).append(upstream)
    for rows in by_name.values():
        yield ""
        yield from _upstream(_combined(rows), now, paint)


def _last_error(row: dict[str, Json]) -> float:
    return _number(row.get("last_error_at")) or 0.0


def _combined(rows: list[dict[str, Json]]) -> dict[str, Json]:
    """Return the state of an upstream in the whole gateway: each worker has a row."""
    if len(rows) == 1:
        return rows[0]
    combined = max(rows, key=_last_error).copy()
    found_health = {str(row.get("health")) for row in rows}
    combined["health"] = next((health for health in _BY_URGENCY if health in found_health), str(rows[0].get("health")))
    for name in ("active", "waiting"):
        combined[name] = sum(int(_number(row.get(name)) or 0) for row in rows)
    combined["last_ok_at"] = max((_number(row.get("last_ok_at")) or 0.0 for row in rows), default=0.0)
    for name, fields in (("cooldowns", ("credential", "models")), ("credentials", ("name",))):
        found: dict[str, Json] = {}
        for row in (row for each in rows for row in objects_in(each.get(name))):
            found[str([row.get(field) for field in fields])] = row
        combined[name] = [*found.values()]
    return combined


def _recording(row: dict[str, Json], paint: Paint) -> Iterator[str]:
    """Yield what is recorded, if anything is."""
    if row.get("level") == "full":
        where = f"for {row.get('hours'):g} h in {row.get('folder')}"
        yield paint(f"bodies of requests and responses are recorded {where}; `dragoman inspect` shows them", "yellow")
    elif row.get("level") == "meta":
        yield f"requests are recorded without bodies, for {row.get('hours'):g} h; `dragoman inspect` shows them"
    if row.get("dropped"):
        yield paint(f"{count_of(int(_number(row['dropped']) or 0), 'request')} could not be recorded", "yellow")


def _accounts(row: dict[str, Json], paint: Paint) -> Iterator[str]:
    """Yield the state of the store of accounts, and what needs attention."""
    is_ok, prices = row.get("state") == "ok", row.get("prices")
    newest = prices.get("newest") if isinstance(prices, dict) else None
    date = f"prices are of {newest}" if newest else "the price list has no date"
    yield paint(f"accounts: the store is {row.get('state')}; {date}", *([] if is_ok else ["red"]))
    if dropped := _number(row.get("dropped_rows")):
        yield paint(f"{count_of(int(dropped), 'row')} of the ledger could not be written", "red")
    if unpriced := _number(row.get("unpriced")):
        yield paint(f"{count_of(int(unpriced), 'request')} had no known price: see `dragoman prices check`", "yellow")


def _upstream(row: dict[str, Json], now: float, paint: Paint) -> Iterator[str]:
    health = str(row.get("health"))
    busy = f"{row.get('active')} running" + (f", {row.get('waiting')} waiting" if row.get("waiting") else "")
    last_success = _number(row.get("last_ok_at"))
    last = f", last response {render_duration(now - last_success)} ago" if last_success else ""
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
    """Return a cooldown as a line: its scope, its state, its end and its cause."""
    scope = one_line(", ".join(str(part) for part in (row.get("credential"), row.get("models") or "all models")))
    until, next_try = _number(row.get("until")), _number(row.get("next_try"))
    end = f"for {render_duration(until - now)}" if until else "until a request succeeds"
    test = (
        "a test request is running"
        if row.get("state") == "probing"
        else f"next test request in {render_duration((next_try or now) - now)}"
    )
    return f"{scope}: {row.get('state')} {end}, {test}; {row.get('kind')}: {one_line(row.get('why'))}"


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
            f"expires in {render_duration(left)}"
            if left > 0
            else f"expired {render_duration(-left)} ago; it is renewed at the next request"
        )
    usage = row.get("usage")
    if isinstance(usage, dict):
        words.append(f"{usage.get('remaining')} of {usage.get('limit')} credits left")
    if row.get("problem"):
        words.append(paint(one_line(row["problem"]), "red"))
    return "  ".join(word for word in words if word)


def objects_in(value: Json) -> Iterator[dict[str, Json]]:
    """Return the objects of a list; for a value that is not a list, nothing."""
    return (each for each in (value if isinstance(value, list) else ()) if isinstance(each, dict))


def _number(value: Json) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None


def render_duration(seconds: float) -> str:
    """Return a duration as text: `3 s`, `12 min`, `5 h 20 min`, `3 d 4 h`."""
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
    """Return a time of day, with the date if it is more than twelve hours ago."""
    form = "%H:%M:%S" if now - at < 12 * 3600 else "%Y-%m-%d %H:%M"
    return time.strftime(form, time.localtime(at))
