"""Document 004 of docs/mission.md: a malformed response of Bedrock is named at once. Its tests are here under their own names."""

from __future__ import annotations

import subprocess
import sys
import unittest
from typing import Any

import pytest

from dragoman.agent import BedrockClient, BedrockResponseError, ToolUseBlock
from dragoman.errors import UpstreamViolation


def response(*blocks: Any) -> Any:
    return {"output": {"message": {"content": list(blocks)}}}


class TestParseToolUse(unittest.TestCase):
    def test_raises_on_missing_tool_use_id(self) -> None:
        """Test error raised when toolUseId missing."""
        client = BedrockClient()
        with self.assertRaises(BedrockResponseError) as ctx:
            client.parse_tool_use(response({"type": "tool_use", "name": "query_tasks", "input": {}}))
        self.assertIn("toolUseId", str(ctx.exception))

    def test_raises_on_null_tool_use_id(self) -> None:
        """Test error raised when toolUseId is null."""
        client = BedrockClient()
        with self.assertRaises(BedrockResponseError) as ctx:
            client.parse_tool_use(response({"type": "tool_use", "toolUseId": None, "name": "query_tasks"}))
        self.assertIn("toolUseId", str(ctx.exception))

    def test_raises_on_malformed_response_structure(self) -> None:
        """Test error raised when response path invalid."""
        with self.assertRaises(BedrockResponseError):
            BedrockClient().parse_tool_use({"unexpected": "structure"})

    def test_valid_response_parses_correctly(self) -> None:
        """Test valid response returns ToolUseBlock."""
        block = {"type": "tool_use", "toolUseId": "abc123", "name": "query_tasks", "input": {"status": "In Progress"}}
        result = BedrockClient().parse_tool_use(response(block))
        self.assertEqual(result["id"], "abc123")
        self.assertEqual(result["name"], "query_tasks")
        self.assertEqual(result["input"], {"status": "In Progress"})


# --- both block shapes (docs/decisions/bedrock.md#d30), all calls (docs/decisions/bedrock.md#d31)


def flat(**fields: Any) -> Any:
    return {"type": "tool_use", **fields}


def true(**fields: Any) -> Any:
    return {"toolUse": fields}


@pytest.mark.parametrize("shape", [flat, true])
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": "q"}, "Bedrock response missing required 'toolUseId' field (field: toolUseId)"),
        ({"toolUseId": None, "name": "q"}, "Bedrock response missing required 'toolUseId' field (field: toolUseId)"),
        ({"toolUseId": "", "name": "q"}, "Bedrock response missing required 'toolUseId' field (field: toolUseId)"),
        ({"toolUseId": " ", "name": "q"}, "Bedrock response missing required 'toolUseId' field (field: toolUseId)"),
        (
            {"toolUseId": 7, "name": "q"},
            "Bedrock response 'toolUseId' is not a string, but a number (field: toolUseId)",
        ),
        (
            {"toolUseId": [], "name": "q"},
            "Bedrock response 'toolUseId' is not a string, but an array (field: toolUseId)",
        ),
        ({"toolUseId": "t"}, "Bedrock response missing required 'name' field (field: name)"),
        ({"toolUseId": "t", "name": {}}, "Bedrock response 'name' is not a string, but an object (field: name)"),
        ({"toolUseId": "t", "name": None}, "Bedrock response missing required 'name' field (field: name)"),
    ],
)
def test_a_missing_field_is_named_with_what_came(shape: Any, fields: Any, message: str) -> None:
    with pytest.raises(BedrockResponseError) as refused:
        BedrockClient().parse_tool_use(response(shape(**fields)))
    assert str(refused.value) == message
    assert refused.value.field in ("toolUseId", "name")
    assert refused.value.response is not None
    assert dict(refused.value.response) == ({"type": "tool_use", **fields} if shape is flat else fields)


@pytest.mark.parametrize("shape", [flat, true])
@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, {}),
        (None, {}),
        ("", {}),
        ({"a": 1}, {"a": 1}),
        ('{"a": 1}', {"a": 1}),
        ("no json", {"raw_arguments": "no json"}),
        ([1, 2], {"raw_arguments": "[1,2]"}),
        (3, {"raw_arguments": "3"}),
    ],
)
def test_an_input_that_is_no_object_becomes_one(shape: Any, body: Any, message: Any) -> None:
    assert BedrockClient().parse_tool_use(response(shape(toolUseId="t", name="q", input=body)))["input"] == message


def test_an_input_that_is_left_out_is_empty() -> None:
    call = BedrockClient().parse_tool_use(response(flat(toolUseId="t1", name="q")))
    assert call == ToolUseBlock(id="t1", name="q", input={})


@pytest.mark.parametrize(
    "bad",
    [
        None,
        [],
        "text",
        {},
        {"output": None},
        {"output": {}},
        {"output": {"message": None}},
        {"output": {"message": {}}},
        {"output": {"message": {"content": {}}}},
        {"output": {"message": {"content": None}}},
    ],
)
def test_a_response_of_another_shape_is_never_an_attribute_error(bad: Any) -> None:
    for read in (BedrockClient().parse_tool_use, BedrockClient().parse_tool_uses, BedrockClient().text_of):
        with pytest.raises(BedrockResponseError) as refused:
            read(bad)
        assert refused.value.response == bad  # Of every malformed reply


def test_the_words_of_the_document() -> None:
    client = BedrockClient()
    for content, words in (
        ({"unexpected": 1}, "Bedrock response missing expected path: 'output'"),
        ({"output": {"message": {"content": {}}}}, "Bedrock response 'content' is not a list"),
        (response({"text": "hi"}), "No tool_use block found in Bedrock response"),
    ):
        with pytest.raises(BedrockResponseError) as refused:
            client.parse_tool_use(content)
        assert str(refused.value) == words
        assert refused.value.response == content
        assert refused.value.field is None


def test_blocks_that_are_no_blocks_are_passed_over() -> None:
    blocks: list[Any] = [None, 1, "x", [], {"text": "a"}, {"toolUse": {"toolUseId": "t", "name": "q", "input": {}}}]
    assert BedrockClient().parse_tool_use(response(*blocks))["id"] == "t"


@pytest.mark.parametrize("use", [None, "x", []])
def test_a_call_that_is_no_object_is_refused(use: Any) -> None:
    with pytest.raises(BedrockResponseError) as refused:
        BedrockClient().parse_tool_use(response({"toolUse": use}))
    assert refused.value.response == {"toolUse": use}


def test_all_calls_of_a_response() -> None:
    both = response({"text": "x"}, true(toolUseId="a", name="f", input={}), flat(toolUseId="b", name="g"))
    assert [call["id"] for call in BedrockClient().parse_tool_uses(both)] == ["a", "b"]
    assert BedrockClient().parse_tool_use(both)["id"] == "a"
    assert BedrockClient().parse_tool_uses(response({"text": "x"})) == []


def test_one_bad_call_among_good_ones_is_refused() -> None:
    with pytest.raises(BedrockResponseError):
        BedrockClient().parse_tool_uses(response(true(toolUseId="a", name="f"), true(name="g")))


def test_a_tool_of_the_service_is_not_ours_to_run() -> None:
    own = true(toolUseId="s", name="nova_code", type="server_tool_use", input={})
    assert BedrockClient().parse_tool_uses(response(own)) == []


# --- the error


def test_the_error_is_a_violation_by_the_upstream() -> None:
    error = BedrockResponseError("words", {"secret": 1}, "field")
    assert isinstance(error, UpstreamViolation)
    assert (error.fault.status, error.fault.kind, error.at) == (502, "server", "field")
    assert "secret" not in str(error) + repr(error)
    assert str(BedrockResponseError("words")) == "words"


# --- making one


def test_a_client_needs_nothing_and_touches_nothing() -> None:
    code = (
        "import sys, socket\n"
        "sys.modules['botocore'] = sys.modules['boto3'] = None\n"
        "def refuse(*_, **__): raise AssertionError('network')\n"
        "socket.socket.connect = refuse\n"
        "from dragoman.agent import BedrockClient, BedrockResponseError, ToolUseBlock, AgentRunner, StepResult\n"
        "BedrockClient(); AgentRunner(BedrockClient())\n"
        "assert not any(name.startswith('botocore.') for name in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path), "PATH": ""})
