"""Points 9 to 14 of SECURITY.md: the gateway key, its checks, and client credentials that never reach an upstream."""

from __future__ import annotations

import hashlib
import hmac
import json
import stat
import string
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bench.instructions import count_instructions
from dragoman.cli.client_setup import CLIENTS, fill_setup
from dragoman.cli.model_choice import ModelChoice
from dragoman.cli.run import child_environment
from dragoman.errors import NotAuthorised
from dragoman.gateway.admission import KeyCheck
from dragoman.gateway.layers import ConfigError
from dragoman.gateway.redaction import Redactor
from dragoman.gateway.secret_sources import BadReference, ReferenceContext
from dragoman.gateway.secrets import SecretUnavailable, gateway_key, literal_secret, load_or_create_key, parse_reference
from dragoman.wire.http import HttpRequest
from tests.gateway.harness import (
    KEY,
    GatewayHarness,
    anthropic_body,
    check_key,
    fixed_response_server,
    openai_body,
    parse_config,
    start_gateway,
    upstream_config,
)
from tests.security.echo_upstream import EchoUpstream
from tests.security.routes import DATA

ASCII = string.ascii_letters + string.digits + string.punctuation


def test_point_9_the_key_is_256_random_bits_and_private(tmp_path: Path) -> None:
    keys = {load_or_create_key(tmp_path / str(number) / "key").reveal() for number in range(50)}
    assert len(keys) == 50
    assert {len(key) for key in keys} == {len("dgm_") + 43}  # 32 bytes
    assert stat.S_IMODE((tmp_path / "0" / "key").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "0").stat().st_mode) == 0o700


@pytest.mark.parametrize("recipe", CLIENTS, ids=lambda recipe: recipe.name)
def test_point_9_run_gives_the_key_to_the_child_by_its_environment_only(recipe: Any) -> None:
    setup = fill_setup(
        recipe,
        url="http://127.0.0.1:1",
        key=KEY,
        choice=ModelChoice("m"),
        requested="m",
        is_served=lambda _: True,
        listed=[],
    )
    assert not any(KEY in word for word in setup.args)
    assert any(KEY in str(value) for value in setup.env.values())
    assert KEY not in json.dumps(
        {name: value for name, value in child_environment({"A": "b"}, setup, set()).items() if name not in setup.env}
    )


def test_point_10_keys_are_compared_by_their_hash_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []
    real = hmac.compare_digest

    def watching(one: Any, other: Any) -> bool:
        compared.append((one, other))
        return real(one, other)

    monkeypatch.setattr(hmac, "compare_digest", watching)
    keeper = KeyCheck(KEY)
    stray = (("x-goog-api-key", "wrong"), ("authorization", "Bearer wrong"))
    check_key(keeper, HttpRequest("POST", "/", headers=(("x-api-key", KEY), *stray)))
    with pytest.raises(NotAuthorised):
        check_key(keeper, HttpRequest("POST", "/", headers=stray))
    expected = hashlib.sha256(KEY.encode()).digest()
    assert len(compared) == 5  # every given key is compared, even after a match
    assert {other for _, other in compared} == {expected}
    assert {len(one) for one, _ in compared} == {32}


def test_point_11_the_time_of_a_refusal_reveals_nothing() -> None:
    """A key with a right prefix takes as many instructions as one without, and as a short one.

    Python instructions are counted; C only hashes and runs `compare_digest` on two digests (the test above).
    """
    keeper = KeyCheck(KEY)

    def refuse(key: str) -> None:
        with pytest.raises(NotAuthorised):
            check_key(keeper, HttpRequest("POST", "/", headers=(("x-api-key", key),)))

    refuse("x")
    wrong = ("x" * len(KEY), KEY[:-1] + "x", "x" + KEY[1:], "x")
    assert len({count_instructions(lambda key=key: refuse(key)) for key in wrong}) == 1  # type: ignore[misc]


def refusal(harness: GatewayHarness, path: str, body: Any, method: str, **headers: str) -> tuple[int, bytes]:
    status, _, reply = harness.request(path, body, method=method, key=None, **headers)
    return status, reply


@pytest.mark.parametrize(("method", "path", "body"), DATA, ids=lambda value: value if isinstance(value, str) else "")
def test_point_11_unknown_revoked_and_malformed_keys_get_the_same_error(
    harness: GatewayHarness, echo_upstream: EchoUpstream, method: str, path: str, body: Any
) -> None:
    before = len(echo_upstream.requests)
    wrong: list[dict[str, str]] = [
        {},
        {"x-api-key": ""},
        {"x-api-key": "dgm_a-key-that-was-good-once-0123456789abcdef"},
        {"x-api-key": KEY[:-1]},
        {"x-api-key": KEY.upper()},
        {"x-api-key": f"{KEY}{KEY}"},
        {"x-api-key": "' OR '1'='1' --"},
        {"x-api-key": '{"$ne": null}'},
        {"x-api-key": "../../../etc/passwd"},
        {"authorization": "Bearer"},
        {"authorization": f"Basic {KEY}"},
        {"authorization": f"Bearer {KEY} x"},
        {"authorization": "AWS4-HMAC-SHA256 Credential=a/b"},
        {"authorization": "AWS4-HMAC-SHA256"},
        {"cookie": f"key={KEY}"},
    ]
    is_served = {refusal(harness, path, body, method, **headers) for headers in wrong}
    assert len(is_served) == 1 and {status for status, _ in is_served} <= {401, 403}
    assert len(echo_upstream.requests) == before


@pytest.mark.parametrize(
    "name", ["key", "api_key", "api-key", "x-api-key", "access_token", "authorization", "X-Amz-Signature"]
)
def test_point_12_a_key_in_the_query_is_not_accepted(
    harness: GatewayHarness, echo_upstream: EchoUpstream, name: str
) -> None:
    """Except `?key=` of Gemini's API, as its own clients send it."""
    before = len(echo_upstream.requests)
    for method, path, body in DATA:
        if name == "key" and path.startswith("/v1beta/"):
            continue
        assert refusal(harness, f"{path}?{name}={KEY}", body, method)[0] in (401, 403)
    assert len(echo_upstream.requests) == before
    assert (
        harness.request(f"/v1/messages?{name}={KEY}", anthropic_body())[0] == 200
    )  # together with a key in a header it has no effect
    assert KEY not in "".join(path for _, path, _, _ in echo_upstream.requests[before:]) + harness.text


ODD = st.one_of(
    st.text(st.characters(codec="latin-1", exclude_categories=["Cc"]), max_size=200),
    st.text("'\"\\;-%_*()|&$<>`{}[]", max_size=40),
    st.sampled_from([KEY + " ", " " + KEY, KEY + "\x00", KEY + "é", KEY[:32] * 2]).filter(
        lambda text: text.strip() != KEY
    ),
)


@settings(max_examples=300)
@given(key=ODD)
@example(key="\x00")
@example(key="a" * 1024 * 1024)
@example(key="'" * 1024 * 1024)
@example(key="AWS4-HMAC-SHA256 " * 60_000)
@example(key="\ud800")
def test_point_11_no_other_text_is_accepted_as_the_key(key: str) -> None:
    keeper = KeyCheck(KEY)
    for headers in (
        (("x-api-key", key),),
        (("authorization", f"Bearer {key}"),),
        (("authorization", key),),
        (("x-goog-api-key", key),),
    ):
        with pytest.raises(NotAuthorised):
            check_key(keeper, HttpRequest("POST", "/v1/messages", headers=headers, body=b"{}"))


def test_point_11_a_key_of_a_megabyte_or_with_a_nul_is_refused_on_every_route(harness: GatewayHarness) -> None:
    for method, path, body in DATA:
        assert harness.request(path, body, method=method, key="x" * 30_000)[0] in (401, 403)
    for key in ("x" * 1_048_576, "a\x00b"):
        try:
            status = harness.request("/v1/messages", anthropic_body(), key=key)[0]
        except (OSError, ValueError):  # the head was too long to be read
            continue
        assert status in (400, 431)


@settings(max_examples=200)
@given(
    st.text(ASCII, min_size=64, max_size=64),
    st.text(ASCII, min_size=1, max_size=8),
    st.text(ASCII, min_size=0, max_size=8),
)
def test_point_10_keys_with_a_common_prefix_are_different_owners(beginning: str, one: str, other: str) -> None:
    if one == other:
        return
    keeper = KeyCheck(beginning + one)
    check_key(keeper, HttpRequest("POST", "/", headers=(("x-api-key", beginning + one),)))
    with pytest.raises(NotAuthorised):
        check_key(keeper, HttpRequest("POST", "/", headers=(("x-api-key", beginning + other),)))


@pytest.mark.parametrize(
    "key",
    [
        "changeme",
        "change-me-please-now",
        "your-api-key-goes-here",
        "placeholder-0123456789",
        "example-key-0123456789",
        "dummy-key-0123456789",
        "xxxxxxxxxxxxxxxxxxxx",
        "sk-...0123456789abcdef",
        "short",
        "aaaaaaaaaaaaaaaaaaaaaaaa",
        "1234567890123456789",
        "kQ7vR2xLp9TzB4w",  # 15 characters
    ],
)
def test_point_13_placeholder_and_short_keys_are_refused_at_start(tmp_path: Path, key: str) -> None:
    with pytest.raises(ConfigError, match=r"server\.key"):
        gateway_key(literal_secret(key), tmp_path / "key")


def test_point_13_a_key_of_sixteen_characters_is_accepted(tmp_path: Path) -> None:
    assert gateway_key(literal_secret("kQ7vR2xLp9TzB4wJ"), tmp_path / "key").reveal() == "kQ7vR2xLp9TzB4wJ"


def test_point_13_an_empty_secret_is_an_error_in_each_slot(tmp_path: Path) -> None:
    (tmp_path / "empty").touch(0o600)
    around = ReferenceContext({"EMPTY": "", "BLANK": "  \n"}, tmp_path, tmp_path)
    for text in ("env:EMPTY", "env:BLANK", "env:NOWHERE", "file:empty", "cmd:true"):
        secret = parse_reference(text, around)
        assert secret is not None
        with pytest.raises(SecretUnavailable):
            gateway_key(secret, tmp_path / "key")
    with pytest.raises(BadReference):
        literal_secret("")
    for slot in (
        "[server]\nkey = ''",
        "[upstreams.a]\npreset = 'openai'\nkey = ''",
        "[upstreams.a]\npreset = 'openai'\nheaders.x-token = ''",
    ):
        with pytest.raises(ConfigError):
            parse_config(slot)
    with pytest.raises(ValueError, match="key"):
        KeyCheck("")


def test_point_14_a_clients_credentials_never_reach_an_upstream(
    harness: GatewayHarness, echo_upstream: EchoUpstream
) -> None:
    lines = {
        "authorization": f"Bearer {KEY}",
        "x-api-key": "the-clients-own-key",
        "x-goog-api-key": "the-clients-google-key",
        "cookie": "session=the-clients-cookie",
        "proxy-authorization": "Basic the-clients-proxy",
        "x-amz-security-token": "the-clients-token",
        "openai-organization": "the-clients-organisation",
        "x-stainless-helper": "the-clients-sdk",
        "user-agent": "the-clients-agent",
    }
    before = len(echo_upstream.requests)
    status, _, _ = harness.request("/v1/messages", anthropic_body(), key=None, **lines)
    assert status == 200
    _, path, headers, _ = echo_upstream.requests[before]
    sent = json.dumps(headers) + path
    assert KEY not in sent and "the-clients" not in sent
    assert headers["x-api-key"] == "the-upstream-secret"
    allowed = {
        "host",
        "accept",
        "accept-encoding",
        "anthropic-version",
        "content-length",
        "content-type",
        "user-agent",
        "x-api-key",
    }
    assert set(headers) <= allowed


# --- keys of all vendors are masked by their pattern in all output; ordinary words are not

_A = "0a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8s9T"  # forty letters and digits
KEYS = {
    "OpenAI": f"sk-{_A}",
    "OpenAI project": f"sk-proj-{_A}_-{_A}",
    "Anthropic": f"sk-ant-api03-{_A}-AA",
    "OpenRouter": f"sk-or-v1-{_A.lower()}",
    "Google": "AIzaSyA0b1C2d3E4f5G6h7I8j9K0l1M2n3O4p5Q",
    "Google express": f"AQ.Ab8RN6{_A}",
    "Google access": f"ya29.a0Af{_A}-{_A}",
    "Google refresh": f"1//0e{_A}",
    "Google client": f"GOCSPX-{_A[:28]}",
    "Groq": f"gsk_{_A}",
    "xAI": f"xai-{_A}{_A}",
    "Hugging Face": f"hf_{_A[:34]}",
    "NVIDIA": f"nvapi-{_A}_-{_A[:20]}",
    "Perplexity": f"pplx-{_A}",
    "Replicate": f"r8_{_A[:37]}",
    "Fireworks": f"fw_{_A[:22]}",
    "Together": f"tgp_v1_{_A}",
    "Cerebras": f"csk-{_A.lower()}",
    "Databricks": "dapi0123456789abcdef0123456789abcdef",
    "GitHub": f"ghp_{_A[:36]}",
    "GitHub OAuth": f"gho_{_A[:36]}",
    "GitHub user": f"ghu_{_A[:36]}",
    "GitHub server": f"ghs_{_A[:36]}",
    "GitHub refresh": f"ghr_{_A[:36]}",
    "GitHub fine-grained": f"github_pat_11ABCDEFG0_{_A}",
    "GitLab": f"glpat-{_A[:20]}",
    "Slack bot": f"xoxb-123456789012-{_A[:24]}",
    "Slack user": f"xoxp-123456789012-{_A[:24]}",
    "Slack app": f"xapp-1-A012-{_A[:24]}",
    "AWS": "AKIA0123456789ABCDEF",
    "AWS session": "ASIA0123456789ABCDEF",
    "Bedrock": f"ABSKQmVkcm9ja0FQSUtleS{_A}=",
    "Bedrock short": f"bedrock-api-key-YmVkcm9jay5hbWF6b25hd3MuY29t{_A}",
    "Kiro access": f"aoaAAAAAG{_A}:MGUCMQ",
    "Kiro refresh": f"aorAAAAAG{_A}",
    "Kiro key": f"ksk_{_A}",
    "JWT": f"eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJtZSJ9.{_A}-_{_A}",
    "Stripe": f"sk_live_{_A[:24]}",
    "Stripe test": f"sk_test_{_A[:24]}",
    "Tavily": f"tvly-dev-{_A[:24]}",
    "LangSmith": f"lsv2_pt_{_A[:32]}_{_A[:10]}",
    "npm": f"npm_{_A[:36]}",
    "gateway": f"dgm_{_A}",
}
NAMED = {
    "AWS secret": 'aws_secret_access_key = "{}"',
    "AWS secret in JSON": '"SecretAccessKey":"{}"',
    "AWS secret in JSON in JSON": r"\"SecretAccessKey\": \"{}\"",
    "AWS session token": "AWS_SESSION_TOKEN={}",
    "Azure": "api-key: {}",
    "Azure subscription": "Ocp-Apim-Subscription-Key: {}",
    "any key": "the api_key='{}' is wrong",
    "bearer": "authorization: Bearer {}",
    "password": "password={}",
    "client secret": '"client_secret": "{}"',
}
_VALUE = "0123456789abcdef0123456789abcdef"
_PEM = "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA0Z3VS5JJcds3xfn/yGa\n-----END RSA PRIVATE KEY-----"


@pytest.mark.parametrize("vendor", KEYS)
@pytest.mark.parametrize(
    "around",
    ["{}", "key {}.", '"{}"', r"\n{}\n", "({})", "k={}&x=1", "%3D{}", r"\u003d{}", "a,{},b", "Bearer {}", "x-{}"],
)
def test_a_key_is_masked_in_every_context(vendor: str, around: str) -> None:
    """Regression: AIza, gsk_, xai-, hf_, ghp_ and others were not masked."""
    masked = Redactor().text(around.format(KEYS[vendor]))
    assert "***" in masked and KEYS[vendor][4:16] not in masked and _A[4:20] not in masked


@pytest.mark.parametrize("what", NAMED)
def test_a_key_without_a_pattern_is_masked_after_its_name(what: str) -> None:
    masked = Redactor().text(NAMED[what].format(_VALUE))
    assert _VALUE not in masked and masked.startswith(NAMED[what].partition("{}")[0])


@pytest.mark.parametrize("spelt", [_PEM, _PEM.replace("\n", "\\n"), _PEM[:-40], _PEM.replace("RSA ", "")])
def test_a_private_key_is_masked(spelt: str) -> None:
    assert "MIIEpAIB" not in Redactor().text(f"it was {spelt} and more")


@pytest.mark.parametrize(
    "text",
    [
        "task-0123456789abcdefghij and risk-assessment-of-the-year",
        "toolu_01A09q90qw90lq917835lq9 call_0123456789abcdefghijklmn resp_68af4030592c81938ec0a5fbab4a3e9f",
        "msg_013Zva2CMHLNnXjNJJKqJ2EF chatcmpl-AbCdEfGhIjKlMnOpQrStUvWx req_018EeWyXxfu5pfWkrYcMdjWG",
        "hf_hub_download_to_a_folder fw_version_of_the_device npm_config_registry_of_the_company r8_g8_b8_a8_unorm_srgb",
        "claude-sonnet-4-5-20250929 gpt-4o-mini-2024-07-18 us.anthropic.claude-3-7-sonnet-20250219-v1:0",
        "the api key is missing or wrong: send it as x-api-key or as a bearer token",
        "no key: dragoman-documentation-page says how; token: see-the-page-about-tokens",
        "max_tokens: 1234567890123456 prompt_cache_key=session-0123456789abcdef",
        "8f14e45fceea167a5a36dedd4bea2543 and 123e4567-e89b-12d3-a456-426614174000",
        "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
        "AKIA is how they begin, sk- too, AIza, xoxb-, ghp_ and eyJ",
        "the secret of success: persistence-and-patience",
    ],
)
def test_ordinary_words_and_ids_are_not_masked(text: str) -> None:
    assert Redactor().text(text) == text


def test_no_output_of_the_gateway_contains_a_key(tmp_path: Path) -> None:
    keys = [*KEYS.values(), *(form.format(_VALUE) for form in NAMED.values()), _PEM]
    error = json.dumps(
        {"error": {"message": "you sent " + " and ".join(keys), "type": "invalid_request_error"}}
    ).encode()
    raw = b"HTTP/1.1 400 No\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b" % (len(error), error)
    secret = [key[8:24] for key in KEYS.values()] + [_VALUE, "MIIEpAIB"]
    with fixed_response_server(raw) as url, start_gateway(upstream_config("one", "openai", url), tmp_path) as harness:
        for key in KEYS.values():
            harness.request("/v1/chat/completions", openai_body(f"one/{key}", text=f"my key is {key}"))
        harness.request("/v1/chat/completions", openai_body("one/m", text="\n".join(keys), stream=True))
        _, _, response = harness.request("/v1/messages", {**openai_body("one/m"), "max_tokens": 5})
        gateway = harness.running.gateway
        written = {
            "response": response.decode(),
            "log": harness.text,
            "metrics": gateway.metrics().decode(),
            "status": json.dumps(gateway.status()),
            "cooldowns": json.dumps(gateway.cooldowns()),
            **{
                str(file): file.read_text() for file in tmp_path.rglob("*") if file.is_file() and "key" not in file.name
            },
        }
    assert any("refusal" in name or "explain" in name for name in written), list(written)
    for place, text in written.items():
        assert not [each for each in secret if each in text], place
