"""Whatever valid conversation hypothesis invents, what Kiro is sent passes the strictest profile of its simulator.

Our own clear refusal (Unrepresentable) counts as a pass. `make laws-long` tries many more conversations.
"""

from __future__ import annotations

from typing import Any

from hypothesis import given, note
from hypothesis import strategies as st

import dragoman.dialects as registry
from dragoman.dialects.kiro import DIALECT, KiroBinding, KiroTargetBinding
from dragoman.errors import Unrepresentable
from dragoman.model.blocks import Text
from dragoman.model.conversation import Conversation, Message, ToolSpec
from dragoman.simulator.kiro.rules import refusals
from dragoman.translate import configured, plan
from tests import strategies

KIRO_MODELS = ("claude-sonnet-4-5", "claude-opus-4.7", "gpt-5.6-sol", "auto")
BINDINGS = (KiroBinding(), KiroTargetBinding())


@given(asked=strategies.conversations(), model=st.sampled_from(KIRO_MODELS), binding=st.sampled_from(BINDINGS))
def test_what_is_sent_passes_the_paranoid_simulator(asked: Conversation, model: str, binding: KiroBinding) -> None:
    for client in ("anthropic", "openai"):
        for pairing in ("placeholders", "merge"):
            note(f"{client}, {pairing}")
            upstream = configured(DIALECT, {"pairing": pairing})
            try:
                made = plan(registry.get(client), upstream, asked, model=model)
            except Unrepresentable:
                continue
            assert [str(refusal) for refusal in refusals(binding.wrap(made.call()), "paranoid")] == []
            assert upstream.codec.breaches(made.call()) == []


# Schemas as wild as tools have them: keywords with right and wrong values, properties that are named like keywords.
_WORDS = [
    "type",
    "properties",
    "required",
    "items",
    "anyOf",
    "oneOf",
    "allOf",
    "$ref",
    "$defs",
    "const",
    "enum",
    "default",
]
_WORDS += ["format", "pattern", "additionalProperties", "$schema", "minimum", "if", "not", "description", "x-own"]
_LEAVES: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, 3, "object", "string", [], {}, ["a"], ["string", "null"], "#/$defs/a", "#", "elsewhere.json", [1, "a"]]
)
schemas: st.SearchStrategy[Any] = st.recursive(
    _LEAVES,
    lambda inner: st.one_of(
        st.dictionaries(st.sampled_from(_WORDS), inner, max_size=5),
        st.dictionaries(st.sampled_from(["a", "b", "format", "required"]), inner, max_size=3),
        st.fixed_dictionaries(
            {"properties": st.dictionaries(st.sampled_from(["a", "items"]), inner)}, optional={"required": inner}
        ),
        st.fixed_dictionaries(
            {"$defs": st.dictionaries(st.sampled_from(["a", "b"]), inner), "$ref": st.just("#/$defs/a")}
        ),
        st.lists(inner, max_size=3),
    ),
    max_leaves=12,
)


@given(schema=schemas.filter(lambda value: isinstance(value, dict)))
def test_every_schema_becomes_one_the_service_takes(schema: dict[str, Any]) -> None:
    tool = ToolSpec("f", "d", schema)
    asked = Conversation("claude-sonnet-4.5", (Message("user", (Text("a"),)),), tools=(tool,))
    made = plan(DIALECT, DIALECT, asked)
    assert [str(refusal) for refusal in refusals(BINDINGS[0].wrap(made.call()), "paranoid")] == []
    assert plan(DIALECT, DIALECT, made.sent).sent == made.sent
