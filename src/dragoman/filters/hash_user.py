"""HashUser: a user id that is too long for the target, or tells a device to another family, is sent as its hash."""

from __future__ import annotations

import hashlib
import re

from msgspec import structs

from dragoman.model.capabilities import Capabilities
from dragoman.model.conversation import Conversation
from dragoman.model.facts import Facts, Features
from dragoman.model.filter import Filter, MakeBack
from dragoman.model.notes import Notes

# Claude Code: `{"device_id": …, "account_uuid": …, "session_id": …}`, earlier `user_<hash>_account_…_session_<uuid>`.
_DEVICE = re.compile(r"device_?id|\Auser_[0-9a-f]{16,}_", re.IGNORECASE)
_BESIDE = "safety_identifier"  # a second slot, which may stand beside the user id


class HashUser(Filter):
    """The hash depends on the id alone, so that one user stays one user."""

    name = "hash_user"
    concerns: Features = frozenset({"user", "extras"})

    def __init__(self, upstream: Capabilities, *, foreign: bool) -> None:
        self._limit = upstream.user_limit
        self._foreign = foreign  # the upstream is of another family than the client

    def forward(self, conversation: Conversation, notes: Notes, facts: Facts) -> tuple[Conversation, MakeBack | None]:
        if self._must_hash(conversation.user):
            notes.changed("user.hashed", "user", self._why(conversation.user))
            conversation = structs.replace(conversation, user=_hash(conversation.user))
        extra = conversation.extra
        other = extra.fields.get(_BESIDE) if extra is not None else None
        if extra is not None and isinstance(other, str) and self._must_hash(other):
            notes.changed("user.hashed", _BESIDE, self._why(other))
            fields = {**extra.fields, _BESIDE: _hash(other)}
            conversation = structs.replace(conversation, extra=structs.replace(extra, fields=fields))
        return conversation, None

    def _must_hash(self, user: str) -> bool:
        return self._is_long(user) or (self._foreign and _DEVICE.search(user) is not None)

    def _is_long(self, user: str) -> bool:
        return self._limit is not None and len(user) > self._limit

    def _why(self, user: str) -> str:
        if self._is_long(user):
            return f"the target takes {self._limit} characters, not {len(user)}; a hash of the user id is sent"
        return "the user id tells a device, which is not for this target; its hash is sent"


def _hash(user: str) -> str:
    """Sixty-four characters, the least limit that is known."""
    return hashlib.sha256(user.encode("utf-8", "surrogatepass")).hexdigest()
