"""Keeps secrets out of what is written: by value in every usual spelling, by shape, by a header's name. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from urllib.parse import unquote

from msgspec import structs

from dragoman.errors import Fault
from dragoman.gateway.addresses import Known, without_addresses
from dragoman.gateway.secret_shapes import without_shapes
from dragoman.upstream.credentials import MASK, masked
from dragoman.wire.http import Headers
from dragoman.wire.jsonio import Json

LONGEST = 32 * 1024  # characters of a message; to look through a megabyte takes 200 ms
_LONGEST_WORD = 4 * 1024
_SECRET_NAME = re.compile(r"auth|cookie|key|token|secret|password|credential|signature", re.IGNORECASE)


class Redactor:
    """Masks secrets. `secrets` is asked each time: a secret is found when it is first needed, and may be renewed.

    `addresses` are those of upstreams, with the words that clients get instead.
    """

    def __init__(
        self, secrets: Callable[[], Iterable[str]] = tuple, addresses: Callable[[], Iterable[Known]] = tuple
    ) -> None:
        self._secrets, self._addresses = secrets, addresses

    def known(self) -> tuple[str, ...]:
        """The secrets that are known now, for a redactor elsewhere."""
        return tuple(dict.fromkeys(self._secrets()))

    def text(self, text: str) -> str:
        text = masked(text, dict.fromkeys(self._secrets()))  # one key may serve many upstreams
        return without_shapes(text)

    def message(self, text: str) -> str:
        """An error's message, cut where it is very long."""
        return self.text(cut(text))

    def headers(self, headers: Headers) -> Headers:
        return tuple(
            (name, MASK if _SECRET_NAME.search(name) and value else self.text(value)) for name, value in headers
        )

    def query(self, query: str) -> str:
        """What follows the question mark; some clients put keys there."""
        pairs = (pair.partition("=") for pair in query.split("&"))
        return "&".join(
            f"{name}={MASK}" if value and _SECRET_NAME.search(unquote(name)) else self.text(f"{name}{equals}{value}")
            for name, equals, value in pairs
        )

    def fault(self, fault: Fault) -> Fault:
        """What an upstream said of a request, which it may have quoted; the same one if there is nothing to mask."""
        return _replaced(fault, tuple(map(self.text, _texts(fault))))

    def upstream_fault(self, fault: Fault) -> Fault:
        """A fault of an upstream or of the way to it, as a client may be told it: without secrets and addresses."""
        known = tuple(self._addresses())
        texts = [self.text(without_addresses(text, known, fault.kind)) for text in _texts(fault)]
        return _replaced(fault, tuple(texts))

    def tree(self, value: Json) -> Json:
        """A document without secrets; its keys are ours."""
        match value:
            case str():
                return self.message(value)
            case dict():
                return {name: self.tree(item) for name, item in value.items()}
            case list():
                return [self.tree(item) for item in value]
            case _:
                return value


def _texts(fault: Fault) -> tuple[str, str, str]:
    """What others wrote in a fault. Half of the details would be no JSON."""
    return cut(fault.message), cut(fault.code), fault.details if len(fault.details) <= LONGEST else ""


def cut(text: str) -> str:
    """A text of at most so many characters. It is cut between words, since half a secret is not found."""
    if len(text) <= LONGEST:
        return text
    end = max([text.rfind(blank, LONGEST - _LONGEST_WORD, LONGEST) for blank in " \n"])
    return f"{text[: end if end > 0 else LONGEST - _LONGEST_WORD]}…"


def _replaced(fault: Fault, texts: tuple[str, ...]) -> Fault:
    if texts == (fault.message, fault.code, fault.details):
        return fault
    message, code, details = texts
    return structs.replace(fault, message=message, code=code, details=details)
