"""Which upstream answers for which model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dragoman.errors import MalformedRequest, UnknownModel
from dragoman.gateway.config import Config, assemble
from dragoman.http.addresses import is_loopback
from dragoman.http.client.address import proxy_variable
from tests.growth import grows_linearly

SET_UP = """
[upstreams.kimi]
preset = "moonshot"
[upstreams.kiro]
preset = "kiro"
[upstreams.claude]
preset = "anthropic"
models = ["claude-*", "claude-opus-4-1"]
[upstreams.router]
preset = "openrouter"
[[routes]]
match = "claude-*-haiku*"
upstream = "kimi"
model = "kimi-small"
[[routes]]
match = ["gpt-?", "claude-3-haiku-exact", "big[1m]"]
upstream = "kiro"
fallbacks = ["kimi/kimi-k2", "claude", "kiro"]
"""
DEFAULT_ROUTE = '[default]\nupstream = "kimi"\nmodel = "kimi-k2"\nfallbacks = "router/moonshotai/kimi-k2"\n'


def config(text: str) -> Config:
    return assemble(text, Path("/c/config.toml"), {"HOME": "/h"}, {}).config


def targets(model: str, text: str = SET_UP) -> list[str]:
    return [f"{target.upstream.name}:{target.model}" for target in config(text).resolve(model)]


@pytest.mark.parametrize(
    ("model", "found"),
    [
        ("claude-3-haiku-exact", ["kiro:claude-3-haiku-exact", "kimi:kimi-k2", "claude:claude-3-haiku-exact"]),
        ("claude-3-5-haiku-2024", ["kimi:kimi-small"]),
        ("gpt-5", ["kiro:gpt-5", "kimi:kimi-k2", "claude:gpt-5"]),
        ("big[1m]", ["kiro:big[1m]", "kimi:kimi-k2", "claude:big[1m]"]),
        ("kimi-k2.5", ["kimi:kimi-k2.5"]),
        ("claude/anything/else", ["claude:anything/else"]),
        ("claude-opus-4-1", ["claude:claude-opus-4-1"]),  # listed by name goes before a pattern higher in the file
        ("claude-sonnet-5", ["kiro:claude-sonnet-5"]),  # the first in the file with a pattern that fits
        ("moonshotai/kimi-k2", ["router:moonshotai/kimi-k2"]),
    ],
)
def test_a_model_finds_its_targets(model: str, found: list[str]) -> None:
    assert targets(model) == found


def test_the_default_takes_what_nobody_else_does() -> None:
    assert targets("unheard-of", SET_UP + DEFAULT_ROUTE) == ["kimi:kimi-k2", "router:moonshotai/kimi-k2"]
    assert targets("gpt-5", SET_UP + DEFAULT_ROUTE)[0] == "kiro:gpt-5"


@pytest.mark.parametrize("model", ["gpt-55", "big1", "/", "kimi/", "Kimi-K2"])
def test_without_a_default_an_unknown_name_is_a_404(model: str) -> None:
    with pytest.raises(UnknownModel) as caught:
        config(SET_UP.replace('"openrouter"', '"vllm"')).resolve(model)
    assert caught.value.fault.status == 404


def test_l7_a_request_without_a_model_is_a_400() -> None:
    with pytest.raises(MalformedRequest, match="names no model") as caught:
        config(SET_UP).resolve("")
    assert (caught.value.fault.status, caught.value.fault.at) == (400, "model")


def test_an_unknown_name_is_told_with_the_names_near_it() -> None:
    with pytest.raises(UnknownModel, match="near it: claude-3-haiku-exact"):
        config(SET_UP).resolve("cloude-3-haiku-exact")
    with pytest.raises(UnknownModel, match="known: claude-3-haiku-exact"):
        config(SET_UP).resolve("zzzz")


def test_a_lone_upstream_that_lists_nothing_takes_every_name() -> None:
    lone = '[upstreams.box]\npreset = "vllm"\n'
    assert targets("whatever/it-is", lone) == ["box:whatever/it-is"]
    with pytest.raises(UnknownModel):
        targets("whatever", lone + '[upstreams.other]\npreset = "sglang"\n')


def test_a_client_cannot_make_routing_slow_nor_an_error_long() -> None:
    text = SET_UP + '[[routes]]\nmatch = "*a*a*a*a*a*a*a*a*b"\nupstream = "kimi"\n'
    made = config(text)

    def work(size: int) -> Callable[[], object]:
        return lambda: refused(made, "a" * size)

    grows_linearly(work, 2_500)
    assert len(refused(made, "a" * 20_000)) < 600


def refused(made: Config, name: str) -> str:
    with pytest.raises(UnknownModel) as caught:
        made.resolve(name)
    return str(caught.value)


def test_known_names_are_listed_once() -> None:
    assert config(SET_UP).models() == ["claude-3-haiku-exact", "big[1m]", "auto", "claude-opus-4-1"]


@pytest.mark.parametrize(
    ("address", "environ", "found"),
    [
        ("https://a.test", {}, None),
        ("https://a.test", {"HTTPS_PROXY": "x"}, "HTTPS_PROXY"),
        ("https://a.test", {"https_proxy": "y", "HTTPS_PROXY": "x"}, "https_proxy"),
        ("https://a.test", {"HTTP_PROXY": "x"}, None),
        ("http://a.test", {"http_proxy": "x"}, "http_proxy"),
        ("http://a.test", {"HTTP_PROXY": "x"}, "HTTP_PROXY"),
        ("http://a.test", {"HTTP_PROXY": "x", "REQUEST_METHOD": "GET"}, None),
        ("https://a.test", {"ALL_PROXY": "x"}, "ALL_PROXY"),
        ("https://localhost:1", {"ALL_PROXY": "x"}, None),
        ("https://[::1]:1", {"ALL_PROXY": "x"}, None),
        ("https://a.test", {"ALL_PROXY": "x", "NO_PROXY": "*"}, None),
        ("https://a.test", {"ALL_PROXY": "x", "NO_PROXY": "b.test, .test"}, None),
        ("https://a.test", {"ALL_PROXY": "x", "no_proxy": "a.test:443"}, None),
        ("https://a.test", {"ALL_PROXY": "x", "no_proxy": "a.test:80"}, "ALL_PROXY"),
        ("https://ba.test", {"ALL_PROXY": "x", "no_proxy": "a.test"}, "ALL_PROXY"),
        ("https://10.1.2.3", {"ALL_PROXY": "x", "no_proxy": "10.0.0.0/8"}, None),
        ("https://11.1.2.3", {"ALL_PROXY": "x", "no_proxy": "10.0.0.0/8"}, "ALL_PROXY"),
    ],
)
def test_the_environments_proxy(address: str, environ: dict[str, str], found: str | None) -> None:
    assert proxy_variable(address, environ) == found


def test_loopback_is_known_by_every_name() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.9.9.9", "localhost", "LOCALHOST.", "::1", "[::1]")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "", "10.0.0.1", "localhost.evil.test", "1270.0.1")))
