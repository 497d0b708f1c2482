"""Rules about images (35 to 39) and replayed reasoning (40)."""

from __future__ import annotations

import binascii
import hashlib
from collections.abc import Iterator

from dragoman.simulator.kiro.reading import Asked, Object, members, text
from dragoman.simulator.kiro.verdict import Answer, Finding, Limits

_FORMATS = ("png", "jpeg", "gif", "webp")
_BODY_INVALID = Answer(reason="REQUEST_BODY_INVALID")
_BAD_SIGNATURE = Answer("Invalid `signature` in `thinking` block", "THINKING_SIGNATURE_INVALID")
_OURS = "sim."


def image_formats(asked: Asked, _: Limits) -> Iterator[Finding]:
    for at, image in asked.images:
        if image.get("format") not in _FORMATS:
            yield Finding(f"{at}.format", f"not one of {', '.join(_FORMATS)}")


def image_by_value(asked: Asked, _: Limits) -> Iterator[Finding]:
    for at, image in asked.images:
        if "bytes" not in members(image.get("source")):
            yield Finding(f"{at}.source", "an image without bytes: addresses are not fetched")


def image_size(asked: Asked, limits: Limits) -> Iterator[Finding]:
    for at, image in asked.images:
        size, limit = len(_base64(image)), limits.image_base64
        if size > limit:
            message = f"image exceeds 5 MB maximum: {size} bytes > {limit} bytes"
            yield Finding(f"{at}.source.bytes", message, answer=Answer(message))


def image_count(asked: Asked, limits: Limits) -> Iterator[Finding]:
    for turn in asked.turns:
        if len(turn.images) > limits.images:
            yield Finding(
                f"{turn.at}.images", f"{len(turn.images)} images in one message, more than {limits.images}", "A"
            )
    if len(asked.images) > limits.many_images:
        for at, image in asked.images:
            edge = max(pixels(_decoded(image)), default=0)
            if edge > limits.image_edge:
                detail = f"an edge of {edge} pixels, and more than {limits.many_images} images in the request"
                yield Finding(at, detail, "B")


def image_encoding(asked: Asked, _: Limits) -> Iterator[Finding]:
    for at, image in asked.images:
        source = members(image.get("source"))
        if "bytes" in source and not (isinstance(source["bytes"], str) and _decoded(image)):
            yield Finding(f"{at}.source.bytes", "not plain base64")


def _base64(image: Object) -> str:
    return text(members(image.get("source")).get("bytes"))


def _decoded(image: Object) -> bytes:
    try:
        return binascii.a2b_base64(_base64(image).encode("ascii"), strict_mode=True)
    except (binascii.Error, UnicodeEncodeError):
        return b""


def pixels(data: bytes) -> tuple[int, int] | tuple[()]:
    """Width and height, as far as the head of the file tells them."""
    if data[:8] == b"\x89PNG\r\n\x1a\n" and len(data) >= 24:
        return int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")
    if data[:4] == b"GIF8" and len(data) >= 10:
        return int.from_bytes(data[6:8], "little"), int.from_bytes(data[8:10], "little")
    if data[:2] == b"\xff\xd8":
        return _jpeg_pixels(data)
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP" and len(data) >= 30:
        return _webp_pixels(data)
    return ()


def _jpeg_pixels(data: bytes) -> tuple[int, int] | tuple[()]:
    at = 2
    while at + 9 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):  # a start of frame
            return int.from_bytes(data[at + 7 : at + 9], "big"), int.from_bytes(data[at + 5 : at + 7], "big")
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return ()


def _webp_pixels(data: bytes) -> tuple[int, int] | tuple[()]:
    match data[12:16]:
        case b"VP8X":
            return 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
        case b"VP8L":
            bits = int.from_bytes(data[21:25], "little")
            return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
        case b"VP8 ":
            return int.from_bytes(data[26:28], "little") & 0x3FFF, int.from_bytes(data[28:30], "little") & 0x3FFF
        case _:
            return ()


# --- reasoning


def sign(reasoning: str) -> str:
    """The signature this simulator puts on its reasoning, so that a replayed one can be checked."""
    return _OURS + hashlib.sha256(reasoning.encode("utf-8", "surrogatepass")).hexdigest()


def reasoning_signed(asked: Asked, limits: Limits) -> Iterator[Finding]:
    for turn in asked.turns:
        if "reasoningContent" not in turn.body or turn.role != "assistant":
            continue
        at, content = f"{turn.at}.reasoningContent", turn.body["reasoningContent"]
        inner = members(content)
        if set(inner) == {"redactedContent"} and text(inner["redactedContent"]):
            continue
        nested = members(inner.get("reasoningText"))
        if set(inner) != {"reasoningText"} or not text(nested.get("text")):
            yield Finding(at, "not nested as reasoningText{text, signature}", answer=_BODY_INVALID)
        elif not text(nested.get("signature")):
            yield Finding(f"{at}.reasoningText.signature", "reasoning without a signature", answer=_BODY_INVALID)
        elif _forged(text(nested["text"]), text(nested["signature"]), limits):
            yield Finding(f"{at}.reasoningText.signature", "the signature does not fit the text", answer=_BAD_SIGNATURE)


def _forged(words: str, signature: str, limits: Limits) -> bool:
    return signature != sign(words) if signature.startswith(_OURS) or limits.signatures == "strict" else False
