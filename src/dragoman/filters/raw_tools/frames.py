"""What the components take as an event: a frame, the text of one or more frames, or only a frame's data."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TypeAlias

from dragoman.wire.frame import Frame
from dragoman.wire.sse import SseDecoder, encode_sse

Event: TypeAlias = Frame | bytes | str  # an SSE frame, as such or as its text, or its data

_SSE = re.compile(rb"(?:\xef\xbb\xbf)?[\r\n]*(?:data|event|id|retry)?:")  # no JSON begins so
_BLANK_LINES = (b"\n\n", b"\n\r\n", b"\r\r")


def parts_of(event: Event) -> Iterator[tuple[bytes, bytes | None]]:
    """The bytes of each frame and its data; None for what has none, such as comments. The bytes are all that came."""
    if isinstance(event, Frame):
        yield event.raw, event.data
        return
    text = event.encode(errors="surrogatepass") if isinstance(event, str) else bytes(event)
    if _SSE.match(text) is None:
        yield encode_sse(b"", text), text
        return
    if not text.endswith(_BLANK_LINES):
        text += b"\n" if text.endswith((b"\n", b"\n\r")) else b"\n\n"
    decoder = SseDecoder(len(text))
    at = 0
    for frame in (*decoder.feed(text), *decoder.close()):
        begin = text.find(frame.raw, at)
        if begin > at:
            yield text[at:begin], None
        at = begin + len(frame.raw)
        yield frame.raw, frame.data
    if at < len(text):
        yield text[at:], None
