"""A story is one exchange in every dialect, as data files.

`story.md` opens with two lines, `client: <dialect>` and `upstream: <dialect>`, which name the two files written by hand:
`<client>.request.json`, and `<upstream>.stream` with the response (frames as text, see `story_text`). Dragoman writes all
other files of the folder from them: `python -m tests.stories` does it, and reviewers read the diff.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path

import dragoman.dialects as registry
from dragoman.dialects.base import Dialect, Environment, StreamReader
from dragoman.model.conversation import Conversation
from dragoman.model.events import Event
from dragoman.response_stream import ResponseTranslator
from dragoman.translate import Plan, plan
from dragoman.wire import jsonio
from dragoman.wire.frame import Payload

STORIES = Path(__file__).parent


def fixed_environment() -> Environment:
    """Return an environment without randomness: ids are counted, and the time is constant."""
    counter = itertools.count(1)
    return Environment(new_id=lambda prefix: f"{prefix}{next(counter):04d}", now=lambda: 1_780_000_000)


@dataclass(frozen=True)
class Story:
    folder: Path
    client: str
    upstream: str
    raw_tools: str = ""

    def __str__(self) -> str:
        return self.folder.name

    @property
    def request(self) -> bytes:
        return (self.folder / f"{self.client}.request.json").read_bytes()

    @property
    def stream(self) -> bytes:
        """The response of the upstream, as bytes on the wire."""
        return wire_bytes(registry.get(self.upstream), (self.folder / f"{self.upstream}.stream").read_bytes())


def stories() -> list[Story]:
    return [_load(path.parent) for path in sorted(STORIES.glob("*/story.md"))]


def _load(folder: Path) -> Story:
    head = (folder / "story.md").read_text().split("\n\n")[0]
    fields = dict(line.split(": ", 1) for line in head.splitlines() if ": " in line)
    return Story(folder, fields["client"], fields["upstream"])


def render_story(story: Story) -> dict[str, bytes]:
    """Return every generated file of a story, by name."""
    files: dict[str, bytes] = {}
    client, upstream = registry.get(story.client), registry.get(story.upstream)
    conversation = client.codec.parse_request(client.binding.unwrap(jsonio.decode(story.request)))
    files["conversation.json"] = canonical_json(conversation)
    notes: list[str] = []
    for name in registry.names():
        target = registry.get(name)
        if name != story.client:
            planned = plan(client, target, conversation)
            files[f"{name}.request.json"] = (
                jsonio.encode_pretty(jsonio.decode(target.binding.wrap(planned.call()).body)) + b"\n"
            )
            notes += [f"request {story.client} -> {name}: {note}" for note in planned.notes]
    events = [event for decoded in read_frames(upstream, conversation, story.stream) for event in decoded.events]
    files["events.jsonl"] = b"".join(jsonio.encode(_readable(event)) + b"\n" for event in events)
    for name in registry.names():
        target = registry.get(name)
        if name == story.upstream:
            continue
        translator = ResponseTranslator(_plan_for(story, target, upstream, conversation), fixed_environment())
        raw = translator.feed(story.stream) + translator.close()
        files[f"{name}.stream"] = story_text(target, raw)
        notes += [f"response {story.upstream} -> {name}: {note}" for note in translator.notes]
    files["notes.txt"] = "".join(f"{note}\n" for note in notes).encode()
    return files


def _plan_for(story: Story, client: Dialect, upstream: Dialect, conversation: Conversation) -> Plan:
    """Plan the request of the story as if a client of this dialect had sent it."""
    if client.name == story.client:
        return plan(client, upstream, conversation)
    planned = plan(registry.get(story.client), client, conversation)
    again = client.codec.parse_request(client.binding.unwrap(jsonio.decode(client.binding.wrap(planned.call()).body)))
    return plan(client, upstream, again)


def read_frames(dialect: Dialect, conversation: Conversation, data: bytes):  # type: ignore[no-untyped-def]
    reader = StreamReader(dialect.binding.frame_decoder(), dialect.codec.decoder(conversation, fixed_environment()))
    return [*reader.feed(data), *reader.close()]


def canonical_json(value: Conversation | Event) -> bytes:
    """Return a canonical value as JSON, without defaults and places."""
    return jsonio.encode_pretty(_readable(value)) + b"\n"


def _readable(value: Conversation | Event) -> object:
    return _without_noise(jsonio.decode(jsonio.encode(value)))


def _without_noise(value: object) -> object:
    if isinstance(value, dict):
        fields = {name: _without_noise(each) for name, each in value.items() if name not in ("at", "place", "spelling")}
        return {
            name: each
            for name, each in fields.items()
            if each is not None and each is not False and each not in ("", [], {})
        }
    return [_without_noise(each) for each in value] if isinstance(value, list | tuple) else value


def story_text(dialect: Dialect, raw: bytes) -> bytes:
    """Return wire bytes as a text file: unchanged for a text framing, one line `kind: data` a frame for a binary one."""
    if not _binary(dialect):
        return raw
    decoder = dialect.binding.frame_decoder()
    frames = [*decoder.feed(raw), *decoder.close()]
    return b"".join(b"%s%s: %s\n" % (b"!" if frame.error else b"", frame.kind.encode(), frame.data) for frame in frames)


def wire_bytes(dialect: Dialect, text: bytes) -> bytes:
    if not _binary(dialect):
        return text
    out = b""
    for line in text.splitlines():
        kind, _, data = line.partition(b": ")
        out += dialect.binding.encode_frame(Payload(kind.removeprefix(b"!"), data, kind.startswith(b"!")))
    return out


def _binary(dialect: Dialect) -> bool:
    return b"\x00" in dialect.binding.encode_frame(Payload(b"x", b"{}"))
