"""Images within what the service bears (rules 35 to 39). None is resized, none is fetched (D9)."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import structs

from dragoman.dialects.kiro.pixels import pixels
from dragoman.dialects.kit.media import base64_bytes
from dragoman.errors import Unrepresentable
from dragoman.model.blocks import Block, Media, Text
from dragoman.model.conversation import Conversation, Message
from dragoman.model.facts import Facts, Features
from dragoman.model.filter import Filter, MakeBack
from dragoman.model.notes import Action, Notes

FORMATS = ("image/png", "image/jpeg", "image/gif", "image/webp")
LONGEST_BASE64 = 5_242_880
MOST_IN_TURN = 10
MANY = 20  # above this number in one request …
LONGEST_EDGE = 2000  # … no edge may be longer, in pixels
LINE = "[image left out: {}]"


class FitImages(Filter):
    """What cannot be sent is refused in the last turn; in earlier ones a line of text stands for it (D9)."""

    name = "kiro.fit_images"
    concerns: Features = frozenset({"media"})

    def forward(self, conversation: Conversation, notes: Notes, facts: Facts) -> tuple[Conversation, MakeBack | None]:
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
    data = base64_bytes(image.data)
    if data is None:
        return "it is no base64"
    if not data:
        return "it is empty"
    edge = max(pixels(data), default=0) if many else 0
    if edge > LONGEST_EDGE:
        return f"an edge of {edge} pixels, and more than {MANY} images in the request"
    return ""
