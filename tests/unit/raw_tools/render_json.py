"""Write tool calls as a model writes them: the formats whose arguments are JSON, Python literals or Gemma's literals."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TypeAlias

from msgspec import Struct

from dragoman.model.conversation import ToolSpec
from dragoman.wire.jsonio import Json


class CallToWrite(Struct, frozen=True):
    """`schema` is the tool's schema; `id` and `index` matter only to the formats that write them."""

    name: str
    arguments: dict[str, Json]
    schema: dict[str, Json]
    id: str = ""
    index: int = 0

    @property
    def tool(self) -> ToolSpec:
        return ToolSpec(self.name, schema=self.schema)


Render: TypeAlias = Callable[[Sequence[CallToWrite]], str]


def as_json(value: object) -> str:
    """JSON as models write it: blanks after separators, no escapes that are not needed."""
    return json.dumps(value, ensure_ascii=False)


def _wrapped(call: CallToWrite, arguments: str = "arguments", **more: object) -> str:
    return as_json({"name": call.name, arguments: call.arguments, **more})


def _array(calls: Sequence[CallToWrite]) -> str:
    return f"[{', '.join(map(_wrapped, calls))}]"


# --- Kimi K2


def render_kimi_k2(calls: Sequence[CallToWrite]) -> str:
    inner = "".join(
        f"<|tool_call_begin|>functions.{call.name}:{number}<|tool_call_argument_begin|>{as_json(call.arguments)}<|tool_call_end|>"
        for number, call in enumerate(calls)
    )
    return f"<|tool_calls_section_begin|>{inner}<|tool_calls_section_end|>"


def render_kimi_k2_blanks(calls: Sequence[CallToWrite]) -> str:
    """With a blank around every marker and the singular section markers."""
    inner = " ".join(
        f"<|tool_call_begin|> functions.{call.name}:{number} <|tool_call_argument_begin|> {as_json(call.arguments)} <|tool_call_end|>"
        for number, call in enumerate(calls)
    )
    return f"<|tool_call_section_begin|> {inner} <|tool_call_section_end|>"


# --- DeepSeek V3 and V3.1


def _deepseek(calls: Sequence[CallToWrite], write: Callable[[CallToWrite], str], between: str) -> str:
    inner = between.join(f"<｜tool▁call▁begin｜>{write(call)}<｜tool▁call▁end｜>" for call in calls)
    return f"<｜tool▁calls▁begin｜>{inner}<｜tool▁calls▁end｜>"


def render_deepseek_v3(calls: Sequence[CallToWrite]) -> str:
    def write(call: CallToWrite) -> str:
        return f"function<｜tool▁sep｜>{call.name}\n```json\n{as_json(call.arguments)}\n```"

    return _deepseek(calls, write, "\n")


def render_deepseek_v31(calls: Sequence[CallToWrite]) -> str:
    return _deepseek(calls, lambda call: f"{call.name}<｜tool▁sep｜>{as_json(call.arguments)}", "")


# --- one JSON object for each call, between tags


def tagged(tag: str) -> Render:
    """Write each call as an object between tags of this name."""
    return lambda calls: "\n".join(f"<{tag}>\n{_wrapped(call)}\n</{tag}>" for call in calls)


# --- arrays of JSON objects


def array_between(begin: str, finish: str = "") -> Render:
    """Write an array of objects between these markers."""
    return lambda calls: f"{begin}{_array(calls)}{finish}"


def render_cohere(calls: Sequence[CallToWrite]) -> str:
    written = [
        as_json({"tool_call_id": str(number), "tool_name": call.name, "parameters": call.arguments})
        for number, call in enumerate(calls)
    ]
    return "<|START_ACTION|>[\n    " + ",\n    ".join(written) + "\n]<|END_ACTION|>"


def render_apertus(calls: Sequence[CallToWrite]) -> str:
    written = ", ".join(as_json({call.name: call.arguments}) for call in calls)
    return f"<|tools_prefix|>[{written}]<|tools_suffix|>"


# --- Mistral


def render_mistral_array(calls: Sequence[CallToWrite]) -> str:
    written = ", ".join(_wrapped(call, id=call.id or f"c{number:08d}") for number, call in enumerate(calls))
    return f"[TOOL_CALLS] [{written}]"


def render_mistral_object(calls: Sequence[CallToWrite]) -> str:
    return "".join(f"[TOOL_CALLS]{_wrapped(call)}" for call in calls)


def render_mistral_v11(calls: Sequence[CallToWrite]) -> str:
    return "".join(f"[TOOL_CALLS]{call.name}{as_json(call.arguments)}" for call in calls)


def render_mistral(calls: Sequence[CallToWrite]) -> str:
    """The newest form; a call that has an id is written with it."""
    return "".join(
        f"[TOOL_CALLS]{call.name}{f'[CALL_ID]{call.id}' if call.id else ''}[ARGS]{as_json(call.arguments)}"
        for call in calls
    )


# --- gpt-oss


def render_harmony(calls: Sequence[CallToWrite]) -> str:
    return "<|start|>assistant".join(
        f"<|channel|>commentary to=functions.{call.name} <|constrain|>json<|message|>{as_json(call.arguments)}<|call|>"
        for call in calls
    )


def render_harmony_recipient_first(calls: Sequence[CallToWrite]) -> str:
    return "".join(
        f"<|start|>assistant to=functions.{call.name}<|channel|>commentary json<|message|>{as_json(call.arguments)}<|call|>"
        for call in calls
    )


# --- Llama


def render_llama3_json(calls: Sequence[CallToWrite]) -> str:
    return "<|python_tag|>" + "; ".join(_wrapped(call, "parameters") for call in calls)


def render_llama3_bare(calls: Sequence[CallToWrite]) -> str:
    return "; ".join(_wrapped(call, "parameters") for call in calls)


# --- Python calls


def _python(call: CallToWrite) -> str:
    return f"{call.name}({', '.join(f'{key}={value!r}' for key, value in call.arguments.items())})"


def python_between(begin: str, finish: str) -> Render:
    """Write a list of Python calls between these markers."""
    return lambda calls: f"{begin}[{', '.join(map(_python, calls))}]{finish}"


def render_olmo3(calls: Sequence[CallToWrite]) -> str:
    return "<function_calls>" + "\n".join(map(_python, calls)) + "</function_calls>"


# --- Gemma


def gemma(value: object, mark: str) -> str:
    """Write a value as Gemma does."""
    match value:
        case str():
            return f"{mark}{value}{mark}"
        case dict():
            return "{" + ",".join(f"{key}:{gemma(each, mark)}" for key, each in value.items()) + "}"
        case list():
            return "[" + ",".join(gemma(each, mark) for each in value) + "]"
        case _:
            return as_json(value)


def gemma_between(begin: str, finish: str, mark: str) -> Render:
    return lambda calls: "".join(f"{begin}call:{call.name}{gemma(call.arguments, mark)}{finish}" for call in calls)
