"""Documented outputs of the formats that Dragoman has read from the beginning, with what they mean.

The recovery cases are those of docs/dialects/raw_tools.md, for each format.
"""

from __future__ import annotations

from msgspec import Struct

from dragoman.model.conversation import ToolSpec
from dragoman.wire.jsonio import Json
from tests.unit.raw_tools.samples import AB, CB, CE, SB, SE, TOOLS, call, end, section, tool


class Sample(Struct, frozen=True):
    """A reply, and what comes of it: text, calls as (name, JSON text), reasoning."""

    text: str
    content: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    reasoning: str = ""
    tools: tuple[ToolSpec, ...] = TOOLS
    auto: bool = True  # it means the same in `auto`
    last_complete: bool | None = True  # of the last call; None: either is right


LS = ("bash", '{"command": "ls"}')
PWD = ("bash", '{"command": "pwd"}')
READ = ("read_file", '{"path": "a.txt"}')
NOW = tool("now")

_WRITE_PROPERTIES: dict[str, Json] = {
    "path": {"type": "string"},
    "content": {"type": "string"},
    "mode": {"type": "integer"},
    "force": {"type": "boolean"},
    "meta": {"type": "object"},
    "lines": {"type": "array", "items": {"type": "string"}},
}
WRITE = ToolSpec("write", schema={"type": "object", "properties": _WRITE_PROPERTIES, "required": ["path"]})

_LS, _PWD = LS[1], PWD[1]


def _k2(*headers: str) -> str:
    return section(*(call(header, _LS) for header in headers))


KIMI_K2 = [
    Sample(_k2("functions.bash:0"), calls=(LS,)),
    Sample("I look.\n" + _k2("functions.bash:0", "functions.bash:1"), "I look.\n", (LS, LS)),
    Sample(f"a {_k2('functions.bash:0')} b {_k2('functions.bash:1')} c", "a  b  c", (LS, LS)),
    # headers
    Sample(_k2("bash:0"), calls=(LS,)),
    Sample(_k2("bash"), calls=(LS,)),
    Sample(_k2("3"), calls=(LS,)),
    Sample(_k2("call_6b0e44"), calls=(LS,)),
    Sample(_k2(""), calls=(LS,)),
    Sample(_k2("\nfunctions.bash:\n0\n"), calls=(LS,)),
    Sample(_k2("functions.tools.bash:2"), calls=(LS,)),
    Sample(
        section(call("functions.fs.write:3", '{"path": "a"}')),
        calls=(("fs.write", '{"path": "a"}'),),
        tools=(*TOOLS, tool("fs.write", "path"), tool("write", "path")),
    ),
    Sample(
        section(call("functions.mcp__git-hub__list-prs:7", "{}")),
        calls=(("mcp__git-hub__list-prs", "{}"),),
        tools=(*TOOLS, tool("mcp__git-hub__list-prs")),
    ),
    # markers missing or repeated
    Sample("I will look." + call("functions.bash:0", _LS), "I will look.", (LS,)),
    Sample(SB + call("functions.bash:0", _LS), calls=(LS,)),
    Sample(f"{SB}{CB}functions.bash:0{AB}{_LS}{SE}", calls=(LS,)),
    Sample(f"{SB}{CB}functions.bash:0{AB}{_LS}{CB}functions.bash:1{AB}{_PWD}{CE}{SE}", calls=(LS, PWD)),
    Sample(f"{SB}{CB}functions.bash:0{AB}{_LS}", calls=(LS,), last_complete=None),
    Sample(f"{SB}{SB}{CB}{call('functions.bash:0', _LS)}{SE}", calls=(LS,)),
    Sample(f"{SB}{call('functions.bash:0', _LS)}{CE}{CE}{SE}{SE}", calls=(LS,)),
    Sample(f"bash:0{AB}{_LS}{SE}", calls=(LS,)),
    Sample(f"I look. functions.bash:0 {AB}{_LS}{SE}", "I look. ", (LS,)),
    Sample(_k2("functions.bash:0") + "</think>", calls=(LS,)),
    Sample(_k2("functions.bash:0") + "<|im_end|>", calls=(LS,)),
    # arguments
    Sample(section(call("functions.bash:0", " \n ")), calls=(("bash", "{}"),)),
    Sample(f"{SB}{CB}functions.now:0{CE}{SE}", calls=(("now", "{}"),), tools=(*TOOLS, NOW)),
    Sample(
        section(call("functions.bash:0", f'{{"command": "echo {CE} {SE}"}}')),
        calls=(("bash", f'{{"command": "echo {CE} {SE}"}}'),),
    ),
    Sample(
        section(call("functions.bash:0", '{"command":"echo "hi"}'), call("functions.bash:1", _LS)),
        calls=(("bash", '{"command":"echo "hi"}'), LS),
    ),
    # What stands before a section does not matter
    Sample('The 24" screen. ' + _k2("functions.bash:0"), 'The 24" screen. ', (LS,)),
    Sample("- " + _k2("functions.bash:0"), "- ", (LS,)),
    Sample("The ` key.\n" + _k2("functions.bash:0"), "The ` key.\n", (LS,)),
]


def _k3(*calls_: str) -> str:
    return f"<|open|>tools<|sep|>{''.join(calls_)}<|close|>tools<|sep|>"


def _k3_call(name: str, *arguments: tuple[str, str, str], index: int = 1) -> str:
    inner = "".join(
        f'<|open|>argument key="{key}" type="{kind}"<|sep|>{value}<|close|>argument<|sep|>'
        for key, kind, value in arguments
    )
    return f'<|open|>call tool="{name}" index="{index}"<|sep|>{inner}<|close|>call<|sep|>'


_K3_LS = _k3_call("bash", ("command", "string", "ls"))
KIMI_K3 = [
    Sample(_k3(_K3_LS), calls=(LS,)),
    Sample(
        "I look.\n" + _k3(_K3_LS, _k3_call("read_file", ("path", "string", "a.txt"), index=2)), "I look.\n", (LS, READ)
    ),
    Sample(
        _k3(_k3_call("write", ("path", "string", "7"), ("mode", "number", "7"), ("force", "boolean", "true"))),
        calls=(("write", '{"path": "7", "mode": 7, "force": true}'),),
        tools=(WRITE,),
    ),
    Sample(
        _k3(_k3_call("write", ("path", "string", "a"), ("meta", "object", '{"k": [1]}'))),
        calls=(("write", '{"path": "a", "meta": {"k": [1]}}'),),
        tools=(WRITE,),
    ),
    Sample(_k3(_K3_LS) + "<|end_of_msg|>", calls=(LS,)),
    Sample(
        "<|open|>response<|sep|>I look.<|close|>response<|sep|>" + _k3(_K3_LS), "I look.", (LS,)
    ),  # The wrappers leak
    Sample(
        _k3(_k3_call("a&amp;b", ("x", "string", "1"))), calls=(("a&b", '{"x": "1"}'),), tools=(tool("a&b", "x"),)
    ),  # Attributes are escaped
    Sample(_k3(_K3_LS).replace("<|open|>tools<|sep|><|open|>call ", "<|open|>toolscall "), calls=(LS,)),
    Sample(
        f'<|open|>tools<|sep|><|open|>call tool="bash" index="1"<|sep|><|open|>json<|sep|>{_LS}<|close|>json<|sep|><|close|>call<|sep|><|close|>tools<|sep|>',
        calls=(LS,),
    ),  # A block of JSON
    Sample(_K3_LS, calls=(LS,)),
]


def _hermes(body: str) -> str:
    return f"<tool_call>\n{body}\n</tool_call>"


_HERMES_LS = '{"name": "bash", "arguments": {"command": "ls"}}'
_HERMES_READ = '{"name": "read_file", "arguments": {"path": "a.txt"}}'
HERMES = [
    Sample(_hermes(_HERMES_LS), calls=(LS,)),
    Sample(f"I look.\n{_hermes(_HERMES_LS)}\n{_hermes(_HERMES_READ)}", "I look.\n", (LS, READ)),
    Sample("I will check. " + _hermes(_HERMES_LS), "I will check. ", (LS,)),
    Sample("I will check." + _hermes(_HERMES_LS), "I will check.", (LS,)),
    Sample(_hermes('{"arguments": {"command": "ls"}, "name": "bash"}'), calls=(LS,)),
    Sample(_hermes('{"name": "bash", "parameters": {"command": "ls"}}'), calls=(LS,)),
    Sample(_hermes('{"name": "bash", "arguments": "{\\"command\\": \\"ls\\"}"}'), calls=(LS,)),
    Sample(
        _hermes('{"name": "now"}'),
        calls=(("now", "{}"),),
        tools=(NOW,),
    ),
    Sample(
        _hermes('{"name": "bash", "arguments": {"command": "echo </tool_call>"}}'),
        calls=(("bash", '{"command": "echo </tool_call>"}'),),
    ),
    Sample(f"<tool_call>\n{_hermes(_HERMES_LS)}", calls=(LS,)),
    Sample(f"<tool_call>{_HERMES_LS}", calls=(LS,), last_complete=None, auto=False),
    Sample(
        _hermes('{"name": "bash", "arguments": {"command": "say "hi""}}'),
        calls=(("bash", '{"command": "say "hi""}'),),
        auto=False,
        last_complete=False,
    ),  # Broken JSON is no complete call
]


def _qwen(name: str, *pairs: tuple[str, str]) -> str:
    inner = "".join(f"<parameter={key}>\n{value}\n{end('parameter')}\n" for key, value in pairs)
    return f"<tool_call>\n<function={name}>\n{inner}{end('function')}\n</tool_call>"


_QWEN_LS = _qwen("bash", ("command", "ls"))
QWEN_CODER = [
    Sample(_QWEN_LS, calls=(LS,)),
    Sample(f"I look.\n{_QWEN_LS}\n{_qwen('read_file', ('path', 'a.txt'))}", "I look.\n", (LS, READ)),
    Sample("I will check. " + _QWEN_LS, "I will check. ", (LS,)),
    Sample(
        _qwen("write", ("path", "7"), ("mode", "7"), ("force", "True"), ("lines", '["a"]')),
        calls=(("write", '{"path": "7", "mode": 7, "force": true, "lines": ["a"]}'),),
        tools=(WRITE,),
    ),
    Sample(
        _qwen("write", ("path", "a"), ("content", "one\n  two\n")),
        calls=(("write", '{"path": "a", "content": "one\\n  two\\n"}'),),
        tools=(WRITE,),
    ),
    Sample(_QWEN_LS.replace("tool_call>", "seed:tool_call>"), calls=(LS,)),
    Sample(_QWEN_LS.replace("<tool_call>\n", "").replace("\n</tool_call>", ""), calls=(LS,)),
    Sample(_QWEN_LS.replace("</parameter>\n", ""), calls=(LS,)),
    Sample(_QWEN_LS.replace("</function>\n", ""), calls=(LS,)),
    Sample(
        f"<tool_call>\n<function=bash>\n{_LS}\n{end('function')}\n</tool_call>", calls=(LS,)
    ),  # JSON between the tags
    Sample(_qwen("write", ("path", "a"), ("meta", "{'k': True}")), calls=(("write", '{"path": "a", "meta": {"k": true}}'),), tools=(WRITE,)),
    Sample(_qwen("now"), calls=(("now", "{}"),), tools=(NOW,)),
]  # fmt: skip


def _glm(name: str, *pairs: tuple[str, str], line: str = "\n") -> str:
    inner = "".join(f"<arg_key>{key}</arg_key>{line}<arg_value>{value}</arg_value>{line}" for key, value in pairs)
    return f"<tool_call>{name}{line}{inner}</tool_call>"


_GLM_LS = _glm("bash", ("command", "ls"))
GLM = [
    Sample(_GLM_LS, calls=(LS,)),
    Sample(_glm("bash", ("command", "ls"), line=""), calls=(LS,)),
    Sample(f"I look.\n{_GLM_LS}\n{_glm('read_file', ('path', 'a.txt'))}", "I look.\n", (LS, READ)),
    Sample("I will check. " + _GLM_LS, "I will check. ", (LS,)),
    Sample(_glm("now", line=""), calls=(("now", "{}"),), tools=(NOW,)),
    Sample(
        _glm("write", ("path", "7"), ("mode", "7"), ("force", "true"), ("meta", '{"k": null}')),
        calls=(("write", '{"path": "7", "mode": 7, "force": true, "meta": {"k": null}}'),),
        tools=(WRITE,),
    ),
    Sample(
        _glm("bash", ("command", "ls"), line="").replace("</arg_value>", ""),
        calls=(LS,),
        auto=False,
        last_complete=None,
    ),
    Sample(
        _glm("write", ("path", "a"), ("content", "one\ntwo\n"), line=""),
        calls=(("write", '{"path": "a", "content": "one\\ntwo\\n"}'),),
        tools=(WRITE,),
    ),
]

_DS_BEGIN, _DS_END, _DS_SEP = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"


def _deepseek(*calls_: str) -> str:
    return f"<｜tool▁calls▁begin｜>{''.join(calls_)}<｜tool▁calls▁end｜>"


def _v3(name: str, arguments: str) -> str:
    return f"{_DS_BEGIN}function{_DS_SEP}{name}\n```json\n{arguments}\n```{_DS_END}"


def _v31(name: str, arguments: str) -> str:
    return f"{_DS_BEGIN}{name}{_DS_SEP}{arguments}{_DS_END}"


DEEPSEEK_V3 = [
    Sample(_deepseek(_v3(*LS)), calls=(LS,)),
    Sample("I look.\n" + _deepseek(_v3(*LS), "\n", _v3(*READ)), "I look.\n", (LS, READ)),
    Sample(_v3(*LS), calls=(LS,)),
    Sample("<｜tool▁calls▁begin｜>" + _v3(*LS), calls=(LS,)),
    Sample(_deepseek(_v3(*LS)) + "<｜end▁of▁sentence｜>", calls=(LS,)),
    Sample(
        _deepseek(_v3("bash", '{"command": "```json\\nx\\n```"}')),
        calls=(("bash", '{"command": "```json\\nx\\n```"}'),),
    ),
    Sample(_deepseek(_v3("now", "{}")), calls=(("now", "{}"),), tools=(NOW,)),
    Sample('The 24" screen. ' + _deepseek(_v3(*LS)), 'The 24" screen. ', (LS,)),
]
DEEPSEEK_V31 = [
    Sample(_deepseek(_v31(*LS)), calls=(LS,)),
    Sample("I look.\n" + _deepseek(_v31(*LS), _v31(*READ)), "I look.\n", (LS, READ)),
    Sample(_v31(*LS), calls=(LS,)),
    Sample("<｜tool▁calls▁begin｜>" + _v31(*LS), calls=(LS,)),
    Sample(_deepseek(_v31(*LS)) + "<｜end▁of▁sentence｜>", calls=(LS,)),
    Sample(
        _deepseek(_v31("bash", f'{{"command": "{_DS_END}"}}')), calls=(("bash", f'{{"command": "{_DS_END}"}}'),)
    ),
    Sample(_deepseek(_v31("now", "")), calls=(("now", "{}"),), tools=(NOW,)),
    Sample("- " + _deepseek(_v31(*LS)), "- ", (LS,)),
]  # fmt: skip

_DSML = "｜DSML｜"


def _dsml(*calls_: str, word: str = "function_calls") -> str:
    return f"<{_DSML}{word}>\n" + "\n".join(calls_) + f"\n{end(_DSML + word)}"


def _dsml_call(name: str, *parameters: tuple[str, str, str]) -> str:
    inner = "".join(
        f'<{_DSML}parameter name="{key}" string="{string}">{value}{end(_DSML + "parameter")}\n'
        for key, string, value in parameters
    )
    return f'<{_DSML}invoke name="{name}">\n{inner}{end(_DSML + "invoke")}'


_DSML_LS = _dsml_call("bash", ("command", "true", "ls"))
DSML = [
    Sample(_dsml(_DSML_LS), calls=(LS,)),
    Sample(
        "I look.\n" + _dsml(_DSML_LS, _dsml_call("read_file", ("path", "true", "a.txt"))), "I look.\n", (LS, READ)
    ),
    Sample(_dsml(_DSML_LS, word="tool_calls"), calls=(LS,)),
    Sample(_dsml(_DSML_LS, word=" calls"), calls=(LS,)),
    Sample(_DSML_LS, calls=(LS,)),
    Sample(
        _dsml(_dsml_call("write", ("path", "true", "7"), ("mode", "false", "7"), ("meta", "false", '{"k": [true]}'))),
        calls=(("write", '{"path": "7", "mode": 7, "meta": {"k": [true]}}'),),
        tools=(WRITE,),
    ),
    Sample(
        _dsml(_dsml_call("write", ("path", "true", "a"), ("mode", "true", "7"), ("meta", "true", "{'k': None}"))),
        calls=(("write", '{"path": "a", "mode": 7, "meta": {"k": null}}'),),
        tools=(WRITE,),
    ),  # The schema outranks string="true"
    Sample(_dsml(_DSML_LS).replace("｜DSML｜", "｜｜DSML｜｜"), calls=(LS,)),  # Doubled bars
    Sample(_dsml(f'<{_DSML}invoke name="bash">{_LS}{end(_DSML + "invoke")}'), calls=(LS,)),
    Sample(
        _dsml(_dsml_call("bash", ("arguments", "false", _LS))), calls=(LS,)
    ),  # A single wrapper that no schema declares
    Sample(_dsml(_DSML_LS) + "</think>", calls=(LS,)),
    Sample(
        f'Then <{_DSML}invoke name="bash"> opens a call, and the rest follows.',
        f'Then <{_DSML}invoke name="bash"> opens a call, and the rest follows.',
    ),
]  # fmt: skip


def _invoke(name: str, *pairs: tuple[str, str], prefix: str = "") -> str:
    inner = "".join(f'<{prefix}parameter name="{key}">{value}{end(prefix + "parameter")}\n' for key, value in pairs)
    return f'<{prefix}invoke name="{name}">\n{inner}{end(prefix + "invoke")}'


def _in(tag: str, *calls_: str) -> str:
    return f"<{tag}>\n" + "\n".join(calls_) + f"\n{end(tag)}"


def _invoke_samples(tag: str, prefix: str) -> list[Sample]:
    ls = _invoke("bash", ("command", "ls"), prefix=prefix)
    read = _invoke("read_file", ("path", "a.txt"), prefix=prefix)
    file = _invoke("write", ("path", "a"), ("content", "one\ntwo\n"), prefix=prefix)
    lines = _invoke("write", ("path", "a"), ("content", "\none\ntwo\n"), prefix=prefix)
    typed = _invoke("write", ("path", "7"), ("mode", "7"), ("force", "true"), ("lines", '["a"]'), prefix=prefix)
    body = f'<{prefix}invoke name="bash">{_LS}{end(prefix + "invoke")}'
    return [
        Sample(_in(tag, ls), calls=(LS,)),
        Sample("I look.\n" + _in(tag, ls, read), "I look.\n", (LS, READ)),
        Sample("I will check. " + _in(tag, ls), "I will check. ", (LS,)),
        Sample(_in(tag, file), calls=(("write", '{"path": "a", "content": "one\\ntwo\\n"}'),), tools=(WRITE,)),
        Sample(_in(tag, lines), calls=(("write", '{"path": "a", "content": "one\\ntwo"}'),), tools=(WRITE,)),
        Sample(
            _in(tag, typed),
            calls=(("write", '{"path": "7", "mode": 7, "force": true, "lines": ["a"]}'),),
            tools=(WRITE,),
        ),
        Sample(_in(tag, body), calls=(LS,)),
        Sample(ls, calls=(LS,)),
        Sample(_in(tag, _invoke("now", prefix=prefix)), calls=(("now", "{}"),), tools=(NOW,)),
    ]


_M3 = "]<]minimax[>["


def _m3(*calls_: str) -> str:
    return f"{_M3}<tool_call>\n{''.join(calls_)}{_M3}</tool_call>"


def _m3_call(name: str, *elements: str) -> str:
    return f'{_M3}<invoke name="{name}">{"".join(elements)}{_M3}{end("invoke")}\n'


def _m3_element(tag: str, inner: str) -> str:
    return f"{_M3}<{tag}>{inner}{_M3}{end(tag)}"


_M3_LS = _m3_call("bash", _m3_element("command", "ls"))
MINIMAX_M3 = [
    Sample(_m3(_M3_LS), calls=(LS,)),
    Sample("I look.\n" + _m3(_M3_LS, _m3_call("read_file", _m3_element("path", "a.txt"))), "I look.\n", (LS, READ)),
    Sample(
        _m3(_m3_call("write", _m3_element("path", "7"), _m3_element("mode", "7"), _m3_element("force", "true"))),
        calls=(("write", '{"path": "7", "mode": 7, "force": true}'),),
        tools=(WRITE,),
    ),
    Sample(
        _m3(_m3_call("write", _m3_element("path", "a"), _m3_element("content", "one\n  <b>two</b>\n"))),
        calls=(("write", '{"path": "a", "content": "one\\n  <b>two</b>\\n"}'),),
        tools=(WRITE,),
    ),
    Sample(
        _m3(
            _m3_call(
                "write",
                _m3_element("path", "a"),
                _m3_element("lines", _m3_element("item", "x") + _m3_element("item", "7")),
            )
        ),
        calls=(("write", '{"path": "a", "lines": ["x", "7"]}'),),
        tools=(WRITE,),
    ),
    Sample(_m3(_m3_call("now")), calls=(("now", "{}"),), tools=(NOW,)),
    Sample(_m3(_M3_LS).replace(_M3 + "<", _M3 + " <"), calls=(LS,)),
    Sample(
        f"The prefix {_M3} stands before every tag, so {_M3}<invoke is a part of a call.",
        f"The prefix {_M3} stands before every tag, so {_M3}<invoke is a part of a call.",
    ),
]

FORMATS: dict[str, list[Sample]] = {
    "kimi_k2": KIMI_K2,
    "kimi_k3": KIMI_K3,
    "hermes": HERMES,
    "qwen_coder": QWEN_CODER,
    "glm": GLM,
    "deepseek_v3": DEEPSEEK_V3,
    "deepseek_v31": DEEPSEEK_V31,
    "dsml": DSML,
    "minimax_m3": MINIMAX_M3,
    "invoke": _invoke_samples("minimax:tool_call", ""),
    "invoke_prefixed": _invoke_samples("antml:function_calls", "antml:"),
}
