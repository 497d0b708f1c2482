"""Remove secrets from logs, reports and errors, and upstream addresses from errors that clients get. Pure.

A secret is masked if its value is known (in every usual encoding), if it has the form of a key, or if the name of its
header or field marks it. The log keeps the addresses of upstreams.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import TypeAlias
from urllib.parse import unquote, urlsplit

from msgspec import structs

from dragoman.errors import REQUEST_ERROR_KINDS, ErrorKind, Fault
from dragoman.upstream.credentials import MASK, mask_secrets
from dragoman.wire.http import Headers
from dragoman.wire.jsonio import Json

# --- the forms of keys and tokens: keys that are not configured in this gateway are masked, too
#
# Each form begins with a constant prefix; a text without a prefix is not searched. All patterns take time linear in the
# length of the text: no repetition is inside another, and those that may match the same characters are bounded.


_WORD = r"[A-Za-z0-9]"
# A prefix, and the pattern that follows it. Only letters and digits follow a short prefix, so that names such as
# `hf_hub_download` do not match.
_KEY_FORMS: tuple[tuple[str, str], ...] = (
    ("sk-", r"[\w-]{16,}"),  # OpenAI, Anthropic (sk-ant-), OpenRouter (sk-or-), DeepSeek, Moonshot
    ("dgm_", r"[\w-]{16,}"),  # this gateway
    ("AKIA", r"[0-9A-Z]{16}"),  # AWS
    ("ASIA", r"[0-9A-Z]{16}"),
    ("ABIA", r"[0-9A-Z]{16}"),
    ("ACCA", r"[0-9A-Z]{16}"),
    ("ABSK", r"[A-Za-z0-9+/=]{20,}"),  # Bedrock
    ("bedrock-api-key-", r"[\w+/=-]{16,}"),
    ("eyJ", r"[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*){0,3}"),  # JSON web tokens
    ("aoa", r"[\w-]{16,}"),  # Kiro
    ("aor", r"[\w-]{16,}"),
    ("ksk_", r"[\w-]{16,}"),
    ("AIza", r"[\w-]{30,}"),  # Google
    ("AQ.A", r"[\w-]{20,}"),
    ("ya29.", r"[\w.-]{20,}"),
    ("1//0", r"[\w-]{20,}"),
    ("GOCSPX-", r"[\w-]{16,}"),
    ("gsk_", rf"{_WORD}{{16,}}"),  # Groq
    ("xai-", rf"{_WORD}{{16,}}"),
    ("hf_", rf"{_WORD}{{16,}}"),  # Hugging Face
    ("nvapi-", r"[\w-]{16,}"),
    ("pplx-", rf"{_WORD}{{16,}}"),  # Perplexity
    ("r8_", rf"{_WORD}{{16,}}"),  # Replicate
    ("fw_", rf"{_WORD}{{16,}}"),  # Fireworks
    ("tgp_v1_", r"[\w-]{16,}"),  # Together
    ("csk-", rf"{_WORD}{{16,}}"),  # Cerebras
    ("dapi", r"[0-9a-f]{32}(?:-\d)?"),  # Databricks
    ("jina_", rf"{_WORD}{{16,}}"),
    ("tvly-", r"[\w-]{16,}"),  # Tavily
    ("lsv2_", r"\w{16,}"),  # LangSmith
    ("ghp_", rf"{_WORD}{{16,}}"),  # GitHub
    ("gho_", rf"{_WORD}{{16,}}"),
    ("ghu_", rf"{_WORD}{{16,}}"),
    ("ghs_", rf"{_WORD}{{16,}}"),
    ("ghr_", rf"{_WORD}{{16,}}"),
    ("github_pat_", r"\w{16,}"),
    ("glpat-", r"[\w.-]{16,}"),  # GitLab
    ("xox", r"[a-z]-[\w-]{10,}"),  # Slack
    ("xapp-", r"[\w-]{10,}"),
    ("sk_live_", rf"{_WORD}{{10,}}"),  # Stripe
    ("sk_test_", rf"{_WORD}{{10,}}"),
    ("rk_live_", rf"{_WORD}{{10,}}"),
    ("npm_", rf"{_WORD}{{30,}}"),
    ("pypi-", r"[\w-]{30,}"),
)
KEY_PREFIXES = tuple(prefix for prefix, _ in _KEY_FORMS)
# A key begins a word. An escape of JSON or of a URL before it ends in a letter or a digit, too.
KEY_FORM = re.compile(
    r"(?:(?<![A-Za-z0-9_])|(?<=\\[bfnrt])|(?<=\\u[0-9a-fA-F]{4})|(?<=%[0-9a-fA-F]{2}))(?:"
    + "|".join(re.escape(prefix) + rest for prefix, rest in _KEY_FORMS)
    + ")",
    re.ASCII,
)
_PRIVATE = "PRIVATE KEY-----"
_PRIVATE_KEY = re.compile(
    r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----[^-]{0,20000}(?:-----END [A-Z ]{0,40}PRIVATE KEY-----)?"
)
# Keys without a prefix (Azure, AWS secret keys, others) are found by the name of their field.
_NAMES = ("key", "secret", "token", "password", "bearer")
_QUOTE = r"\\{0,15}[\"']?"  # JSON inside JSON escapes the quote
NAMED_KEY = re.compile(
    r"((?:api[-_ ]?key|subscription[-_]key|access[-_]?key|secret|password"
    r"|(?:access|refresh|session|security)[-_]?token)"
    rf"{_QUOTE}\s{{0,4}}[:=]\s{{0,4}}{_QUOTE}|\bbearer\s{{1,4}})"
    r"(?=[A-Za-z._~+/=-]{0,80}\d)[A-Za-z0-9._~+/=-]{16,}",
    re.IGNORECASE | re.ASCII,
)


def mask_keys(text: str) -> str:
    """Return the text with a mask in place of everything that looks like a key."""
    if any(prefix in text for prefix in KEY_PREFIXES):
        text = KEY_FORM.sub(MASK, text)
    if _PRIVATE in text:
        text = _PRIVATE_KEY.sub(MASK, text)
    low = text.lower()
    return NAMED_KEY.sub(rf"\1{MASK}", text) if any(name in low for name in _NAMES) else text


# --- network addresses of upstreams


KnownAddress: TypeAlias = tuple[str, str]  # a URL, and the text that replaces it

_ANY_ADDRESS = "an address"
_PORTS = {"http": 80, "https": 443}
_IPV4 = re.compile(r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?::\d{1,5})?(?![\w.]*\d)", re.ASCII)
_IPV6 = re.compile(r"(?<![\w:.])\[?[0-9a-fA-F:]{2,39}(?:\.\d{1,3}){0,3}\]?", re.ASCII)


def mask_addresses(text: str, known: Iterable[KnownAddress], kind: ErrorKind) -> str:
    """Return the text with known addresses replaced, and any IP address unless the request caused the error."""
    low = text.lower()
    for host, pattern, words in _patterns(tuple(dict.fromkeys(known))):
        if host in low or "port" in low:
            text = pattern.sub(words, text)
    if kind in REQUEST_ERROR_KINDS:
        return text  # The message may quote addresses of the request.
    if ":" in text:
        text = _IPV6.sub(_masked_ipv6, text)
    return _IPV4.sub(_ANY_ADDRESS, text)


def _masked_ipv6(match: re.Match[str]) -> str:
    try:
        ipaddress.IPv6Address(match[0].strip("[]"))
    except ValueError:
        return match[0]
    return _ANY_ADDRESS


@lru_cache(maxsize=16)
def _patterns(known: tuple[KnownAddress, ...]) -> tuple[tuple[str, re.Pattern[str], str], ...]:
    patterns = (_pattern(url, words) for url, words in known)
    return tuple(sorted((each for each in patterns if each is not None), key=lambda each: -len(each[0])))


def _pattern(url: str, words: str) -> tuple[str, re.Pattern[str], str] | None:
    """Return the pattern that finds a URL's host in a text: in a URL, with a port, alone, and its port after `port`.

    A host of one label, such as `ollama`, is also an ordinary word, so it matches only in a URL or with a port.
    """
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        host, port = (parts.hostname or "").lower(), parts.port
    except ValueError:
        return None
    if not host:
        return None
    name = rf"\[?{re.escape(host)}\]?"
    port_is_optional = "?" if "." in host or ":" in host else ""
    alternatives = [
        rf"(?:https?|wss?)://(?:[^\s/@]{{0,200}}@)?{name}(?::\d{{1,5}})?(?![\w-]|\.\w)(?:[/?#][^\s\"'<>]*)?",
        rf"(?<![\w.-]){name}(?::\d{{1,5}}){port_is_optional}(?![\w-]|\.\w)",
    ]
    if port is not None and port != _PORTS.get(parts.scheme):
        alternatives.append(rf"\bport[ =:]{{1,3}}{port}\b")
    return host, re.compile("|".join(alternatives), re.IGNORECASE | re.ASCII), words


# --- the redactor


MAX_MESSAGE_LENGTH = 32 * 1024  # characters of a message; a search through a megabyte takes 200 ms
_LONGEST_WORD = 4 * 1024
SECRET_NAME = re.compile(r"auth|cookie|key|token|secret|password|credential|signature", re.IGNORECASE)


class Redactor:
    """Masks secrets. `secrets` is called each time, because secrets are loaded late and may be renewed.

    `addresses` returns the addresses of upstreams, each with the text to show instead.
    """

    def __init__(
        self, secrets: Callable[[], Iterable[str]] = tuple, addresses: Callable[[], Iterable[KnownAddress]] = tuple
    ) -> None:
        self._secrets, self._addresses = secrets, addresses

    def known_secrets(self) -> tuple[str, ...]:
        """Return the secrets that are known now, for a redactor in another process."""
        return tuple(dict.fromkeys(self._secrets()))

    def text(self, text: str) -> str:
        """Return the text with secrets masked."""
        text = mask_secrets(text, dict.fromkeys(self._secrets()))  # Several upstreams may have the same key.
        return mask_keys(text)

    def message(self, text: str) -> str:
        """Return the message of an error with secrets masked, truncated if it is very long."""
        return self.text(truncate_text(text))

    def headers(self, headers: Headers) -> Headers:
        """Return headers with secrets masked: all values of headers whose name marks a secret."""
        return tuple(
            (name, MASK if SECRET_NAME.search(name) and value else self.text(value)) for name, value in headers
        )

    def query(self, query: str) -> str:
        """Return the query of a URL with secrets masked; some clients put keys there."""
        pairs = (pair.partition("=") for pair in query.split("&"))
        return "&".join(
            f"{name}={MASK}" if value and SECRET_NAME.search(unquote(name)) else self.text(f"{name}{equals}{value}")
            for name, equals, value in pairs
        )

    def fault(self, fault: Fault) -> Fault:
        """Return a fault without secrets: its message may quote the request. The same object if nothing is masked."""
        return _replaced(fault, tuple(map(self.text, _texts(fault))))

    def upstream_fault(self, fault: Fault) -> Fault:
        """Return a fault of an upstream or the network for the client: without secrets and addresses."""
        known = tuple(self._addresses())
        texts = [self.text(mask_addresses(text, known, fault.kind)) for text in _texts(fault)]
        return _replaced(fault, tuple(texts))

    def tree(self, value: Json) -> Json:
        """Return a JSON value with secrets masked in its strings. Its keys are the gateway's own and stay."""
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
    """Return the texts of a fault that another party wrote. Long details are dropped: truncated JSON is invalid."""
    return (
        truncate_text(fault.message),
        truncate_text(fault.code),
        fault.details if len(fault.details) <= MAX_MESSAGE_LENGTH else "",
    )


def truncate_text(text: str) -> str:
    """Return the text, at most MAX_MESSAGE_LENGTH characters. It is cut between words: half a secret is not found."""
    if len(text) <= MAX_MESSAGE_LENGTH:
        return text
    end = max([text.rfind(blank, MAX_MESSAGE_LENGTH - _LONGEST_WORD, MAX_MESSAGE_LENGTH) for blank in " \n"])
    return f"{text[: end if end > 0 else MAX_MESSAGE_LENGTH - _LONGEST_WORD]}…"


def _replaced(fault: Fault, texts: tuple[str, ...]) -> Fault:
    if texts == (fault.message, fault.code, fault.details):
        return fault
    message, code, details = texts
    return structs.replace(fault, message=message, code=code, details=details)
