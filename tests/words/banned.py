"""Words that only this project understood, each with what to write instead."""

from __future__ import annotations

import re
from collections.abc import Iterator

LONGEST_LINE = 120
_LONG_SPAN = re.compile(r"`[^`]{100,}`")  # a code span that fills a line of its own

BANNED = {
    r"whoever|whomever": "name the subject: the client, the caller, the operator",
    r"nobody|somebody|anybody|everybody": "name the subject: no client, any process, all callers",
    r"told|tells?|telling|untold": "reported, sent, returned; shows, names, says",
    r"(?<!You )said|unsaid":  # the embedded model replies "You said: …"
    "sent, reported, stated; the content",
    r"heard|hears?|hearing": "received; reads, listens to",
    r"at home|comes? home|came home|for home": "in the same dialect, for an upstream of the same dialect",
    r"(?:leave|leaves|left|leaving) alone": "circuit breaker, cooldown, not asked; unchanged",
    r"ways? back": "the response half, the response",
    r"let(?:s|ting)? go": "releases",
    r"moulds?|praise|outlets?|gatekeepers?|desks?|doors?": "the field's word: template, buffer, admission, endpoint",
    r"signs? of life": "keep-alive",
    r"without a word": "silently, without an error",
    r"knobs?": "setting, sampling setting",
    r"bears?|bearable": "accepts, allows, within the limit",
    r"mingles?": "are merged",
    r"tongues?": "dialect",
    r"in earnest": "at full scale, in production",
    r"wits|affair|dawdles?|praises?": "plain words",
    r"voices?|pulses?|familiars?|patience|(?<!rollback )journals?": "reply, keep-alive, same family, timeout, ledger",
    r"sole|solely": "only, one",
    r"unseal(?:s|ed|ing)?|seal(?:s|ed|ing)?": "signature, signed; encrypted",
    r"go(?:es)? out": "is sent",
    r"so (?:many|much|few)(?! that\b)": "the parameter or the figure: at most `most` rows",
}
_PATTERNS = [(re.compile(rf"(?<!\w)(?:{words})(?!\w)", re.IGNORECASE), instead) for words, instead in BANNED.items()]


def banned(lines: dict[int, str]) -> Iterator[tuple[int, str]]:
    """Yield the line number of each banned word, and what to write instead."""
    for number, line in lines.items():
        for pattern, instead in _PATTERNS:
            for found in pattern.finditer(line):
                yield number, f"{found.group(0)!r}: {instead}"


def long_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of Markdown that are longer than 120 characters.

    Tables, code blocks, images and generated figures may be longer.
    """
    is_code = is_generated = False
    for number, line in enumerate(text.splitlines(), 1):
        is_code ^= line.lstrip().startswith("```")
        is_generated = line.startswith("<!-- figures") or (is_generated and not line.startswith("<!-- end of figures"))
        is_exempt = is_code or is_generated or line.lstrip().startswith(("|", "```", "![")) or _LONG_SPAN.search(line)
        if len(line) > LONGEST_LINE and not is_exempt:
            yield number, f"{len(line)} characters: wrap the line at {LONGEST_LINE}"
