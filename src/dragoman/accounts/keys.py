"""Client keys: their text form, their digest, and the secret of AWS signatures. Pure, except for random bytes.

A key is `dg_ID_SECRET`. The id is public: it is in the log, in the ledger and in lists. The secret has 256 random bits,
so a plain SHA-256 of the whole key cannot be reversed, and only that digest is stored. The fixed prefix lets secret
scanners find a key.

An AWS signature is checked with the secret itself, which a digest cannot do. So the secret for AWS clients is another
one, derived from the gateway's own key and the id. It is not stored, and the access key id is the id.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Sequence

from msgspec import structs

from dragoman.store.interface import ClientKey

PREFIX = "dg_"
_ID_BYTES = 8  # 13 characters of base32 without padding
_ID = re.compile(r"[a-z2-7]{13}", re.ASCII)
_KEY = re.compile(r"dg_[a-z2-7]{13}_[A-Za-z0-9_-]{43}", re.ASCII)


def create_key(
    name: str,
    *,
    owner: str = "",
    models: Sequence[str] = (),
    upstreams: Sequence[str] = (),
    expires_at: float | None = None,
    now: float | None = None,
) -> tuple[str, ClientKey]:
    """Return the text of a new key, which is shown once, and what is stored of it."""
    key_id = base64.b32encode(secrets.token_bytes(_ID_BYTES)).decode().rstrip("=").lower()
    text = _text(key_id)
    key = ClientKey(
        id=key_id,
        digest=digest_of(text),
        name=name,
        owner=owner,
        models=tuple(models),
        upstreams=tuple(upstreams),
        created_at=time.time() if now is None else now,
        expires_at=expires_at,
    )
    return text, key


def rotate_key(key: ClientKey, grace: float, now: float | None = None) -> tuple[str, ClientKey]:
    """Return the text of a new secret for a key, and the key with it. The old secret is accepted for `grace` seconds.

    The id stays, and with it limits, usage and stored responses.
    """
    text, at = _text(key.id), time.time() if now is None else now
    return text, structs.replace(
        key,
        digest=digest_of(text),
        revision=key.revision + 1,
        former_digest=key.digest if grace > 0 else b"",
        former_until=at + grace,
    )


def _text(key_id: str) -> str:
    return f"{PREFIX}{key_id}_{secrets.token_urlsafe(32)}"


def digest_of(text: str) -> bytes:
    """Return the digest of a key."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def is_client_key(text: str) -> bool:
    """Return whether a text has the form of a client key."""
    return _KEY.fullmatch(text) is not None


def is_key_id(text: str) -> bool:
    """Return whether a text has the form of the id of a client key."""
    return _ID.fullmatch(text) is not None


def aws_secret(gateway_key: str, key: ClientKey, revision: int | None = None) -> str:
    """Return the secret access key of an AWS client. It changes with the gateway's key and the revision."""
    message = f"aws\0{key.id}\0{revision or key.revision}".encode()
    return base64.urlsafe_b64encode(hmac.digest(gateway_key.encode(), message, "sha256")).decode().rstrip("=")


def aws_secrets(gateway_key: str, key: ClientKey, now: float) -> tuple[bytes, ...]:
    """Return the secrets with which an AWS client may sign now: also the one before the last, while it is accepted."""
    revisions = [key.revision, *([key.revision - 1] if key.former_digest and now < key.former_until else [])]
    return tuple(aws_secret(gateway_key, key, revision).encode() for revision in revisions)
