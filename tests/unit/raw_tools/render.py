"""Write a call as the models of a format write it, after their chat templates.

One function a table: `render_<table>(name, arguments, schema)`. A format without a type word writes 5 and "5" alike.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from dragoman.wire.jsonio import Json

Arguments = Mapping[str, Json]
Render = Callable[[str, Arguments, Mapping[str, Json]], str]


def _end(tag: str) -> str:
    return f"</{tag}>"


def _json(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False)


def _plain(value: Json) -> str:
    return value if isinstance(value, str) else _json(value)


# --- markup


def render_dsml(name: str, arguments: Arguments, schema: Mapping[str, Json]) -> str:
    """DeepSeek V3.2: the tag says whether a value is a string or JSON."""
    mark = "｜DSML｜"
    inner = "".join(
        f'<{mark}parameter name="{key}" string="{str(isinstance(value, str)).lower()}">{_plain(value)}'
        f"{_end(mark + 'parameter')}\n"
        for key, value in arguments.items()
    )
    return (
        f'<{mark}function_calls>\n<{mark}invoke name="{name}">\n{inner}{_end(mark + "invoke")}\n'
        f"{_end(mark + 'function_calls')}"
    )


def render_kimi_k3(name: str, arguments: Arguments, schema: Mapping[str, Json]) -> str:
    """Kimi K3: the tag names the JSON type; attributes are escaped, values are not."""

    def word(value: Json) -> str:
        words = {bool: "boolean", int: "number", float: "number", str: "string", list: "array", dict: "object"}
        return words.get(type(value), "null")

    def attribute(text: str) -> str:
        return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")

    inner = "".join(
        f'<|open|>argument key="{attribute(key)}" type="{word(value)}"<|sep|>{_plain(value)}<|close|>argument<|sep|>'
        for key, value in arguments.items()
    )
    return (
        f'<|open|>tools<|sep|><|open|>call tool="{attribute(name)}" index="1"<|sep|>{inner}<|close|>call<|sep|>'
        "<|close|>tools<|sep|>"
    )


def render_qwen_coder(name: str, arguments: Arguments, schema: Mapping[str, Json]) -> str:
    """Qwen3-Coder: a line end on both sides of a value; what is neither string nor JSON is written as Python does."""

    def written(value: Json) -> str:
        return str(value) if value is None or isinstance(value, bool) else _plain(value)

    inner = "".join(f"<parameter={key}>\n{written(value)}\n{_end('parameter')}\n" for key, value in arguments.items())
    return f"<tool_call>\n<function={name}>\n{inner}{_end('function')}\n{_end('tool_call')}"


def render_glm(name: str, arguments: Arguments, schema: Mapping[str, Json]) -> str:
    """GLM 4.5: pairs of key and value."""
    inner = "".join(
        f"<arg_key>{key}{_end('arg_key')}\n<arg_value>{_plain(value)}{_end('arg_value')}\n"
        for key, value in arguments.items()
    )
    return f"<tool_call>{name}\n{inner}{_end('tool_call')}"


def render_invoke(name: str, arguments: Arguments, schema: Mapping[str, Json]) -> str:
    """MiniMax M2."""
    inner = "".join(f'<parameter name="{key}">{_plain(value)}{_end("parameter")}\n' for key, value in arguments.items())
    section = "minimax:tool_call"
    return f'<{section}>\n<invoke name="{name}">\n{inner}{_end("invoke")}\n{_end(section)}'


def render_minimax_m3(name: str, arguments: Arguments, schema: Mapping[str, Json]) -> str:
    """MiniMax M3: objects and arrays nest as elements."""
    mark = "]<]minimax[>["

    def element(tag: str, value: Json) -> str:
        if isinstance(value, dict):
            inner = "".join(element(key, each) for key, each in value.items())
        elif isinstance(value, list):
            inner = "".join(element("item", each) for each in value)
        else:
            inner = _plain(value)
        return f"{mark}<{tag}>{inner}{mark}{_end(tag)}"

    inner = "".join(element(key, value) for key, value in arguments.items())
    return f'{mark}<tool_call>\n{mark}<invoke name="{name}">{inner}{mark}{_end("invoke")}\n{mark}{_end("tool_call")}'


MARKUP: dict[str, Render] = {
    "dsml": render_dsml,
    "kimi_k3": render_kimi_k3,
    "qwen_coder": render_qwen_coder,
    "glm": render_glm,
    "invoke": render_invoke,
    "minimax_m3": render_minimax_m3,
}
