"""The shapes of keys and tokens, so that those that are not configured here are masked, too. Pure.

Each shape begins with a mark that is always the same; a text without a mark is not searched. All take time in
proportion to the text: no repetition is inside another, and those that may match the same characters are bounded.
"""

from __future__ import annotations

import re

from dragoman.upstream.credentials import MASK

_WORD = r"[A-Za-z0-9]"
# A mark, and what follows it. Behind the mark of a short word there are only letters and digits, so that names such as
# `hf_hub_download` are none.
_SHAPES: tuple[tuple[str, str], ...] = (
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
_MARKS = tuple(mark for mark, _ in _SHAPES)
# A shape begins a word. An escape of JSON or of a URL before it ends in a letter or a digit, too.
_SHAPE = re.compile(
    r"(?:(?<![A-Za-z0-9_])|(?<=\\[bfnrt])|(?<=\\u[0-9a-fA-F]{4})|(?<=%[0-9a-fA-F]{2}))(?:"
    + "|".join(re.escape(mark) + rest for mark, rest in _SHAPES)
    + ")",
    re.ASCII,
)
_PRIVATE = "PRIVATE KEY-----"
_PRIVATE_KEY = re.compile(
    r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----[^-]{0,20000}(?:-----END [A-Z ]{0,40}PRIVATE KEY-----)?"
)
# Keys without a shape of their own (Azure, AWS secret keys, others): what stands behind the name of such a field.
_NAMES = ("key", "secret", "token", "password", "bearer")
_QUOTE = r"\\{0,15}[\"']?"  # escaped by each JSON that it stands in
_NAMED = re.compile(
    r"((?:api[-_ ]?key|subscription[-_]key|access[-_]?key|secret|password"
    r"|(?:access|refresh|session|security)[-_]?token)"
    rf"{_QUOTE}\s{{0,4}}[:=]\s{{0,4}}{_QUOTE}|\bbearer\s{{1,4}})"
    r"(?=[A-Za-z._~+/=-]{0,80}\d)[A-Za-z0-9._~+/=-]{16,}",
    re.IGNORECASE | re.ASCII,
)


def without_shapes(text: str) -> str:
    """The text with a mask in place of all that looks like a key."""
    if any(mark in text for mark in _MARKS):
        text = _SHAPE.sub(MASK, text)
    if _PRIVATE in text:
        text = _PRIVATE_KEY.sub(MASK, text)
    low = text.lower()
    return _NAMED.sub(rf"\1{MASK}", text) if any(name in low for name in _NAMES) else text
