"""The odd texts of docs/dialects/raw_tools.md#cases, each with a label. Those about frames are in test_components.py."""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct

from dragoman.model.conversation import StopReason, ToolSpec
from tests.unit.raw_tools.samples import (
    AB,
    CB,
    CE,
    REASONING,
    SB,
    SE,
    TEXT,
    TOOLS,
    Call,
    ChannelText,
    call,
    section,
    tool,
)

_LOG_1 = (
    '{"description": "Explore core C headers", "prompt": "Recursively explore and analyze all core C standard library '
    'headers in /usr/include...", "subagent_type": "explore"}'
)
_LOG_2 = '{"description": "Explore network headers", "prompt": "…"}'
# The log of docs/mission.md, row 001.37, chunk by chunk: markers come alone, everything has a blank before it.
LOG = [
    f" {SB}", f" {CB}", " functions", ".task", ":", "45", f" {AB}", *re.split("(?<= )", " " + _LOG_1), f" {CE}",
    f" {CB}", " functions", ".task", ":", "46", f" {AB}", *re.split("(?<= )", " " + _LOG_2), f" {CE}", f" {SE}",
]  # fmt: skip
LOG_ARGUMENTS = (_LOG_1, _LOG_2)
_QUOTED = section(call("functions.bash:0", "{}")).replace('"', '\\"')
LS = '{"command":"ls"}'


class Case(Struct, frozen=True):
    number: str
    content: Sequence[ChannelText]
    text: str = ""
    reasoning: str = ""
    calls: tuple[Call, ...] = ()
    finish: StopReason = StopReason.END  # what the upstream says
    why: StopReason = StopReason.TOOL  # the stop reason that the client gets
    tools: tuple[ToolSpec, ...] = TOOLS
    auto_text: str | None = None  # the text in `auto`, where that differs


def _text(number: str, text: str, *calls: Call, shown: str = "", **more: object) -> Case:
    more.setdefault("why", StopReason.TOOL if calls else StopReason.END)
    return Case(number, [(TEXT, text)], shown, calls=calls, **more)  # type: ignore[arg-type]


def _bash(arguments: str = LS, index: int = 0, *, complete: bool = True) -> Call:
    return Call(f"functions.bash:{index}", "bash", arguments, complete)


_IN_LOG = f" {SB} {CB} functions.task:45 {AB} {_LOG_1} {CE} {CB} functions.task:46 {AB} {_LOG_2} {CE} {SE}"

CASES: list[Case] = [
    Case(
        "1",
        [(REASONING, _IN_LOG)],
        reasoning=" ",
        calls=(Call("functions.task:45", "task", _LOG_1), Call("functions.task:46", "task", _LOG_2)),
    ),
    _text("2", section(call("bash:0", LS)), _bash()),
    _text(
        "3",
        section(call("functions.fs.write:3", '{"path":"a"}')),
        Call("functions.fs.write:3", "fs.write", '{"path":"a"}'),
        tools=(*TOOLS, tool("fs.write", "path"), tool("write", "path")),
    ),
    _text(
        "4",
        section(call("functions.mcp__git-hub__list-prs:7", "{}")),
        Call("functions.mcp__git-hub__list-prs:7", "mcp__git-hub__list-prs", "{}"),
    ),
    _text("5", section(call("3", '{"path":"x"}')), Call("functions.read_file:3", "read_file", '{"path":"x"}')),
    _text("6", section(call("call_1", LS)), Call("call_1", "bash", LS)),
    _text("7", section(call("call_6b0e44", '{"path":"a"}')), Call("call_6b0e44", "read_file", '{"path":"a"}')),
    _text("8", section(call("bash", LS)), _bash()),
    _text("9", "<|tool_call_section_begin|>" + call("functions.bash:0", LS) + "<|tool_call_section_end|>", _bash()),
    _text("9 (report)", f"{SB}{CB}functions.bash:0<|tool_arguments_begin|>{LS}{CE}{SE}", _bash()),
    _text("10", "I will look." + call("functions.bash:0", LS), _bash(), shown="I will look."),
    _text(
        "11",
        section(call("functions.bash:0", '{"command":"echo <|tool_call_end|> x"}')),
        _bash('{"command":"echo <|tool_call_end|> x"}'),
    ),
    _text("12", section(call("functions.bash:0", f'{{"command":"{_QUOTED}"}}')), _bash(f'{{"command":"{_QUOTED}"}}')),
    _text(
        "13",
        section(call("functions.bash:0", '{"command":"echo "hi"}'), call("functions.bash:1", LS)),
        _bash('{"command":"echo "hi"}', complete=False),
        _bash(index=1),
    ),
    _text(
        "14",
        section(call("functions.bash:0", r'{"command":"say \"a\\\" \\"}')),
        _bash(r'{"command":"say \"a\\\" \\"}'),
    ),
    _text(
        "15",
        section(call("functions.bash:0", r'{"command":"日本 😀 é \u00e9 \ud83d\ude00 9007199254740993"}')),
        _bash(r'{"command":"日本 😀 é \u00e9 \ud83d\ude00 9007199254740993"}'),
    ),
    _text("16", section(call("functions.bash:0", "")), _bash("{}")),
    _text("17", section(call("functions.bash:0", " \n ")), _bash("{}")),
    _text("18", f"{SB}{CB}functions.now:0{CE}{SE}", Call("functions.now:0", "now", "{}")),
    _text(
        "19",
        f"a {section(call('functions.bash:0', LS))} b {section(call('functions.bash:1', LS))} c",
        _bash(),
        _bash(index=1),
        shown="a  b  c",
    ),
    _text("20", SB + call("functions.bash:0", LS), _bash()),
    _text("21", f"{SB}{CB}functions.bash:0{AB}{LS}{SE}", _bash()),
    _text(
        "22",
        f'{SB}{CB}functions.bash:0{AB}{{"command":"ls -',
        _bash('{"command":"ls -', complete=False),
        finish=StopReason.LENGTH,
        why=StopReason.LENGTH,
    ),
    _text(
        "23", f"{SB}{CB}functions.bash:0{AB}{LS}<|tool_call_e", _bash(), finish=StopReason.LENGTH, why=StopReason.LENGTH
    ),
    _text("24", f"{SB} here it comes: {call('functions.bash:0', LS)}{SE}", _bash()),
    _text("25", f"{SB}{call('functions.bash:0', LS)}{CE}{CE}{SE}{SE}", _bash()),
    _text("26", "<|tool_call|> and <|im_end and a < b <| c", shown="<|tool_call|> and <|im_end and a < b <| c"),
    _text("27", section(call("functions.bash:0", "ls -la")), _bash("ls -la")),
    _text(
        "28",
        section(call("functions.bash:0", LS), call("functions.bash:0", LS)),
        _bash(),
        _bash(index=1),
    ),
    _text("29", SB + SE, auto_text=SB + SE),
    _text("30", f"{SB}{CB}functions.ba{call('functions.bash:1', LS)}{SE}", _bash(index=1)),
    _text(
        "32",
        section(call("functions.bash:41", LS), call("functions.bash:42", LS)),
        _bash(index=41),
        _bash(index=42),
    ),
    Case(
        "33",
        [(REASONING, f'{SB}{CB}functions.bash:0{AB}{{"comm'), (TEXT, f'and":"ls"}}{CE}{SE}')],
        calls=(_bash(),),
    ),
    Case("35", [(REASONING, "hm <|tool_calls_sec"), (TEXT, "x")], "x", "hm <|tool_calls_sec", why=StopReason.END),
    _text("42", f"bash:0{AB}{LS}{SE}", _bash()),
    _text("42 (after text)", f"I look. functions.bash:0 {AB}{LS}{SE}", _bash(), shown="I look. "),
    # what follows from the rules of docs/raw_tools.md
    _text(
        "cut in the arguments",
        section(call("functions.bash:0", '{"command":')),
        _bash('{"command":', complete=False),
        why=StopReason.END,
    ),
    _text("line ends after the section", section(call("functions.bash:0", LS)) + "\n\n", _bash()),
    _text(
        "</think> after the section",
        section(call("functions.bash:0", LS)) + "\n</think>\n\ndone",
        _bash(),
        shown="\n\ndone",
    ),
    _text(
        "stray markers",
        f"a{CE}b{SE}c<|im_end|>d{AB}e",
        shown="abcde",
        auto_text=f"a{CE}b{SE}c<|im_end|>d{AB}e",
    ),
    _text("<|im_end|> after the section", section(call("functions.bash:0", LS)) + "<|im_end|>", _bash()),
    _text(
        "cut in the header",
        f"{SB}{CB}functions.ba",
        finish=StopReason.LENGTH,
        why=StopReason.LENGTH,
        auto_text=f"{SB}{CB}functions.ba",
    ),
    _text("repeated begins", f"{SB}{SB}{CB}{call('functions.bash:0', LS)}{SE}", _bash()),
    _text(
        "prose after a lost end",
        SB + call("functions.bash:0", LS) + " Well, that is it.",
        _bash(),
        shown=" Well, that is it.",
    ),
    _text("newline in the header", section(call("\nfunctions.bash:\n0\n", LS)), _bash()),
    _text("section without call begin", f"{SB} functions.bash:0 {AB}{LS}{SE}", _bash()),
    _text("pretty", section(call("functions.bash:0", '\n{\n  "command": "ls"\n}\n')), _bash('{\n  "command": "ls"\n}')),
    _text("namespace", section(call("functions.tools.bash:2", LS)), _bash(index=2)),
    _text(
        "nameless",
        section(call("call_1", '{"unheard_of":1}')) + " so",
        shown=" so",
        auto_text=section(call("call_1", '{"unheard_of":1}')) + " so",
    ),
    _text("one tool", section(call("3", "{}")), _bash("{}", 3), tools=TOOLS[:1]),
]
