"""Documents from a grammar: well-formed ones with what they mean, and broken ones made of them."""

from __future__ import annotations

import json
import random
import re

from dragoman.wire.jsonio import Json
from tests.unit.raw_tools.renderers import RENDER, CallToWrite
from tests.unit.raw_tools.samples import AB, CB, CE, SB, SE, TOOLS

NAMES = [spec.name for spec in TOOLS]
_WORDS = [
    "ls -la",
    "日本",
    "😀",
    "a < b",
    "<|",
    "<|tool_call",
    "\n",
    "\t",
    '"',
    "\\",
    "</think>",
    "```",
    "é",
    "x" * 40,
    CE,
    SB,
]
_PROSE = [
    "Hello. ",
    "I will look. ",
    "a < b and ",
    "<|tool_call|> ",
    "then\n\n",
    "`code` ",
    "日本語 ",
    "it's ",
    "<b>bold</b> ",
]
_PARAMETERS = {"bash": ["command"], "read_file": ["path"], "task": ["description", "prompt"]}
_MARKER = re.compile(r"<[^<>\n]{1,40}>|\[[A-Z_]{4,}\]|functools(?=\[)")  # tags and tokens of all formats
_BLANKS = ["", "", "", " ", "\n", "  \n"]


def arguments(rng: random.Random) -> str:
    value: dict[str, object] = {}
    for key in rng.sample(["command", "path", "description", "prompt", "n", "deep"], rng.randint(0, 4)):
        text = "".join(rng.choices(_WORDS, k=rng.randint(0, 4)))
        value[key] = rng.choice(
            [text, rng.randint(-9, 10**18), None, True, [1, [text], {}], {"k": text, "m": [-1.5e3]}]
        )
    return json.dumps(value, ensure_ascii=rng.random() < 0.5, indent=rng.choice([None, None, 2]))


def prose(rng: random.Random) -> str:
    return "".join(rng.choices(_PROSE, k=rng.randint(1, 3)))


def blank(rng: random.Random) -> str:
    return rng.choice(_BLANKS)


def kimi_section(rng: random.Random, first: int, count: int) -> str:
    calls = []
    for index in range(first, first + count):
        header = f"functions.{rng.choice(NAMES)}:{index}"
        between = [blank(rng) for _ in range(4)]
        calls.append(
            f"{CB}{between[0]}{header}{between[1]}{AB}{between[2]}{arguments(rng)}{between[3]}{CE}{blank(rng)}"
        )
    return f"{SB}{blank(rng)}{''.join(calls)}{SE}"


def kimi_document(rng: random.Random) -> str:
    """Well-formed: prose and sections in turn, every call with a number of its own."""
    pieces, number = [], 0
    for _ in range(rng.randint(0, 3)):
        if rng.random() < 0.7:
            pieces.append(prose(rng))
        count = rng.randint(1, 3)
        pieces.append(kimi_section(rng, number, count))
        number += count
    return "".join(pieces) + (prose(rng) if rng.random() < 0.6 else "")


# --- documents of any format


def some_call(rng: random.Random, number: int = 0) -> CallToWrite:
    """A call of a declared tool, now and then of another; its required arguments are there, nearly always."""
    spec = rng.choice(TOOLS)
    value: dict[str, Json] = {}
    for key in _PARAMETERS[spec.name]:
        if rng.random() < 0.95:
            value[key] = "".join(rng.choices(_WORDS, k=rng.randint(0, 4)))
    for key in rng.sample(["n", "deep", "list"], rng.randint(0, 2)):
        others: list[Json] = [rng.randint(-9, 10**18), None, True, [1, ["x"], {}], {"k": "<v>", "m": [-1.5e3]}]
        value[key] = rng.choice(others)
    name = spec.name if rng.random() < 0.9 else "unheard_of"
    return CallToWrite(name, value, dict(spec.schema) if isinstance(spec.schema, dict) else {}, index=number)


def section_of(table: str, rng: random.Random) -> str:
    """One to three calls in this format."""
    return RENDER[table]([some_call(rng, number) for number in range(rng.randint(1, 3))])


def mangled(text: str, rng: random.Random) -> str:
    """Parts left out, doubled, cut off, or with a word in them that does not belong there."""
    for _ in range(rng.randint(1, 4)):
        at = rng.randint(0, len(text))
        to = min(len(text), at + rng.randint(0, 30))
        text = rng.choice(
            [text[:at] + text[to:], text[:to] + text[at:], text[:at], text[:at] + rng.choice(_WORDS) + text[at:]]
        )
    return text


def without_a_marker(text: str, rng: random.Random) -> str:
    """One tag or token left out or doubled: what hosted services do to the output of a model."""
    markers = list(_MARKER.finditer(text))
    if not markers:
        return text
    found = rng.choice(markers)
    return text[: found.start()] + rng.choice(["", found[0] * 2]) + text[found.end() :]


def quoted(text: str, rng: random.Random) -> str:
    """As prose shows it, closed or not."""
    opening, closing = rng.choice(
        [
            ("```\n", "\n```\n"),
            ("~~~xml\n", "\n~~~\n"),
            ("`", "`"),
            ('"', '"'),
            ("> ", "\n\n"),
            ("    ", "\n\n"),
            ("- ", "\n"),
        ]
    )
    return f"{rng.choice(['', 'So:', 'So.'])}{rng.choice(['', ' ', chr(10)])}{opening}{text}{closing if rng.random() < 0.7 else ''}"


def document_of(table: str, rng: random.Random) -> str:
    """A document of this format: well-formed, broken, mixed with another format, quoted, or with think tags."""
    first = section_of(table, rng)
    kind = rng.randrange(8)
    if kind == 0:
        return f"{prose(rng)}{rng.choice(['', chr(10)])}{first}{blank(rng)}{prose(rng)}"
    if kind == 1:
        return mangled(f"{prose(rng)}\n{first}\n{prose(rng)}", rng)
    if kind == 2:
        return without_a_marker(f"{prose(rng)}\n{first}{blank(rng)}{prose(rng)}", rng)
    if kind == 3:
        other = section_of(rng.choice(list(RENDER)), rng)
        return mangled(blank(rng).join(rng.sample([first, other, prose(rng)], 3)), rng)
    if kind == 4:
        return quoted(first, rng) + rng.choice(["", prose(rng), section_of(table, rng)])
    if kind == 5:
        thought = rng.choice(["<think>", "◁think▷", ""]) + prose(rng)
        return thought + first + blank(rng) + rng.choice(["</think>", "◁/think▷", ""]) + prose(rng)
    if kind == 6:
        return "".join(rng.choices([m[0] for m in _MARKER.finditer(first)] + _PROSE + _WORDS, k=rng.randint(1, 9)))
    return first + blank(rng) + section_of(table, rng)


def broken(rng: random.Random) -> str:
    """Anything: parts of documents left out, doubled, cut off and mixed."""
    parts = [
        rng.choice((kimi_document, any_section, any_section, prose, arguments, blank))(rng)
        for _ in range(rng.randint(1, 4))
    ]
    text = "\n".join(parts) if rng.random() < 0.7 else "".join(parts)
    return mangled(text, rng) if rng.random() < 0.8 else text


def any_section(rng: random.Random) -> str:
    return section_of(rng.choice(list(RENDER)), rng)


# --- documents whose prose is known


def prose_and_calls(table: str, rng: random.Random) -> list[tuple[bool, str]]:
    """Paragraphs and, between them, calls of this format; the flag says which is a call."""
    pieces = [(False, paragraph(table, rng))]
    for number in range(rng.randint(1, 3)):
        call = CallToWrite("bash", {"command": rng.choice(["ls", "a < b", "日本", '"'])}, {}, index=number)
        pieces += [(True, RENDER[table]([call])), (False, paragraph(table, rng))]
    return pieces


def paragraph(table: str, rng: random.Random) -> str:
    """Text that is no call and leaves no quotation open, perhaps about this very format."""
    example = RENDER[table]([CallToWrite("bash", {"command": "ls"}, {})])
    markers = [found[0] for found in _MARKER.finditer(example)] or ["<tool_call>"]
    return rng.choice(
        [
            "Plain text, and nothing else.",
            f"An example:\n\n````\n{example}\n````\nThat was it.",
            f"~~~~~text\n{example}\n~~~~~\nSo it looks.",
            f"The marker `{rng.choice(markers)}` has a meaning.",
            "If a < b, then <b>bold</b> and <|.",
            "日本語のテキスト。",
            "| a | b |\n|---|---|\n| 1 | 2 |\n\nA table.",
            "```python\nx = [1, 2]\n```\nCode.",
        ]
    )
