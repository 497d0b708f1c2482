"""Write tool calls as a model writes them: the formats whose arguments are JSON, Python literals or Gemma's literals."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TypeAlias

from tests.unit.raw_tools.to_write import CallToWrite

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


def render_hermes(calls: Sequence[CallToWrite]) -> str:
    return "\n".join(f"<tool_call>\n{_wrapped(call)}\n</tool_call>" for call in calls)


def render_longcat(calls: Sequence[CallToWrite]) -> str:
    return "\n".join(f"<longcat_tool_call>\n{_wrapped(call)}\n</longcat_tool_call>" for call in calls)


# --- arrays of JSON objects


def render_granite(calls: Sequence[CallToWrite]) -> str:
    return f"<|tool_call|>{_array(calls)}"


def render_lfm2_json(calls: Sequence[CallToWrite]) -> str:
    return f"<|tool_call_start|>{_array(calls)}<|tool_call_end|>"


def render_json_start(calls: Sequence[CallToWrite]) -> str:
    return _array(calls)


def render_granite_tag(calls: Sequence[CallToWrite]) -> str:
    return f"<tool_call>{_array(calls)}"


def render_phi4(calls: Sequence[CallToWrite]) -> str:
    return f"functools{_array(calls)}"


def render_jamba(calls: Sequence[CallToWrite]) -> str:
    return f"<tool_calls>{_array(calls)}</tool_calls>"


def render_nemotron_deci(calls: Sequence[CallToWrite]) -> str:
    return f"<TOOLCALL>{_array(calls)}</TOOLCALL>"


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


def _python_list(calls: Sequence[CallToWrite]) -> str:
    return f"[{', '.join(map(_python, calls))}]"


def render_llama4_pythonic(calls: Sequence[CallToWrite]) -> str:
    return f"<|python_start|>{_python_list(calls)}<|python_end|>"


def render_olmo3(calls: Sequence[CallToWrite]) -> str:
    return "<function_calls>" + "\n".join(map(_python, calls)) + "</function_calls>"


def render_lfm2(calls: Sequence[CallToWrite]) -> str:
    return f"<|tool_call_start|>{_python_list(calls)}<|tool_call_end|>"


def render_pythonic(calls: Sequence[CallToWrite]) -> str:
    return _python_list(calls)


# --- Gemma


def _gemma(value: object, mark: str) -> str:
    match value:
        case str():
            return f"{mark}{value}{mark}"
        case dict():
            return "{" + ",".join(f"{key}:{_gemma(each, mark)}" for key, each in value.items()) + "}"
        case list():
            return "[" + ",".join(_gemma(each, mark) for each in value) + "]"
        case _:
            return as_json(value)


_GEMMA_MARK = '<|"|>'


def render_gemma4(calls: Sequence[CallToWrite]) -> str:
    return "".join(f"<|tool_call>call:{call.name}{_gemma(call.arguments, _GEMMA_MARK)}<tool_call|>" for call in calls)


def render_functiongemma(calls: Sequence[CallToWrite]) -> str:
    return "".join(
        f"<start_function_call>call:{call.name}{_gemma(call.arguments, '<escape>')}<end_function_call>"
        for call in calls
    )
