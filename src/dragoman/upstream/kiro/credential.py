"""The credential of a Kiro upstream: it adds the stored token to requests, and refreshes an expired token.

A login that another program has changed (renewed, replaced, removed) is noticed within seconds: the version of the
store is compared. One refresh serves all waiting requests. Its steps: read the store again (another program may have
refreshed the token), lock the store against other processes, check that the store can be written, read it once more,
refresh the token, write the token to the store, and let the waiting requests continue. Uses the network and the disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from math import inf
from typing import Literal, TypeVar
from urllib.parse import urlsplit
from uuid import uuid4

from msgspec import Struct, structs

from dragoman.errors import DragomanError
from dragoman.upstream.credentials import (
    CredentialFault,
    Fetch,
    MissingCredential,
    SecretText,
    SingleFlight,
    with_headers,
)
from dragoman.upstream.kiro.atomic_files import LockTimeout, file_lock
from dragoman.upstream.kiro.service import QuotaUsage, fetch_usage, list_profiles, token_headers, with_profile
from dragoman.upstream.kiro.sign_in import refresh
from dragoman.upstream.kiro.stores import TokenStore
from dragoman.upstream.kiro.token import Endpoints, Token
from dragoman.wire.http import Headers, HttpRequest
from dragoman.wire.jsonio import Json

_SIMULATED = " (for practice with the simulator at {})"
EARLY = 600.0  # seconds before its expiry at which a token is renewed
_TIMEOUT = 15.0  # seconds for one call of a sign-in service
_PAUSE = 5.0  # seconds before a failed service is called again, doubled by each failure in a row
_LONGEST_PAUSE = 120.0
_SETTLED = 30.0  # seconds after a renewal in which a refusal counts as one of the previous token
_WRITE_RETRY_SECONDS = 30.0  # seconds before a failed write is retried
_LOCK_RETRY = 30.0  # seconds before waiting again for the lock of another process
_LOOK = 5.0  # seconds between two looks at the version of the store
_UNLISTED = 300.0  # seconds before profiles that could not be listed are requested again

T = TypeVar("T")
_log = logging.getLogger(__name__)
_writer = ThreadPoolExecutor(
    1, "kiro-token"
)  # its own thread, so that writing a new token does not wait for other work


class _Failure(Struct, frozen=True):
    """A failed refresh, and the time until which it is not retried unless the login changes."""

    token: Token
    until: float
    fault: CredentialFault
    pause: float = 0.0  # before the service is asked again


class KiroCredential:
    """One Kiro login. `base_url` of the upstream and the kind of login decide whether a profile is sent."""

    def __init__(
        self,
        store: TokenStore,
        fetch: Fetch,
        *,
        name: str = "kiro",
        base_url: str = "",
        profile: Literal["auto", "always", "never"] = "auto",
        endpoints: Endpoints | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.name = name
        self._store = store
        self._fetch = fetch
        self._base_url = base_url
        self._profile = profile
        self._fixed_endpoints = endpoints
        self._now = now
        self._token: Token | None = None
        self._base: Token | None = None  # the stored token when a refreshed one could not be written
        self._write_at = 0.0  # the time at which the write is retried
        self._version: object = None  # of the store, when it was last read
        self._look_at = -inf  # the time at which it is compared again
        self._bad = SecretText()  # the access token that was refused
        self._check_at = 0.0  # until then the token is valid, and the next two fields belong to it
        self._headers: Callable[[], Headers] = tuple  # a function, since the repr of headers would show the token
        self._has_profile = False
        self._renewed_at = -inf
        self._failure: _Failure | None = None
        self._lock_timeout: tuple[float, LockTimeout] | None = None  # raised until then, without waiting
        self._problem = ""
        self._arn = ""  # of a profile that had to be looked up
        self._arn_tried = -inf
        self._renewal = SingleFlight(self._renew)
        self._lookup = SingleFlight(self._look_up_profile)

    # --- what a gateway uses

    @property
    def expires_at(self) -> float | None:
        """When the token expires, in seconds of the epoch; None if it is not loaded or does not expire."""
        return self._token.expires_at if self._token else None

    async def sign(self, request: HttpRequest) -> HttpRequest:
        """Sign with a token that is valid for at least ten minutes; with an older one if renewal fails."""
        token, headers, has_profile = self._token, self._headers(), self._has_profile
        if token is None or self._now() >= self._check_at:
            token = await self.token()
            headers, has_profile = token_headers(token), self._sends_profile(token)
            if token is self._token and self._base is None and not self._stale(token):
                self._check_at = min(self._look_at, inf if token.expires_at is None else token.expires_at - EARLY)
                self._headers, self._has_profile = lambda: headers, has_profile
        if has_profile:
            arn = token.profile_arn or await self._looked_up()
            request = with_profile(request, arn) if arn else request
        return with_headers(request, (*headers, ("amz-sdk-invocation-id", str(uuid4()))))

    async def on_refusal(self, status: int, request: HttpRequest | None = None) -> bool:
        """Renew a token that the service refused; `request`, as it was signed, shows which token that was.

        Do not call it for accounts that are suspended or out of quota: a new token does not help them. Raises
        CredentialFault if the login has expired.
        """
        token = self._token
        if status not in (401, 403) or token is None or token.kind == "api_key":
            return False
        if request is not None and request.header("authorization") != f"Bearer {token.access.reveal()}":
            return True  # renewed while the request was under way
        if self._now() - self._renewed_at < _SETTLED:
            return request is None  # most likely it was the token before; if not, yet another one will not help
        self._bad, self._check_at = token.access, 0.0
        try:
            renewed = await self._renewal.join()
            if renewed.access == self._bad:  # a run that had begun before
                renewed = await self._renewal.join()
        except CredentialFault as fault:
            if fault.is_permanent:
                raise
            return False
        return renewed.access != self._bad

    async def token(self) -> Token:
        """Return a valid token, renewed if necessary. Raises CredentialFault."""
        token = self._token
        is_usable = token is not None and not self._stale(token) and not self._has_unsaved_token()
        if token is not None and is_usable and not await self._is_changed():
            return token
        try:
            return await self._renewal.join()
        except CredentialFault as fault:
            token = self._token
            if isinstance(fault, MissingCredential):  # the user has logged out
                self._token = token = None
            if token is None or token.access == self._bad or not token.access or token.expires_within(0, self._now()):
                raise
            return token  # It is still valid; describe() shows the problem.

    async def renew(self) -> Token:
        """Refresh now, even if the token is still valid."""
        token = await self.token()
        if token.kind == "api_key":
            return token
        if self._now() - self._renewed_at > 1:
            self._bad, self._check_at = token.access, 0.0
            try:
                return await self._renewal.join()
            except CredentialFault:
                self._bad = SecretText()  # The service did not refuse it.
                raise
        return token

    async def usage(self) -> QuotaUsage:
        """Return the usage of the quota. Raises CredentialFault."""
        token = await self.token()
        arn = token.profile_arn or (await self._looked_up() if token.kind != "api_key" else "")
        return await self._call(
            fetch_usage(self._fetch, self._endpoints(token), structs.replace(token, profile_arn=arn))
        )

    async def aclose(self) -> None:
        """Wait for a refresh under way, and write a token that is only in memory: it may be the only copy."""
        await self._renewal.settle()
        if self._base is not None:
            with contextlib.suppress(CredentialFault):  # logged when the write first failed
                async with file_lock(self._store.lock):
                    await self._stored()

    def describe(self) -> dict[str, Json]:
        """Return the state of the login for a status page: its source, kind, expiry and problem."""
        try:
            token = self._token or self._store.load()
        except CredentialFault as fault:
            return {
                "name": self.name,
                "type": "kiro",
                "source": self._store.label,
                "state": "missing",
                "problem": str(fault),
            }
        return {
            "name": self.name,
            "type": "kiro",
            "source": self._store.label + (_SIMULATED.format(token.endpoint) if token.endpoint else ""),
            "kind": token.kind,
            "provider": token.provider,
            "state": self._state(token),
            "expires_at": token.expires_at,
            "region": token.region,
            "profile_arn": token.profile_arn or self._arn,
            "problem": self._problem,
            "unsaved": self._base is not None,
            "practice": bool(token.endpoint),
        }

    def secrets(self) -> list[SecretText]:
        """Return the secrets of the token, and of the one that could not be stored."""
        tokens = [token for token in (self._token, self._base) if token is not None]
        return [each for token in tokens for each in (token.access, token.refresh, token.client_secret) if each]

    def _state(self, token: Token) -> str:
        if self._failure is not None and self._failure.fault.is_permanent:
            return "login needed"
        if not token.access or token.expires_within(0, self._now()):
            return "expired"
        return "expiring" if token.expires_within(EARLY, self._now()) else "ok"

    # --- renewal

    def _stale(self, token: Token) -> bool:
        return not token.access or token.access == self._bad or token.expires_within(EARLY, self._now())

    def _has_unsaved_token(self) -> bool:
        return self._base is not None and self._now() >= self._write_at

    async def _is_changed(self) -> bool:
        """Return whether the store may have changed since it was read."""
        if self._base is not None or self._now() < self._look_at:
            return False
        self._look_at = self._now() + _LOOK
        return await asyncio.to_thread(self._store.version) != self._version

    async def _load(self) -> Token:
        """Read the store, and note its version: one from before, so that no later change is missed."""
        version = await asyncio.to_thread(self._store.version)
        token = await asyncio.to_thread(self._store.load)
        self._version, self._look_at = version, self._now() + _LOOK
        if self._token is not None and token.refresh != self._token.refresh:  # perhaps of another account
            self._arn, self._arn_tried = "", -inf
        return token

    async def _renew(self) -> Token:
        try:
            if self._base is None:  # a token that is good needs no lock, and so no folder that can be written
                token = await self._load()
                if not self._stale(token):
                    return self._adopt(token)
                self._token = self._token or token  # in case it cannot be renewed but still lives
            if self._lock_timeout is not None and self._now() < self._lock_timeout[0]:
                raise self._lock_timeout[1]
            self._lock_timeout = None
            async with file_lock(self._store.lock):
                return await self._renew_locked()
        except CredentialFault as fault:
            if isinstance(fault, LockTimeout) and self._lock_timeout is None:
                self._lock_timeout = (self._now() + _LOCK_RETRY, fault)
            self._problem = str(fault)
            self._write_at = self._now() + _WRITE_RETRY_SECONDS
            raise

    async def _renew_locked(self) -> Token:
        await asyncio.to_thread(self._store.prepare)
        token = await self._stored()
        if not self._stale(token):
            return self._adopt(token)
        fresh, was = await self._refreshed(token)
        if fresh is was:  # another program was faster after all
            return self._adopt(fresh)
        self._renewed_at = self._now()
        _log.info("%s: the token was refreshed", self.name)
        in_store = self._base if was is token and self._base is not None else was
        return await self._keep(fresh, in_store)

    async def _refreshed(self, token: Token) -> tuple[Token, Token]:
        """Return the new token and the old one; the same token twice if the store has a valid one by now."""
        failure = self._failure
        if failure is not None and failure.token == token and self._now() < failure.until:
            raise failure.fault
        try:
            return await self._call(refresh(self._fetch, self._endpoints(token), token, self._now())), token
        except CredentialFault as fault:
            self._failure = self._failed(token, fault, failure)
            if not fault.is_permanent:
                raise
        # The IDE and kiro-cli do not use this lock: one of them may have used the refresh token.
        newer = await asyncio.to_thread(self._store.load)
        if newer.refresh == token.refresh:
            raise self._failure.fault
        return (newer, newer) if not self._stale(newer) else await self._refreshed(newer)

    def _failed(self, token: Token, fault: CredentialFault, before: _Failure | None) -> _Failure:
        """Return the failure to raise, without calling the service, until its time is over."""
        if fault.is_permanent:
            return _Failure(token, inf, fault)
        repeated = before is not None and before.token == token and before.pause > 0
        pause = min(before.pause * 2, _LONGEST_PAUSE) if before is not None and repeated else _PAUSE
        return _Failure(token, self._now() + pause, fault, pause)

    async def _stored(self) -> Token:
        """Return the stored token, or a newer one in memory that could not be written before."""
        stored = await asyncio.to_thread(self._store.load)
        unsaved, base = self._token, self._base
        if unsaved is None or base is None:
            return stored
        if stored.refresh != base.refresh:  # someone has logged in anew
            self._base = None
            return stored
        return await self._keep(unsaved, base)

    async def _keep(self, token: Token, was: Token) -> Token:
        """Write the token. If that fails it stays in memory, and the write is retried."""
        saving = asyncio.get_running_loop().run_in_executor(_writer, self._store.save, token, was)
        try:
            saved = await asyncio.shield(saving)
        except asyncio.CancelledError:
            await asyncio.wait([saving])  # the lock is not given up before the file is whole
            raise
        except CredentialFault as fault:
            self._base, self._problem = was, str(fault)
            self._write_at = self._now() + _WRITE_RETRY_SECONDS
            _log.error("%s: a refreshed token could not be written and is only in memory: %s", self.name, fault)
            return self._adopt(token)
        self._base = None
        return self._adopt(saved)

    def _adopt(self, token: Token) -> Token:
        self._token, self._failure, self._check_at = token, None, 0.0
        if self._base is None:
            self._problem = ""
        return token

    async def _call(self, work: Coroutine[object, object, T]) -> T:
        """Run one exchange with a service, with a timeout; network errors are temporary faults."""
        try:
            async with asyncio.timeout(_TIMEOUT):
                return await work
        except TimeoutError:
            raise CredentialFault(f"the service did not respond within {_TIMEOUT:.0f} s.", is_permanent=False) from None
        except CredentialFault:
            raise
        except DragomanError as error:  # of the network, or a response that is not HTTP
            raise CredentialFault(f"the service cannot be reached: {error}", is_permanent=False) from None

    def _endpoints(self, token: Token) -> Endpoints:
        if self._fixed_endpoints is not None:
            return self._fixed_endpoints
        return Endpoints.everything_at(token.endpoint) if token.endpoint else Endpoints()

    # --- the profile

    def _sends_profile(self, token: Token) -> bool:
        if self._profile != "auto":
            return self._profile == "always"
        host = urlsplit(self._base_url).hostname or ""
        if token.is_builder_id and host.endswith(".amazonaws.com"):
            return False  # there it makes the token invalid; runtime.kiro.dev needs it
        return token.kind != "api_key"

    async def _looked_up(self) -> str:
        if self._arn or self._now() - self._arn_tried < _UNLISTED:
            return self._arn
        return await self._lookup.join()

    async def _look_up_profile(self) -> str:
        """Return the first profile of the login; empty if there is none, and then the service reports it."""
        token = await self.token()
        self._arn_tried = self._now()
        try:
            profiles = await self._call(list_profiles(self._fetch, self._endpoints(token), token))
        except CredentialFault as fault:
            _log.warning("%s: profiles could not be listed: %s", self.name, fault)
            return ""
        if len(profiles) > 1:
            _log.warning("%s: the login has %d profiles; the first is used", self.name, len(profiles))
        self._arn = profiles[0].arn if profiles else ""
        return self._arn
