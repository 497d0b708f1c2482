"""Documents from a grammar: well-formed ones with what they mean, and broken ones made of them."""

from __future__ import annotations

import json
import random

from tests.unit.raw_tools.samples import AB, CB, CE, SB, SE, TOOLS, end

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


def tag_call(rng: random.Random) -> str:
    """A call in one of the other formats."""
    name, value = rng.choice([*NAMES, "unheard_of"]), "".join(rng.choices(_WORDS, k=2))
    match rng.randrange(8):
        case 0:
            keys = [f'"name": "{name}"', f'"arguments": {arguments(rng)}']
            return f"<tool_call>{blank(rng)}{{{', '.join(rng.sample(keys, 2))}}}{blank(rng)}</tool_call>"
        case 1:
            inner = f"<parameter=command>\n{value}\n{end('parameter')}\n"
            return f"<tool_call>\n<function={name}>\n{inner}{end('function')}\n</tool_call>"
        case 2:
            return f"<tool_call>{name}\n<arg_key>command</arg_key>\n<arg_value>{value}</arg_value>\n</tool_call>"
        case 3:
            return f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{arguments(rng)}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
        case 4:
            inner = f"function<｜tool▁sep｜>{name}\n```json\n{arguments(rng)}\n```"
            return f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{inner}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
        case 5:
            tag = "｜DSML｜"
            inner = f'<{tag}parameter name="command" string="true">{value}{end(tag + "parameter")}'
            return f'<{tag}function_calls>\n<{tag}invoke name="{name}">{inner}{end(tag + "invoke")}\n{end(tag + "function_calls")}'
        case 6:
            inner = f'<parameter name="command">{value}{end("parameter")}'
            return f'<minimax:tool_call>\n<invoke name="{name}">\n{inner}\n{end("invoke")}\n{end("minimax:tool_call")}'
        case _:
            inner = f'<|open|>argument key="command" type="string"<|sep|>{value}<|close|>argument<|sep|>'
            return f'<|open|>tools<|sep|><|open|>call tool="{name}" index="0"<|sep|>{inner}<|close|>call<|sep|><|close|>tools<|sep|>'


def broken(rng: random.Random) -> str:
    """Anything: parts of documents left out, doubled, cut off and mixed."""
    parts = [
        rng.choice((kimi_document, tag_call, tag_call, prose, arguments, blank))(rng) for _ in range(rng.randint(1, 4))
    ]
    text = "\n".join(parts) if rng.random() < 0.7 else "".join(parts)
    for _ in range(rng.randint(0, 4)):
        at = rng.randint(0, len(text))
        to = min(len(text), at + rng.randint(0, 30))
        text = rng.choice(
            [text[:at] + text[to:], text[:to] + text[at:], text[:at], text[:at] + rng.choice(_WORDS) + text[at:]]
        )
    return text
