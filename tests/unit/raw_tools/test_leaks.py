"""Leaks that users of hosted services report, from the upstream's wire to what a client sees."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

import dragoman
from tests.unit.raw_tools.client_view import (
    CLIENTS,
    Delta,
    client_request,
    cut,
    native,
    sse,
    view_reply,
    view_stream,
    whole_reply,
)
from tests.unit.raw_tools.samples import AB, CB, CE, SB, SE

KIMI = f'{SB}{CB}functions.bash:0{AB}{{"command": "ls"}}{CE}{SE}'
ARGUMENT = '<|open|>argument key="command" type="string"<|sep|>'


def dsml(bars: str, section: str = "tool_calls") -> str:
    return (
        f'<{bars}DSML{bars}{section}>\n<{bars}DSML{bars}invoke name="bash">\n'
        f'<{bars}DSML{bars}parameter name="command" string="true">ls</{bars}DSML{bars}parameter>\n'
        f"</{bars}DSML{bars}invoke>\n</{bars}DSML{bars}{section}>"
    )


def text(content: str) -> list[Delta]:
    return [{"content": content}]


def thought(content: str) -> list[Delta]:
    return [{"reasoning_content": content}]


LS = ("bash", {"command": "ls"})


class Leak(NamedTuple):
    """What arrives, and what the client sees of it as reasoning and as text."""

    deltas: list[Delta]
    reasoning: str = ""
    content: str = ""


RECOVERED: dict[str, Leak] = {
    "cline 12979: Kimi markers with line ends": Leak(
        text(f'{SB}\n{CB}functions.bash:0\n{AB}{{"command": "ls"}}\n{CE}\n{SE}')
    ),
    "ollama 15645: no section begin": Leak(text(f'{CB}functions.bash:0{AB}{{"command": "ls"}}{CE}{SE}')),
    "typeclaw 344: no markers before the name": Leak(text(f'bash:0{AB}{{"command": "ls"}}{SE}')),
    "Kimi-K2 89: in the reasoning": Leak(thought("hm " + KIMI), reasoning="hm "),
    "vllm 36763: </think> after the section": Leak([*thought("hm "), *text(KIMI + "</think>")], reasoning="hm "),
    "vllm 33646: the field changes within a marker": Leak(
        [*thought("hm " + KIMI[:40]), *text(KIMI[40:])], reasoning="hm "
    ),
    "</think> before the call": Leak([*thought("hm "), *text("</think>" + KIMI)], reasoning="hm "),
    "text before and after": Leak(text("I look.\n" + KIMI + "\nDone."), content="I look.\n\nDone."),
    "oh-my-pi 8495: run-together begin and end": Leak(
        text(
            f'<|open|>toolscall tool="bash" index="1"<|sep|>{ARGUMENT}ls<|close|>argument<|sep|>'
            "<|close|>call<|sep|><|close|>toolsmessage<|sep|>"
        )
    ),
    "oh-my-pi 8495: the end of a value without its <|close|>": Leak(
        text(
            f'<|open|>toolscall tool="bash" index="1"<|sep|>{ARGUMENT}lsargument<|sep|>'
            "<|close|>call<|sep|><|close|>toolstoolsmessage<|sep|>"
        )
    ),
    "oh-my-pi 8495: <|sep|> left of a closing tag": Leak(
        thought(
            f'Lint passes<|sep|><|open|>toolscall tool="bash" index="1"<|sep|>{ARGUMENT}ls<|close|>argument<|sep|>'
            "<|close|>call<|sep|><|close|>tools<|sep|>"
        ),
        reasoning="Lint passes",
    ),
    "opensquilla 985: DSML": Leak(text("I look.\n\n" + dsml("｜")), content="I look.\n\n"),
    "sglang 40236: the section of V3.2": Leak(text(dsml("｜", "function_calls"))),
    "sglang 40236: no end of the section": Leak(text(dsml("｜").rpartition("\n")[0])),
    "GenericAgent 804: other bars": Leak(text(dsml("‖"))),
    "GenericAgent 804: doubled bars": Leak(text(dsml("｜｜"))),
    "Rapid-MLX 480: harmony": Leak(
        text(
            "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary to=functions.bash "
            '<|constrain|>json<|message|>{"command": "ls"}<|call|>'
        ),
        reasoning="hm",
    ),
    "pi 368: MiniMax": Leak(
        text(
            '<minimax:tool_call>\n<invoke name="bash">\n<parameter name="command">ls</parameter>\n</invoke>\n'
            "</minimax:tool_call>"
        )
    ),
    "ollama 16686: Qwen without <tool_call>": Leak(
        text("I look.\n\n<function=bash>\n<parameter=command>\nls\n</parameter>\n</function>\n</tool_call>"),
        content="I look.\n\n",
    ),
    "lmstudio 2045: Qwen calls while it thinks": Leak(
        thought(
            "I look.\n<tool_call>\n<function=bash>\n<parameter=command>\nls\n</parameter>\n</function>\n</tool_call>"
        ),
        reasoning="I look.\n",
    ),
    "Rapid-MLX 1071: Mistral": Leak(text('[TOOL_CALLS]bash[ARGS]{"command": "ls"}')),
    "mlx-lm 1448: Mistral with text behind": Leak(
        text('[TOOL_CALLS]bash[ARGS]{"command": "ls"}\n\nI look.'), content="\n\nI look."
    ),
    "mlx-lm 1374: Mistral's list": Leak(text('[TOOL_CALLS] [{"name": "bash", "arguments": {"command": "ls"}}]')),
    "FreeToken 346: half a marker after the call": Leak(
        text('<|tool_call>call:bash{command:<|"|>ls<|"|>}<tool_call|><|tool_call')
    ),
}
# The same beside a native call.
RESIDUE: dict[str, Leak] = {
    "section begin": Leak([*text(f"I look. {SB}"), native()], content="I look. "),
    "section end behind": Leak([native(), *text(SE)]),
    "FreeToken 203: half a marker": Leak([*text("I look. <|tool_call"), native()], content="I look. "),
    "FreeToken 203: half a marker in the reasoning": Leak([*thought("hm <|tool_call"), native()], reasoning="hm "),
    "half a marker behind": Leak([native(), *text("<|tool_call")]),
    "SwiftLM 115: </think>": Leak([*text("I think.</think>\n"), native()], content="I think."),
    "</think> alone": Leak([*text("</think>\n\n"), native()]),
    "vllm 40801: half of DSML": Leak([*text("I look.\n<｜DSML｜"), native()], content="I look.\n"),
    "DSML ends behind": Leak([native(), *text("</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>")]),
    "DSML up to the header": Leak(
        [*text('I look.\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="bash">\n'), native()], content="I look.\n"
    ),
    "K3 wrappers": Leak([*text("Ok.<|close|>response<|sep|><|open|>tools<|sep|>"), native()], content="Ok."),
    "K3 end of an argument": Leak([native(), *text("<|close|>argument<|sep|>")]),
}
every_leak = pytest.mark.parametrize("leak", RECOVERED)
every_residue = pytest.mark.parametrize("residue", RESIDUE)
every_client = pytest.mark.parametrize("client", CLIENTS)


@every_leak
@every_client
def test_the_call_arrives_and_no_marker_leaks(leak: str, client: str) -> None:
    deltas, reasoning, text = RECOVERED[leak]
    views = [view_stream(client, sse(cut(deltas, size))) for size in (1, 7, 10_000)]
    views.append(view_reply(client, whole_reply(deltas)))
    for seen in views:
        assert (seen.calls, seen.content("reasoning"), seen.content()) == ([LS], reasoning, text)
        assert seen.finish == "tool_use"
        assert "raw_tools.recovered" in seen.rules


@every_residue
@every_client
def test_what_a_parser_left_beside_a_native_call_is_removed(residue: str, client: str) -> None:
    deltas, reasoning, text = RESIDUE[residue]
    views = [view_stream(client, sse(cut(deltas, size), "tool_calls")) for size in (1, 7, 10_000)]
    views.append(view_reply(client, whole_reply(deltas, "tool_calls")))
    for seen in views:
        assert (seen.calls, seen.content("reasoning"), seen.content()) == ([LS], reasoning, text)
        assert "raw_tools.residue" in seen.rules
        assert "text" in seen.kinds or not text, "no block of white space"


@every_client
@pytest.mark.parametrize(
    "name", ["bash<|channel|>commentary", "bash <|constrain|>json", "functions.bash", "functions.bash<|channel|>x"]
)
def test_the_name_of_a_native_call_has_no_tokens_in_it(client: str, name: str) -> None:
    """vllm 32587, 35906: gpt-oss leaves tokens in names, so the client finds no such tool."""
    for seen in (
        view_stream(client, sse([native(name)], "tool_calls")),
        view_reply(client, whole_reply([native(name)], "tool_calls")),
    ):
        assert seen.calls == [LS]
        assert "raw_tools.native_name" in seen.rules


def test_a_native_name_that_is_declared_or_unknown_stays() -> None:
    for name in ("bash", "other", "a<|b", "functions.other"):
        seen = view_stream("openai", sse([native(name)], "tool_calls"))
        assert [called for called, _ in seen.calls] == [name]
        assert not seen.rules


@every_client
def test_copies_of_the_reasoning_are_one(client: str) -> None:
    """OpenRouter sends the reasoning as `reasoning`, `reasoning_content` and `reasoning_details`."""
    pieces = [("hm " + KIMI)[at : at + 9] for at in range(0, len(KIMI) + 3, 9)]
    details = [[{"type": "reasoning.text", "text": piece, "index": 0}] for piece in pieces]
    deltas = [
        {"reasoning": piece, "reasoning_content": piece, "reasoning_details": detail}
        for piece, detail in zip(pieces, details, strict=True)
    ]
    seen = view_stream(client, sse(deltas))
    assert (seen.calls, seen.content("reasoning"), seen.finish) == ([LS], "hm ", "tool_use")


@pytest.mark.parametrize("finish", ["length", "content_filter"])
def test_only_stop_becomes_tool_calls(finish: str) -> None:
    """vllm 53269, 46303."""
    for seen in (view_stream("openai", sse(text(KIMI), finish)), view_reply("openai", whole_reply(text(KIMI), finish))):
        assert seen.calls == [LS]
        assert seen.finish == {"length": "max_tokens", "content_filter": "refusal"}[finish]


@every_client
def test_ids_are_new_to_the_conversation(client: str) -> None:
    """openclaw 84730: Kimi counts from 0 in every turn."""
    turn = [
        {"role": "user", "content": "go"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "functions.bash:0", "type": "function", "function": {"name": "bash", "arguments": "{}"}}
            ],
        },
        {"role": "tool", "tool_call_id": "functions.bash:0", "content": "a"},
    ]
    request = client_request(client, messages=turn)
    used = {call["id"] for message in request.body["messages"] for call in message.get("tool_calls") or ()}
    seen = view_stream(client, sse(text(KIMI + KIMI)), request)
    assert len({*seen.ids, *used}) == len(seen.ids) + len(used) == 3


@every_client
def test_no_call_where_tool_choice_is_none(client: str) -> None:
    """sglang 35736: neither the call nor its markup."""
    if client == "bedrock":
        pytest.skip("Converse has no such choice")
    request = client_request(client, tool_choice="none")
    for seen in (
        view_stream(client, sse(text("Hello. " + dsml("｜"))), request),
        view_reply(client, whole_reply(text("Hello. " + dsml("｜"))), request),
    ):
        assert (seen.calls, seen.content(), seen.finish) == ([], "Hello. ", "end_turn")
        assert "raw_tools.suppressed" in seen.rules


def test_choices_have_their_own_calls() -> None:
    body: dict[str, Any] = whole_reply(text(KIMI))
    body["choices"].append({**whole_reply(text("plain <|tool_call_begin|> text"))["choices"][0], "index": 1})
    request = client_request("openai", n=2)
    translation = dragoman.translate_reply(body, source="openai", target="openai", request=request).body
    first, second = translation["choices"]
    assert (first["finish_reason"], second["finish_reason"]) == ("tool_calls", "stop")
    assert second["message"]["content"] == "plain <|tool_call_begin|> text"
