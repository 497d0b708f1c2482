"""Tests of endpoints other than chat: relayed untouched within a family, with keys, limits, routing, ledger and log."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import ollama
import openai
import pytest
from google import genai
from google.genai import types
from hypothesis import given
from hypothesis import strategies as st

from dragoman.dialects.endpoints import OPENAI_ENDPOINTS
from dragoman.errors import MalformedRequest
from dragoman.gateway.relayed_bodies import read_model, rename_model
from dragoman.wire.http import HttpRequest
from tests.gateway.harness import KEY, GatewayHarness, start_gateway, upstream_config, wait_until
from tests.gateway.relay_service import SPEECH, VECTOR, running_relay_service
from tests.gateway.test_accounts import Accounts

EMBEDDINGS = {each.path: each for each in OPENAI_ENDPOINTS.endpoints}["/embeddings"]
_ROUTES = """
[[routes]]
match = "small"
upstream = "one"
model = "text-embedding-3-small"
[[routes]]
match = "spare-*"
upstream = "two"
fallbacks = ["one"]
"""


@contextmanager
def relay_gateway(folder: Path, dialect: str = "openai", more: str = "") -> Iterator[tuple[GatewayHarness, Any, Any]]:
    """Run a gateway with two upstreams of a dialect, `one` and `two`."""
    with running_relay_service() as one, running_relay_service() as two:
        upstreams = upstream_config("one", dialect, one.url, 'models = ["*"]') + upstream_config(
            "two", dialect, two.url
        )
        with start_gateway(more + upstreams + _ROUTES, folder) as harness:
            yield harness, one, two


def openai_client(harness: GatewayHarness, key: str = KEY) -> openai.OpenAI:
    """Return a client, to be used as a context manager."""
    return openai.OpenAI(base_url=f"{harness.url}/v1", api_key=key, max_retries=0)


# --- real clients


def test_the_openai_sdk_reaches_every_endpoint(tmp_path: Path) -> None:
    with relay_gateway(tmp_path) as (harness, one, _), openai_client(harness) as client:
        vectors = client.embeddings.create(model="text-embedding-3-small", input="hello", encoding_format="float")
        assert vectors.data[0].embedding == VECTOR
        assert client.moderations.create(input="hello").results[0].flagged is False
        images = client.images.generate(model="gpt-image-1", prompt="a cat").data
        assert images and images[0].b64_json == "aGk="
        assert client.images.edit(model="gpt-image-1", image=b"\x89PNG\r\n--\r\n\x00", prompt="x").created == 1
        spoken = client.audio.speech.create(model="tts-1", voice="alloy", input="hello")
        assert spoken.content == SPEECH
        text = client.audio.transcriptions.create(model="whisper-1", file=("a.wav", b"RIFF\r\n\r\n\x00\xff"))
        assert text.text == "hello"
        stream = client.completions.create(model="gpt-3.5-turbo-instruct", prompt="count", stream=True)
        assert "".join(part.choices[0].text for part in stream if part.choices) == "one two"
        paths = [each.path for each in one.received]
        rows = harness.log_lines(7)
    assert paths == [
        "/v1/embeddings",
        "/v1/moderations",
        "/v1/images/generations",
        "/v1/images/edits",
        "/v1/audio/speech",
        "/v1/audio/transcriptions",
        "/v1/completions",
    ]
    names = ["embeddings", "moderations", "images", "images", "speech", "transcriptions", "completions"]
    assert [row["operation"] for row in rows] == names
    assert all(row["outcome"] == "ok" and row["verbatim"] and row["upstream"] == "one" for row in rows)
    assert (rows[0]["input_tokens"], rows[0]["output_tokens"]) == (7, 0)
    assert (rows[2]["input_tokens"], rows[2]["output_tokens"]) == (3, 4)
    assert (rows[6]["input_tokens"], rows[6]["output_tokens"]) == (4, 2)


def test_the_google_sdk_embeds(tmp_path: Path) -> None:
    with relay_gateway(tmp_path, "gemini") as (harness, one, _):
        options = types.HttpOptions(base_url=harness.url)
        with closing(genai.Client(api_key=KEY, http_options=options)) as client:
            found = client.models.embed_content(model="gemini-embedding-001", contents="hello")
        assert found.embeddings and found.embeddings[0].values == VECTOR
        [received] = one.received
    assert received.path.startswith("/v1beta/models/gemini-embedding-001:")
    assert received.headers["x-goog-api-key"] == "the-upstream-secret"
    assert KEY not in str(received)


def test_the_ollama_client_embeds(tmp_path: Path) -> None:
    with relay_gateway(tmp_path, "ollama") as (harness, one, _):
        headers = {"authorization": f"Bearer {KEY}"}
        with closing(ollama.Client(host=harness.url, headers=headers)) as client:
            assert client.embed(model="nomic-embed-text", input="hello").embeddings == [VECTOR]
        assert one.received[0].path == "/api/embed"
        assert harness.log_lines()[0]["input_tokens"] == 5


# --- bytes


def test_bodies_arrive_byte_for_byte(tmp_path: Path) -> None:
    body = b'{ "model" : "e",\n "input":"\\u00e9 \\ud83d", "odd": 1e2, "odd2": 1.0 }'
    with relay_gateway(tmp_path) as (harness, one, _):
        status, headers, _ = harness.request("/v1/embeddings?beta=1&key=secret", body, content_type="application/json")
        [received] = one.received
    assert status == 200 and headers["dragoman-upstream"] == "one"
    assert received.body == body and received.query == "beta=1"
    assert received.headers["authorization"] == "Bearer the-upstream-secret"


def test_a_renamed_model_changes_nothing_else(tmp_path: Path) -> None:
    with relay_gateway(tmp_path) as (harness, one, _):
        harness.request("/v1/embeddings", b'{"input":[1e2, "\\u0041"],"model":"small"}')
        form = _form([("file", b"\x00\r\n--x\r\n"), ("model", b"small"), ("language", b"de")])
        harness.request("/v1/audio/transcriptions", form, content_type="multipart/form-data; boundary=x-y")
        first, second = one.received
    assert first.body == b'{"input":[1e2, "\\u0041"],"model":"text-embedding-3-small"}'
    assert second.body == form.replace(b"small", b"text-embedding-3-small")
    assert second.headers["content-type"] == "multipart/form-data; boundary=x-y"


def _form(fields: list[tuple[str, bytes]]) -> bytes:
    parts = [b'--x-y\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b' % (n.encode(), v) for n, v in fields]
    return b"\r\n".join([*parts, b"--x-y--\r\n"])


@given(
    before=st.lists(st.tuples(st.sampled_from(["file", "language", "models"]), st.binary(max_size=40)), max_size=3),
    after=st.lists(st.tuples(st.sampled_from(["file", "prompt"]), st.binary(max_size=40)), max_size=3),
    model=st.text(st.characters(codec="utf-8"), min_size=1, max_size=20),
)
def test_the_model_of_any_form_is_found_and_replaced(before: Any, after: Any, model: str) -> None:
    def form(name: str) -> HttpRequest:
        body = _form([*before, ("model", name.encode()), *after])
        return HttpRequest("POST", "/", "", (("content-type", "multipart/form-data; boundary=x-y"),), body)

    if b"\r\n--x-y" in b"".join(b"\r\n" + value for _, value in [*before, *after]) or "--x-y" in model:
        return
    assert read_model(EMBEDDINGS, form(model), "").name == model
    assert rename_model(form(model), "other") == form("other").body


# --- routing, keys, limits, ledger


def test_the_next_target_answers_if_the_first_fails(tmp_path: Path) -> None:
    with relay_gateway(tmp_path) as (harness, one, two):
        two.refuse = 503
        status, headers, _ = harness.request("/v1/embeddings", {"model": "spare-e", "input": "x"})
        assert (status, headers["dragoman-upstream"]) == (200, "one")
        assert len(two.received) >= 1 and one.received[0].path == "/v1/embeddings"


def test_a_refusal_is_reported_in_the_dialect_of_the_client(tmp_path: Path) -> None:
    with relay_gateway(tmp_path) as (harness, one, _):
        one.refuse = 400
        status, _, body = harness.request("/v1/embeddings", {"model": "e", "input": "x"})
    assert status == 400 and json.loads(body)["error"]["message"] == "not now"


def test_an_endpoint_that_the_upstream_lacks_names_the_upstreams_that_have_it(tmp_path: Path) -> None:
    with running_relay_service() as service:
        text = upstream_config("claude", "anthropic", service.url) + upstream_config("open", "openai", service.url)
        with start_gateway(text, tmp_path) as harness:
            status, _, body = harness.request("/v1/embeddings", {"model": "claude/x", "input": "x"})
            assert status == 404
            assert json.loads(body)["error"]["message"] == (
                "/v1/embeddings is not available at the upstream claude; ask for UPSTREAM/MODEL with one of: open"
            )
            assert not service.received
            assert harness.request("/v1/moderations", {"input": "x"})[0] == 200  # no model: the first that can


def test_limits_and_the_ledger_cover_relayed_requests(tmp_path: Path) -> None:
    store = f"[store]\nurl = 'sqlite:{tmp_path / 'store'}'\n"
    with relay_gateway(tmp_path, more=store) as (harness, one, _), ExitStack() as stack:
        accounts = Accounts(tmp_path / "store")
        text, key = accounts.create("app", "requests/day=2", models=("text-*", "whisper-1"))
        client = stack.enter_context(openai_client(harness, text))
        client.embeddings.create(model="text-embedding-3-small", input="hello")
        with pytest.raises(openai.PermissionDeniedError):
            client.embeddings.create(model="other", input="hello")
        with pytest.raises(openai.PermissionDeniedError):
            client.moderations.create(input="no model")
        for body in (b'{"model":"other","model":"text-x","input":"x"}', b'{"model":"text-x","model":"other"}'):
            status, _, _ = harness.request("/v1/embeddings", body, key=text)
            assert status in (400, 403)
        client.audio.transcriptions.create(model="whisper-1", file=("a.wav", b"RIFF"))
        with pytest.raises(openai.RateLimitError):
            client.embeddings.create(model="text-embedding-3-small", input="hello")
        wait_until(lambda: sum(row.outcome == "ok" for row in accounts.rows()) == 2)
        rows = [row for row in accounts.rows() if row.outcome == "ok"]
        assert len(one.received) == 2
    assert [(row.operation, row.key, row.input_tokens, row.estimated) for row in rows] == [
        ("embeddings", key.id, 7, False),
        ("transcriptions", key.id, 0, True),
    ]


@pytest.mark.parametrize(
    "disposition",
    [
        b'form-data; name="model"; name="model"',
        b"form-data; name*=utf-8''model",
        b'form-data; name="x"\r\n folded: 1',
    ],
)
def test_forms_that_servers_read_differently_are_refused(disposition: bytes) -> None:
    body = b"--b\r\nContent-Disposition: %b\r\n\r\nm\r\n--b--\r\n" % disposition
    request = HttpRequest("POST", "/", "", (("content-type", "multipart/form-data; boundary=b"),), body)
    with pytest.raises(MalformedRequest):
        read_model(EMBEDDINGS, request, "")


@pytest.mark.parametrize("body", [b"", b"[]", b'{"model": 5}', b'{"model": "e"', b"[" * 100_000])
def test_a_body_that_cannot_be_read_is_refused(tmp_path: Path, body: bytes) -> None:
    with relay_gateway(tmp_path) as (harness, one, _):
        status, _, response = harness.request("/v1/embeddings", body)
        assert status == 400 and json.loads(response)["error"]["type"] == "invalid_request_error"
        assert not one.received


# --- streams that break


def test_audio_that_is_cut_breaks_the_connection(tmp_path: Path) -> None:
    with relay_gateway(tmp_path) as (harness, one, _):
        one.cut = True
        with pytest.raises((http.client.IncompleteRead, ConnectionError)):
            harness.request("/v1/audio/speech", {"model": "tts-1", "input": "x"})
        assert harness.log_lines()[0]["outcome"] == "broken"


def test_a_stream_of_events_that_is_cut_ends_with_an_error(tmp_path: Path) -> None:
    with relay_gateway(tmp_path) as (harness, one, _):
        one.cut = True
        with openai_client(harness) as client, pytest.raises(openai.APIError):
            list(client.completions.create(model="t", prompt="x", stream=True))
        assert harness.log_lines()[0]["outcome"] == "broken"


# --- endpoints that are refused


@pytest.mark.parametrize(
    ("method", "path", "word"),
    [
        ("POST", "/v1/files", "files"),
        ("GET", "/v1/files/file-1/content", "files"),
        ("POST", "/v1/batches", "batches"),
        ("POST", "/v1/messages/batches", "batches"),
        ("POST", "/v1beta/models/gemini-2.5-pro:batchGenerateContent", "batches"),
        ("POST", "/upload/v1beta/files", "files"),
        ("POST", "/v1/fine_tuning/jobs", "fine-tuning"),
        ("GET", "/v1/realtime", "realtime"),
    ],
)
def test_endpoints_that_store_data_are_refused_with_the_reason(
    harness: GatewayHarness, method: str, path: str, word: str
) -> None:
    status, _, body = harness.request(path, b"{}" if method == "POST" else None, method=method)
    assert status == 404 and f"{path} is not supported" in body.decode() and word in body.decode()


def test_another_method_gets_405(harness: GatewayHarness) -> None:
    status, headers, _ = harness.request("/v1/embeddings", method="GET")
    assert (status, headers["allow"]) == (405, "POST")
