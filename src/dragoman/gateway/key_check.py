"""Key check: which account a request belongs to, by the key or the AWS signature in its head. Called by `admission`.

A key comes in a key header or as a bearer token. It is the gateway's own key, or a client key if there is a store of
accounts. An AWS signature proves the gateway's own key, or the AWS secret of the client key whose id it names
(`accounts.keys`).
"""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from msgspec import Struct

from dragoman.accounts.account import Account
from dragoman.errors import NotAuthorised
from dragoman.gateway.aws_signatures import UNSIGNED, AwsSignature, parse_signature, sign
from dragoman.gateway.records import utc_time
from dragoman.wire.http import HttpRequest

if TYPE_CHECKING:
    from dragoman.accounts.book import AccountBook

_KEY_HEADERS = ("x-api-key", "x-goog-api-key")
WRONG_KEY = (
    "the key of this gateway is missing or wrong: send it as x-api-key or as a bearer token (`dragoman serve` shows it)"
)
SKEW = 15 * 60.0  # seconds by which a signer's clock may be wrong


class SignatureClaim(Struct, frozen=True):
    """A signature that may still have to be compared with the body, and the account that it proves then."""

    signature: AwsSignature
    secret: bytes
    account: Account

    @property
    def is_proven(self) -> bool:
        """Whether the head alone was enough to check the signature; the body's hash is compared later."""
        return self.signature.is_proven

    def check_signature(self, request: HttpRequest) -> None:
        """Raises NotAuthorised."""
        made = self.signature
        expected = sign(request, self.secret, made.date, made.region, made.service, made.headers)
        if not hmac.compare_digest(expected, made.signature):
            raise NotAuthorised(WRONG_KEY)

    def check_body(self, request: HttpRequest) -> None:
        """Check the body of the request against the signature. Raises NotAuthorised."""
        if not self.is_proven:
            self.check_signature(request)
        elif self.signature.payload != hashlib.sha256(request.body).hexdigest():
            raise NotAuthorised(WRONG_KEY)


class KeyCheck:
    """Finds the account of a request. Every refusal of an unknown key has the same words, so that it reveals nothing.

    Digests are compared, so that the time of the comparison reveals neither a key's length nor a common prefix.
    """

    def __init__(self, key: str, book: AccountBook | None = None, *, now: Callable[[], float] = time.time) -> None:
        if not key:
            raise ValueError("the gateway has no key: set server.key, or delete it so that one is created")
        self._key = key
        self._digest = hashlib.sha256(key.encode()).digest()
        self._book = book
        self._own = Account() if book is None else book.gateway
        self._now = now

    def known(self, head: HttpRequest) -> Account | None:
        """Return the account of a key in the headers, if it is the gateway's own or was found before.

        Other headers may contain keys of other services.
        """
        found, book = None, self._book
        for candidate in _candidates(head):
            digest = hashlib.sha256(candidate.encode("utf-8", "surrogatepass")).digest()
            if hmac.compare_digest(digest, self._digest):
                found = self._own
            elif book is not None and found is None:
                found = book.cached(digest)
        return found

    async def find(self, head: HttpRequest) -> Account | SignatureClaim:
        """Return the account of a key or of a signature in the head, or the claim of a signature that covers the body.

        Raises NotAuthorised; ClientFault (503) if the store of accounts cannot be read.
        """
        if self._book is not None:
            from dragoman.accounts.keys import digest_of, is_client_key  # noqa: PLC0415  only with a store

            for candidate in _candidates(head):
                if is_client_key(candidate) and (account := await self._book.find(digest_of(candidate))) is not None:
                    return account
        claim = await self._claim(head)
        if claim.is_proven:
            claim.check_signature(head)
        return claim.account if claim.signature.payload == UNSIGNED else claim

    async def _claim(self, head: HttpRequest) -> SignatureClaim:
        """Return what the AWS signature of a head claims. Raises NotAuthorised if there is none, or an old one."""
        signature = parse_signature(head)
        if signature is None:
            raise NotAuthorised(WRONG_KEY)
        if not self._is_recent(signature.date):
            raise NotAuthorised(f"{WRONG_KEY}; or the clock of the client is wrong")
        found = None if self._book is None else await self._book.find_by_id(signature.id)
        if found is None:
            return SignatureClaim(signature, self._key.encode(), self._own)
        from dragoman.accounts.keys import aws_secret  # noqa: PLC0415  only with a store

        key, account = found
        return SignatureClaim(signature, aws_secret(self._key, key).encode(), account)

    def check_validity(self, account: Account) -> None:
        """Raises NotAuthorised for a key that was revoked or has expired. Its holder may know which."""
        if account.ends_at > self._now():
            return
        what = "was revoked" if account.is_revoked else f"expired at {utc_time(account.ends_at)}"
        raise NotAuthorised(f"the key {account.name or account.id} of this gateway {what}; ask for a new one")

    def _is_recent(self, moment: str) -> bool:
        try:
            signed_at = datetime.strptime(moment, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp()
        except ValueError:
            return False
        return abs(self._now() - signed_at) <= SKEW


def _candidates(head: HttpRequest) -> Iterator[str]:
    """Yield the texts of a head that may be a key."""
    for name, value in head.headers:
        if name == "authorization":
            scheme, _, candidate = value.partition(" ")
            if scheme.lower() == "bearer":
                yield candidate.strip()
        elif name in _KEY_HEADERS:
            yield value
