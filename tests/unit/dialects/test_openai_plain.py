"""A plain reply says what the codec reads, or is left to the codec."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dragoman.dialects.openai import DIALECT
from dragoman.dialects.openai.shapes import OpenaiPlain
from dragoman.errors import DragomanError
from dragoman.model.conversation import Conversation, Stop, Usage, Why
from tests.wrong import paths, value_at

ASKED = Conversation("m", ())
PLAIN: dict[str, Any] = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [
        {"index": 0, "message": {"role": "assistant", "content": "Hi", "refusal": None}, "finish_reason": "stop"}
    ],
    "usage": {
        "prompt_tokens": 9,
        "completion_tokens": 3,
        "total_tokens": 12,
        "prompt_tokens_details": {"cached_tokens": 4, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 1},
    },
}
_ODD = st.sampled_from(
    [None, 0, -1, 7, 2**70, 1.5, "", "x", "length", "error", "tool_calls", "content_filter", True, [], [None], {},
     {"cached_tokens": 5}, {"audio_tokens": 2}, {"message": "no"}, [{"index": 1}], "\ud800"],
)  # fmt: skip
_MORE = st.sampled_from(
    ["error", "refusal", "tool_calls", "stop_reason", "matched_stop", "reasoning_content", "cached_tokens", "n"]
)


@st.composite
def _bent(draw: st.DrawFn) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(json.dumps(PLAIN))
    for _ in range(draw(st.integers(0, 3))):
        places = list(paths(body))
        if not places:
            break
        *outer, key = draw(st.sampled_from(places))
        holder = value_at(body, tuple(outer))
        how = draw(st.integers(0, 2))
        if how == 0:
            del holder[key]
        elif how == 2 and isinstance(holder, dict):
            holder[draw(_MORE)] = deepcopy(draw(_ODD))
        else:
            holder[key] = deepcopy(draw(_ODD))
    return body


def test_a_plain_reply_is_read() -> None:
    seen = OpenaiPlain().reply(json.dumps(PLAIN).encode())
    assert seen is not None
    assert (seen.usage, seen.stop) == (Usage(5, 3, 4, reasoning=1), Stop(Why.END))


@given(_bent())
def test_a_plain_reply_says_what_the_codec_reads(body: dict[str, Any]) -> None:
    raw = json.dumps(body).encode()
    seen = OpenaiPlain().reply(raw)
    if seen is None:
        return
    try:
        read = DIALECT.codec.parse_reply(raw, ASKED)
    except DragomanError as error:
        raise AssertionError(f"plain, but the codec refuses it: {error}") from error
    assert (seen.usage, seen.stop) == (read.usage, read.choices[0].stop)


def test_a_broken_reply_is_left_to_the_codec() -> None:
    whole = json.dumps(PLAIN).encode()
    for broken in (b"", b"<html>", whole[:-1], whole.replace(b"Hi", b"\xff"), whole + b"x", b'{"error":{}}'):
        assert OpenaiPlain().reply(broken) is None
