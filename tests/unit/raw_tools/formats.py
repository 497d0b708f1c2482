"""Outputs of models in the formats of json_tables, literal_tables and tag_tables, and what they mean.

The grammars are those that the engines' parsers and the models' chat templates document; the texts are our own.
"""

from __future__ import annotations

from msgspec import Struct

from dragoman.model.conversation import ToolSpec


class Sample(Struct, frozen=True):
    """One answer. `calls` are names and arguments, the arguments of a call that was cut off as far as they came."""

    text: str
    said: str
    calls: tuple[tuple[str, str], ...]
    reasoning: str = ""
    tools: tuple[ToolSpec, ...] | None = None  # None: TOOLS
    by_name: bool = False  # it means this only where the table is named; `auto` is stricter


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
        Sample(f"{begin}[{_CALL}]{end}", "", (_WEATHER,)),
        Sample(f"{begin}[{_CALL}, {_CALL_NOW}]{end}", "", (_WEATHER, _NOW)),
        Sample(f"I will look.\n{begin}\n[\n  {_CALL_ODD}\n]\n{end}", "I will look.\n", (("get_weather", _ODD),)),
        Sample(f'{begin}[{{"name": "now"}}]{end}', "", (_NOW,)),
        Sample(
            f'{begin}[{_CALL}, {{"name": "get_weather", "arguments": {{"city": "Ro',
            "",
            (_WEATHER, ("get_weather", '{"city": "Ro')),
            by_name=True,
        ),
        Sample(prose, prose, ()),
    ]


def _json_section(begin: str, end: str, prose: str, key: str = "arguments") -> list[Sample]:
    """The samples of a format that writes one object between markers."""
    one, now = _wrapped(*_WEATHER, key), _wrapped(*_NOW, key)
    return [
        Sample(f"{begin}{one}{end}", "", (_WEATHER,)),
        Sample(f"{begin}\n{one}\n{end}\n{begin}\n{now}\n{end}", "", (_WEATHER, _NOW)),
        Sample(
            f"I will look.\n{begin}{_wrapped('get_weather', _ODD, key)}{end}",
            "I will look.\n",
            (("get_weather", _ODD),),
        ),
        Sample(f"{begin}{now}{end}\nThat is all.", "\nThat is all.", (_NOW,)),
        Sample(f"{begin}{one[:-6]}", "", (("get_weather", _PARIS[:-5]),), by_name=True),
        Sample(prose, prose, ()),
    ]


def _harmony() -> list[Sample]:
    think = "<|channel|>analysis<|message|>They ask for the weather.<|end|>"
    begin = "<|start|>assistant<|channel|>commentary to=functions."
    rest = " <|constrain|>json<|message|>"
    return [
        Sample(f"<|channel|>commentary to=functions.get_weather{rest}{_PARIS}<|call|>", "", (_WEATHER,)),
        Sample(f"{think}{begin}get_weather{rest}{_PARIS}<|call|>", "", (_WEATHER,), "They ask for the weather."),
        Sample(f"{begin}get_weather{rest}{_PARIS}<|call|>{begin}now json<|message|>{{}}<|call|>", "", (_WEATHER, _NOW)),
        Sample(
            f"<|start|>assistant to=functions.get_weather<|channel|>commentary json<|message|>{_ODD}<|call|>",
            "",
            (("get_weather", _ODD),),
        ),
        Sample("<|channel|>analysis to=functions.now code<|message|>{}<|call|>", "", (_NOW,)),
        Sample(
            f"{think}<|start|>assistant<|channel|>final<|message|>It is sunny.<|return|>",
            "It is sunny.",
            (),
            "They ask for the weather.",
        ),
        Sample(
            f"<|channel|>commentary<|message|>I will look.<|end|>{begin}now{rest}{{}}<|call|>", "I will look.", (_NOW,)
        ),
        Sample(
            f'<|channel|>commentary to=functions.get_weather{rest}{{"city": "Pa', "", (("get_weather", '{"city": "Pa'),)
        ),
        Sample("A channel, analysis or final, to=functions.", "A channel, analysis or final, to=functions.", ()),
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
        Sample(f"{begin}[{_PY}]{end}", "", (_PY_WEATHER,)),
        Sample(f"{begin}[{_PY}, now()]{end}", "", (_PY_WEATHER, _NOW)),
        Sample(f"I will look.\n{begin}[{_PY_ODD}]{end}", "I will look.\n", (_PY_ODD_CALL,)),
        Sample(f"{begin}[now()]{end}\nThat is all.", "\nThat is all.", (_NOW,)),
        Sample(f"{begin}[now(), get_weather(city='Pa", "", (_NOW, ("get_weather", '{"city":"Pa'))),
        Sample(_PROSE_TAG, _PROSE_TAG, ()),
    ]


def _gemma(begin: str, end: str, mark: str) -> list[Sample]:
    one = f"{begin}call:get_weather{{city:{mark}Paris{mark},days:3}}{end}"
    odd = f'city:{mark}日本 "x" {{}}, [\n{mark},options:{{a:[1,{{b:null}}]}},tags:[{mark}x{mark},-1.50,true]'
    return [
        Sample(one, "", (_PY_WEATHER,)),
        Sample(f"{one}{begin}call:now{{}}{end}", "", (_PY_WEATHER, _NOW)),
        Sample(
            f"I will look.\n{begin}call:get_weather{{{odd}}}{end}",
            "I will look.\n",
            (
                (
                    "get_weather",
                    '{"city":"日本 \\"x\\" {}, [\\n","options":{"a":[1,{"b":null}]},"tags":["x",-1.50,true]}',
                ),
            ),
        ),
        Sample(f"{begin}call:now{{}}{end}\nThat is all.", "\nThat is all.", (_NOW,)),
        Sample(f"{begin}call:get_weather{{city:{mark}Pa", "", (("get_weather", '{"city":"Pa'),)),
        Sample("I call:now{} it a day.", "I call:now{} it a day.", ()),
    ]


def _tags(begin: str, end: str, call: str, parameter: str, prose: str) -> list[Sample]:
    """The samples of a format with a tag for every parameter; `call` has a place for its name and its parameters."""

    def parameters(**values: str) -> str:
        return "".join(parameter.format(key, value) for key, value in values.items())

    one = call.format("get_weather", parameters(city="Paris", days="3"))
    odd = parameters(city='a < b & "c" 日本', options='{"k": [1, null]}', tags='["x"]')
    return [
        Sample(f"{begin}{one}{end}", "", (_PY_WEATHER,)),
        Sample(f"{begin}{one}\n{call.format('now', '')}{end}", "", (_PY_WEATHER, _NOW)),
        Sample(
            f"I will look.\n{begin}{call.format('get_weather', odd)}{end}",
            "I will look.\n",
            (("get_weather", '{"city":"a < b & \\"c\\" 日本","options":{"k": [1, null]},"tags":["x"]}'),),
        ),
        Sample(f"{begin}{call.format('now', '')}{end}\nThat is all.", "\nThat is all.", (_NOW,)),
        Sample(
            (begin + call.format("get_weather", parameters(city="Pa"))).partition("Pa")[0] + "Pa",
            "",
            (("get_weather", '{"city":"Pa'),),
            by_name=True,
        ),
        Sample(prose, prose, ()),
    ]


_STEP_CALL = (
    '<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="{}">{}</steptml:invoke><｜tool_call_end｜>'
)
_COHERE_CALL = f'{{"tool_call_id": "0", "tool_name": "get_weather", "parameters": {_PARIS}}}'
_COHERE_NOW = '{"tool_call_id": "1", "tool_name": "now", "parameters": {}}'

FORMATS: dict[str, list[Sample]] = {
    "mistral_array": [
        Sample(f"[TOOL_CALLS][{_CALL}]", "", (_WEATHER,)),
        Sample(f"[TOOL_CALLS] [{_CALL}, {_CALL_NOW}]", "", (_WEATHER, _NOW)),
        Sample(
            f'I will look.[TOOL_CALLS][{_CALL_ODD[:-1]}, "id": "a1B2c3D4e"}}]', "I will look.", (("get_weather", _ODD),)
        ),
        Sample('[TOOL_CALLS][{"name": "now"}]</s>', "", (_NOW,)),
        Sample(f"[TOOL_CALLS][{_CALL[:-7]}", "", (("get_weather", _PARIS[:-6]),)),
        Sample("Write [TOOL_CALL] or TOOL_CALLS[0].", "Write [TOOL_CALL] or TOOL_CALLS[0].", ()),
    ],
    "mistral_object": [
        Sample(f"[TOOL_CALLS]{_CALL}", "", (_WEATHER,)),
        Sample(f"[TOOL_CALLS] {_CALL}[TOOL_CALLS] {_CALL_NOW}", "", (_WEATHER, _NOW)),
        Sample(f"I will look.\n[TOOL_CALLS]{_CALL_ODD}", "I will look.\n", (("get_weather", _ODD),)),
        Sample('[TOOL_CALLS]{"name": "now"}', "", (_NOW,)),
        Sample(f"[TOOL_CALLS]{_CALL[:-7]}", "", (("get_weather", _PARIS[:-6]),)),
    ],
    "mistral": [
        Sample(f"[TOOL_CALLS]get_weather{_PARIS}", "", (_WEATHER,)),
        Sample(f"[TOOL_CALLS]get_weather[ARGS]{_PARIS}[TOOL_CALLS]now[ARGS]{{}}", "", (_WEATHER, _NOW)),
        Sample(f"[TOOL_CALLS]get_weather[CALL_ID]a1B2c3D4e[ARGS]{_ODD}</s>", "", (("get_weather", _ODD),)),
        Sample("I will look.[TOOL_CALLS]now{}", "I will look.", (_NOW,)),
        Sample("[THINK]They ask for the time.[/THINK][TOOL_CALLS]now[ARGS]{}", "", (_NOW,), "They ask for the time."),
        Sample("[THINK]Easy.[/THINK]It is noon.", "It is noon.", (), "Easy."),
        Sample('[TOOL_CALLS]get_weather[ARGS]{"city": "Pa', "", (("get_weather", '{"city": "Pa'),)),
        Sample('[TOOL_CALLS]get_weather{"city": "[TOOL_CALLS]"}', "", (("get_weather", '{"city": "[TOOL_CALLS]"}'),)),
        Sample("[A link](x) and args[0], [ARG].", "[A link](x) and args[0], [ARG].", ()),
    ],
    "harmony": _harmony(),
    "llama3_json": [
        Sample(f"<|python_tag|>{_wrapped(*_WEATHER, 'parameters')}", "", (_WEATHER,)),
        Sample(
            f"<|python_tag|>{_wrapped(*_WEATHER, 'parameters')}; {_wrapped(*_NOW, 'parameters')}<|eom_id|>",
            "",
            (_WEATHER, _NOW),
        ),
        Sample(f"I will look.\n<|python_tag|>{_CALL_ODD}<|eot_id|>", "I will look.\n", (("get_weather", _ODD),)),
        Sample('<|python_tag|>{"name": "now"}', "", (_NOW,)),
        Sample(
            '<|python_tag|>{"name": "get_weather", "parameters": {"city": "Pa', "", (("get_weather", '{"city": "Pa'),)
        ),
        Sample("A python_tag, {braces}; and more.", "A python_tag, {braces}; and more.", ()),
    ],
    "llama3_bare": [
        Sample(_wrapped(*_WEATHER, "parameters"), "", (_WEATHER,)),
        Sample(f"{_wrapped(*_WEATHER, 'parameters')}; {_wrapped(*_NOW, 'parameters')}", "", (_WEATHER, _NOW)),
        Sample(f'{{"type": "function", {_CALL_ODD[1:]}', "", (("get_weather", _ODD),)),
        Sample('\n{"name": "now", "parameters": {}}', "", (_NOW,)),
        Sample('{"answer": 42, "name": "Bob"}', '{"answer": 42, "name": "Bob"}', ()),
        Sample(f"See {_CALL}.", f"See {_CALL}.", ()),
    ],
    "llama4_pythonic": _pythonic("<|python_start|>", "<|python_end|>"),
    "lfm2": _pythonic("<|tool_call_start|>", "<|tool_call_end|>"),
    "olmo3": [
        Sample(f"<function_calls>\n{_PY}\n</function_calls>", "", (_PY_WEATHER,)),
        Sample(f"<function_calls>{_PY}\nnow()</function_calls>", "", (_PY_WEATHER, _NOW)),
        Sample(f"I will look.\n<function_calls>\n{_PY_ODD}\n</function_calls>", "I will look.\n", (_PY_ODD_CALL,)),
        Sample("<function_calls>now()</function_calls>\nThat is all.", "\nThat is all.", (_NOW,)),
        Sample("<function_calls>get_weather(city='Pa", "", (("get_weather", '{"city":"Pa'),), by_name=True),
        Sample(
            "<function_calls>are not written so</function_calls>",
            "<function_calls>are not written so</function_calls>",
            (),
        ),
    ],
    "pythonic": [
        Sample(f"[{_PY}]", "", (_PY_WEATHER,), by_name=True),
        Sample(f"[{_PY}, now()]", "", (_PY_WEATHER, _NOW), by_name=True),
        Sample(f"[{_PY_ODD}]", "", (_PY_ODD_CALL,), by_name=True),
        Sample("[now()]", "", (_NOW,), by_name=True),
        Sample("[get_weather(city='Pa", "", (("get_weather", '{"city":"Pa'),), by_name=True),
        Sample("[see now(then)] and [1, 2]", "[see now(then)] and [1, 2]", ()),
    ],
    "gemma4": [
        *_gemma("<|tool_call>", "<tool_call|>", '<|"|>'),
        Sample(
            "<|channel>thought\nThey ask for the time.<channel|><|tool_call>call:now{}<tool_call|><|tool_response>",
            "",
            (_NOW,),
            "They ask for the time.",
        ),
    ],
    "functiongemma": _gemma("<start_function_call>", "<end_function_call>", "<escape>"),
    "granite": _array("<|tool_call|>", "", "A tool_call [1] is a list."),
    "granite_tag": _array("<tool_call>", "", "The <tool_call> tag comes before [a list]."),
    "phi4": [
        Sample(sample.text, sample.said, sample.calls, by_name=True)
        for sample in _array("functools", "", "Import functools[1] or functools.")
    ],
    "phi4_start": [
        Sample(f"functools[{_CALL}]", "", (_WEATHER,)),
        Sample(f"functools[{_CALL}, {_CALL_NOW}]", "", (_WEATHER, _NOW)),
        Sample(f"functools[{_CALL_ODD}]", "", (("get_weather", _ODD),)),
        Sample('functools[{"name": "now"}]', "", (_NOW,)),
        Sample("functools is a module.", "functools is a module.", ()),
    ],
    "jamba": _array("<tool_calls>", "</tool_calls>", "The <tool_calls> tag comes before [a list]."),
    "nemotron_deci": _array("<TOOLCALL>", "</TOOLCALL>", "The <TOOLCALL> tag comes before [a list]."),
    "cohere": [
        Sample(f"<|START_ACTION|>[{_COHERE_CALL}]<|END_ACTION|>", "", (_WEATHER,)),
        Sample(f"<|START_ACTION|>[\n    {_COHERE_CALL},\n    {_COHERE_NOW}\n]<|END_ACTION|>", "", (_WEATHER, _NOW)),
        Sample(
            f"<|START_THINKING|>I will look.<|END_THINKING|><|START_ACTION|>[{_COHERE_NOW}]<|END_ACTION|>",
            "",
            (_NOW,),
            "I will look.",
        ),
        Sample("<|START_RESPONSE|>It is sunny.<|END_RESPONSE|>", "It is sunny.", ()),
        Sample(f"<|START_ACTION|>[{_COHERE_CALL[:-7]}", "", (("get_weather", _PARIS[:-6]),)),
        Sample("START_ACTION is a token.", "START_ACTION is a token.", ()),
    ],
    "apertus": [
        Sample(f'<|tools_prefix|>[{{"get_weather": {_PARIS}}}]<|tools_suffix|>', "", (_WEATHER,)),
        Sample(f'<|tools_prefix|>[{{"get_weather": {_PARIS}}}, {{"now": {{}}}}]<|tools_suffix|>', "", (_WEATHER, _NOW)),
        Sample(
            f'Look: <|tools_prefix|>[{{"get_weather": {_ODD}}}]<|tools_suffix|>', "Look: ", (("get_weather", _ODD),)
        ),
        Sample('<|tools_prefix|>[{"now": {}}]<|tools_suffix|>\nThat is all.', "\nThat is all.", (_NOW,)),
        Sample('<|tools_prefix|>[{"get_weather": {"city": "Pa', "", (("get_weather", '{"city": "Pa'),)),
        Sample("A tools_prefix [is] a token.", "A tools_prefix [is] a token.", ()),
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
