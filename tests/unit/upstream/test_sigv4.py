"""Signing for AWS, judged by botocore's own arithmetic and by boto3's own requests."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from dragoman.dialects.base import ApiRequest
from dragoman.dialects.bedrock import DIALECT
from dragoman.errors import LocalMisuse
from dragoman.upstream import sigv4
from dragoman.upstream.credentials import CredentialFault
from dragoman.upstream.sigv4 import AwsCredential, bedrock_endpoint, find_region, sign
from dragoman.wire.http import HttpRequest

URL = "https://bedrock-runtime.eu-central-1.amazonaws.com"
KEYS = Credentials("AKID", "secret", "session").get_frozen_credentials()
CALL = ApiRequest("generate", "anthropic.claude-v1:0", True, {"messages": []})


@pytest.fixture(autouse=True)
def no_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An environment without any credentials."""
    for name in (
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "AWS_PROFILE",
        "AWS_REGION",
        "AWS_DEFAULT_REGION",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv(sigv4.BEARER_VARIABLE, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))


def test_the_signature_is_of_the_path_that_is_sent() -> None:
    request = DIALECT.binding.wrap(CALL)
    signed = sign(request, URL, "eu-central-1", KEYS)
    assert signed.path == request.path == "/model/anthropic.claude-v1%3A0/converse-stream"
    assert signed.header("host") == "bedrock-runtime.eu-central-1.amazonaws.com"
    assert signed.header("x-amz-security-token") == "session"
    found = re.fullmatch(
        r"AWS4-HMAC-SHA256 Credential=AKID/(\d{8})/eu-central-1/bedrock/aws4_request, SignedHeaders=(.*), Signature=(\w{64})",
        signed.header("authorization"),
    )
    assert found is not None
    assert found[2] == "accept;content-type;host;x-amz-date;x-amz-security-token"
    signer = SigV4Auth(KEYS, "bedrock", "eu-central-1")
    again = AWSRequest(
        "POST", URL + signed.path, headers={name: signed.header(name) for name in found[2].split(";")}, data=signed.body
    )
    again.context["timestamp"] = signed.header("x-amz-date")
    canonical = signer.canonical_request(again)
    assert "/model/anthropic.claude-v1%253A0/converse-stream" in canonical
    assert signer.signature(signer.string_to_sign(again, canonical), again) == found[3]


def test_what_was_signed_before_is_signed_anew() -> None:
    once = sign(DIALECT.binding.wrap(CALL), URL, "eu-central-1", KEYS)
    twice = sign(once, URL, "eu-central-1", KEYS)
    assert [name for name, _ in twice.headers] == [name for name, _ in once.headers]


def test_a_bearer_token_wins_over_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKID")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    credential = AwsCredential("aws", URL, "eu-central-1")
    assert credential.sign_blocking(HttpRequest("POST", "/")).header("authorization").startswith("AWS4")
    monkeypatch.setenv(sigv4.BEARER_VARIABLE, "token")
    signed = asyncio.run(credential.sign(HttpRequest("POST", "/")))
    assert signed.headers == (("authorization", "Bearer token"),)
    assert "token" not in str(credential.describe())


def test_without_credentials_the_error_names_what_to_do() -> None:
    with pytest.raises(CredentialFault, match="aws sso login"):
        AwsCredential("aws", URL, "eu-central-1").sign_blocking(HttpRequest("POST", "/"))
    with pytest.raises(CredentialFault, match="nosuch"):
        AwsCredential("aws", URL, "eu-central-1", "nosuch").sign_blocking(HttpRequest("POST", "/"))


def test_after_a_refusal_keys_are_looked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "OLD")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    credential = AwsCredential("aws", URL, "eu-central-1")
    assert "OLD" in credential.sign_blocking(HttpRequest("POST", "/")).header("authorization")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "NEW")
    assert asyncio.run(credential.on_refusal(403)) is True
    assert "NEW" in credential.sign_blocking(HttpRequest("POST", "/")).header("authorization")


def test_the_region_is_the_environments_else_the_profiles_else_the_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert find_region() == "us-east-1"
    (tmp_path / "config").write_text("[default]\nregion = eu-west-3\n")
    assert find_region() == "eu-west-3"
    monkeypatch.setenv("AWS_REGION", "ap-south-1")
    assert find_region() == "ap-south-1"
    assert bedrock_endpoint("ap-south-1") == "https://bedrock-runtime.ap-south-1.amazonaws.com"


def test_without_botocore_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr("dragoman.upstream.sigv4.importlib.import_module", missing)
    with pytest.raises(LocalMisuse, match=r"dragoman\[bedrock\]"):
        sign(HttpRequest("POST", "/"), URL, "eu-central-1", KEYS)
    assert find_region() == "us-east-1"
