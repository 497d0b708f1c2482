"""Outputs that deviate from the documented ones in ways that models are known for, by format."""

from __future__ import annotations

from functools import partial

from dragoman.model.conversation import ToolSpec
from dragoman.wire.jsonio import Json
from tests.unit.raw_tools.formats import reply
from tests.unit.raw_tools.formats_known import Sample

_PROPERTIES: dict[str, Json] = {
    "city": {"type": "string"},
    "days": {"type": "integer"},
    "ratio": {"type": "number"},
    "metric": {"type": "boolean"},
    "limit": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
    "area": {"$ref": "#/$defs/area"},
    "label": {"type": ["string", "null"]},
    "unit": {"enum": ["c", "f"]},
    "tags": {"type": "array", "items": {"type": "string"}},
}
TOOLS = (
    ToolSpec(
        "forecast",
        schema={
            "type": "object",
            "properties": _PROPERTIES,
            "$defs": {"area": {"type": "object", "properties": {"km": {"type": "integer"}}}},
        },
    ),
    ToolSpec("geo.lookup-all_2", schema={"type": "object", "properties": {"q": {"type": "string"}}}),
    ToolSpec("now", schema={"type": "object", "properties": {}}),
)
_OSLO = ("forecast", '{"city": "Oslo"}')
_NOW = ("now", "{}")
_CALL = '{"name": "forecast", "arguments": {"city": "Oslo"}}'
_CALL_NOW = '{"name": "now", "arguments": {}}'
_LLAMA = '{"name": "forecast", "parameters": {"city": "Oslo"}}'


_one = partial(reply, tools=TOOLS)


def _text(text: str, *, by_name: bool = False) -> Sample:
    return _one(text, content=text, by_name=by_name)


def _pythonic(begin: str, end: str) -> list[Sample]:
    def call(arguments: str) -> str:
        return f"{begin}[forecast({arguments})]{end}"

    by_name = not begin
    return [
        _one(call('"Oslo", 3, metric=True'), ("forecast", '{"city":"Oslo","days":3,"metric":true}'), by_name=by_name),
        _one(call("'Oslo', -1, .5, True, None"), _five("-1", "0.5"), by_name=by_name),
        _one(call('city="Os" \'lo\'\n  "!"'), ("forecast", '{"city":"Oslo!"}'), by_name=by_name),
        _one(call('city=\'a\' r\'\\n\' """b\n"""'), ("forecast", '{"city":"a\\\\nb\\n"}'), by_name=by_name),
        _one(call("city='it\\'s \"so\" \\\\ \\n\\t\\x41\\u00e9'"), _odd(), by_name=by_name),
        _one(call("tags=['a', 'b' 'c'], area={'km': 07}"), _tags(), by_name=by_name),
        _one(call("from='x', None=1, city = 'y' ,"), ("forecast", '{"from":"x","None":1,"city":"y"}'), by_name=by_name),
        _one(f'{begin}[geo.lookup-all_2(q=""), now( )]{end}', _lookup(""), _NOW, by_name=by_name),
    ]


def _five(days: str, ratio: str) -> tuple[str, str]:
    return ("forecast", f'{{"city":"Oslo","days":{days},"ratio":{ratio},"metric":true,"limit":null}}')


def _odd() -> tuple[str, str]:
    return ("forecast", '{"city":"it\'s \\"so\\" \\\\ \\n\\tA\u00e9"}')


def _tags() -> tuple[str, str]:
    return ("forecast", '{"tags":["a","bc"],"area":{"km":7}}')


def _loose() -> tuple[str, str]:
    return ("forecast", '{"days":"soon","unit":"c","tags":"[1"}')


def _metric() -> tuple[str, str]:
    return ("forecast", '{"metric":true}')


def _lookup(q: str) -> tuple[str, str]:
    return ("geo.lookup-all_2", f'{{"q":"{q}"}}')


def _arrays(begin: str, end: str) -> list[Sample]:
    nested = '{"type": "function", "function": {"name": "forecast", "arguments": {"city": "Oslo"}}, "index": 0}'
    return [
        _one(f"{begin}[{nested}, {_CALL_NOW}]{end}", _OSLO, _NOW),
        _one(f'{begin}[{{"function": "forecast", "arguments": {{"city": "Oslo"}}}}]{end}', _OSLO),
        _one(f'{begin}[{{"name": "forecast", "arguments": "{{\\"city\\": \\"Oslo\\"}}"}}]{end}', _OSLO),
        _one(f"{begin} {_CALL} {end}", _OSLO),
    ]


def _glm(name: str, arguments: str, sep: str = "") -> str:
    return f"<tool_call>{name}{sep}{arguments}</tool_call>"


def _arg(key: str, value: str, gap: str = "") -> str:
    return f"<arg_key>{key}</arg_key>{gap}<arg_value>{value}</arg_value>"


def _cat(key: str, value: str) -> str:
    return f"<longcat_arg_key>{key}</longcat_arg_key>\n<longcat_arg_value>{value}</longcat_arg_value>\n"


def _qwen(*pairs: tuple[str, str]) -> str:
    inner = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in pairs)
    return f"<tool_call>\n<function=forecast>\n{inner}</function>\n</tool_call>"


_M3 = "]<]minimax[>["
_K3_NOW = '<|open|>tools<|sep|><|open|>call tool="now" index="1"<|sep|><|close|>call<|sep|><|close|>tools<|sep|>'
_DOTS = '<invoke name="now">\n</invoke>'
_THOUGHT = "<think>Oslo it is.</think>"

FORMATS: dict[str, list[Sample]] = {
    "hermes": [
        *_arrays("<tool_call>", "</tool_call>"),
        _one(f"<tool_call>\n{_CALL}\n{_CALL_NOW}\n</tool_call>", _OSLO, _NOW),
        _one(f"<tool_call>{_CALL}, {_CALL_NOW}</tool_call>", _OSLO, _NOW),
        _one(f"{_THOUGHT}\n<tool_call>{_CALL}</tool_call>", _OSLO, content=f"{_THOUGHT}\n"),
        _one(f"{_THOUGHT}<tool_call>{_CALL}</tool_call>", _OSLO, content=_THOUGHT),
        _one(f"Oslo it is.</think>\n<tool_call>{_CALL}</tool_call>", _OSLO, content="Oslo it is."),
        _text("<tool_call>\nno JSON\n</tool_call>"),
    ],
    "qwen_coder": [
        _one(
            _qwen(("days", "5.0"), ("ratio", "5"), ("limit", "null"), ("label", "null"), ("area", "{'km': 2}")),
            ("forecast", '{"days":5,"ratio":5,"limit":null,"label":null,"area":{"km":2}}'),
        ),
        _one(_qwen(("days", "soon"), ("unit", "c"), ("tags", "[1")), _loose()),
        _one(
            "<tool_call>\n<function=forecast>\n<parameter=city>\nOslo\n</parameter>\n",
            _OSLO,
            by_name=True,
        ),
    ],
    "glm": [
        _one(_glm("forecast", '{"city": "Oslo"}', "\n"), _OSLO),
        _one(_glm("forecast", _arg("city", "Oslo", "\\n"), "\\n"), _OSLO),
        _one(f"<tool_call>forecast\n{_arg('city', 'Oslo')}", _OSLO, by_name=True),
        _text("The <tool_call>now {braces} tag."),
    ],
    "hy_v3": [
        _one(f"<tool_calls>{_glm('now', '')}</tool_calls>", _NOW),
        _one(f"<tool_calls>\n{_glm('forecast', _arg('city', 'Oslo'))}\n</tool_calls>", _OSLO),
        _one(f"<tool_calls>{_glm('forecast', _arg('metric', 'TRUE'), '<tool_sep>')}</tool_calls>", _metric()),
        _one(f"<tool_calls><tool_call>forecast<tool_sep>{_arg('city', 'Oslo')}", _OSLO, by_name=True),
    ],
    "longcat": [
        _one(
            f"<longcat_think>Oslo.</longcat_think><longcat_tool_call>{_CALL}</longcat_tool_call>",
            _OSLO,
            reasoning="Oslo.",
        ),
    ],
    "longcat_tags": [
        _one(
            f"<longcat_tool_call>forecast\n{_cat('city', 'Oslo')}{_cat('days', '3')}</longcat_tool_call>",
            ("forecast", '{"city":"Oslo","days":3}'),
        ),
        _one("<longcat_tool_call>now</longcat_tool_call>\n<longcat_tool_call>now\n</longcat_tool_call>", _NOW, _NOW),
        _one(
            f"<longcat_tool_call>forecast{_cat('city', 'a < b')}</longcat_tool_call>", ("forecast", '{"city":"a < b"}')
        ),
        _one(f"<longcat_tool_call>forecast\n{_cat('city', 'Oslo')}", _OSLO, by_name=True),
        _text("The <longcat_tool_call> tag comes before a name."),
    ],
    "minicpm5": [
        _one(
            '<function name="forecast"><param name="city"><![CDATA[a </param> < b]]></param>'
            '<param name="days">\n<![CDATA[]]></param></function>',
            ("forecast", '{"city":"a </param> < b","days":"\\n<![CDATA[]]>"}'),
        ),
        _one(
            '<function name="forecast"><param name="tags"><![CDATA[["x"]]]></param></function>',
            ("forecast", '{"tags":["x"]}'),
        ),
    ],
    "minimax_m3": [
        _one(
            f'<mm:think>Now.</mm:think>{_M3}<tool_call>{_M3}<invoke name="now">{_M3}</invoke>{_M3}</tool_call>',
            _NOW,
            reasoning="Now.",
        ),
    ],
    "kimi_k3": [
        _one(
            "<|open|>think<|sep|>Now.<|close|>think<|sep|><|open|>response<|sep|>I look."
            f"<|close|>response<|sep|>{_K3_NOW}<|close|>message<|sep|>",
            _NOW,
            content="I look.",
            reasoning="Now.",
        ),
    ],
    "cohere": [
        _one(
            "<|START_THINKING|>Easy.<|END_THINKING|><|START_RESPONSE|>It is noon.<|END_RESPONSE|>",
            content="It is noon.",
            reasoning="Easy.",
        ),
    ],
    "dots": [
        _one(f"<dots_function_call>{_DOTS}{_DOTS}\n{_DOTS}</dots_function_call>", _NOW, _NOW, _NOW),
    ],
    "mistral_array": [
        *_arrays("[TOOL_CALLS]", "")[:3],  # without brackets it is mistral_object
        _one(f"[TOOL_CALLS][{_CALL}][/TOOL_CALLS]</s>", _OSLO),
    ],
    "granite": _arrays("<|tool_call|>", ""),
    "granite_tag": _arrays("<tool_call>", ""),
    "nemotron_deci": _arrays("<TOOLCALL>", "</TOOLCALL>"),
    "jamba": [
        *_arrays("<tool_calls>", "</tool_calls>"),
        _one(f"<tool_calls>\n{_CALL}\n{_CALL_NOW}\n</tool_calls>", _OSLO, _NOW),
    ],
    "apertus": [
        _one(
            '<|inner_prefix|>Now.<|inner_suffix|><|tools_prefix|>[{"now": {}}]<|tools_suffix|>', _NOW, reasoning="Now."
        ),
    ],
    "llama3_bare": [
        _text(f"[{_LLAMA}]"),  # a list of calls needs its name: `llama3_json` has the table json_start for it
        _one(f'{_LLAMA}, {{"name": "now", "parameters": {{}}}}', _OSLO, _NOW),
        _one('{"type": "function", "function": {"name": "now", "parameters": {}}}', _NOW),
        _text('{"name": "Bob", "parameters": {}}'),
    ],
    "llama3_text": [
        _one(f"I look: {_LLAMA} That is it.", _OSLO, content="I look:  That is it.", by_name=True),
        _one('Then {"type": "function", "name": "now", "parameters": {}}.', _NOW, content="Then .", by_name=True),
        _one(f'One {_LLAMA}; {{"name": "now"}}', _OSLO, _NOW, content="One ", by_name=True),
        _text('A file has {"name": "Bob", "age": 3} and {"type": 1}.', by_name=True),
        _text('Broken: {"name": "forecast", "parameters"}.', by_name=True),
    ],
    "json_start": [
        _one(f"[{_LLAMA}]", _OSLO, by_name=True),
        _one(f"[{_CALL}, {_CALL_NOW}]", _OSLO, _NOW, by_name=True),
        _one(_CALL, _OSLO, by_name=True),
        _text('[{"name": "Bob"}, 1]', by_name=True),
        _one(f"{_CALL};{_CALL_NOW}", _OSLO, _NOW, by_name=True),
        _text(f"See {_CALL}", by_name=True),
    ],
    "lfm2_json": [
        _one(f"<|tool_call_start|>[{_CALL}, {_CALL_NOW}]<|tool_call_end|>Done.", _OSLO, _NOW, content="Done."),
        _one(f"<|tool_call_start|>{_CALL}<|tool_call_end|>", _OSLO),
        _one(f"<|tool_call_start|>[\n  {_CALL}\n]<|tool_call_end|><|im_end|>", _OSLO),
        _one(f"I look.<|tool_call_start|>[{_CALL}]", _OSLO, content="I look."),
        _one(f"<|tool_call_start|>[{_CALL[:-5]}", ("forecast", '{"city": "Os')),
    ],
    "lfm2": [
        *_pythonic("<|tool_call_start|>", "<|tool_call_end|>"),
        _one("<|tool_call_start|>now()<|tool_call_end|>", _NOW),
    ],
    "llama4_pythonic": [
        *_pythonic("<|python_start|>", "<|python_end|>"),
        _one('<|python_start|>forecast("Oslo")<|python_end|>', _OSLO),
    ],
    "pythonic": [*_pythonic("", ""), _text("[now(1)]", by_name=True)],
}
