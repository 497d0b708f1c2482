"""The checks of `dragoman doctor`: one function a subject, each yielding results with a remedy.

Checks read files, the environment and the admin socket, and open connections to upstreams unless they are offline.
They change nothing. `dragoman run` uses the check of a client's saved settings.
"""

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
from dragoman.cli.detection import stale_configuration
from dragoman.cli.ports import find_listener
from dragoman.cli.status import fetch_status, render_duration, store_name
from dragoman.errors import DragomanError, UnknownModel
from dragoman.gateway.config import Config, LoadedConfig, load_with_origins
from dragoman.gateway.layers import ConfigError
from dragoman.gateway.secrets import AppFolders, ConfiguredSecret, app_folders, gateway_key, read_private
from dragoman.gateway.upstream_config import Upstream
from dragoman.gateway.upstream_credentials import SecretSetting, secret_settings
from dragoman.http.addresses import is_loopback
from dragoman.upstream.credentials import CredentialFault
from dragoman.wire import jsonio
from dragoman.wire.jsonio import Json

# --- the result of a check, and its input


State: TypeAlias = Literal["pass", "warn", "fail"]


class Check(Struct, frozen=True):
    """The result of one check: its subject, its state, what was found, and a remedy."""

    id: str
    state: State
    what: str
    remedy: str = ""


class CheckContext:
    """The input of the checks, and the secrets that they read, so that `doctor --share` can mask them."""

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
        """The configured admin socket; the default one if the configuration is not valid."""
        return self.loaded.config.server.admin_socket if self.loaded else self.places.admin_socket

    @property
    def upstreams(self) -> Sequence[Upstream]:
        """The configured upstreams; none if the configuration is not valid."""
        return tuple(self.loaded.config.upstreams.values()) if self.loaded else ()

    def reveal(self, secret: ConfiguredSecret) -> str:
        """Return the value of a secret and remember it for masking. Raises ConfigError."""
        value = secret.reveal()
        self.secrets.append(value)
        return value


# --- clients on this machine: environment variables and saved settings that keep them from the gateway


def check_clients(context: CheckContext) -> Iterator[Check]:
    """Yield a warning for each variable or saved setting that keeps a client from using the gateway."""
    checks = [check for client_check in _CLIENT_CHECKS for check in client_check(context)]
    yield from checks or [Check("clients", "pass", "no environment variable interferes with clients")]


def _anthropic(context: CheckContext) -> Iterator[Check]:
    environ = context.environ
    if environ.get("ANTHROPIC_API_KEY") and not _is_gateway_key(context, environ["ANTHROPIC_API_KEY"]):
        what = "ANTHROPIC_API_KEY is set: Claude Code may send it in place of ANTHROPIC_AUTH_TOKEN"
        needed = any(key.shown == "env:ANTHROPIC_API_KEY" for each in context.upstreams for key in each.keys)
        remedy = "env -u ANTHROPIC_API_KEY … claude" if needed else "unset ANTHROPIC_API_KEY"
        yield Check("clients", "warn", what, remedy)
    base = environ.get("ANTHROPIC_BASE_URL", "")
    if base and _is_loopback_url(base):
        if urlsplit(base).path.rstrip("/").endswith("/v1"):
            what = "ANTHROPIC_BASE_URL ends in /v1, which clients append themselves"
            yield Check("clients", "warn", what, "remove the path: http://HOST:PORT")
        token = environ.get("ANTHROPIC_AUTH_TOKEN", "")
        if token and not _is_gateway_key(context, token):
            what = "ANTHROPIC_AUTH_TOKEN is not the key of this gateway"
            yield Check("clients", "warn", what, f'ANTHROPIC_AUTH_TOKEN="$(cat {context.places.key_file})"')
    for name in ("CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_VERTEX"):
        if environ.get(name, "0").lower() not in ("", "0", "false"):
            yield Check("clients", "warn", f"{name} is set: Claude Code ignores ANTHROPIC_BASE_URL", f"unset {name}")


def _saved(context: CheckContext) -> Iterator[Check]:
    config = context.loaded.config if context.loaded else None
    for client in _SAVED:
        yield from check_saved_settings(client, context.places.home, config)


def check_saved_settings(client: str, home: Path, config: Config | None) -> Iterator[Check]:
    """Yield a warning for each saved setting of a client that overrides its environment."""
    place, check_settings = _SAVED.get(client, ("", None))
    file = home / place
    if check_settings is None:
        return
    try:
        saved = jsonio.decode(file.read_bytes())
    except (OSError, jsonio.JsonError):
        return
    if isinstance(saved, dict):
        yield from check_settings(saved, file, config)


def _claude(saved: dict[str, Json], file: Path, config: Config | None) -> Iterator[Check]:
    inner = saved.get("env")
    names = inner if isinstance(inner, dict) else {}
    if saved.get("apiKeyHelper") or names.get("ANTHROPIC_API_KEY"):
        what = f"{file} sets a key for Claude Code, which may override ANTHROPIC_AUTH_TOKEN"
        yield Check("clients", "warn", what, "remove apiKeyHelper or env.ANTHROPIC_API_KEY from that file")
    for name in ("ANTHROPIC_BASE_URL", "ANTHROPIC_AUTH_TOKEN"):
        if names.get(name):
            what = f"{file} sets {name}, which overrides the environment variable"
            yield Check("clients", "warn", what, f"remove env.{name} from that file")
    model = saved.get("model")
    if isinstance(model, str) and config is not None:
        remedy = f"choose another with /model (it is saved in {file}), or add a route or [default] for it"
        try:
            target = config.routes.resolve(model)[0]
        except UnknownModel as error:
            yield Check("clients", "warn", f"Claude Code's saved model: {error}", remedy)
        else:
            if target.is_default:
                what = f"Claude Code's saved model {model!r} is not configured: {target.model!r} answers in its place"
                yield Check("clients", "warn", what, remedy)


def _gemini(saved: dict[str, Json], file: Path, _: Config | None) -> Iterator[Check]:
    chosen: Json = saved
    for name in ("security", "auth", "selectedType"):
        chosen = chosen.get(name) if isinstance(chosen, dict) else None
    if isinstance(chosen, str) and chosen not in ("gateway", "gemini-api-key"):
        what = f"{file} sets the login of gemini-cli to {chosen}, so it does not use the gateway"
        yield Check("clients", "warn", what, "choose the API key with /auth in gemini-cli")


def _openai(context: CheckContext) -> Iterator[Check]:
    base = context.environ.get("OPENAI_BASE_URL", "")
    if base and _is_loopback_url(base) and not urlsplit(base).path.rstrip("/").endswith("/v1"):
        yield Check("clients", "warn", "OPENAI_BASE_URL does not end in /v1, which OpenAI's SDKs expect", "append /v1")


def _proxies(context: CheckContext) -> Iterator[Check]:
    """Warn of a proxy that clients on this machine would use for loopback, too."""
    environ = {name.lower(): value for name, value in context.environ.items() if value}
    named = next((name for name in ("http_proxy", "all_proxy") if name in environ), None)
    excluded = environ.get("no_proxy", "")
    if named and not any(each in excluded for each in ("127.0.0.1", "localhost", "*")):
        what = f"{named.upper()} is set and NO_PROXY does not contain 127.0.0.1: clients may not reach the gateway"
        yield Check("clients", "warn", what, "export NO_PROXY=127.0.0.1,localhost")


def _is_loopback_url(url: str) -> bool:
    try:
        return is_loopback(urlsplit(url).hostname or "")
    except ValueError:
        return False


def _is_gateway_key(context: CheckContext, value: str) -> bool:
    try:
        return value == read_private(context.places.key_file).decode().strip()
    except (OSError, ConfigError, UnicodeDecodeError):
        return False


_SettingsCheck: TypeAlias = Callable[[dict[str, Json], Path, Config | None], Iterator[Check]]
_SAVED: dict[str, tuple[str, _SettingsCheck]] = {
    "claude": (".claude/settings.json", _claude),
    "gemini": (".gemini/settings.json", _gemini),
}
_CLIENT_CHECKS: tuple[Callable[[CheckContext], Iterator[Check]], ...] = (_anthropic, _saved, _openai, _proxies)


_SOON = 600.0  # seconds: a login that ends sooner is renewed, or reported
_CONNECT_TIMEOUT = 5.0  # seconds
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_OTHERS_ACCESS = stat.S_IRWXG | stat.S_IRWXO
_LOGIN = "dragoman auth login kiro"


def run_checks(context: CheckContext) -> list[Check]:
    """Return the results of all checks, in the order in which they are printed."""
    return [check for subject in _SUBJECTS for check in subject(context)]


# --- the configuration


def _configuration(context: CheckContext) -> Iterator[Check]:
    if context.error is not None:
        for problem in context.error.problems:
            origin = f"{problem.origin}: " if problem.origin.layer != "default" else ""
            at = f"{problem.at}: " if problem.at else ""
            remedy = problem.hint or "docs/configuration.md lists every key; `dragoman config check` lists all problems"
            yield Check("config", "fail", f"{origin}{at}{problem.message}", remedy)
        return
    assert context.loaded is not None
    config = context.loaded.config
    where = (
        str(context.loaded.config.file) if context.loaded.config.file else "none; the simulator is the only upstream"
    )
    yield Check("config", "pass", f"{where}; upstreams: {', '.join(config.upstreams)}")
    for warning in config.warnings:
        yield Check(
            "config", "warn", warning, "unset it, or correct its name: `dragoman config show` lists the settings"
        )


def _key(context: CheckContext) -> Iterator[Check]:
    configured = context.loaded.config.server.key if context.loaded else None
    file = context.places.key_file
    if configured is None and not os.path.lexists(file):
        yield Check("key", "pass", "none yet; the first `dragoman serve` creates one")
        return
    try:
        context.reveal(gateway_key(configured, file))
    except ConfigError as error:
        yield Check("key", "fail", str(error), error.hint or "delete server.key, so that one is created")
    else:
        yield Check("key", "pass", configured.shown if configured else str(file))


# --- credentials


def _credentials(context: CheckContext) -> Iterator[Check]:
    for upstream in context.upstreams:
        name = f"credentials.{upstream.name}"
        if upstream.kind == "simulator":
            continue
        if not upstream.keys and not upstream.logins:
            yield Check(name, "pass", "none is configured; requests are sent without a key")
        for setting in secret_settings(upstream):
            check = _secret(name, setting, context)
            if check.state != "pass" or setting.secret in upstream.secrets():
                yield check
        for login in upstream.logins:
            if login.source == "aws":
                yield _aws(name)
            else:
                yield _kiro(upstream, store_name(login), context)


def _secret(name: str, setting: SecretSetting, context: CheckContext) -> Check:
    secret = setting.secret
    if secret.shown.startswith("keyring:"):  # reading it may prompt the user
        return Check(name, "pass", f"{secret.shown} (not read now; it is read when it is needed)")
    try:
        context.reveal(secret)
    except ConfigError as error:
        remedy = f"set it in the environment of `dragoman serve`, or change {setting.place}"
        return Check(name, "fail", str(error), remedy)
    return Check(name, "pass", f"{secret.shown} is set")


def _aws(name: str) -> Check:
    from importlib.util import find_spec

    if find_spec("botocore") is None:
        return Check(
            name, "fail", "AWS credentials need botocore, which is not installed", "pip install dragoman[bedrock]"
        )
    return Check(name, "pass", "those of the AWS tools (not read now: that may need a request to AWS)")


def _kiro(upstream: Upstream, spec: str, context: CheckContext) -> Check:
    from dragoman.upstream.kiro.logins import KiroPaths, open_store

    name, is_simulator = f"credentials.{upstream.name}", _is_loopback_url(upstream.base_url)
    try:
        store = open_store(spec, KiroPaths(context.environ), is_simulated=is_simulator)
        token = store.load()
    except CredentialFault as fault:
        return Check(name, "fail", str(fault), f"{_LOGIN}, or log in with the Kiro IDE")
    context.secrets += [each.reveal() for each in (token.access, token.refresh, token.client_secret) if each]
    if token.endpoint and not is_simulator:
        what = f"{store.label} is for practice with the simulator at {token.endpoint}; the real service refuses it"
        return Check(name, "fail", what, _LOGIN)
    if token.expires_at is None:
        return Check(name, "pass", f"{store.label} ({token.kind}) does not expire")
    left = token.expires_at - time.time()
    if left > _SOON:
        return Check(name, "pass", f"{store.label} ({token.kind}) is valid for another {render_duration(left)}")
    if token.refresh:
        when = f"expires in {render_duration(left)}" if left > 0 else f"expired {render_duration(-left)} ago"
        return Check(name, "pass", f"{store.label} ({token.kind}) {when}; it is renewed at the next request")
    return Check(name, "fail", f"{store.label} ({token.kind}) has expired and cannot be renewed", _LOGIN)


# --- the network


def _reach(context: CheckContext) -> Iterator[Check]:
    wanted = [each for each in context.upstreams if each.kind == "http"]
    if context.offline or not wanted:
        return
    problems = asyncio.run(_connect_all(wanted))
    for upstream, problem in zip(wanted, problems, strict=True):
        place = urlsplit(upstream.base_url).netloc
        if problem is None:
            secure = "TCP and TLS" if upstream.base_url.startswith("https:") else "TCP"
            via = ", through a proxy" if upstream.proxy else ""
            yield Check(f"reach.{upstream.name}", "pass", f"{place} accepts connections ({secure}{via})")
        else:
            yield Check(f"reach.{upstream.name}", "fail", problem, _connection_remedy(problem))


async def _connect_all(upstreams: Sequence[Upstream]) -> list[str | None]:
    return await asyncio.gather(*(_connect(upstream) for upstream in upstreams))


async def _connect(upstream: Upstream) -> str | None:
    """Open a connection and close it, without a request. Return the problem, or None."""
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
            timeouts=HttpTimeouts(connect=_CONNECT_TIMEOUT, tls=_CONNECT_TIMEOUT),
            tls=TlsSettings(ca_file=str(upstream.ca_file)) if upstream.ca_file else None,
            proxy=proxy,
        )
    except DragomanError as error:
        return str(error)
    connection.abort()
    return None


def _connection_remedy(problem: str) -> str:
    words = problem.lower()
    if "not yet valid" in words or "expired" in words:
        return "Check this machine's clock. If it is right, the certificate must be renewed by its owner."
    if "certificate" in words:
        return "If a proxy inspects TLS, set its certificate authority: ca_file of the upstream, or SSL_CERT_FILE."
    if "name" in words or "resolution" in words or "known" in words:
        return "Check the host name in base_url, and the network."
    return "Check that the service runs and base_url is right. If a proxy is needed, set HTTPS_PROXY or `proxy`."


def _clock(context: CheckContext) -> Iterator[Check]:
    """Fail if files of this machine are newer than its clock. No time service is queried."""
    now = time.time()
    known = [
        Path(dragoman.__file__),
        context.places.key_file,
        *([context.loaded.config.file] if context.loaded and context.loaded.config.file else []),
    ]
    newest = max((path.stat().st_mtime for path in known if path.is_file()), default=0.0)
    shown = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    if newest > now + 60:
        what = f"the clock shows {shown}, but files of this machine are {render_duration(newest - now)} newer"
        yield Check(
            "clock", "fail", what, "set the clock (timedatectl set-ntp true): tokens and signatures depend on it"
        )
    else:
        yield Check("clock", "pass", f"{shown} (AWS refuses signatures if it is wrong by more than five minutes)")


# --- this machine


def _port(context: CheckContext) -> Iterator[Check]:
    if context.running is not None:
        pid = context.running.get("pid")
        if why := stale_configuration(context.running, context.environ):
            what = f"running as pid {pid} with an older configuration: {why}"
            yield Check("gateway", "warn", what, "dragoman reload makes it read the configuration again")
        else:
            yield Check("gateway", "pass", f"running as pid {pid}, {context.running.get('state')}")
        return
    yield Check("gateway", "pass", "not running")
    if context.loaded is None:
        return
    from dragoman.gateway.serve import listen

    server = context.loaded.config.server
    place = f"{server.host}:{server.port}"
    try:
        listen(server.host, server.port).close()
    except OSError as error:
        process = find_listener(server.port)
        what = f"{place} cannot be used: {(error.strerror or str(error)).lower()}" + (
            f", by {process}" if process else ""
        )
        yield Check("port", "fail", what, "stop that process, or set server.port (--port 0 picks a free one)")
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
        wrong.append(
            Check("modes", "fail", f"{file} can be written by other users, who could redirect your prompts", remedy)
        )
    yield from wrong or [Check("modes", "pass", "only you can access the keys, logins and the socket")]


def _private(path: Path) -> Check | None:
    try:
        stats = path.lstat()
    except OSError:
        return None
    if stats.st_uid != os.geteuid():
        return Check("modes", "fail", f"{path} belongs to another user", "run as that user, or remove it")
    if stats.st_mode & _OTHERS_ACCESS and not stat.S_ISLNK(stats.st_mode):
        mode = "700" if stat.S_ISDIR(stats.st_mode) else "600"
        remedy = f"chmod {mode} {path}; if other users may have read it, create a new one"
        return Check("modes", "fail", f"{path} can be accessed by other users ({stat.filemode(stats.st_mode)})", remedy)
    return None


def _user(context: CheckContext) -> Iterator[Check]:
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        yield Check(
            "user",
            "warn",
            "dragoman runs as root, which it does not need",
            "create a user for it and run it as that user",
        )
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
