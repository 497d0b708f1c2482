"""What `dragoman doctor` looks at: one function a subject, each giving checks with a remedy."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeAlias
from urllib.parse import urlsplit

from msgspec import Struct

import dragoman
from dragoman.cli.ports import find_listener
from dragoman.cli.status import fetch_status, render_duration, store_name
from dragoman.errors import DragomanError, UnknownModel
from dragoman.gateway.config import Config, LoadedConfig, load_with_origins
from dragoman.gateway.layers import ConfigError
from dragoman.gateway.secrets import AppFolders, ConfiguredSecret, app_folders, gateway_key, read_private
from dragoman.gateway.upstream_config import Upstream
from dragoman.http.addresses import is_loopback
from dragoman.upstream.credentials import CredentialFault
from dragoman.wire import jsonio
from dragoman.wire.jsonio import Json

# --- what is looked at, and what one look gives


State: TypeAlias = Literal["pass", "warn", "fail"]


class Check(Struct, frozen=True):
    """One thing that was looked at."""

    id: str
    state: State
    what: str
    remedy: str = ""


class CheckContext:
    """What the checks look at, and the secrets they came across, so that those can be masked."""

    def __init__(self, environ: Mapping[str, str], file: Path | None, *, offline: bool = False) -> None:
        self.environ = environ
        self.offline = offline
        self.places: AppFolders = app_folders(environ)
        self.loaded: LoadedConfig | None = None
        self.error: ConfigError | None = None
        self.secrets: list[str] = []
        try:
            self.loaded = load_with_origins(file, environ)
        except ConfigError as error:
            self.error = error
        self.running = fetch_status(self.admin_socket)

    @property
    def admin_socket(self) -> Path:
        return self.loaded.config.server.admin_socket if self.loaded else self.places.admin_socket

    @property
    def upstreams(self) -> Sequence[Upstream]:
        return tuple(self.loaded.config.upstreams.values()) if self.loaded else ()

    def reveal(self, secret: ConfiguredSecret) -> str:
        """Raises ConfigError."""
        found = secret.reveal()
        self.secrets.append(found)
        return found


# --- what may keep clients on this machine from the gateway: their environment, and what they have saved


def check_clients(context: CheckContext) -> Iterator[Check]:
    found = [check for look in _CLIENT_LOOKS for check in look(context)]
    yield from found or [Check("clients", "pass", "nothing in this environment stands in a client's way")]


def _anthropic(context: CheckContext) -> Iterator[Check]:
    environ = context.environ
    if environ.get("ANTHROPIC_API_KEY") and not _is_key(context, environ["ANTHROPIC_API_KEY"]):
        what = "ANTHROPIC_API_KEY is set: Claude Code may send it in place of ANTHROPIC_AUTH_TOKEN"
        needed = any(key.shown == "env:ANTHROPIC_API_KEY" for each in context.upstreams for key in each.keys)
        remedy = "env -u ANTHROPIC_API_KEY … claude" if needed else "unset ANTHROPIC_API_KEY"
        yield Check("clients", "warn", what, remedy)
    base = environ.get("ANTHROPIC_BASE_URL", "")
    if base and _is_here(base):
        if urlsplit(base).path.rstrip("/").endswith("/v1"):
            what = "ANTHROPIC_BASE_URL ends in /v1, which clients append themselves"
            yield Check("clients", "warn", what, "leave the path out: http://HOST:PORT")
        token = environ.get("ANTHROPIC_AUTH_TOKEN", "")
        if token and not _is_key(context, token):
            what = "ANTHROPIC_AUTH_TOKEN is not this gateway's key"
            yield Check("clients", "warn", what, f'ANTHROPIC_AUTH_TOKEN="$(cat {context.places.key_file})"')
    for name in ("CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_VERTEX"):
        if environ.get(name, "0").lower() not in ("", "0", "false"):
            yield Check(
                "clients", "warn", f"{name} is set: Claude Code does not read ANTHROPIC_BASE_URL then", f"unset {name}"
            )


def _saved(context: CheckContext) -> Iterator[Check]:
    config = context.loaded.config if context.loaded else None
    for client in _SAVED:
        yield from check_saved_settings(client, context.places.home, config)


def check_saved_settings(client: str, home: Path, config: Config | None) -> Iterator[Check]:
    """What a client has saved that goes before its environment. Its files are only read."""
    place, look = _SAVED.get(client, ("", None))
    file = home / place
    if look is None:
        return
    try:
        saved = jsonio.decode(file.read_bytes())
    except (OSError, jsonio.JsonError):
        return
    if isinstance(saved, dict):
        yield from look(saved, file, config)


def _claude(saved: dict[str, Json], file: Path, config: Config | None) -> Iterator[Check]:
    inner = saved.get("env")
    names = inner if isinstance(inner, dict) else {}
    if saved.get("apiKeyHelper") or names.get("ANTHROPIC_API_KEY"):
        what = f"{file} gives Claude Code a key of its own, which may go before ANTHROPIC_AUTH_TOKEN"
        yield Check("clients", "warn", what, "take apiKeyHelper or env.ANTHROPIC_API_KEY out of it")
    for name in ("ANTHROPIC_BASE_URL", "ANTHROPIC_AUTH_TOKEN"):
        if names.get(name):
            what = f"{file} sets {name}, which goes before the environment's"
            yield Check("clients", "warn", what, f"take env.{name} out of it")
    model = saved.get("model")
    if isinstance(model, str) and config is not None:
        try:
            config.routes.resolve(model)
        except UnknownModel as error:
            remedy = f"choose another with /model, or add a route (or [default]) for it; it is saved in {file}"
            yield Check("clients", "warn", f"Claude Code's saved model: {error}", remedy)


def _gemini(saved: dict[str, Json], file: Path, _: Config | None) -> Iterator[Check]:
    chosen: Json = saved
    for name in ("security", "auth", "selectedType"):
        chosen = chosen.get(name) if isinstance(chosen, dict) else None
    if isinstance(chosen, str) and chosen not in ("gateway", "gemini-api-key"):
        what = f"{file} says that gemini-cli logs in by {chosen}, so that it does not ask the gateway"
        yield Check("clients", "warn", what, "choose the API key with /auth")


def _openai(context: CheckContext) -> Iterator[Check]:
    base = context.environ.get("OPENAI_BASE_URL", "")
    if base and _is_here(base) and not urlsplit(base).path.rstrip("/").endswith("/v1"):
        yield Check("clients", "warn", "OPENAI_BASE_URL does not end in /v1, which OpenAI's SDKs expect", "append /v1")


def _proxies(context: CheckContext) -> Iterator[Check]:
    """Clients on this machine would ask the proxy for loopback."""
    environ = {name.lower(): value for name, value in context.environ.items() if value}
    named = next((name for name in ("http_proxy", "all_proxy") if name in environ), None)
    spared = environ.get("no_proxy", "")
    if named and not any(each in spared for each in ("127.0.0.1", "localhost", "*")):
        what = f"{named.upper()} is set and NO_PROXY does not spare loopback: clients may not reach the gateway"
        yield Check("clients", "warn", what, "export NO_PROXY=127.0.0.1,localhost")


def _is_here(url: str) -> bool:
    try:
        return is_loopback(urlsplit(url).hostname or "")
    except ValueError:
        return False


def _is_key(context: CheckContext, value: str) -> bool:
    try:
        return value == read_private(context.places.key_file).decode().strip()
    except (OSError, ConfigError, UnicodeDecodeError):
        return False


_Saved: TypeAlias = Callable[[dict[str, Json], Path, Config | None], Iterator[Check]]
_SAVED: dict[str, tuple[str, _Saved]] = {
    "claude": (".claude/settings.json", _claude),
    "gemini": (".gemini/settings.json", _gemini),
}
_CLIENT_LOOKS: tuple[Callable[[CheckContext], Iterator[Check]], ...] = (_anthropic, _saved, _openai, _proxies)


_SOON = 600.0
_ANSWER = 5.0  # seconds that an upstream has to take a connection
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_LOGIN = "dragoman auth login kiro"


def run_checks(context: CheckContext) -> list[Check]:
    return [check for subject in _SUBJECTS for check in subject(context)]


# --- the configuration


def _configuration(context: CheckContext) -> Iterator[Check]:
    if context.error is not None:
        for problem in context.error.problems:
            origin = f"{problem.origin}: " if problem.origin.layer != "default" else ""
            at = f"{problem.at}: " if problem.at else ""
            remedy = problem.hint or "docs/configuration.md shows every key; `dragoman config check` tells of all"
            yield Check("config", "fail", f"{origin}{at}{problem.message}", remedy)
        return
    assert context.loaded is not None
    config = context.loaded.config
    where = str(context.loaded.config.file) if context.loaded.config.file else "none, the simulator answers"
    yield Check("config", "pass", f"{where}; upstreams: {', '.join(config.upstreams)}")
    for warning in config.warnings:
        yield Check("config", "warn", warning, "unset it, or spell it as `dragoman config show` does")


def _key(context: CheckContext) -> Iterator[Check]:
    configured = context.loaded.config.server.key if context.loaded else None
    file = context.places.key_file
    if configured is None and not os.path.lexists(file):
        yield Check("key", "pass", "none yet: the first `dragoman serve` makes one")
        return
    try:
        context.reveal(gateway_key(configured, file))
    except ConfigError as error:
        yield Check("key", "fail", str(error), error.hint or "leave server.key out, and one is made")
    else:
        yield Check("key", "pass", configured.shown if configured else str(file))


# --- credentials


def _credentials(context: CheckContext) -> Iterator[Check]:
    for upstream in context.upstreams:
        name = f"credentials.{upstream.name}"
        if upstream.kind == "simulator":
            continue
        if not upstream.keys and not upstream.logins:
            yield Check(name, "pass", "none are configured: requests go unsigned")
        for secret in upstream.secrets():
            yield _secret(name, secret, context)
        for login in upstream.logins:
            if login.source == "aws":
                yield _aws(name)
            else:
                yield _kiro(name, store_name(login), context)


def _secret(name: str, secret: ConfiguredSecret, context: CheckContext) -> Check:
    if secret.shown.startswith(("cmd:", "keyring:")):  # it may ask the user something
        return Check(name, "pass", f"{secret.shown} (not tried: it is asked when it is needed)")
    try:
        context.reveal(secret)
    except ConfigError as error:
        return Check(name, "fail", str(error), "set it in the environment of `dragoman serve`, or name another place")
    return Check(name, "pass", f"{secret.shown} is there")


def _aws(name: str) -> Check:
    from importlib.util import find_spec

    if find_spec("botocore") is None:
        return Check(
            name, "fail", "AWS credentials need botocore, which is not installed", "pip install dragoman[bedrock]"
        )
    return Check(name, "pass", "those of the AWS tools (not tried: they may ask AWS)")


def _kiro(name: str, spec: str, context: CheckContext) -> Check:
    from dragoman.upstream.kiro.logins import KiroPaths, open_store

    try:
        store = open_store(spec, KiroPaths(context.environ))
        token = store.load()
    except CredentialFault as fault:
        return Check(name, "fail", str(fault), f"{_LOGIN}, or log in with the Kiro IDE")
    context.secrets += [each.reveal() for each in (token.access, token.refresh, token.client_secret) if each]
    if token.expires_at is None:
        return Check(name, "pass", f"{store.label} ({token.kind}) has no end")
    left = token.expires_at - time.time()
    if left > _SOON:
        return Check(name, "pass", f"{store.label} ({token.kind}) is good for {render_duration(left)}")
    if token.refresh:
        when = f"ends in {render_duration(left)}" if left > 0 else f"ended {render_duration(-left)} ago"
        return Check(name, "pass", f"{store.label} ({token.kind}) {when}; it is renewed when it is needed")
    return Check(name, "fail", f"{store.label} ({token.kind}) has ended and cannot be renewed", _LOGIN)


# --- the network


def _reach(context: CheckContext) -> Iterator[Check]:
    wanted = [each for each in context.upstreams if each.kind == "http"]
    if context.offline or not wanted:
        return
    answers = asyncio.run(_connect_all(wanted))
    for upstream, answer in zip(wanted, answers, strict=True):
        place = urlsplit(upstream.base_url).netloc
        if answer is None:
            secure = "TCP and TLS" if upstream.base_url.startswith("https:") else "TCP"
            way = ", by way of a proxy" if upstream.proxy else ""
            yield Check(f"reach.{upstream.name}", "pass", f"{place} takes connections ({secure}{way})")
        else:
            yield Check(f"reach.{upstream.name}", "fail", answer, _remedy(answer))


async def _connect_all(upstreams: Sequence[Upstream]) -> list[str | None]:
    return await asyncio.gather(*(_connect(upstream) for upstream in upstreams))


async def _connect(upstream: Upstream) -> str | None:
    """Connect and hang up; what went wrong, if anything. No request is sent."""
    from dragoman.http.addresses import parse_base_url, parse_proxy
    from dragoman.http.client.client import ClientConnection, ConnectionPool, HttpTimeouts, PoolLimits, TlsSettings
    from dragoman.http.client.connecting import open_connection

    try:
        address = parse_base_url(upstream.base_url)
        proxy = parse_proxy(upstream.proxy.reveal()) if upstream.proxy else None
        pool = ConnectionPool(address.host_and_port, PoolLimits())
        connection = await open_connection(
            lambda: ClientConnection(pool),
            address,
            timeouts=HttpTimeouts(connect=_ANSWER, tls=_ANSWER),
            tls=TlsSettings(ca_file=str(upstream.ca_file)) if upstream.ca_file else None,
            proxy=proxy,
        )
    except DragomanError as error:
        return str(error)
    connection.abort()
    return None


def _remedy(answer: str) -> str:
    words = answer.lower()
    if "not yet valid" in words or "expired" in words:
        return "is this machine's clock right? Otherwise its owner must renew the certificate"
    if "certificate" in words:
        return "behind a proxy that reads TLS, name its authority: ca_file of the upstream, or SSL_CERT_FILE"
    if "name" in words or "resolution" in words or "known" in words:
        return "is base_url spelt right, and is there a network?"
    return "is the service up, and base_url right? HTTPS_PROXY or `proxy` names a proxy, if there must be one"


def _clock(context: CheckContext) -> Iterator[Check]:
    """Nobody is asked for the time: but it cannot be before what this machine has written already."""
    now = time.time()
    known = [
        Path(dragoman.__file__),
        context.places.key_file,
        *([context.loaded.config.file] if context.loaded and context.loaded.config.file else []),
    ]
    newest = max((path.stat().st_mtime for path in known if path.is_file()), default=0.0)
    told = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    if newest > now + 60:
        what = f"it is {told}, and files of this machine are {render_duration(newest - now)} newer"
        yield Check(
            "clock", "fail", what, "set the clock (timedatectl set-ntp true): tokens and signatures depend on it"
        )
    else:
        yield Check("clock", "pass", f"{told} (compare it: signatures for AWS fail beyond five minutes)")


# --- this machine


def _port(context: CheckContext) -> Iterator[Check]:
    if context.running is not None:
        yield Check("gateway", "pass", f"runs as pid {context.running.get('pid')}, {context.running.get('state')}")
        return
    yield Check("gateway", "pass", "does not run")
    if context.loaded is None:
        return
    from dragoman.gateway.serve import listen

    server = context.loaded.config.server
    place = f"{server.host}:{server.port}"
    try:
        listen(server.host, server.port).close()
    except OSError as error:
        who = find_listener(server.port)
        what = f"{place} cannot be used: {(error.strerror or str(error)).lower()}" + (f", by {who}" if who else "")
        yield Check("port", "fail", what, "end that process, or set server.port (--port 0 picks a free one)")
    else:
        yield Check("port", "pass", f"{place} is free")


def _modes(context: CheckContext) -> Iterator[Check]:
    if not hasattr(os, "geteuid"):
        return
    from dragoman.upstream.kiro.logins import KiroPaths

    private = [context.places.state, context.places.key_file, context.admin_socket.parent, context.admin_socket]
    private += sorted(KiroPaths(context.environ).own.glob("*.json"))
    wrong = [check for path in private if (check := _private(path))]
    file = context.loaded.config.file if context.loaded else None
    if file is not None and file.stat().st_mode & _OTHERS_WRITE:
        remedy = f"chmod go-w {file}"
        wrong.append(Check("modes", "fail", f"{file}: others may change where your prompts go", remedy))
    yield from wrong or [Check("modes", "pass", "keys, logins and the socket are yours alone")]


def _private(path: Path) -> Check | None:
    try:
        found = path.lstat()
    except OSError:
        return None
    if found.st_uid != os.geteuid():
        return Check("modes", "fail", f"{path} is another user's", "run as that user, or remove it")
    if found.st_mode & _OTHERS and not stat.S_ISLNK(found.st_mode):
        mode = "700" if stat.S_ISDIR(found.st_mode) else "600"
        remedy = f"chmod {mode} {path}; if others have read it, make a new one"
        return Check("modes", "fail", f"{path}: others may open it ({stat.filemode(found.st_mode)})", remedy)
    return None


def _user(context: CheckContext) -> Iterator[Check]:
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        yield Check("user", "warn", "this is root: nothing here needs it", "run it as a user of its own")
    python = ".".join(map(str, sys.version_info[:3]))
    yield Check("python", "pass", f"{python} at {sys.executable}")


_SUBJECTS: tuple[Callable[[CheckContext], Iterator[Check]], ...] = (
    _user,
    _configuration,
    _key,
    _credentials,
    _reach,
    _clock,
    _port,
    _modes,
    check_clients,
)
