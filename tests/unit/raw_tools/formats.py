"""Outputs of models in the formats of json_tables, literal_tables and tag_tables, and what they mean.

The grammars are those that the engines' parsers and the models' chat templates document; the texts are our own.
"""

from __future__ import annotations

from msgspec import structs

from dragoman.model.conversation import ToolSpec
from tests.unit.raw_tools.formats_known import Sample

TOOLS = (
    ToolSpec(
        "get_weather",
        schema={
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "options": {"type": "object"},
                "tags": {"type": "array"},
            },
            "required": ["city"],
        },
    ),
    ToolSpec("now", schema={"type": "object", "properties": {}}),
)


def reply(
    text: str,
    *calls: tuple[str, str],
    content: str = "",
    reasoning: str = "",
    by_name: bool = False,
    tools: tuple[ToolSpec, ...] = TOOLS,
) -> Sample:
    """A reply with these calls, a call that was cut off as far as it came; `by_name`: `auto` is stricter."""
    return Sample(text, content, calls, reasoning, tools, auto=not by_name, last_complete=None)


def plain(words: str, *, by_name: bool = False) -> Sample:
    return reply(words, content=words, by_name=by_name)


# Arguments as a model writes them in JSON; they come back byte for byte.
_PARIS = '{"city": "Paris", "days": 3}'
_ODD = '{"city": "S\\u00e3o \\"P\\" 日本", "options": {"a": [1, {"b": null}], "c": "}]"}, "tags": ["x", -1.50]}'
_WEATHER, _NOW = ("get_weather", _PARIS), ("now", "{}")


def _wrapped(name: str, arguments: str, key: str = "arguments") -> str:
    return f'{{"name": "{name}", "{key}": {arguments}}}'


_CALL, _CALL_NOW, _CALL_ODD = _wrapped(*_WEATHER), _wrapped(*_NOW), _wrapped("get_weather", _ODD)


def _array(begin: str, end: str, prose: str) -> list[Sample]:
    """The samples of a format that writes an array of calls between markers."""
    return [
        reply(f"{begin}[{_CALL}]{end}", _WEATHER),
        reply(f"{begin}[{_CALL}, {_CALL_NOW}]{end}", _WEATHER, _NOW),
        reply(f"I will look.\n{begin}\n[\n  {_CALL_ODD}\n]\n{end}", ("get_weather", _ODD), content="I will look.\n"),
        reply(f'{begin}[{{"name": "now"}}]{end}', _NOW),
        reply(
            f'{begin}[{_CALL}, {{"name": "get_weather", "arguments": {{"city": "Ro',
            _WEATHER,
            ("get_weather", '{"city": "Ro'),
            by_name=True,
        ),
        plain(prose),
    ]


def _json_section(begin: str, end: str, prose: str, key: str = "arguments") -> list[Sample]:
    """The samples of a format that writes one object between markers."""
    one, now = _wrapped(*_WEATHER, key), _wrapped(*_NOW, key)
    return [
        reply(f"{begin}{one}{end}", _WEATHER),
        reply(f"{begin}\n{one}\n{end}\n{begin}\n{now}\n{end}", _WEATHER, _NOW),
        reply(
            f"I will look.\n{begin}{_wrapped('get_weather', _ODD, key)}{end}",
            ("get_weather", _ODD),
            content="I will look.\n",
        ),
        reply(f"{begin}{now}{end}\nThat is all.", _NOW, content="\nThat is all."),
        reply(f"{begin}{one[:-6]}", ("get_weather", _PARIS[:-5]), by_name=True),
        plain(prose),
    ]


def _harmony() -> list[Sample]:
    think = "<|channel|>analysis<|message|>They ask for the weather.<|end|>"
    begin = "<|start|>assistant<|channel|>commentary to=functions."
    rest = " <|constrain|>json<|message|>"
    return [
        reply(f"<|channel|>commentary to=functions.get_weather{rest}{_PARIS}<|call|>", _WEATHER),
        reply(f"{think}{begin}get_weather{rest}{_PARIS}<|call|>", _WEATHER, reasoning="They ask for the weather."),
        reply(f"{begin}get_weather{rest}{_PARIS}<|call|>{begin}now json<|message|>{{}}<|call|>", _WEATHER, _NOW),
        reply(
            f"<|start|>assistant to=functions.get_weather<|channel|>commentary json<|message|>{_ODD}<|call|>",
            ("get_weather", _ODD),
        ),
        reply("<|channel|>analysis to=functions.now code<|message|>{}<|call|>", _NOW),
        reply(
            f"{think}<|start|>assistant<|channel|>final<|message|>It is sunny.<|return|>",
            content="It is sunny.",
            reasoning="They ask for the weather.",
        ),
        reply(
            f"<|channel|>commentary<|message|>I will look.<|end|>{begin}now{rest}{{}}<|call|>",
            _NOW,
            content="I will look.",
        ),
        reply(f'<|channel|>commentary to=functions.get_weather{rest}{{"city": "Pa', ("get_weather", '{"city": "Pa')),
        plain("A channel, analysis or final, to=functions."),
    ]


_PROSE_TAG = "The word tool_calls means a list [of calls] (see below); now() is one."
_PY_WEATHER = ("get_weather", '{"city":"Paris","days":3}')
_PY = "get_weather(city='Paris', days=3)"
_PY_ODD = (
    "get_weather(city=\"S\\u00e3o 'P' 日本\", options={'a': [1, {'b': None}], 'c': '}]'}, tags=['x', -1.50, True])"
)
_PY_ODD_CALL = (
    "get_weather",
    '{"city":"São \'P\' 日本","options":{"a":[1,{"b":null}],"c":"}]"},"tags":["x",-1.50,true]}',
)


def _pythonic(begin: str, end: str) -> list[Sample]:
    return [
        reply(f"{begin}[{_PY}]{end}", _PY_WEATHER),
        reply(f"{begin}[{_PY}, now()]{end}", _PY_WEATHER, _NOW),
        reply(f"I will look.\n{begin}[{_PY_ODD}]{end}", _PY_ODD_CALL, content="I will look.\n"),
        reply(f"{begin}[now()]{end}\nThat is all.", _NOW, content="\nThat is all."),
        reply(f"{begin}[now(), get_weather(city='Pa", _NOW, ("get_weather", '{"city":"Pa')),
        plain(_PROSE_TAG),
    ]


def _gemma(begin: str, end: str, mark: str) -> list[Sample]:
    one = f"{begin}call:get_weather{{city:{mark}Paris{mark},days:3}}{end}"
    odd = f'city:{mark}日本 "x" {{}}, [\n{mark},options:{{a:[1,{{b:null}}]}},tags:[{mark}x{mark},-1.50,true]'
    return [
        reply(one, _PY_WEATHER),
        reply(f"{one}{begin}call:now{{}}{end}", _PY_WEATHER, _NOW),
        reply(
            f"I will look.\n{begin}call:get_weather{{{odd}}}{end}",
            (
                "get_weather",
                '{"city":"日本 \\"x\\" {}, [\\n","options":{"a":[1,{"b":null}]},"tags":["x",-1.50,true]}',
            ),
            content="I will look.\n",
        ),
        reply(f"{begin}call:now{{}}{end}\nThat is all.", _NOW, content="\nThat is all."),
        reply(f"{begin}call:get_weather{{city:{mark}Pa", ("get_weather", '{"city":"Pa')),
        plain("I call:now{} it a day."),
    ]


def _tags(begin: str, end: str, call: str, parameter: str, prose: str) -> list[Sample]:
    """The samples of a format with a tag for every parameter; `call` has a place for its name and its parameters."""

    def parameters(**values: str) -> str:
        return "".join(parameter.format(key, value) for key, value in values.items())

    one = call.format("get_weather", parameters(city="Paris", days="3"))
    odd = parameters(city='a < b & "c" 日本', options='{"k": [1, null]}', tags='["x"]')
    return [
        reply(f"{begin}{one}{end}", _PY_WEATHER),
        reply(f"{begin}{one}\n{call.format('now', '')}{end}", _PY_WEATHER, _NOW),
        reply(
            f"I will look.\n{begin}{call.format('get_weather', odd)}{end}",
            ("get_weather", '{"city":"a < b & \\"c\\" 日本","options":{"k": [1, null]},"tags":["x"]}'),
            content="I will look.\n",
        ),
        reply(f"{begin}{call.format('now', '')}{end}\nThat is all.", _NOW, content="\nThat is all."),
        reply(
            (begin + call.format("get_weather", parameters(city="Pa"))).partition("Pa")[0] + "Pa",
            ("get_weather", '{"city":"Pa'),
            by_name=True,
        ),
        plain(prose),
    ]


_STEP_CALL = (
    '<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="{}">{}</steptml:invoke><｜tool_call_end｜>'
)
_COHERE_CALL = f'{{"tool_call_id": "0", "tool_name": "get_weather", "parameters": {_PARIS}}}'
_COHERE_NOW = '{"tool_call_id": "1", "tool_name": "now", "parameters": {}}'

FORMATS: dict[str, list[Sample]] = {
    "mistral_array": [
        reply(f"[TOOL_CALLS][{_CALL}]", _WEATHER),
        reply(f"[TOOL_CALLS] [{_CALL}, {_CALL_NOW}]", _WEATHER, _NOW),
        reply(
            f'I will look.[TOOL_CALLS][{_CALL_ODD[:-1]}, "id": "a1B2c3D4e"}}]',
            ("get_weather", _ODD),
            content="I will look.",
        ),
        reply('[TOOL_CALLS][{"name": "now"}]</s>', _NOW),
        reply(f"[TOOL_CALLS][{_CALL[:-7]}", ("get_weather", _PARIS[:-6])),
        plain("Write [TOOL_CALL] or TOOL_CALLS[0]."),
    ],
    "mistral_object": [
        reply(f"[TOOL_CALLS]{_CALL}", _WEATHER),
        reply(f"[TOOL_CALLS] {_CALL}[TOOL_CALLS] {_CALL_NOW}", _WEATHER, _NOW),
        reply(f"I will look.\n[TOOL_CALLS]{_CALL_ODD}", ("get_weather", _ODD), content="I will look.\n"),
        reply('[TOOL_CALLS]{"name": "now"}', _NOW),
        reply(f"[TOOL_CALLS]{_CALL[:-7]}", ("get_weather", _PARIS[:-6])),
    ],
    "mistral": [
        reply(f"[TOOL_CALLS]get_weather{_PARIS}", _WEATHER),
        reply(f"[TOOL_CALLS]get_weather[ARGS]{_PARIS}[TOOL_CALLS]now[ARGS]{{}}", _WEATHER, _NOW),
        reply(f"[TOOL_CALLS]get_weather[CALL_ID]a1B2c3D4e[ARGS]{_ODD}</s>", ("get_weather", _ODD)),
        reply("I will look.[TOOL_CALLS]now{}", _NOW, content="I will look."),
        reply("[THINK]They ask for the time.[/THINK][TOOL_CALLS]now[ARGS]{}", _NOW, reasoning="They ask for the time."),
        reply("[THINK]Easy.[/THINK]It is noon.", content="It is noon.", reasoning="Easy."),
        reply('[TOOL_CALLS]get_weather[ARGS]{"city": "Pa', ("get_weather", '{"city": "Pa')),
        reply('[TOOL_CALLS]get_weather{"city": "[TOOL_CALLS]"}', ("get_weather", '{"city": "[TOOL_CALLS]"}')),
        plain("[A link](x) and args[0], [ARG]."),
    ],
    "harmony": _harmony(),
    "llama3_json": [
        reply(f"<|python_tag|>{_wrapped(*_WEATHER, 'parameters')}", _WEATHER),
        reply(
            f"<|python_tag|>{_wrapped(*_WEATHER, 'parameters')}; {_wrapped(*_NOW, 'parameters')}<|eom_id|>",
            _WEATHER,
            _NOW,
        ),
        reply(f"I will look.\n<|python_tag|>{_CALL_ODD}<|eot_id|>", ("get_weather", _ODD), content="I will look.\n"),
        reply('<|python_tag|>{"name": "now"}', _NOW),
        reply('<|python_tag|>{"name": "get_weather", "parameters": {"city": "Pa', ("get_weather", '{"city": "Pa')),
        plain("A python_tag, {braces}; and more."),
    ],
    "llama3_bare": [
        reply(_wrapped(*_WEATHER, "parameters"), _WEATHER),
        reply(f"{_wrapped(*_WEATHER, 'parameters')}; {_wrapped(*_NOW, 'parameters')}", _WEATHER, _NOW),
        reply(f'{{"type": "function", {_CALL_ODD[1:]}', ("get_weather", _ODD)),
        reply('\n{"name": "now", "parameters": {}}', _NOW),
        plain('{"answer": 42, "name": "Bob"}'),
        plain(f"See {_CALL}."),
    ],
    "llama4_pythonic": _pythonic("<|python_start|>", "<|python_end|>"),
    "lfm2": _pythonic("<|tool_call_start|>", "<|tool_call_end|>"),
    "olmo3": [
        reply(f"<function_calls>\n{_PY}\n</function_calls>", _PY_WEATHER),
        reply(f"<function_calls>{_PY}\nnow()</function_calls>", _PY_WEATHER, _NOW),
        reply(f"I will look.\n<function_calls>\n{_PY_ODD}\n</function_calls>", _PY_ODD_CALL, content="I will look.\n"),
        reply("<function_calls>now()</function_calls>\nThat is all.", _NOW, content="\nThat is all."),
        reply("<function_calls>get_weather(city='Pa", ("get_weather", '{"city":"Pa'), by_name=True),
        plain("<function_calls>are not written so</function_calls>"),
    ],
    "pythonic": [
        reply(f"[{_PY}]", _PY_WEATHER, by_name=True),
        reply(f"[{_PY}, now()]", _PY_WEATHER, _NOW, by_name=True),
        reply(f"[{_PY_ODD}]", _PY_ODD_CALL, by_name=True),
        reply("[now()]", _NOW, by_name=True),
        reply("[get_weather(city='Pa", ("get_weather", '{"city":"Pa'), by_name=True),
        plain("[see now(then)] and [1, 2]"),
    ],
    "gemma4": [
        *_gemma("<|tool_call>", "<tool_call|>", '<|"|>'),
        reply(
            "<|channel>thought\nThey ask for the time.<channel|><|tool_call>call:now{}<tool_call|><|tool_response>",
            _NOW,
            reasoning="They ask for the time.",
        ),
    ],
    "functiongemma": _gemma("<start_function_call>", "<end_function_call>", "<escape>"),
    "granite": _array("<|tool_call|>", "", "A tool_call [1] is a list."),
    "granite_tag": _array("<tool_call>", "", "The <tool_call> tag comes before [a list]."),
    "phi4": [
        structs.replace(sample, auto=False) for sample in _array("functools", "", "Import functools[1] or functools.")
    ],
    "phi4_start": [
        reply(f"functools[{_CALL}]", _WEATHER),
        reply(f"functools[{_CALL}, {_CALL_NOW}]", _WEATHER, _NOW),
        reply(f"functools[{_CALL_ODD}]", ("get_weather", _ODD)),
        reply('functools[{"name": "now"}]', _NOW),
        plain("functools is a module."),
    ],
    "jamba": _array("<tool_calls>", "</tool_calls>", "The <tool_calls> tag comes before [a list]."),
    "nemotron_deci": _array("<TOOLCALL>", "</TOOLCALL>", "The <TOOLCALL> tag comes before [a list]."),
    "cohere": [
        reply(f"<|START_ACTION|>[{_COHERE_CALL}]<|END_ACTION|>", _WEATHER),
        reply(f"<|START_ACTION|>[\n    {_COHERE_CALL},\n    {_COHERE_NOW}\n]<|END_ACTION|>", _WEATHER, _NOW),
        reply(
            f"<|START_THINKING|>I will look.<|END_THINKING|><|START_ACTION|>[{_COHERE_NOW}]<|END_ACTION|>",
            _NOW,
            reasoning="I will look.",
        ),
        reply("<|START_RESPONSE|>It is sunny.<|END_RESPONSE|>", content="It is sunny."),
        reply(f"<|START_ACTION|>[{_COHERE_CALL[:-7]}", ("get_weather", _PARIS[:-6])),
        plain("START_ACTION is a token."),
    ],
    "apertus": [
        reply(f'<|tools_prefix|>[{{"get_weather": {_PARIS}}}]<|tools_suffix|>', _WEATHER),
        reply(f'<|tools_prefix|>[{{"get_weather": {_PARIS}}}, {{"now": {{}}}}]<|tools_suffix|>', _WEATHER, _NOW),
        reply(
            f'Look: <|tools_prefix|>[{{"get_weather": {_ODD}}}]<|tools_suffix|>',
            ("get_weather", _ODD),
            content="Look: ",
        ),
        reply('<|tools_prefix|>[{"now": {}}]<|tools_suffix|>\nThat is all.', _NOW, content="\nThat is all."),
        reply('<|tools_prefix|>[{"get_weather": {"city": "Pa', ("get_weather", '{"city": "Pa')),
        plain("A tools_prefix [is] a token."),
    ],
    "longcat": _json_section(
        "<longcat_tool_call>", "</longcat_tool_call>", "The <longcat_tool_call> tag comes before {an object}."
    ),
    "dots": _tags(
        "<dots_function_call>\n",
        "\n</dots_function_call>",
        '<invoke name="{}">\n{}</invoke>',
        '<parameter name="{}">{}</parameter>\n',
        "The <dots_function_call> tag comes before <invoke> tags.",
    ),
    "step3": _tags(
        "<｜tool_calls_begin｜>",
        "<｜tool_calls_end｜>",
        _STEP_CALL,
        '<steptml:parameter name="{}">{}</steptml:parameter>',
        "A tool_calls_begin token is not a steptml tag.",
    ),
    "hy_v3": _tags(
        "<tool_calls>\n",
        "\n</tool_calls>",
        "<tool_call>{}<tool_sep>\n{}</tool_call>",
        "<arg_key>{}</arg_key>\n<arg_value>{}</arg_value>\n",
        "The <tool_calls> tag comes before a <tool_call> tag.",
    ),
    "minicpm5": _tags(
        "",
        "",
        '<function name="{}">{}</function>',
        '<param name="{}">{}</param>',
        "The <function> tag has <param> tags.",
    ),
}
