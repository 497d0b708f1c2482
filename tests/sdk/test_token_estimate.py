"""The estimate of tokens is within 15 per cent of a real tokenizer: o200k_base, by js-tiktoken."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from dragoman.gateway.token_estimate import estimate_text, estimate_tokens
from dragoman.model.blocks import Text
from dragoman.model.conversation import Conversation, Message, ToolSpec
from dragoman.wire import jsonio
from dragoman.wire.jsonio import Json

ROOT, NODE = Path(__file__).parents[2], Path(__file__).parent / "node"
MOST = 0.15
CHINESE = "人工智能是计算机科学的一个分支，它研究如何让机器完成需要智能的工作。请检查这个文件，然后告诉我哪里有错误。"
JAPANESE = "吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。このファイルを確認して、エラーの場所を教えてください。"
KOREAN = "인공지능은 컴퓨터 과학의 한 분야로서 인간의 학습능력을 구현하려는 기술이다. 이 파일을 확인하고 오류가 어디에 있는지 알려주세요."
SCHEMA: dict[str, Json] = {
    "type": "object",
    "properties": {
        "file_path": {"type": "string", "description": "The absolute path to the file to modify"},
        "old_string": {"type": "string", "description": "The text to replace"},
        "replace_all": {"type": "boolean", "default": False, "description": "Replace all occurrences (default false)"},
        "limit": {"type": "integer", "exclusiveMinimum": 0, "maximum": 2000},
    },
    "required": ["file_path", "old_string"],
    "additionalProperties": False,
}


def texts() -> dict[str, str]:
    schemas = [
        {"name": f"tool_{at}", "description": "Performs exact replacements.", "input_schema": SCHEMA} for at in range(9)
    ]
    return {
        **{f"prose {name}": (ROOT / name).read_text() for name in ("README.md", "ARCHITECTURE.md", "docs/glossary.md")},
        **{
            f"code {name}": (ROOT / "src/dragoman" / name).read_text()
            for name in ("translate.py", "wire/sse.py", "http/server/connection.py", "filters/foreign.py")
        },
        "code javascript": (NODE / "loop.mjs").read_text(),
        "JSON, indented": json.dumps(SCHEMA, indent=2) * 4,
        "JSON of a story": next((ROOT / "tests/stories").rglob("anthropic.request.json")).read_text(),
        "tool schemas": json.dumps(schemas, separators=(",", ":")),
        "Chinese": CHINESE * 6,
        "Japanese": JAPANESE * 6,
        "Korean": KOREAN * 6,
        "a long text": (ROOT / "docs/rules.md").read_text() * 3,
    }


def tokens(of: list[str]) -> list[int]:
    done = subprocess.run(
        ["node", "tokens.mjs"], cwd=NODE, input=json.dumps(of).encode(), capture_output=True, check=True
    )
    counted: list[int] = json.loads(done.stdout)
    return counted


def test_the_estimate_is_near_the_tokenizer() -> None:
    samples = texts()
    wrong = {
        name: f"{estimate_text(text)} for {count}"
        for (name, text), count in zip(samples.items(), tokens([*samples.values()]), strict=True)
        if abs(estimate_text(text) - count) > MOST * count
    }
    assert wrong == {}


def test_a_conversation_with_tools_is_near_it_too() -> None:
    prose = (ROOT / "README.md").read_text()
    tools = tuple(ToolSpec(f"tool_{at}", "Performs exact replacements.", SCHEMA) for at in range(9))
    conversation = Conversation(
        "m", (Message("user", (Text(prose),)),), system=(Text("You are a helper."),), tools=tools
    )
    sent = jsonio.encode_to_text(
        [{"name": tool.name, "description": tool.description, "input_schema": SCHEMA} for tool in tools]
    )
    (count,) = tokens([prose + "You are a helper." + sent])
    assert abs(estimate_tokens(conversation) - count) <= MOST * count
