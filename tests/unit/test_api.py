"""The public API: what it returns, and that it raises only DragomanError."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dragoman
import dragoman.dialects as registry
from dragoman.cli import main
from dragoman.errors import LocalMisuse, MalformedRequest, Unrepresentable, UpstreamViolation
from dragoman.gateway.config import build_config
from dragoman.wire.http import HttpRequest
from tests.growth import check_linear_growth

BODY: dict[str, Any] = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
PAIRS = [(one, other) for one in ("anthropic", "openai") for other in ("anthropic", "openai")]


def test_a_request_is_translated_with_path_headers_and_notes() -> None:
    done = dragoman.translate_request(BODY, source="anthropic", target="openai", model="gpt-x")
    assert done.body["model"] == "gpt-x"
    assert done.body["messages"] == [{"role": "user", "content": "hi"}]
    assert done.path == "/v1/chat/completions"
    assert done.headers["content-type"] == "application/json"
    assert done.notes == []


@pytest.mark.parametrize("form", [BODY, json.dumps(BODY), json.dumps(BODY).encode()], ids=["dict", "str", "bytes"])
def test_a_body_may_be_dict_text_or_bytes(form: Any) -> None:
    assert dragoman.translate_request(form, source="anthropic", target="openai").body["max_completion_tokens"] == 9


def test_the_body_given_is_not_changed() -> None:
    before = json.dumps(BODY)
    done = dragoman.translate_request(BODY, source="anthropic", target="openai")
    done.body["messages"].clear()
    assert json.dumps(BODY) == before
    assert done.body["messages"]


def test_dialects_is_both_the_call_and_the_package() -> None:
    assert {"anthropic", "openai"} <= set(dragoman.dialects())
    import dragoman.dialects as package

    assert package.get("openai").name == "openai"


def test_unknown_names_get_the_nearest() -> None:
    with pytest.raises(LocalMisuse, match="did you mean 'anthropic'"):
        dragoman.translate_request(BODY, source="antropic", target="openai")
    with pytest.raises(LocalMisuse, match="did you mean 'losses'"):
        dragoman.translate_request(BODY, source="anthropic", target="openai", loses="refuse")  # type: ignore[call-arg]
    with pytest.raises(LocalMisuse, match="option"):
        dragoman.translate_request(BODY, source="anthropic", target="openai", losses="maybe")  # type: ignore[arg-type]
    with pytest.raises(AttributeError):
        dragoman.nothing_of_the_kind  # noqa: B018


def test_options_reach_the_dialect_they_belong_to() -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
    done = dragoman.translate_request(body, source="openai", target="anthropic", default_max_tokens=77)
    assert done.body["max_tokens"] == 77


def test_settings_of_a_dialect_can_be_given_by_name() -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
    done = dragoman.translate_request(body, source="openai", target="anthropic", settings={"default_max_tokens": 77})
    assert done.body["max_tokens"] == 77
    stream = dragoman.stream_translator(source="anthropic", target="openai", request=done, settings={"threads": False})
    codec: Any = stream.plan.upstream.codec
    assert (codec.default_max_tokens, codec.threads) == (77, False)
    for settings, message in (
        ({"default_max_token": 7}, "did you mean 'default_max_tokens'"),
        ({"threads": True}, "the option 'threads' is set twice"),
        ({7: 7}, "unknown option 7"),
        ([7], "the option settings must be a mapping"),
    ):
        wrong: Any = settings
        with pytest.raises(LocalMisuse, match=message):
            dragoman.translate_request(body, source="openai", target="anthropic", threads=True, settings=wrong)


def test_the_path_has_the_query_that_the_service_needs() -> None:
    done = dragoman.translate_request({**BODY, "stream": True}, source="anthropic", target="gemini")
    assert done.path == "/v1beta/models/m:streamGenerateContent?alt=sse"


@pytest.mark.parametrize("source", ["gemini", "bedrock"])
def test_a_client_whose_path_asks_for_a_stream_gets_one(source: str) -> None:
    body = BODIES[source]
    done = dragoman.translate_request(body, source=source, target="openai", model="m", stream=True)
    assert (done.stream, done.body["stream"]) == (True, True)
    done = dragoman.translate_request(body, source=source, target="openai", model="m")
    assert (done.stream, "stream" in done.body) == (False, False)
    done = dragoman.translate_request({**BODY, "stream": True}, source="anthropic", target="openai", stream=False)
    assert not done.stream


@pytest.mark.parametrize("client", registry.names())
def test_a_stream_has_the_content_type_of_the_clients_dialect(client: str) -> None:
    kinds = {"kiro": "application/vnd.amazon.eventstream", "bedrock": "application/vnd.amazon.eventstream"}
    kinds |= {"bedrock.invoke": "application/vnd.amazon.eventstream", "ollama": "application/x-ndjson"}
    stream = dragoman.stream_translator(source="openai", target=client)
    assert stream.headers["content-type"] == kinds.get(client, "text/event-stream")


def test_losses_can_be_refused() -> None:
    with pytest.raises(Unrepresentable, match="top_k"):
        dragoman.translate_request({**BODY, "top_k": 4}, source="anthropic", target="openai", losses="refuse")


@pytest.mark.parametrize(("source", "target"), PAIRS)
@pytest.mark.parametrize(
    "body",
    [
        "",
        "{",
        "[]",
        "null",
        '"x"',
        "{}",
        '{"messages": 5}',
        '{"model": 7, "messages": []}',
        b"\xff\xfe",
        '{"messages": [{"role": "user", "content": {"a": NaN}}]}',
        "[" * 100_000,
        '{"messages":' + "[" * 100_000 + "]" * 100_000 + "}",
        '{"model":"m","max_tokens":1,"messages":[{"role":"user","content":'
        + '{"content":' * 900
        + "1"
        + "}" * 900
        + "}]}",
    ],
    ids=lambda body: str(body[:12]),
)
def test_a_bad_body_is_a_clear_refusal(source: str, target: str, body: Any) -> None:
    try:
        dragoman.translate_request(body, source=source, target=target)
    except dragoman.DragomanError as error:
        assert str(error)
        assert isinstance(error, MalformedRequest | Unrepresentable)
    else:
        assert "content" in str(body)  # deep, but text all the same (docs/decisions/content.md#d1)


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_a_bad_reply_is_a_violation_of_the_upstream(source: str, target: str) -> None:
    for body in ("", "{", "[]", "null", "{}", '{"choices": 1}', '{"content": 1}', "[" * 100_000, b"\xff"):
        with pytest.raises(dragoman.DragomanError) as caught:
            dragoman.translate_reply(body, source=source, target=target)
        assert isinstance(caught.value, UpstreamViolation)


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_a_bad_stream_ends_with_the_clients_error_and_never_raises(source: str, target: str) -> None:
    for data in (
        b"",
        b"data: {\n\n",
        b"data: [1]\n\n",
        b"\x00\xff",
        b"data: " + b"[" * 100_000 + b"\n\n",
        b"event: x\ndata: 1\n\n",
    ):
        stream = dragoman.stream_translator(source=source, target=target)
        out = stream.feed(data) + stream.close()
        assert b"error" in out
        assert stream.error is not None


def test_lone_surrogates_travel_as_they_came() -> None:
    body = '{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"a\\ud800b"}]}'
    done = dragoman.translate_request(body, source="anthropic", target="openai")
    assert done.body["messages"][0]["content"] == "a\ud800b"
    assert rb"a\ud800b" in done.raw


def conversation(pairs: int, size: int) -> bytes:
    text = "lorem ipsum " * (size // 12)
    messages: list[Any] = []
    for index in range(pairs):
        call = {"type": "tool_use", "id": f"t{index}", "name": "f", "input": {"n": index, "text": text}}
        messages += [
            {"role": "user", "content": [{"type": "text", "text": text}]},
            {"role": "assistant", "content": [{"type": "text", "text": "so"}, call]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": f"t{index}", "content": text}]},
        ]
    return json.dumps({"model": "m", "max_tokens": 9, "messages": messages}).encode()


def test_a_20_mb_body_is_served_in_linear_time() -> None:
    assert len(conversation(1_600, 4_000)) > 19_000_000

    def work(pairs: int) -> Callable[[], object]:
        body = conversation(pairs, 4_000)
        return lambda: dragoman.translate_request(body, source="anthropic", target="openai")

    check_linear_growth(work, 100, 16)


def test_a_dialect_registered_by_entry_point_works_without_an_edit() -> None:
    """A third-party dialect is listed, translated to and from, and passes the conformance kit."""
    example = Path(__file__).parent.parent / "example"
    script = """
import dragoman, json
assert "pigeon" in dragoman.dialects()
body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
done = dragoman.translate_request(body, source="anthropic", target="pigeon")
assert done.path == "/fly" and done.body["turns"] == [{"who": "user", "says": [{"text": "hi"}]}], done.body
lines = [{"hello": {"id": "a", "model": "m"}}, {"say": "yes"}, {"stop": "done"}, {"bye": True}]
stream = dragoman.stream_translator(source="pigeon", target="anthropic", request=done)
out = stream.feed(b"".join(json.dumps(line).encode() + b"\\n" for line in lines)) + stream.close()
assert b'"text_delta","text":"yes"' in out and b"message_stop" in out, out
from dragoman.conformance import run
import dragoman.dialects as registry
done = dragoman.translate_request(body, source="anthropic", target="pigeon", settings={"loft": "north"})
assert done.plan.upstream.codec.loft == "north"
tried, failures = run(registry.get("pigeon"))
assert tried > 90 and not failures, failures
print("flown")
"""
    done = subprocess.run(
        [sys.executable, "-c", script], env={"PYTHONPATH": str(example)}, capture_output=True, text=True, check=False
    )
    assert done.stdout == "flown\n", done.stderr


def test_options_of_the_response_are_added_to_those_of_the_request() -> None:
    body = {"model": "claude-sonnet-4-5", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}]}
    done = dragoman.translate_request(body, source="anthropic", target="kiro", usage_split=False, pairing="merge")
    again = dragoman.stream_translator(source="kiro", target="anthropic", request=done, repair=True)
    codec: Any = again.plan.upstream.codec
    assert (codec.usage_split, codec.pairing, again.plan.settings.repair) == (False, "merge", True)


@pytest.mark.parametrize(
    ("target", "options"),
    [
        ("kiro", {"history_limit": "x"}),
        ("kiro", {"max_tools": "x"}),
        ("kiro", {"fillers": [1, 2]}),
        ("kiro", {"origin": 5}),
        ("anthropic", {"default_max_tokens": "x"}),
        ("openai", {"ask_usage": "no"}),
        ("openai", {"max_tokens_field": "tokens"}),
    ],
)
def test_a_setting_of_a_wrong_type_is_a_misuse(target: str, options: dict[str, Any]) -> None:
    with pytest.raises(LocalMisuse, match="setting"):
        dragoman.translate_request(BODY, source="anthropic", target=target, **options)


def test_wrong_uses_of_the_library_are_named() -> None:
    for wrong in (
        lambda: dragoman.translate_request(BODY, source="anthropic", target="openai", model=5),  # type: ignore[arg-type]
        lambda: dragoman.translate_request(BODY, source=None, target="openai"),  # type: ignore[arg-type]
        lambda: dragoman.stream_translator(source="openai", target="anthropic", request={"a": 1}),  # type: ignore[arg-type]
        lambda: dragoman.stream_translator(source="openai", target="anthropic").feed("text"),  # type: ignore[arg-type]
        lambda: dragoman.stream_translator(source="openai", target="anthropic").close("late"),  # type: ignore[arg-type]
        lambda: dragoman.translate_request(BODY, source="anthropic", target="openai", stream=1),  # type: ignore[arg-type]
        lambda: dragoman.render_error(ValueError("x"), dialect="openai"),  # type: ignore[arg-type]
        lambda: dragoman.render_error(LocalMisuse("x"), dialect="opnai"),
        lambda: dragoman.parse_error(b"", status=200, dialect="openai"),
        lambda: dragoman.parse_error(b"", status="404", dialect="openai"),  # type: ignore[arg-type]
        lambda: dragoman.load_config(5),  # type: ignore[arg-type]
        lambda: dragoman.load_config(b"config.toml"),  # type: ignore[arg-type]
        lambda: dragoman.asgi(["config.toml"]),  # type: ignore[arg-type]
    ):
        with pytest.raises(LocalMisuse):
            wrong()


def many_tool_messages(count: int) -> dict[str, Any]:
    calls = [{"id": f"c{i}", "type": "function", "function": {"name": "f", "arguments": "{}"}} for i in range(count)]
    results = [{"role": "tool", "tool_call_id": f"c{i}", "content": "r"} for i in range(count)]
    return {
        "model": "m",
        "messages": [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": calls}, *results],
    }


def one_id_again_and_again(count: int) -> dict[str, Any]:
    call = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    turn = [{"role": "assistant", "tool_calls": call}, {"role": "tool", "tool_call_id": "c", "content": "r"}]
    return {"model": "m", "messages": [{"role": "user", "content": "x"}, *turn * count]}


@pytest.mark.parametrize("shape", [many_tool_messages, one_id_again_and_again])
def test_many_small_messages_are_served_in_linear_time(shape: Any) -> None:
    def work(count: int) -> Callable[[], object]:
        body = shape(count)
        return lambda: dragoman.translate_request(body, source="openai", target="anthropic")

    check_linear_growth(work, 250)


# --- a request without a model is an error that says what to do; `"model": ""` is never sent

BODIES: dict[str, dict[str, Any]] = {
    "anthropic": {"max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]},
    "openai": {"messages": [{"role": "user", "content": "hi"}]},
    "responses": {"input": "hi"},
    "bedrock": {"messages": [{"role": "user", "content": [{"text": "hi"}]}]},
    "bedrock.invoke": {"max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]},
    "gemini": {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]},
    "kiro": {"conversationState": {"currentMessage": {"userInputMessage": {"content": "hi"}}}},
}
FIELDS = {"bedrock": "modelId"}
WITHOUT: tuple[dict[str, Any], ...] = ({}, {"model": None}, {"model": ""}, {"model": " "})


@pytest.mark.parametrize("target", registry.names())
@pytest.mark.parametrize("body", WITHOUT, ids=["absent", "null", "empty", "blank"])
@pytest.mark.parametrize("source", BODIES)
def test_a_request_without_a_model_names_the_option(source: str, body: dict[str, Any], target: str) -> None:
    named = {FIELDS.get(source, "model"): value for value in body.values()} if source != "kiro" else {}
    if source in ("anthropic", "openai", "responses"):  # their bodies have a field for it
        with pytest.raises(MalformedRequest) as refused:
            dragoman.translate_request({**BODIES[source], **named}, source=source, target=target)
        assert refused.value.fault.at == "model"
        return
    with pytest.raises(LocalMisuse, match=r"names no model.*--model"):
        dragoman.translate_request({**BODIES[source], **named}, source=source, target=target)


@pytest.mark.parametrize("target", registry.names())
@pytest.mark.parametrize("source", BODIES)
def test_the_option_is_enough(source: str, target: str) -> None:
    translated = dragoman.translate_request(BODIES[source], source=source, target=target, model="claude-sonnet-4.5")
    assert "claude-sonnet-4.5" in translated.raw.decode() + translated.path


@pytest.mark.parametrize("model", ["", "  "])
def test_an_empty_option_is_no_model(model: str) -> None:
    with pytest.raises(LocalMisuse, match="model"):
        dragoman.translate_request({**BODIES["openai"], "model": "m"}, source="openai", target="anthropic", model=model)


@pytest.mark.parametrize("source", ["gemini", "bedrock"])
def test_the_command_line_says_so_and_exits_with_2(
    source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "asked.json"
    file.write_text(json.dumps(BODIES[source]))
    assert main(["translate", "--from", source, "--to", "openai", str(file)]) == 2
    shown = capsys.readouterr()
    assert "--model" in shown.err and not shown.out


@pytest.mark.parametrize("dialect", ["anthropic", "openai", "responses"])
@pytest.mark.parametrize("fields", WITHOUT, ids=["absent", "null", "empty", "blank"])
def test_a_binding_refuses_a_body_without_a_model(dialect: str, fields: dict[str, Any]) -> None:
    """As the gateway reads it."""
    known = registry.get(dialect)
    request = known.binding.wrap(known.binding.unwrap({**BODIES[dialect], "model": "m"}))
    body = json.dumps({**BODIES[dialect], **fields}).encode()
    with pytest.raises(MalformedRequest) as refused:
        known.binding.match(HttpRequest("POST", request.path, headers=request.headers, body=body))
    assert refused.value.fault.at == "model"


def test_check_still_misses_the_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "asked.json"
    file.write_text(json.dumps(BODIES["openai"]))
    assert main(["check", "--dialect", "openai", str(file)]) == 1
    assert "model" in capsys.readouterr().err


UPSTREAM = '[upstreams.kimi]\npreset = "moonshot"\n'


@pytest.mark.parametrize("model", ["", " "])
def test_a_route_has_to_name_a_model_if_the_request_does_not(model: str) -> None:
    """Gemini, Bedrock and Kiro clients can omit it: then the route names a model, or it is an error."""

    def resolved(text: str) -> list[str]:
        config = build_config(text, Path("/c/config.toml"), {"HOME": "/h"}, {}).config
        return [target.model for target in config.routes.resolve(model)]

    with pytest.raises(MalformedRequest, match="names no model") as refused:
        resolved(UPSTREAM)
    assert refused.value.fault.at == "model"
    with pytest.raises(MalformedRequest):
        resolved(UPSTREAM + '[default]\nupstream = "kimi"\n')
    assert resolved(UPSTREAM + '[default]\nupstream = "kimi"\nmodel = "kimi-k2"\n') == ["kimi-k2"]
