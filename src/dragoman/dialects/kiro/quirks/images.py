"""Images within what the service bears (rules 35 to 39). None is resized, none is fetched (D9)."""

from __future__ import annotations

import binascii
from collections.abc import Iterator

from msgspec import structs

from dragoman.errors import Unrepresentable
from dragoman.model.blocks import Block, Media, Text
from dragoman.model.conversation import Conversation, Message
from dragoman.model.facts import Facts
from dragoman.model.filter import MakeBack
from dragoman.model.notes import Action, Notes

FORMATS = ("image/png", "image/jpeg", "image/gif", "image/webp")
LONGEST_BASE64 = 5_242_880
MOST_IN_TURN = 10
MANY = 20  # above this number in one request …
LONGEST_EDGE = 2000  # … no edge may be longer, in pixels
LINE = "[image left out: {}]"


class FitImages:
    """What cannot be sent is refused in the last turn; in earlier ones a line of text stands for it (D9)."""

    name = "kiro.fit_images"

    def forward(self, conversation: Conversation, notes: Notes, facts: Facts) -> tuple[Conversation, MakeBack | None]:
        if Media not in facts.inventory(conversation).kinds:
            return conversation, None
        before = len(notes)
        many = sum(isinstance(block, Media) for message in conversation.messages for block in message.blocks) > MANY
        last = len(conversation.messages) - 1
        messages = tuple(
            [
                structs.replace(message, blocks=tuple(_blocks(message, index == last, many, notes)))
                if any(isinstance(block, Media) for block in message.blocks)
                else message
                for index, message in enumerate(conversation.messages)
            ]
        )
        return (conversation if len(notes) == before else structs.replace(conversation, messages=messages)), None


def _blocks(message: Message, last: bool, many: bool, notes: Notes) -> Iterator[Block]:
    images = [block for block in message.blocks if isinstance(block, Media)]
    too_many = len(images) - MOST_IN_TURN
    for block in message.blocks:
        if not isinstance(block, Media):
            yield block
            continue
        image = _plain(block, notes)
        problem = _problem(image, many)
        if too_many > 0:  # the newest stay
            too_many -= 1
            problem = problem or f"more than {MOST_IN_TURN} images in one turn"
        if message.role != "user":
            problem = problem or "the model's own turns hold no images"
        if not problem:
            yield image
        elif last:
            raise Unrepresentable(f"the image cannot be sent: {problem}", at=block.at.path)
        else:
            notes.dropped(
                "kiro.image.replaced", block.at.path, f"an old image cannot be sent: {problem}; a line stands for it"
            )
            yield Text(LINE.format(problem), at=block.at)


def _plain(image: Media, notes: Notes) -> Media:
    """The image with its format by its right name, and without a name of its own."""
    mime = image.mime.lower()
    mime = "image/jpeg" if mime == "image/jpg" else mime
    if (mime, "") == (image.mime, image.name):
        return image
    action: Action = "dropped" if image.name else "changed"
    notes.add("kiro.image.format", action, image.at.path, f"the image is sent as {mime}, without a name")
    return structs.replace(image, mime=mime, name="")


def _problem(image: Media, many: bool) -> str:
    if image.mime not in FORMATS:
        return f"{image.mime or 'no format'} is not one of {', '.join(FORMATS)}"
    if len(image.data) > LONGEST_BASE64:
        return f"image exceeds 5 MB maximum: {len(image.data)} bytes > {LONGEST_BASE64} bytes"
    try:
        data = binascii.a2b_base64(image.data.encode("ascii"), strict_mode=True)
    except ValueError:
        return "it is no base64"
    if not data:
        return "it is empty"
    edge = max(pixels(data), default=0) if many else 0
    if edge > LONGEST_EDGE:
        return f"an edge of {edge} pixels, and more than {MANY} images in the request"
    return ""


def pixels(data: bytes) -> tuple[int, ...]:
    """Width and height as far as the head of a file tells them; nothing for a form that we do not know."""
    if data[:8] == b"\x89PNG\r\n\x1a\n":
        return _big(data, 16, 4), _big(data, 20, 4)
    if data[:4] == b"GIF8":
        return _little(data, 6, 2), _little(data, 8, 2)
    if data[:2] == b"\xff\xd8":
        return _jpeg(data)
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return _webp(data)
    return ()


def _jpeg(data: bytes) -> tuple[int, ...]:
    at = 2
    while at + 9 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):  # a start of frame
            return _big(data, at + 7, 2), _big(data, at + 5, 2)
        at += 2 + max(_big(data, at + 2, 2), 2)
    return ()


def _webp(data: bytes) -> tuple[int, ...]:
    match data[12:16]:
        case b"VP8X":
            return 1 + _little(data, 24, 3), 1 + _little(data, 27, 3)
        case b"VP8L":
            bits = _little(data, 21, 4)
            return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
        case _:
            return _little(data, 26, 2) & 0x3FFF, _little(data, 28, 2) & 0x3FFF


def _big(data: bytes, at: int, size: int) -> int:
    return int.from_bytes(data[at : at + size], "big")


def _little(data: bytes, at: int, size: int) -> int:
    return int.from_bytes(data[at : at + size], "little")
