"""Read the exchanges of the corpus, and summarise a reply so that it can be compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from msgspec import Struct, structs

from dragoman.dialects import get
from dragoman.dialects.base import ApiRequest, Dialect, Environment
from dragoman.model.blocks import Reasoning, Text, ToolCall
from dragoman.model.conversation import Conversation, Reply
from dragoman.translate import TranslationSettings

FOLDER = Path(__file__).parent
ENVIRONMENT = Environment(new_id=lambda prefix: f"{prefix}1", now=lambda: 1_780_000_000)
CLIENTS = ("anthropic", "openai", "responses", "bedrock", "gemini", "kiro")
UPSTREAM = get("openai")


class Exchange(Struct, frozen=True):
    """One question to a service and its response: a stream, a whole reply, or a refusal with its HTTP status."""

    vendor: str
    name: str
    request: dict[str, Any]
    expected: dict[str, Any]
    stream: bytes | None
    reply: bytes | None
    refusal: dict[str, Any] | None

    @property
    def settings(self) -> TranslationSettings:
        return TranslationSettings(**self.expected.get("settings", {"raw_tools": "off"}))

    def conversation(self, client: str = "openai") -> Conversation:
        """The question as a client of this dialect has it: fields of Chat's own stay with Chat's clients."""
        body = {name: value for name, value in self.request.items() if name not in ("model", "stream")}
        conversation = UPSTREAM.codec.parse_request(
            ApiRequest("generate", self.request["model"], self.request["stream"], body)
        )
        return conversation if client == "openai" else structs.replace(conversation, extra=None)


def exchanges() -> list[Exchange]:
    return [_read(path) for path in sorted(FOLDER.glob("*/*.expected.json"))]


def _read(path: Path) -> Exchange:
    stem = path.name.removesuffix(".expected.json")
    files = {kind: path.with_name(f"{stem}.{kind}") for kind in ("request.json", "stream.txt", "reply.json")}
    refusal = path.with_name(f"{stem}.refusal.json")
    return Exchange(
        path.parent.name,
        stem,
        json.loads(files["request.json"].read_text()),
        json.loads(path.read_text()),
        files["stream.txt"].read_bytes() if files["stream.txt"].exists() else None,
        files["reply.json"].read_bytes() if files["reply.json"].exists() else None,
        json.loads(refusal.read_text()) if refusal.exists() else None,
    )


def outcome(reply: Reply) -> dict[str, Any]:
    """What a reply comes to, in the words of the expected files."""
    blocks = reply.choices[0].blocks
    usage = reply.usage
    texts = [block for block in blocks if isinstance(block, Text)]
    result: dict[str, Any] = {
        "text": "".join(block.text for block in texts),
        "reasoning": "".join(block.text for block in blocks if isinstance(block, Reasoning)),
        "calls": [(call.id, call.name, json.loads(call.arguments)) for call in blocks if isinstance(call, ToolCall)],
        "stop": reply.choices[0].stop.reason.value,
        "sources": [cited.source.url for text in texts for cited in text.citations if cited.source is not None],
    }
    if usage is not None:
        counts = (usage.input, usage.output, usage.cache_read, usage.cache_write, usage.reasoning)
        result["usage"] = dict(zip(("input", "output", "cache_read", "cache_write", "reasoning"), counts, strict=True))
    return result


def expected_outcome(expected: dict[str, Any]) -> dict[str, Any]:
    """The same of an expected file."""
    calls = [(call["id"], call["name"], json.loads(call["arguments"])) for call in expected["calls"]]
    result = {"text": expected["text"], "reasoning": expected.get("reasoning", ""), "calls": calls}
    result |= {"stop": expected["stop"], "sources": expected.get("sources", [])}
    return result | ({"usage": expected["usage"]} if "usage" in expected else {})


def dialect_of(client: str) -> Dialect:
    return get(client)
