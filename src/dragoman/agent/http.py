"""A small HTTP/1.1 sender on the standard library: one connection a request, the body as it comes."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from urllib.parse import urlsplit

from dragoman.errors import ConnectFailed, LocalMisuse, Reset, TimedOut
from dragoman.wire.http import HttpRequest, HttpResponse

_PIECE = 64 * 1024
_PATIENCE = 300.0  # seconds without a byte, if nobody says otherwise


class HttpSender:
    """Sends requests to one base URL."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise LocalMisuse(f"expected a URL that begins with http:// or https://, got {url!r}")
        self._connection = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._host = parts.hostname
        self._port = parts.port
        self._prefix = parts.path.rstrip("/")

    def __call__(self, request: HttpRequest, timeout: float | None) -> tuple[HttpResponse, Iterator[bytes]]:
        """Send. Raises ConnectFailed, TimedOut or Reset; the body may raise the last two."""
        connection = self._connection(self._host, self._port, timeout=_PATIENCE if timeout is None else timeout)
        path = self._prefix + request.path + (f"?{request.query}" if request.query else "")
        try:
            connection.connect()
        except TimeoutError:
            connection.close()
            raise TimedOut(f"{self._host} did not answer in time") from None
        except OSError as error:
            connection.close()
            raise ConnectFailed(f"{self._host} cannot be reached: {error}") from None
        try:
            connection.request(request.method, path, request.body, dict(request.headers))
            response = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise _broken(self._host, error) from None
        headers = tuple((name.lower(), value) for name, value in response.getheaders())
        return HttpResponse(response.status, headers), self._body(connection, response)

    def _body(self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse) -> Iterator[bytes]:
        try:
            while piece := response.read1(_PIECE):
                yield piece
            if response.length:  # a body shorter than it said
                raise Reset(f"{self._host} broke off, {response.length} bytes too early")
        except (OSError, http.client.HTTPException) as error:
            raise _broken(self._host, error) from None
        finally:
            connection.close()


def _broken(host: str, error: Exception) -> TimedOut | Reset:
    if isinstance(error, TimeoutError):
        return TimedOut(f"{host} did not answer in time")
    return Reset(f"the connection to {host} broke: {str(error) or type(error).__name__}")
