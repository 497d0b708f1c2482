"""refuse_server_state: a request that names what only the client's service holds is refused before anything is sent.

It runs first. A service of the same dialect takes it as it is; a gateway that keeps answers of its own resolves what it
knows before this runs.
"""

from __future__ import annotations

import hashlib
import re
from typing import get_args

from msgspec import structs

from dragoman.errors import Fault, Unrepresentable
from dragoman.model.capabilities import Capabilities
from dragoman.model.conversation import OTHER_SHAPES, Conversation, ServerState
from dragoman.model.filter import Action, Facts, Features, Filter, MakeResponseFilter, Notes


class RefuseServerState(Filter):
    name = "refuse_server_state"
    applies_to: Features = frozenset({"held"})

    def __init__(self, takes: frozenset[str]) -> None:
        self._takes = takes

    def forward(
        self, conversation: Conversation, notes: Notes, facts: Facts
    ) -> tuple[Conversation, MakeResponseFilter | None]:
        """Raises Unrepresentable."""
        for held in conversation.server_state:
            if held.name not in self._takes:
                raise server_state_error(held)
        return conversation, None


def server_state_error(held: ServerState) -> Unrepresentable:
    """The error for a request whose target does not hold what the request names."""
    message = f"{held.at}: {held.reason}"
    fault = Fault("invalid", message, 400, at=held.at, code=held.code, details=held.details)
    return Unrepresentable(message, fault=fault)


# --- TellShapes: notes for a request that its reader accepted in another shape than its dialect's own


_ACTIONS: dict[str, Action] = {action: action for action in get_args(Action)}


class NoteAcceptedShapes(Filter):
    """Readers write no notes: they leave a list of rule, action, place and sentence, which ends here."""

    name = "note_accepted_shapes"
    applies_to: Features = frozenset({"shapes"})

    def forward(
        self, conversation: Conversation, notes: Notes, facts: Facts
    ) -> tuple[Conversation, MakeResponseFilter | None]:
        extra = conversation.extra
        shapes = extra.fields.get(OTHER_SHAPES) if extra is not None else None
        if extra is None or not isinstance(shapes, list):
            return conversation, None
        for shape in shapes:
            match shape:
                case [str(rule), str(action), str(at), str(detail)] if action in _ACTIONS:
                    notes.add(rule, _ACTIONS[action], at, detail)
        fields = {name: value for name, value in extra.fields.items() if name != OTHER_SHAPES}
        kept = structs.replace(extra, fields=fields, spelling=extra.spelling - {OTHER_SHAPES}) if fields else None
        return structs.replace(conversation, extra=kept), None


# --- HashUser: a user id that is too long for the target, or tells a device to another family, is sent as its hash


# Claude Code: `{"device_id": …, "account_uuid": …, "session_id": …}`, earlier `user_<hash>_account_…_session_<uuid>`.
_DEVICE = re.compile(r"device_?id|\Auser_[0-9a-f]{16,}_", re.IGNORECASE)
_BESIDE = "safety_identifier"  # a second slot, which may stand beside the user id


class HashUser(Filter):
    """The hash depends on the id alone, so that one user stays one user."""

    name = "hash_user"
    applies_to: Features = frozenset({"user", "extras"})

    def __init__(self, upstream: Capabilities, *, foreign: bool) -> None:
        self._limit = upstream.user_limit
        self._foreign = foreign  # the upstream is of another family than the client

    def forward(
        self, conversation: Conversation, notes: Notes, facts: Facts
    ) -> tuple[Conversation, MakeResponseFilter | None]:
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
