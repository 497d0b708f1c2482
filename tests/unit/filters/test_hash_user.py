"""L8: user ids fit every target that takes one, and tell no device to another family."""

from __future__ import annotations

import json
from typing import Any

import pytest

import dragoman
from dragoman.model.filter import Note

DEVICE = "d" * 64
CLAUDE_CODE = json.dumps(
    {"device_id": DEVICE, "account_uuid": "", "session_id": "7b0e6f0c-54a5-4d0e-9d4e-0d7a5f0c1b2a"}
)
OLDER = f"user_{'ab' * 32}_account__session_7b0e6f0c-54a5-4d0e-9d4e-0d7a5f0c1b2a"
SLOTS = {"openai": ("user",), "responses": ("user",), "anthropic": ("metadata", "user_id")}
SLOTS["bedrock"] = ("requestMetadata", "user_id")
ASKING: dict[str, dict[str, Any]] = {
    "anthropic": {"max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]},
    "openai": {"messages": [{"role": "user", "content": "hi"}]},
    "responses": {"input": "hi"},
    "bedrock": {"messages": [{"role": "user", "content": [{"text": "hi"}]}]},
}
LIMITS = {"openai": 64, "responses": 64, "anthropic": 256, "bedrock": 256}


def asking(source: str, user: str) -> dict[str, Any]:
    name, *inner = SLOTS[source]
    return {**ASKING[source], name: {inner[0]: user} if inner else user}


def sent(body: dict[str, Any], source: str, target: str, **options: Any) -> tuple[str, list[Note]]:
    """The user id that the target gets, and the notes about it."""
    told = dragoman.translate_request(body, source=source, target=target, model="claude-x", **options)
    value: Any = told.body
    for name in SLOTS[target]:
        value = value[name]
    assert isinstance(value, str)
    return value, [note for note in told.notes if "user" in note.rule]


@pytest.mark.parametrize("target", SLOTS)
@pytest.mark.parametrize("source", SLOTS)
@pytest.mark.parametrize("length", [65, 150, 256, 257, 1000])
def test_l8_a_user_id_fits_its_target(source: str, target: str, length: int) -> None:
    user = "u" * length
    value, notes = sent(asking(source, user), source, target)
    assert len(value) <= LIMITS[target]
    if length <= LIMITS[target]:
        assert (value, notes) == (user, [])
    else:
        assert [(note.rule, note.action, note.at) for note in notes] == [("user.hashed", "changed", "user")]
        assert user not in str(notes[0])


@pytest.mark.parametrize("target", SLOTS)
@pytest.mark.parametrize("user", [CLAUDE_CODE, OLDER], ids=["json", "older"])
def test_l8_no_device_is_told_to_another_family(target: str, user: str) -> None:
    value, notes = sent(asking("anthropic", user), "anthropic", target)
    if target == "anthropic":
        assert (value, notes) == (user, [])
        return
    assert DEVICE not in value and "ab" * 32 not in value and len(value) <= 64
    assert [(note.rule, note.action) for note in notes] == [("user.hashed", "changed")]
    assert DEVICE not in str(notes)


def test_l8_the_hash_is_stable_and_tells_users_apart() -> None:
    first, _ = sent(asking("anthropic", CLAUDE_CODE), "anthropic", "openai")
    again, _ = sent(asking("anthropic", CLAUDE_CODE), "anthropic", "responses")
    other, _ = sent(asking("anthropic", CLAUDE_CODE.replace("d", "e")), "anthropic", "openai")
    assert first == again != other


@pytest.mark.parametrize("target", ["openai", "responses"])
@pytest.mark.parametrize("source", ["openai", "responses"])
def test_l8_both_slots_of_openai_fit(source: str, target: str) -> None:
    body = {**ASKING[source], "user": "u" * 100, "safety_identifier": "s" * 100, "model": "m"}
    told = dragoman.translate_request(body, source=source, target=target)
    assert len(told.body["user"]) == len(told.body["safety_identifier"]) == 64
    assert sorted(note.at for note in told.notes if note.rule == "user.hashed") == ["safety_identifier", "user"]
    alone = {**ASKING[source], "safety_identifier": "s" * 100, "model": "m"}
    told = dragoman.translate_request(alone, source=source, target=source)
    assert len(told.body["safety_identifier"]) == 64


def test_l8_the_limit_is_a_setting_of_the_upstream() -> None:
    value, notes = sent(asking("openai", "u" * 100), "openai", "openai", user_limit=128)
    assert (value, notes) == ("u" * 100, [])


def test_l8_a_target_without_user_ids_gets_none_and_no_hash() -> None:
    told = dragoman.translate_request(
        asking("anthropic", CLAUDE_CODE), source="anthropic", target="gemini", model="gemini-3-pro"
    )
    assert [(note.rule, note.action) for note in told.notes if "user" in note.rule] == [("user.dropped", "dropped")]
