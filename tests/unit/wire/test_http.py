from __future__ import annotations

import pytest

from dragoman.wire.http import HttpRequest, HttpResponse

HEADERS = (("content-type", "application/json"), ("x-key", "1"), ("x-key", "2"))


@pytest.mark.parametrize("message", [HttpRequest("POST", "/v1", headers=HEADERS), HttpResponse(200, HEADERS)])
def test_headers_are_found_in_any_case(message: HttpRequest | HttpResponse) -> None:
    assert message.header("Content-Type") == "application/json"
    assert message.header("x-key") == "1"
    assert message.header("x-none") == ""
    assert message.header("x-none", "default") == "default"


def test_query_parameters_are_decoded() -> None:
    request = HttpRequest("GET", "/v1beta/models/a%2Fb", "alt=sse&key=a%20b+c&empty=&alt=json")
    assert [request.parameter(name) for name in ("alt", "key", "empty", "none")] == ["sse", "a b c", "", ""]
    assert request.parameter("none", "x") == "x"
    assert request.path == "/v1beta/models/a%2Fb"


def test_they_are_values() -> None:
    assert HttpResponse(200) == HttpResponse(200)
    with pytest.raises(AttributeError):
        HttpResponse(200).status = 500  # type: ignore[misc]
