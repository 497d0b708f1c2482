"""What every Python loop shares: whom to ask, the question, and the tool, which leaves a trace that it ran."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

URL = os.environ["LOOP_URL"]
KEY = os.environ["LOOP_KEY"]
MODEL = os.environ["LOOP_MODEL"]
PROMPT = os.environ["LOOP_PROMPT"]
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"source": {"type": "string"}, "target": {"type": "string"}},
    "required": ["source", "target"],
}


def copy(source: str, target: str) -> str:
    """Copy the text of one file to the end of another, and give it back."""
    text = Path(source).read_text()
    with Path(target).open("a") as file:
        file.write(text)
    return text
