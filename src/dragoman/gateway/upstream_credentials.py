"""The credentials of an upstream, created from its configuration, and the secrets that it lacks.

No secret is read before it is needed; `missing_secrets` reads those of variables and files when a gateway starts.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from urllib.parse import urlsplit

from msgspec import Struct

from dragoman.gateway.layers import ConfigError
from dragoman.gateway.secrets import ConfiguredSecret, SecretUnavailable, plain_value
from dragoman.gateway.upstream_config import Login, Upstream
from dragoman.http.addresses import is_loopback
from dragoman.upstream import credentials
from dragoman.upstream.credentials import (
    Credential,
    CredentialFault,
    Fetch,
    LazyCredential,
    MissingCredential,
    with_headers,
)
from dragoman.wire.http import HttpRequest
from dragoman.wire.jsonio import Json


class MissingSecret(MissingCredential):
    """A secret that requests to an upstream need is not available. The message names the setting."""


class SecretSetting(Struct, frozen=True):
    """A secret of an upstream, and the setting that refers to it."""

    upstream: str
    what: str  # key, header NAME, proxy
    place: str  # the table and the key, as in [upstreams.kimi] key
    secret: ConfiguredSecret

    @property
    def problem(self) -> str:
        """Why the secret is not available and what to do; empty if the last read did not fail."""
        if not self.secret.problem:
            return ""
        remedy = "Set it" if self.secret.shown.startswith("env:") else "Correct the value"
        return (
            f"Upstream {self.upstream!r} has no {self.what}: {self.secret.problem}. {remedy}, or change {self.place}."
        )

    def reveal(self) -> str:
        """Return the value. May block. Raises MissingSecret."""
        try:
            return self.secret.reveal()
        except SecretUnavailable:
            raise MissingSecret(self.problem) from None


def key_settings(upstream: Upstream) -> Iterator[SecretSetting]:
    """Yield the keys of an upstream."""
    for number, key in enumerate(upstream.keys, 1):
        what = f"key {number}" if len(upstream.keys) > 1 else "key"
        yield SecretSetting(upstream.name, what, f"[upstreams.{upstream.name}] key", key)


def header_settings(upstream: Upstream) -> Iterator[tuple[str, SecretSetting]]:
    """Yield the configured headers of an upstream, each with its name."""
    for name, value in upstream.headers:
        yield name, SecretSetting(upstream.name, f"header {name}", f"[upstreams.{upstream.name}.headers] {name}", value)


def proxy_setting(upstream: Upstream) -> SecretSetting | None:
    """Return the proxy of an upstream, if it has one."""
    if upstream.proxy is None:
        return None
    return SecretSetting(upstream.name, "proxy", f"[upstreams.{upstream.name}] proxy", upstream.proxy)


def secret_settings(upstream: Upstream) -> Iterator[SecretSetting]:
    """Yield all settings of an upstream that may refer to a secret."""
    yield from key_settings(upstream)
    yield from (setting for _, setting in header_settings(upstream))
    if (proxy := proxy_setting(upstream)) is not None:
        yield proxy


def missing_secrets(upstream: Upstream, *, slow: bool = False) -> Iterator[SecretSetting]:
    """Read the secrets of an upstream and yield those that are not available.

    With `slow`, those of commands are read too. A keyring is not read: it may prompt the user.
    """
    for setting in secret_settings(upstream):
        if setting.secret.shown.startswith("keyring:") or (setting.secret.is_slow and not slow):
            continue
        try:
            setting.secret.reveal()
        except SecretUnavailable:
            yield setting


def credential_problems(upstream: Upstream, environ: Mapping[str, str], *, slow: bool = False) -> list[str]:
    """Return a sentence for each secret and login that an upstream lacks."""
    problems = [setting.problem for setting in missing_secrets(upstream, slow=slow)]
    credential = missing_credential(upstream, environ)
    return problems if not credential or credential in problems else [*problems, credential]


def report_missing_secrets(
    upstreams: Iterable[Upstream], environ: Mapping[str, str], warn: Callable[[str], None]
) -> None:
    """Read the secrets of upstreams, so that the log redacts them, and call `warn` for each that is missing.

    Commands run in a thread of their own, which does not delay the start or the end of the gateway.
    """
    upstreams = [*upstreams]
    for problem in (each for upstream in upstreams for each in credential_problems(upstream, environ)):
        warn(problem)
    if not any(secret.shown.startswith("cmd:") for upstream in upstreams for secret in upstream.secrets()):
        return
    loop = asyncio.get_running_loop()

    def run_commands() -> None:
        for setting in (each for upstream in upstreams for each in missing_secrets(upstream, slow=True)):
            if setting.secret.is_slow:
                with suppress(RuntimeError):  # The loop is closed.
                    loop.call_soon_threadsafe(warn, setting.problem)

    threading.Thread(target=run_commands, name="secrets", daemon=True).start()


def missing_credential(upstream: Upstream, environ: Mapping[str, str]) -> str:
    """Return which key or login an upstream lacks; empty if it has one, or if that is not known.

    Commands that print a key are not run.
    """
    for _ in missing_secrets(upstream):
        pass  # Reading them sets their problems.
    keys = list(key_settings(upstream))
    if keys and all(setting.problem for setting in keys) and not upstream.logins:
        return keys[0].problem
    return _missing_login(upstream, environ) if upstream.logins and not upstream.keys else ""


def _missing_login(upstream: Upstream, environ: Mapping[str, str]) -> str:
    """Return why none of an upstream's logins can be used; empty if one can, or if AWS's own tools find them."""
    if any(login.source == "aws" for login in upstream.logins):
        return ""
    from dragoman.upstream.kiro.logins import KiroPaths, open_store  # noqa: PLC0415  imported only if used

    why = ""
    for login in upstream.logins:
        try:
            open_store(_store_name(login), KiroPaths(environ), is_simulated=_is_simulator(upstream.base_url)).load()
        except CredentialFault as fault:
            why = why or str(fault)
        else:
            return ""
    return f"Upstream {upstream.name!r} has no login: {why}"


def _store_name(login: Login) -> str:
    """Return the name of a login's store for `open_store`."""
    source = {"auto": "", "store": "own"}.get(login.source, login.source)
    return f"{source}:{login.detail}" if source and login.detail else source


def _is_simulator(base_url: str) -> bool:
    """Return whether an upstream is on this machine: then logins made with the simulator count."""
    return is_loopback(urlsplit(base_url).hostname or "")


def credentials_of(upstream: Upstream, base_url: str, fetch: Fetch) -> Sequence[Credential]:
    """Return the credentials of an upstream; if it has none, one that does not change requests."""
    if upstream.kind == "simulator":
        return (_fixed_key("simulated", "simulated"),)  # A simulator accepts any key.
    keys = [_key(upstream, setting, base_url, fetch) for setting in key_settings(upstream)]
    logins = [
        LazyCredential(
            f"{login.source}:{login.detail}".rstrip(":"), partial(_login, login, upstream.region, base_url, fetch)
        )
        for login in upstream.logins
    ]
    return [*keys, *logins] or (_fixed_key("none", ""),)


def _fixed_key(name: str, key: str) -> ConfiguredKey:
    return ConfiguredKey(SecretSetting("", name, "", plain_value(key)), "authorization")


def _key(upstream: Upstream, setting: SecretSetting, base_url: str, fetch: Fetch) -> Credential:
    if upstream.dialect.codec.family == "kiro":
        return LazyCredential(setting.what, partial(_kiro_key, setting, base_url, fetch))
    return ConfiguredKey(setting, upstream.key_header)


class ConfiguredKey:
    """A key of the configuration. It is read once, and again when the upstream refuses it.

    An empty key adds no header.
    """

    expires_at: float | None = None

    def __init__(self, setting: SecretSetting, header: str) -> None:
        self.name = setting.what
        self._setting = setting
        self._header = header

    async def sign(self, request: HttpRequest) -> HttpRequest:
        """Return the request with the key in its header. Raises ConfigError if the key cannot be read."""
        key = self._setting.secret.revealed
        if key is None:
            key = await asyncio.to_thread(self._setting.reveal)  # A command or a keyring may be slow.
        if not key:
            return request
        value = f"Bearer {key}" if self._header == "authorization" else key
        return with_headers(request, ((self._header, value),))

    async def on_refusal(self, status: int) -> bool:
        """Read the key again; return whether it has changed."""
        try:
            return await asyncio.to_thread(self._setting.secret.refresh)
        except ConfigError:
            return False

    def describe(self) -> dict[str, Json]:
        """Return where the key comes from, and the problem if it is missing."""
        secret = self._setting.secret
        row: dict[str, Json] = {"name": self.name, "type": "key", "source": secret.shown, "expires_at": None}
        return {**row, "state": "missing", "problem": self._setting.problem} if secret.problem else row

    def secrets(self) -> list[credentials.SecretText]:
        """Return the key, if it has been read."""
        key = self._setting.secret.revealed
        return [credentials.SecretText(key)] if key else []


async def _kiro_key(setting: SecretSetting, base_url: str, fetch: Fetch, name: str) -> Credential:
    from dragoman.upstream.kiro.credential import KiroCredential  # noqa: PLC0415  imported only if used
    from dragoman.upstream.kiro.stores import ApiKeyStore  # noqa: PLC0415

    key = credentials.SecretText(await asyncio.to_thread(setting.reveal))
    return KiroCredential(ApiKeyStore(key), fetch, name=name, base_url=base_url)


async def _login(login: Login, region: str, base_url: str, fetch: Fetch, name: str) -> Credential:
    """Create the credential of a login: of the AWS tools, or of Kiro (dragoman's store, the IDE's or kiro-cli's)."""
    if login.source == "aws":
        from dragoman.upstream.sigv4 import AwsCredential, find_region  # noqa: PLC0415

        region = region or await asyncio.to_thread(find_region, login.detail)
        return AwsCredential(name, base_url, region, login.detail)
    from dragoman.upstream.kiro.credential import KiroCredential  # noqa: PLC0415
    from dragoman.upstream.kiro.logins import open_store  # noqa: PLC0415

    store = await asyncio.to_thread(partial(open_store, _store_name(login), is_simulated=_is_simulator(base_url)))
    return KiroCredential(store, fetch, name=name, base_url=base_url)
