"""The response store counts no less than what a stored conversation takes."""

from __future__ import annotations

import gc
import tracemalloc
from typing import Any

import pytest

import dragoman.dialects as registry
from dragoman.gateway.memory import Memory
from dragoman.model.conversation import Conversation
from dragoman.wire import jsonio

SHAPES: dict[str, list[Any]] = {
    "long texts": [{"role": "user", "content": "hello there " * 200}] * 50,
    "many messages": [{"role": "user" if at % 2 else "assistant", "content": "a word"} for at in range(1000)],
    "calls": [
        each
        for at in range(300)
        for each in (
            {"type": "function_call", "call_id": f"c{at}", "name": "read", "arguments": '{"path": "/a"}'},
            {"type": "function_call_output", "call_id": f"c{at}", "output": "some text"},
        )
    ],
    "parts": [{"role": "user", "content": [{"type": "input_text", "text": "a"}] * 1000}],
    "wide text": [{"role": "user", "content": "字" * 20_000}],
    "nested": [{"role": "user", "content": [{"type": "odd", "x": [[[]]] * 100}] * 50}],
}


def read(data: bytes) -> Conversation:
    dialect = registry.get("responses")
    return dialect.codec.parse_request(dialect.binding.unwrap(jsonio.decode(data)))


@pytest.mark.parametrize("name", SHAPES)
def test_a_stored_conversation_counts_for_what_it_takes(name: str) -> None:
    data = jsonio.encode({"model": "m", "input": SHAPES[name]})
    read(data)  # what is made once is made
    memory = Memory()
    gc.collect()
    tracemalloc.start()
    try:
        memory.keep("me", "a", read(data))
        gc.collect()
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert taken < memory.size < 8 * taken + 4096
