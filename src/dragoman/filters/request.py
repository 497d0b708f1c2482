"""Filters of the request as a whole: references to server state, accepted shapes, the user id.

`RefuseServerState` runs first. An upstream of the same dialect gets such a request unchanged; a gateway that stores
replies resolves the references it knows before this filter runs.
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
    """Refuse a request that refers to data which only the client's service stores. Nothing is sent upstream.

    `takes` are the names of server state that the target accepts.
    """

    name = "refuse_server_state"
    applies_to: Features = frozenset({"server_state"})

    def __init__(self, takes: frozenset[str]) -> None:
        self._takes = takes

    def forward(
        self, conversation: Conversation, notes: Notes, facts: Facts
    ) -> tuple[Conversation, MakeResponseFilter | None]:
        """Return the conversation unchanged. Raises Unrepresentable."""
        for state in conversation.server_state:
            if state.name not in self._takes:
                raise server_state_error(state)
        return conversation, None


def server_state_error(state: ServerState) -> Unrepresentable:
    """Return the error for a request that refers to data which its target does not store."""
    message = f"{state.at}: {state.reason}"
    fault = Fault("invalid", message, 400, at=state.at, code=state.code, details=state.details)
    return Unrepresentable(message, fault=fault)


# --- NoteAcceptedShapes


_ACTIONS: dict[str, Action] = {action: action for action in get_args(Action)}


class NoteAcceptedShapes(Filter):
    """Write the notes of a request that its reader accepted in a shape of another dialect.

    Readers write no notes themselves. They leave a list of (rule, action, place, sentence) in the extra fields, which
    this filter turns into notes and removes.
    """

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
        remaining = structs.replace(extra, fields=fields, spelling=extra.spelling - {OTHER_SHAPES}) if fields else None
        return structs.replace(conversation, extra=remaining), None


# --- HashUser


# Claude Code: `{"device_id": …, "account_uuid": …, "session_id": …}`, earlier `user_<hash>_account_…_session_<uuid>`.
_DEVICE = re.compile(r"device_?id|\Auser_[0-9a-f]{16,}_", re.IGNORECASE)
_SECOND_USER_FIELD = "safety_identifier"  # an extra field that may hold a second user id


class HashUser(Filter):
    """Hash a user id that is too long for the target, or that would show a device id to another family.

    The hash depends on the id alone, so each user keeps one id.
    """

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
        second_id = extra.fields.get(_SECOND_USER_FIELD) if extra is not None else None
        if extra is not None and isinstance(second_id, str) and self._must_hash(second_id):
            notes.changed("user.hashed", _SECOND_USER_FIELD, self._why(second_id))
            fields = {**extra.fields, _SECOND_USER_FIELD: _hash(second_id)}
            conversation = structs.replace(conversation, extra=structs.replace(extra, fields=fields))
        return conversation, None

    def _must_hash(self, user: str) -> bool:
        return self._is_long(user) or (self._foreign and _DEVICE.search(user) is not None)

    def _is_long(self, user: str) -> bool:
        return self._limit is not None and len(user) > self._limit

    def _why(self, user: str) -> str:
        if self._is_long(user):
            return f"the user id has {len(user)} characters; the target accepts {self._limit}. Its hash is sent instead"
        return "the user id contains a device id; its hash is sent instead"


def _hash(user: str) -> str:
    """Return a hash of 64 characters, the smallest known limit of a user id."""
    return hashlib.sha256(user.encode("utf-8", "surrogatepass")).hexdigest()
