"""S15: keys of all vendors are known by their shape, in everything that is written; ordinary words are not masked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dragoman.gateway.redaction import Redactor
from tests.gateway.house import answering, chat, house, upstream

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
def test_s15_a_key_is_masked_wherever_it_stands(vendor: str, around: str) -> None:
    """S15: AIza, gsk_, xai-, hf_, ghp_ and others were written as they were."""
    masked = Redactor().text(around.format(KEYS[vendor]))
    assert "***" in masked and KEYS[vendor][4:16] not in masked and _A[4:20] not in masked


@pytest.mark.parametrize("what", NAMED)
def test_s15_a_key_without_a_shape_is_masked_behind_its_name(what: str) -> None:
    masked = Redactor().text(NAMED[what].format(_VALUE))
    assert _VALUE not in masked and masked.startswith(NAMED[what].partition("{}")[0])


@pytest.mark.parametrize("spelt", [_PEM, _PEM.replace("\n", "\\n"), _PEM[:-40], _PEM.replace("RSA ", "")])
def test_s15_a_private_key_is_masked(spelt: str) -> None:
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


def test_s15_no_key_is_in_anything_that_the_gateway_writes(tmp_path: Path) -> None:
    keys = [*KEYS.values(), *(form.format(_VALUE) for form in NAMED.values()), _PEM]
    error = json.dumps(
        {"error": {"message": "you sent " + " and ".join(keys), "type": "invalid_request_error"}}
    ).encode()
    raw = b"HTTP/1.1 400 No\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b" % (len(error), error)
    secret = [key[8:24] for key in KEYS.values()] + [_VALUE, "MIIEpAIB"]
    with answering(raw) as url, house(upstream("one", "openai", url), tmp_path) as home:
        for key in KEYS.values():
            home.ask("/v1/chat/completions", chat(f"one/{key}", text=f"my key is {key}"))
        home.ask("/v1/chat/completions", chat("one/m", text="\n".join(keys), stream=True))
        _, _, told = home.ask("/v1/messages", {**chat("one/m"), "max_tokens": 5})
        gateway = home.running.gateway
        written = {
            "answer": told.decode(),
            "log": home.text,
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
