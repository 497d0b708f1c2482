"""Base URLs and proxies: what the environment means, as a table."""

from __future__ import annotations

import pytest

from dragoman.errors import LocalMisuse
from dragoman.http.addresses import Address, Proxy, choose_proxy, parse_address, parse_proxy

PROXY = "http://proxy.corp:3128"


@pytest.mark.parametrize(
    ("url", "address", "authority"),
    [
        ("https://api.anthropic.com", Address("https", "api.anthropic.com", 443), "api.anthropic.com"),
        ("http://Host:8000/v1/", Address("http", "host", 8000, "/v1"), "host:8000"),
        ("https://h:443/a?b=c", Address("https", "h", 443, "/a", "b=c"), "h"),
        ("http://h:443", Address("http", "h", 443), "h:443"),
        ("http://[::1]:8080/x", Address("http", "::1", 8080, "/x"), "[::1]:8080"),
        ("https://[2001:db8::1]", Address("https", "2001:db8::1", 443), "[2001:db8::1]"),
        ("https://bücher.example", Address("https", "xn--bcher-kva.example", 443), "xn--bcher-kva.example"),
    ],
)
def test_a_base_url_is_taken_apart(url: str, address: Address, authority: str) -> None:
    assert parse_address(url) == address
    assert address.authority == authority


@pytest.mark.parametrize(
    "url",
    [
        "",
        "api.anthropic.com",
        "ftp://h",
        "https://",
        "http://h:x",
        "http://h:99999",
        "http://[::1",
        "http://u:secret@h",
    ],
)
def test_what_is_no_base_url_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(LocalMisuse) as caught:
        parse_address(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "proxy"),
    [
        (PROXY, Proxy("proxy.corp", 3128)),
        ("proxy.corp:3128", Proxy("proxy.corp", 3128)),
        ("http://proxy.corp", Proxy("proxy.corp", 80)),
        ("http://me:p%40ss@proxy.corp:1/", Proxy("proxy.corp", 1, "Basic bWU6cEBzcw==")),
    ],
)
def test_a_proxy_is_taken_apart(url: str, proxy: Proxy) -> None:
    assert parse_proxy(url) == proxy


@pytest.mark.parametrize("url", ["socks5://me:secret@h", "https://me:secret@h", "http://", "http://me:secret@h:x"])
def test_a_proxy_we_cannot_speak_to_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(LocalMisuse) as caught:
        parse_proxy(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "environ", "chosen"),
    [
        ("https://api.example.com", {}, False),
        ("https://api.example.com", {"HTTPS_PROXY": PROXY}, True),
        ("https://api.example.com", {"https_proxy": PROXY}, True),
        ("https://api.example.com", {"HTTPS_PROXY": "  "}, False),
        ("https://api.example.com", {"ALL_PROXY": PROXY}, True),
        ("https://api.example.com", {"http_proxy": PROXY}, False),
        ("http://api.example.com", {"http_proxy": PROXY}, True),
        ("http://api.example.com", {"HTTP_PROXY": PROXY}, True),
        (
            "http://api.example.com",
            {"HTTP_PROXY": PROXY, "REQUEST_METHOD": "GET"},
            False,
        ),  # a CGI's client could set it
        ("http://api.example.com", {"HTTPS_PROXY": PROXY}, False),
    ],
)
def test_which_proxy_the_environment_names(url: str, environ: dict[str, str], chosen: bool) -> None:
    assert choose_proxy(url, environ) == (PROXY if chosen else None)


def test_small_letters_win() -> None:
    assert choose_proxy("https://h", {"HTTPS_PROXY": "http://a", "https_proxy": "http://b"}) == "http://b"


@pytest.mark.parametrize("host", ["localhost", "a.localhost", "127.0.0.1", "127.8.8.8", "[::1]"])
def test_loopback_never_goes_through_a_proxy(host: str) -> None:
    assert choose_proxy(f"https://{host}:8443", {"HTTPS_PROXY": PROXY}) is None


@pytest.mark.parametrize(
    ("spared", "url", "direct"),
    [
        ("*", "https://api.example.com", True),
        ("example.com", "https://api.example.com", True),
        ("example.com", "https://example.com", True),
        (".example.com", "https://api.example.com", True),
        ("*.example.com", "https://api.example.com", True),
        ("EXAMPLE.com", "https://api.example.com", True),
        ("example.com", "https://badexample.com", False),
        ("ample.com", "https://example.com", False),
        ("other.com, example.com", "https://example.com", True),
        ("other.com example.com", "https://example.com", True),
        ("example.com:443", "https://example.com", True),
        ("example.com:8443", "https://example.com", False),
        ("10.0.0.0/8", "https://10.1.2.3", True),
        ("10.0.0.0/8", "https://11.1.2.3", False),
        ("10.0.0.0/8", "https://example.com", False),
        ("10.1.2.3", "https://10.1.2.3", True),
        ("fd00::/8", "https://[fd00::1]", True),
        ("fd00::1", "https://[fd00::1]:9", True),
        ("[fd00::1]:9", "https://[fd00::1]:9", True),
        ("[fd00::1]:8", "https://[fd00::1]:9", False),
        ("bad/net", "https://example.com", False),
        ("", "https://example.com", False),
        (",. ,", "https://example.com", False),
    ],
)
def test_whom_no_proxy_spares(spared: str, url: str, direct: bool) -> None:
    assert choose_proxy(url, {"HTTPS_PROXY": PROXY, "NO_PROXY": spared}) == (None if direct else PROXY)
