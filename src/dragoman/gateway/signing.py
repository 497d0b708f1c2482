"""The credentials of an upstream, made from its configuration. Nothing is read or run before it is needed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from dragoman.gateway.problems import ConfigError
from dragoman.gateway.secrets import Secret
from dragoman.gateway.upstreams import Login, Upstream
from dragoman.upstream import credentials
from dragoman.upstream.credentials import Credential, CredentialFault, Fetch, Settling, StaticKey, with_headers
from dragoman.wire.http import HttpRequest
from dragoman.wire.jsonio import Json

SIMULATED = StaticKey("simulated", credentials.Secret("simulated"))  # a simulator wants some key, any key
_NONE = StaticKey("none", credentials.Secret())


def credentials_of(upstream: Upstream, base_url: str, fetch: Fetch) -> Sequence[Credential]:
    """All that may sign for this upstream; one that signs nothing if it has none."""
    if upstream.kind == "simulator":
        return (SIMULATED,)
    keys = [_key(upstream, index, key, base_url, fetch) for index, key in enumerate(upstream.keys)]
    logins = [_LaterLogin(upstream, login, base_url, fetch) for login in upstream.logins]
    return [*keys, *logins] or (_NONE,)


def _key(upstream: Upstream, index: int, key: Secret, base_url: str, fetch: Fetch) -> Credential:
    name = f"key {index + 1}" if len(upstream.keys) > 1 else "key"
    if upstream.dialect.codec.family == "kiro":
        return _KiroKey(name, key, base_url, fetch)
    return ConfiguredKey(name, key, upstream.key_header)


class ConfiguredKey:
    """A key that the configuration names. Its reference is followed once, and again when the upstream refuses it."""

    expires_at: float | None = None

    def __init__(self, name: str, key: Secret, header: str) -> None:
        self.name = name
        self._key = key
        self._header = header

    async def sign(self, request: HttpRequest) -> HttpRequest:
        key = self._key.revealed or await _revealed(self._key)
        value = f"Bearer {key}" if self._header == "authorization" else key
        return with_headers(request, ((self._header, value),))

    async def refused(self, status: int) -> bool:
        try:
            return await asyncio.to_thread(self._key.refresh)
        except ConfigError:
            return False

    def describe(self) -> dict[str, Json]:
        return {"name": self.name, "type": "key", "source": self._key.shown, "expires_at": None}

    def secrets(self) -> list[credentials.Secret]:
        found = self._key.revealed
        return [credentials.Secret(found)] if found else []


async def _revealed(secret: Secret) -> str:
    found = secret.revealed
    if found is not None:
        return found
    try:
        return await asyncio.to_thread(secret.reveal)  # a command or a keyring takes its time
    except ConfigError as error:
        raise CredentialFault(f"the key cannot be had: {error}") from None


class _Later:
    """A credential that is made when it is first needed: until then nobody may have logged in."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._made: Credential | None = None

    @property
    def expires_at(self) -> float | None:
        return self._made.expires_at if self._made else None

    async def sign(self, request: HttpRequest) -> HttpRequest:
        if self._made is None:
            self._made = await self._make()
        return await self._made.sign(request)

    async def refused(self, status: int) -> bool:
        return self._made is not None and await self._made.refused(status)

    async def aclose(self) -> None:
        made = self._made
        if made is not None and isinstance(made, Settling):
            await made.aclose()

    def describe(self) -> dict[str, Json]:
        return self._made.describe() if self._made else {"name": self.name, "type": "login", "state": "not used yet"}

    def secrets(self) -> list[credentials.Secret]:
        return self._made.secrets() if self._made else []

    async def _make(self) -> Credential:
        raise NotImplementedError


class _KiroKey(_Later):
    def __init__(self, name: str, key: Secret, base_url: str, fetch: Fetch) -> None:
        super().__init__(name)
        self._key, self._base_url, self._fetch = key, base_url, fetch

    async def _make(self) -> Credential:
        from dragoman.upstream.kiro.credential import KiroCredential  # noqa: PLC0415  only who uses it waits for it
        from dragoman.upstream.kiro.stores import KeyStore  # noqa: PLC0415  only who uses it waits for it

        store = KeyStore(credentials.Secret(await _revealed(self._key)))
        return KiroCredential(store, self._fetch, name=self.name, base_url=self._base_url)


class _LaterLogin(_Later):
    """A login of the AWS tools, or of Kiro: our own store's, the IDE's or kiro-cli's."""

    def __init__(self, upstream: Upstream, login: Login, base_url: str, fetch: Fetch) -> None:
        super().__init__(f"{login.source}:{login.detail}".rstrip(":"))
        self._login = login
        self._region, self._base_url, self._fetch = upstream.region, base_url, fetch

    async def _make(self) -> Credential:
        login = self._login
        if login.source == "aws":
            from dragoman.upstream.sigv4 import AwsCredential, find_region  # noqa: PLC0415

            region = self._region or await asyncio.to_thread(find_region, login.detail)
            return AwsCredential(self.name, self._base_url, region, login.detail)
        from dragoman.upstream.kiro.credential import KiroCredential  # noqa: PLC0415
        from dragoman.upstream.kiro.finding import open_store  # noqa: PLC0415

        source = {"auto": "", "store": "own"}.get(login.source, login.source)
        spec = f"{source}:{login.detail}" if source and login.detail else source
        store = await asyncio.to_thread(open_store, spec)
        return KiroCredential(store, self._fetch, name=self.name, base_url=self._base_url)
