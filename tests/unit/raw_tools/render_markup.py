"""Write tool calls as a model writes them: the formats that write each parameter between tags of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

from dragoman.wire.jsonio import Json
from tests.unit.raw_tools.render_json import CallToWrite, as_json
from tests.unit.raw_tools.samples import end

_DSML = "｜DSML｜"


def as_text(value: Json) -> str:
    """A string is written as it is, everything else as JSON."""
    return value if isinstance(value, str) else as_json(value)


def _own_lines(text: str) -> str:
    """A value that begins with a line end is written on lines of its own; the readers cut those line ends."""
    return f"\n{text}\n" if text.startswith(("\n", "\r")) else text


# --- tags with attributes: the relatives of <invoke>


def _invokes(
    calls: Sequence[CallToWrite], invoke: str, parameter: str, write: Callable[[str], str] | None = None
) -> str:
    """`write`: how a value is written, where its first line end would belong to the markup."""
    as_written = write or _own_lines
    return "\n".join(
        f'<{invoke} name="{call.name}">\n'
        + "".join(
            f'<{parameter} name="{key}">{as_written(as_text(value))}{end(parameter)}\n'
            for key, value in call.arguments.items()
        )
        + end(invoke)
        for call in calls
    )


def _inside(tag: str, text: str) -> str:
    return f"<{tag}>\n{text}\n{end(tag)}"


def render_invoke(calls: Sequence[CallToWrite], section: str = "minimax:tool_call") -> str:
    return _inside(section, _invokes(calls, "invoke", "parameter"))


def render_invoke_prefixed(calls: Sequence[CallToWrite]) -> str:
    return _inside("antml:function_calls", _invokes(calls, "antml:invoke", "antml:parameter"))


def render_dots(calls: Sequence[CallToWrite]) -> str:
    return _inside("dots_function_call", _invokes(calls, "invoke", "parameter"))


def render_minicpm5(calls: Sequence[CallToWrite]) -> str:
    return _invokes(calls, "function", "param", str)


def render_step3(calls: Sequence[CallToWrite]) -> str:
    inner = "".join(
        f"<｜tool_call_begin｜>function<｜tool_sep｜>{_invokes([call], 'steptml:invoke', 'steptml:parameter', str)}<｜tool_call_end｜>"
        for call in calls
    )
    return f"<｜tool_calls_begin｜>{inner}<｜tool_calls_end｜>"


def render_dsml(calls: Sequence[CallToWrite], section: str = "function_calls") -> str:
    def parameter(key: str, value: Json) -> str:
        word = "true" if isinstance(value, str) else "false"
        return f'<{_DSML}parameter name="{key}" string="{word}">{as_text(value)}{end(_DSML + "parameter")}\n'

    inner = "\n".join(
        f'<{_DSML}invoke name="{call.name}">\n'
        + "".join(parameter(*each) for each in call.arguments.items())
        + end(_DSML + "invoke")
        for call in calls
    )
    return _inside(_DSML + section, inner)


# --- Qwen3-Coder


def render_qwen_coder(
    calls: Sequence[CallToWrite], section: str = "tool_call", words: Callable[[Json], str] = as_json
) -> str:
    """`words`: how booleans and null are written."""

    def written(value: Json) -> str:
        return words(value) if value is None or isinstance(value, bool) else as_text(value)

    return "\n".join(
        f"<{section}>\n<function={call.name}>\n"
        + "".join(f"<parameter={key}>\n{written(value)}\n</parameter>\n" for key, value in call.arguments.items())
        + f"</function>\n{end(section)}"
        for call in calls
    )


# --- GLM and its relative


def _pairs(call: CallToWrite, line: str = "\n", prefix: str = "") -> str:
    return "".join(
        f"<{prefix}arg_key>{key}</{prefix}arg_key>{line}<{prefix}arg_value>{as_text(value)}</{prefix}arg_value>{line}"
        for key, value in call.arguments.items()
    )


def render_glm(calls: Sequence[CallToWrite], line: str = "\n") -> str:
    """GLM 4.5 and 4.6 write a line for each tag, GLM 4.7 and later write none."""
    return line.join(f"<tool_call>{call.name}{line}{_pairs(call, line)}</tool_call>" for call in calls)


def render_hy_v3(calls: Sequence[CallToWrite]) -> str:
    return _inside(
        "tool_calls", "\n".join(f"<tool_call>{call.name}<tool_sep>\n{_pairs(call)}</tool_call>" for call in calls)
    )


def render_longcat_tags(calls: Sequence[CallToWrite]) -> str:
    pairs = [(call.name, _pairs(call, prefix="longcat_")) for call in calls]
    return "\n".join(f"<longcat_tool_call>{name}\n{inner}</longcat_tool_call>" for name, inner in pairs)


# --- Kimi K3


def _kind(value: Json) -> str:
    match value:
        case str():
            return "string"
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case dict():
            return "object"
        case list():
            return "array"
        case _:
            return "null"


def render_kimi_k3(calls: Sequence[CallToWrite]) -> str:
    inner = "".join(
        f'<|open|>call tool="{escape(call.name)}" index="{number}"<|sep|>'
        + "".join(
            f'<|open|>argument key="{escape(key)}" type="{_kind(value)}"<|sep|>{as_text(value)}<|close|>argument<|sep|>'
            for key, value in call.arguments.items()
        )
        + "<|close|>call<|sep|>"
        for number, call in enumerate(calls, 1)
    )
    return f"<|open|>tools<|sep|>{inner}<|close|>tools<|sep|>"


# --- MiniMax M3

_M3 = "]<]minimax[>["


def _elements(tag: str, value: Json) -> str:
    match value:
        case dict():
            inner = "".join(_elements(key, each) for key, each in value.items())
        case list():
            inner = "".join(_elements("item", each) for each in value)
        case _:
            inner = as_text(value)
    return f"{_M3}<{tag}>{inner}{_M3}{end(tag)}"


def render_minimax_m3(calls: Sequence[CallToWrite]) -> str:
    inner = "".join(
        f'{_M3}<invoke name="{call.name}">'
        + "".join(_elements(key, value) for key, value in call.arguments.items())
        + f"{_M3}{end('invoke')}\n"
        for call in calls
    )
    return f"{_M3}<tool_call>\n{inner}{_M3}{end('tool_call')}"
