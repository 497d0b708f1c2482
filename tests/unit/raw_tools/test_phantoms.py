"""Replies of every kind in which formats and tools are mentioned: no call, every byte kept."""

from __future__ import annotations

import json
import random

import pytest

from dragoman.filters.raw_tools.outputs import Channel, TextOutput
from dragoman.model.conversation import ToolSpec
from tests.unit.raw_tools.client_view import CLIENTS, cut, sse, view_reply, view_stream, whole_reply
from tests.unit.raw_tools.samples import outputs, random_cut, tool

_NAMES = ("bash", "read", "search", "now", "f", "get_weather", "print")
LOOSE = tuple(ToolSpec(name, schema={"type": "object", "properties": {}}) for name in _NAMES)
STRICT = (tool("bash", "command"), tool("read", "path"), tool("now"), tool("f", "x"), tool("get_weather", "city"))

FORMATS = {
    "kimi": '<|tool_calls_section_begin|><|tool_call_begin|>functions.bash:0<|tool_call_argument_begin|>{"command": "ls"}'
    "<|tool_call_end|><|tool_calls_section_end|>",
    "hermes": '<tool_call>{"name": "bash", "arguments": {"command": "ls"}}</tool_call>',
    "qwen": "<tool_call>\n<function=bash>\n<parameter=command>\nls\n</parameter>\n</function>\n</tool_call>",
    "dsml": '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="bash">\n<｜DSML｜parameter name="command" string="true">ls'
    "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
    "mistral": '[TOOL_CALLS][{"name": "bash", "arguments": {"command": "ls"}}]',
    "harmony": '<|channel|>commentary to=functions.bash <|constrain|>json<|message|>{"command":"ls"}<|call|>',
    "invoke": '<function_calls>\n<invoke name="bash">\n<parameter name="command">ls</parameter>\n</invoke>\n</function_calls>',
    "glm": "<tool_call>bash\n<arg_key>command</arg_key>\n<arg_value>ls</arg_value>\n</tool_call>",
    "llama3": '<|python_tag|>{"name": "bash", "parameters": {"command": "ls"}}',
    "llama4": '<|python_start|>[bash(command="ls")]<|python_end|>',
    "gemma": '<|tool_call>call:bash{command:<|"|>ls<|"|>}<tool_call|>',
}
# Around any format: `{}`; in a line, around those that have one line.
BLOCKS = {
    "fence": "Format:\n\n```\n{}\n```\n\nEnd.",
    "fence at the end": "Format:\n\n```xml\n{}\n```",
    "tildes": "~~~\n{}\n~~~\nEnd.",
    "nested fences": "````markdown\n```xml\n{}\n```\n````\nEnd.",
    "a fence that stays open behind": "See:\n\n```\n{}\n```\n\nand\n```\nunfinished",
    "pre": "<pre>\n{}\n</pre>\nThat is it.",
    "pre and code": "<pre><code>\n{}\n</code></pre>\nThat is it.",
    "triple quotes in a fence": "```python\nSAMPLE = '''{}'''\nassert parse(SAMPLE)\n```",
    "in each line >": "He said:\n{>}\n\nand left.",
    "in each line +": "diff --git a/x b/x\n@@ -1,2 +1,3 @@\n context\n{+}\n other\n",
    "in each line -": "@@ -1,2 +1,3 @@\n context\n{-}\n+x\n",
    "indented": "Code:\n\n{    }\n\nand so on.",
    "a fence in a list": "1. Like:\n\n   ```\n{   }\n   ```\n2. End",
    "JSON log": '{"level": "warn", "content": {json}}\nnext',
}
LINES = {
    "backtick": "Use `{}` here.",
    "two backticks": "Use ``{}`` here.",
    "quotes": 'He wrote "{}" there.',
    "German": "Er schrieb „{}“ dort.",
    "German inner": "Er schrieb ‚{}‘ dort.",
    "German guillemets": "Er schrieb »{}« dort.",
    "Swedish": "Han skrev ”{}” där.",
    "French": "Il écrit « {} » ici.",
    "Chinese": "模型输出“{}”，然后停止。",
    "Chinese title": "参见《{}》。",
    "Japanese": "モデルは「{}」と書いた。",
    "Japanese inner": "モデルは『{}』と書いた。",
    "lenticular": "出力は【{}】です。",
    "table": "| name | looks |\n|---|---|\n| kimi | {} |\n",
    "table without outer bars": "name | looks | x\n---|---|---\nkimi | {} | x\n",
    "code tag": "<code>{}</code> is it.",
    "Python": "SAMPLE = '{}'\nassert parse(SAMPLE)\n",
    "chat transcript": 'User: what is it?\nAssistant: "{}"\n',
    "list": "- `{}`\n- other",
}
PLAIN = {
    "JSON reply with a name": '{"name": "bash", "description": "runs"}',
    "JSON reply with arguments": '{"name": "bash", "arguments": "none", "x": 1}',
    "definition of a tool": '{"name": "get_weather", "description": "d", "parameters": {"type": "object"}}',
    "JSON list": '[{"name": "bash", "arguments": {"command": "ls"}}]',
    "Python list": "[f(x=1)]",
    "comprehension": "[f(x=1) for x in y]",
    "Python code": "f(x=1)\nprint(f(x=2))\n",
    "functools": "functools.reduce(f, x)",
    "id": "functions.bash:0 is the id",
    "lone token": "The <|im_end|> token ends.",
    "only a token": "<|im_end|>",
    "end of thinking": "The tag </think> closes it.\n",
    "invoke mentioned": 'Then <｜DSML｜invoke name="bash"> opens a call.',
    "invoke first": '<｜DSML｜invoke name="bash"> opens a call',
    "Mistral token": "[TOOL_CALLS] is the token",
    "Mistral tokens": "[TOOL_CALLS][ARGS]",
    "placeholders": "<|tool_calls_section_begin|>\n<|tool_call_begin|>functions.{name}:{idx}<|tool_call_argument_begin|>"
    "{arguments}<|tool_call_end|>\n<|tool_calls_section_end|>",
    "hermes prompt": '<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>',
    "tags mentioned": "Return a json object within <tool_call></tool_call> tags.",
    "value end mentioned": "The tag </｜DSML｜parameter> closes a value, <|sep|> a K3 tag and <|message|> a header.",
    "argument end first": "<|close|>argument<|sep|> closes an argument",
    "olmo": "<function_calls>\nf(x)\n</function_calls> is",
    "Python token": "<|python_tag|>print(1)",
}


def filled(frame: str, sample: str) -> str:
    for lead in (">", "+", "-", "    ", "   "):
        mark = "{" + lead + "}"
        if mark in frame:
            blank = " " if lead == ">" else ""
            return frame.replace(mark, "\n".join(lead + blank + line for line in sample.split("\n")))
    return frame.replace("{json}", json.dumps(sample, ensure_ascii=False)).replace("{}", sample)


TEXTS = {
    **{f"{name}: {frame}": filled(BLOCKS[frame], sample) for name, sample in FORMATS.items() for frame in BLOCKS},
    **{
        f"{name}: {frame}": filled(LINES[frame], sample)
        for name, sample in FORMATS.items()
        for frame in LINES
        if "\n" not in sample
    },
    **PLAIN,
}


@pytest.mark.parametrize("tools", [LOOSE, STRICT], ids=["loose", "strict"])
@pytest.mark.parametrize("name", TEXTS)
def test_text_that_is_no_call_stays_as_it_is(name: str, tools: tuple[ToolSpec, ...]) -> None:
    text = TEXTS[name]
    for channel in Channel:
        for pieces in ([text], list(text), random_cut(text, random.Random(1))):
            assert outputs([(channel, piece) for piece in pieces], tools=tools) == [TextOutput(text, channel)]


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "harmony"])
def test_an_explanation_and_then_a_call(name: str) -> None:
    sample = FORMATS[name]
    text = f"A call looks so:\n\n```\n{sample}\n```\n\nNow I make it.\n\n"
    for pieces in ([text + sample], list(text + sample)):
        emitted = outputs([(Channel.TEXT, piece) for piece in pieces], tools=STRICT)
        assert emitted[0] == TextOutput(text, Channel.TEXT)
        assert len([each for each in emitted if type(each).__name__ == "CallStarted"]) == 1


@pytest.mark.parametrize(
    "text", ["<tool_call>bash</tool_call> would run", "So:\n<tool_call>read</tool_call>\nis how GLM writes it."]
)
def test_a_tag_with_only_a_name_is_no_call_of_a_tool_that_needs_arguments(text: str) -> None:
    for pieces in ([text], list(text)):
        assert outputs([(Channel.TEXT, piece) for piece in pieces], tools=STRICT) == [TextOutput(text, Channel.TEXT)]


def test_a_line_of_grep_is_no_call() -> None:
    text = f"tests/x.py:12:{FORMATS['hermes']}\ntests/x.py:13:pass\n"
    assert outputs([(Channel.TEXT, text)], tools=STRICT) == [TextOutput(text, Channel.TEXT)]


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("name", ["kimi: fence", "dsml: in each line >", "kimi: German", "JSON reply with a name"])
def test_a_client_sees_the_text_and_no_note(name: str, client: str) -> None:
    for field in ("content", "reasoning_content"):
        deltas = [{field: TEXTS[name]}, {"content": "."}]
        for seen in (view_stream(client, sse(cut(deltas, 5))), view_reply(client, whole_reply(deltas))):
            assert not seen.calls
            assert seen.finish == "end_turn"
            assert not {rule for rule in seen.rules if rule.startswith("raw_tools")}
            assert seen.content("text") + seen.content("reasoning") in (TEXTS[name] + ".", "." + TEXTS[name])
