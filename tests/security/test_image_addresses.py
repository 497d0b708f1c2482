"""Addresses of images and files, model names and ids that a request may pass to an upstream."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

import dragoman.dialects as registry
from dragoman.dialects.base import ApiRequest
from dragoman.errors import ClientFault, MalformedRequest
from dragoman.gateway.media_urls import url_problem
from dragoman.simulator import running_simulator
from dragoman.wire.http import HttpRequest, name_problem
from tests.gateway.harness import anthropic_body, gateway_with_simulator, openai_body, start_gateway, upstream_config

METADATA = (
    *("http://169.254.169.254/latest/meta-data/", "HTTPS://169.254.169.254", "http://169.254.169.254:80/x"),
    *("http://2852039166/", "http://0xA9FEA9FE/", "http://0xa9.0xfe.0xa9.0xfe/", "http://0251.0376.0251.0376/"),
    *("http://169.254.43518/", "http://169.16689662/", "http://025177524776/", "http://169.254.169.254./"),
    *("http://[::ffff:169.254.169.254]/", "http://[::ffff:a9fe:a9fe]/", "http://[64:ff9b::169.254.169.254]/"),
    *("http://[::169.254.169.254]/", "http://[fe80::1]/", "http://[FE80::1%25eth0]:8080/", "http://[fd00:ec2::254]/"),
    *("http://[2002:a9fe:a9fe::]/", "http://100.100.100.200/", "http://168.63.129.16/", "http://169.254.0.1/"),
    *("http://example.com@169.254.169.254/", "http://169.254.169.254@example.com/", "http://a:b@169.254.169.254/"),
    *(
        "http://example.com\\@169.254.169.254/",
        "http:\\\\169.254.169.254\\x",
        "http:169.254.169.254/",
        "http:///169.254.169.254",
    ),
    *("http://169.254.169.254#@example.com/", "http://169.254.169.254?@example.com/", " http://169.254.169.254/"),
    *(
        "ht\ntp://169.254.169.254/",
        "http://169.254.\t169.254/",
        "http://%31%36%39.254.169.254/",
        "http://１６９.２５４.１６９.２５４/",
    ),
    *("http://169。254。169。254/", "http://①⑥⑨.254.169.254/", "http://metadata.google.internal/computeMetadata/v1/"),
    *("http://METADATA.google.internal./x", "http://metadata/", "http://instance-data/latest", "http://metadata.goog/"),
)
OTHER_SCHEMES = (
    *("file:///etc/passwd", "FILE:/etc/passwd", "ftp://example.com/a.png", "gopher://example.com/", "jar:http://x!/y"),
    *(
        "javascript:alert(1)",
        "blob:https://x/y",
        "//example.com/a.png",
        "/etc/passwd",
        "a.png",
        "",
        "gs://b/o",
        "s3://b/o",
    ),
    *("\\\\host\\share", "ldap://x", "unix:/run/x", "httpx://example.com", "view-source:http://x"),
)
ORDINARY = (
    *("https://example.com/a.png", "http://example.com:8080/a?b=c#d", "https://user@example.com/a.png"),
    *("https://1.2.3.4/a.png", "http://127.0.0.1:9000/a.png", "http://10.0.0.5/a.png", "http://[2001:db8::1]/a.png"),
    *(
        "https://example.com/169.254.169.254",
        "https://example.com/?u=http://169.254.169.254/",
        "https://bücher.example/",
    ),
    *(
        "data:image/png;base64,iVBORw0KGgo=",
        "DATA:text/plain,hello",
        "https://169.253.1.1/",
        "https://metadata.example.com/",
    ),
    "https://169.254.169.254.example.com/",  # a host name: only the upstream resolves it
)


@pytest.mark.parametrize("url", METADATA + OTHER_SCHEMES)
def test_private_and_local_addresses_are_refused(url: str) -> None:
    assert url_problem(url)


@pytest.mark.parametrize("url", ORDINARY)
def test_public_addresses_are_accepted(url: str) -> None:
    assert url_problem(url) == ""


def test_an_address_of_its_own_cloud_is_allowed_for_its_family_only() -> None:
    assert url_problem("gs://bucket/a.pdf", "gemini") == url_problem("s3://bucket/a.png", "bedrock") == ""
    assert url_problem("gs://bucket/a.pdf", "bedrock") and url_problem("s3://bucket/a.png", "gemini")


# --- through the gateway

MODEL = "m"


def anthropic(source: dict[str, Any], kind: str = "image") -> dict[str, Any]:
    blocks = [{"type": "text", "text": "look"}, {"type": kind, "source": source}]
    return {"model": MODEL, "max_tokens": 10, "messages": [{"role": "user", "content": blocks}]}


def chat_with(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": [{"type": "text", "text": "look"}, *parts]}]}


def responses(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"model": MODEL, "input": [{"role": "user", "content": [{"type": "input_text", "text": "look"}, *parts]}]}


def gemini(uri: str) -> dict[str, Any]:
    return {"contents": [{"role": "user", "parts": [{"fileData": {"mimeType": "image/png", "fileUri": uri}}]}]}


def requests_with(url: str) -> list[tuple[str, dict[str, Any]]]:
    """Return requests with the address in every place of every dialect that accepts one."""
    source = {"type": "url", "url": url}
    nested = {"type": "content", "content": [{"type": "image", "source": source}]}
    call = {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}]}
    result = [{"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "image", "source": source}]}]
    in_result = anthropic(source)
    in_result["messages"] = [in_result["messages"][0] | {"content": "go"}, call, {"role": "user", "content": result}]
    output = {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_image", "image_url": url}]}
    called = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    screenshot = {
        "type": "computer_call_output",
        "call_id": "c",
        "output": {"type": "computer_screenshot", "image_url": url},
    }
    return [
        ("/v1/messages", anthropic(source)),
        ("/v1/messages", anthropic(source) | {"stream": True}),
        ("/v1/messages", anthropic(source, "document")),
        ("/v1/messages", anthropic(nested, "document")),
        ("/v1/messages", in_result),
        ("/v1/messages/count_tokens", anthropic(source)),
        ("/v1/chat/completions", chat_with({"type": "image_url", "image_url": {"url": url}})),
        ("/v1/chat/completions", chat_with({"type": "image_url", "image_url": url})),
        ("/v1/chat/completions", chat_with({"type": "video_url", "video_url": {"url": url}})),
        ("/v1/chat/completions", chat_with({"type": "file", "file": {"filename": "a.pdf", "file_data": url}})),
        ("/v1/chat/completions", chat_with({"type": "image", "source": source})),
        ("/v1/responses", responses({"type": "input_image", "image_url": url})),
        ("/v1/responses", responses({"type": "input_file", "file_url": url})),
        ("/v1/responses", {"model": MODEL, "input": [{"role": "user", "content": "go"}, called, output]}),
        ("/v1/responses", {"model": MODEL, "input": [{"role": "user", "content": "go"}, screenshot]}),
        (f"/v1beta/models/{MODEL}:generateContent", gemini(url)),
        (f"/v1beta/models/{MODEL}:streamGenerateContent?alt=sse", gemini(url)),
    ]


@pytest.mark.parametrize("dialect", ["anthropic", "openai", "responses", "gemini", "bedrock", "kiro"])
def test_no_dialect_forwards_a_private_address(dialect: str, tmp_path: Path) -> None:
    """Regression: `file://` and metadata addresses reached upstreams, translated or passed through."""
    with running_simulator(dialect) as simulator:
        with start_gateway(
            upstream_config("one", dialect, simulator.url, "translation.repair = false"), tmp_path
        ) as harness:
            for url in ("file:///etc/passwd", "http://169.254.169.254/latest/meta-data/"):
                for path, body in requests_with(url):
                    status, _, response = harness.request(path, body)
                    assert status == 400, (path, body, response)
                    assert (
                        b"[" in response and url.encode() not in response
                    )  # the error names the place, not the address
        assert simulator.total == 0


def test_ordinary_images_pass(tmp_path: Path) -> None:
    with running_simulator("anthropic") as simulator:
        with start_gateway(upstream_config("one", "anthropic", simulator.url), tmp_path) as harness:
            for url in ("https://example.com/a.png", "http://10.1.2.3/a.png"):
                assert harness.request("/v1/messages", anthropic({"type": "url", "url": url}))[0] == 200
                assert (
                    harness.request(
                        "/v1/chat/completions", chat_with({"type": "image_url", "image_url": {"url": url}})
                    )[0]
                    == 200
                )
        assert simulator.total == 4


def test_arguments_schemas_and_results_may_contain_any_address(tmp_path: Path) -> None:
    """Tool arguments and results are data that no service fetches."""
    with gateway_with_simulator("", tmp_path) as (harness, _):
        body = anthropic({"type": "url", "url": "https://example.com/a.png"})
        resource = {"uri": "file:///src/main.py", "text": "print(1)"}
        body["messages"] += [
            {
                "role": "assistant",
                "content": [
                    {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"image_url": "file:///etc/passwd"}}
                ],
            },
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "toolu_1",
                        "content": [
                            {"type": "text", "text": "http://169.254.169.254/"},
                            {"type": "resource", "resource": resource},
                        ],
                    }
                ],
            },
        ]
        body["tools"] = [{"name": "f", "input_schema": {"type": "object", "default": {"url": "file:///x"}}}]
        status, _, response = harness.request("/v1/messages", body)
        assert status == 200, response


@pytest.mark.parametrize(
    ("dialect", "path", "body"),
    [
        ("gemini", f"/v1beta/models/{MODEL}:generateContent", gemini("gs://bucket/a.png")),
        (
            "bedrock",
            f"/model/{MODEL}/converse",
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {"text": "look"},
                            {"image": {"format": "png", "source": {"s3Location": {"uri": "s3://bucket/a.png"}}}},
                        ],
                    }
                ]
            },
        ),
    ],
)
def test_objects_in_the_cloud_of_the_dialect_pass(
    dialect: str, path: str, body: dict[str, Any], tmp_path: Path
) -> None:
    with running_simulator(dialect) as simulator:
        with start_gateway(upstream_config("one", dialect, simulator.url), tmp_path) as harness:
            status, _, response = harness.request(path, body)
            assert status == 200, response
        assert simulator.total == 1


def test_the_setting_allows_all_or_none(tmp_path: Path) -> None:
    body = anthropic({"type": "url", "url": "http://169.254.169.254/a.png"})
    ordinary = anthropic({"type": "url", "url": "https://example.com/a.png"})
    inline = anthropic({"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="})
    with running_simulator("anthropic") as simulator:
        text = upstream_config("one", "anthropic", simulator.url)
        with start_gateway(text, tmp_path, server__media_urls="any") as harness:
            assert harness.request("/v1/messages", body)[0] == 200
        with start_gateway(text, tmp_path, server__media_urls="none") as harness:
            assert harness.request("/v1/messages", ordinary)[0] == 400
            assert harness.request("/v1/messages", inline)[0] == 200


# --- a model name never changes the upstream path

BAD = (
    *("..", ".", "a/..", "../a", "a/../b", "./a", "..;x", "%2e%2e", "%2E.", "a%2f..%2fb", "%252e%252e"),
    *("a\\..\\b", "a\\b", "a//b", "/a", "a/", "a?b", "a#b", "a%3Fb", "a%00b", "a\nb", "a\x7fb", "a%0d%0ab"),
)
GOOD = (
    *("anthropic.claude-3-5-sonnet-20241022-v2:0", "accounts/fireworks/models/x", "publishers/google/models/y@001"),
    *("arn:aws:bedrock:us-east-1:123456789012:inference-profile/us.meta.llama3", "a..b", "...", "v1.5", "größe", "a b"),
    *("deepseek/deepseek-r1:free", "claude-opus-4[1m]", "50%", ""),
)
NAMED_IN_PATHS = ("bedrock", "bedrock.invoke", "gemini")


@pytest.mark.parametrize("name", BAD)
def test_a_name_that_changes_the_path_is_refused(name: str) -> None:
    assert name_problem(name)


@pytest.mark.parametrize("name", GOOD)
def test_ordinary_model_names_are_accepted(name: str) -> None:
    assert name_problem(name) == ""


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("dialect", NAMED_IN_PATHS)
@pytest.mark.parametrize("stream", [False, True])
def test_no_binding_builds_a_path_from_such_a_name(dialect: str, stream: bool, name: str) -> None:
    binding = registry.get(dialect).binding
    for operation in ("generate", "count"):
        with pytest.raises(MalformedRequest) as refused:
            binding.wrap(ApiRequest(operation, name, stream, {}))
        assert refused.value.at == "model"


@pytest.mark.parametrize(
    "path", ["/model/{}/converse", "/model/{}/converse-stream", "/v1beta/models/{}:generateContent"]
)
@pytest.mark.parametrize("name", ["..", "a/..", "a/../b", "a\\b", "a?b", "a\nb"])
def test_a_client_whose_path_has_such_a_name_gets_400(path: str, name: str, tmp_path: Path) -> None:
    with running_simulator("anthropic") as simulator:
        with start_gateway(upstream_config("one", "anthropic", simulator.url), tmp_path) as harness:
            status, _, body = harness.request(path.format(quote(name, safe="")), {})
            assert (status, b"model" in body) == (400, True), body
        assert simulator.total == 0


@pytest.mark.parametrize("dialect", ["bedrock", "gemini"])
@pytest.mark.parametrize("model", ["b/..", "b/.", "b/x/../y", "b/%2e%2e", "b/x\\y", "b/x?y", "b/x//y"])
def test_a_name_in_a_body_is_refused_before_anything_is_sent(dialect: str, model: str, tmp_path: Path) -> None:
    """Regression: `b/..` became `POST /model/../converse`."""
    with running_simulator(dialect) as simulator:
        with start_gateway(upstream_config("b", dialect, simulator.url), tmp_path) as harness:
            for path, body in (
                ("/v1/messages", anthropic_body(model)),
                ("/v1/messages", anthropic_body(model, stream=True)),
                ("/v1/chat/completions", openai_body(model)),
                ("/v1/responses", {"model": model, "input": "hello"}),
                ("/v1/messages/count_tokens", anthropic_body(model)),
            ):
                status, _, response = harness.request(path, body)
                assert (status, b"model" in response) == (400, True), response
            assert harness.running.gateway.breaker.describe() == []
        assert simulator.total == 0


@pytest.mark.parametrize("name", ["resp_..", "..", "%2e%2e", "a%2f..", "a?b=1", "a.b"])
def test_no_id_of_a_stored_response_changes_the_path(name: str) -> None:
    binding = registry.get("responses").binding
    for method, end in (("GET", ""), ("DELETE", ""), ("POST", "/cancel")):
        path = f"/v1/responses/{name}{end}"
        with pytest.raises(ClientFault) as refused:
            binding.match(HttpRequest(method, path))
        assert refused.value.fault.status == 404


def test_a_key_in_the_query_of_a_stored_response_is_not_forwarded() -> None:
    binding = registry.get("responses").binding
    call = binding.match(HttpRequest("GET", "/v1/responses/resp_1", "stream=true&key=secret&%6bey=secret"))
    assert call is not None and binding.wrap(call).query == "stream=true"
