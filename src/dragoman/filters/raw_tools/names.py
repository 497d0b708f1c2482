"""Names and ids of recovered calls, from the declared tools, the header and the arguments.

See docs/decisions/content.md#d4, #d5, docs/decisions/raw_tools.md#d21.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Mapping
from hashlib import sha256

from msgspec import Struct, structs

from dragoman.filters.calls import fit_alphabet
from dragoman.filters.raw_tools.schemas import SchemaDocument
from dragoman.filters.raw_tools.values import ParameterSchema, find_parameter, fits_schema
from dragoman.model.blocks import Block, ToolCall, ToolResult
from dragoman.model.capabilities import IdentifierFormat
from dragoman.model.conversation import Conversation, Message, ToolSpec
from dragoman.model.filter import Notes
from dragoman.wire import jsonio
from dragoman.wire.jsonio import Json

FUNCTIONS_PREFIX = "functions."
_WORD = re.compile(r"""[^\s<>{}\[\]"'`,;]{1,256}""")  # a possible name or id
_KEYS = re.compile(r'"((?:[^"\\]|\\.)+)"\s*:')


class CallHeader(Struct, frozen=True):
    """The content of a header. An empty name must be inferred from the arguments."""

    name: str
    index: str = ""  # the model's own count
    id: str = ""  # of a header that is only an id


class DeclaredTools:
    """The declared tools. Immutable; shared by the choices of a reply.

    `keeps_prefix`: a name keeps its `functions.` if no tools are declared.
    """

    def __init__(self, specs: Iterable[ToolSpec] = (), *, keeps_prefix: bool = False) -> None:
        self._schemas: dict[str, Mapping[str, Json] | None] = {spec.name: spec.schema for spec in specs}
        self._keeps_prefix = keeps_prefix

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the declared tools."""
        return tuple(self._schemas)

    def canonical_name(self, written: str) -> str:
        """Return the declared name of a tool, else the written one without `functions.`."""
        known = self.resolve(written)
        if known is not None or (self._keeps_prefix and not self._schemas):
            return known or written
        return written.removeprefix(FUNCTIONS_PREFIX)

    def resolve(self, written: str) -> str | None:
        """Return the declared name: as written, without `functions.`, or the last segment; None if none is declared."""
        for name in (written, written.removeprefix(FUNCTIONS_PREFIX), written.rpartition(".")[2]):
            if name in self._schemas:
                return name
        return None

    def native_name(self, written: str) -> str | None:
        """Return the declared name in the name of a native call that has raw tokens or `functions.` in it, else None.

        Servers of gpt-oss send names like `read<|channel|>commentary`.
        """
        if not self._schemas or written in self._schemas:
            return None
        return self.resolve(written.partition("<|")[0].strip())

    def parse_header(self, written: str) -> CallHeader:
        """Read a Kimi header: `[functions.]NAME[:COUNT]`, or only a count, or only an id, or nothing."""
        name, _, index = "".join(written.split()).rpartition(":")
        if not (_WORD.fullmatch(name) and index.isascii() and index.isdigit()):
            return self._parse_short_header("".join(written.split()))
        return CallHeader(self.canonical_name(name), index)

    def declares(self, written: str) -> bool:
        """Return whether a header contains the name of a declared tool."""
        name, _, index = "".join(written.split()).rpartition(":")
        return self.resolve(name if name and index.isdigit() else "".join(written.split())) is not None

    def _parse_short_header(self, written: str) -> CallHeader:
        written = written if _WORD.fullmatch(written) else ""
        if self.resolve(written) is not None or not self._schemas:
            return CallHeader(self.canonical_name(written))
        only = self.names[0] if len(self._schemas) == 1 else ""
        if written.isascii() and written.isdigit():
            return CallHeader(only, written)
        return CallHeader(only, "", written)

    def infer(self, arguments: str) -> str | None:
        """Return the tool that these arguments fit best: most known keys minus unknown ones, at least one known."""
        keys = _keys(arguments)
        best: tuple[int, bool] | None = None
        chosen = None
        for name, schema in self._schemas.items():
            known = set(SchemaDocument(schema or {}).names())
            shared = len(keys & known)
            score = (shared - len(keys - known), fits_schema(schema, arguments))
            if shared and (best is None or score > best):
                best, chosen = score, name
        return chosen

    def find_parameter(self, tool: str, key: str) -> ParameterSchema:
        """Return the schema of a tool's parameter."""
        return find_parameter(self._schemas.get(tool), key)

    def fits(self, tool: str, arguments: str) -> bool:
        """Return whether the arguments are a JSON object with all that the tool requires."""
        return fits_schema(self._schemas.get(tool), arguments)


def _keys(arguments: str) -> set[str]:
    try:
        value = jsonio.decode(arguments)
    except jsonio.JsonError:
        return set(_KEYS.findall(arguments))
    return set(value) if isinstance(value, dict) else set()


def canonical_id(name: str, index: int | str) -> str:
    """Return `functions.NAME:N`, the only form of id that Kimi's models are trained with."""
    return f"{name if name.startswith(FUNCTIONS_PREFIX) else FUNCTIONS_PREFIX + name}:{index}"


class CallIds:
    """Ids for the calls of one choice: unique in the conversation, and the same for the same conversation."""

    __slots__ = ("_alphabet", "_calls", "_seed", "_used")

    def __init__(
        self, used: Iterable[str] = (), calls: int = 0, alphabet: IdentifierFormat | None = None, seed: str = ""
    ) -> None:
        self._used: frozenset[str] | set[str] = frozenset(used)  # copied at the first call
        self._calls = calls  # number of calls in the conversation so far
        self._alphabet = alphabet
        self._seed = seed

    def copy(self) -> CallIds:
        """Return an independent copy, for calls that may turn out to be text."""
        return CallIds(self._used, self._calls, self._alphabet, self._seed)

    def add_used(self, id_: str) -> None:
        """Record the id of a native call."""
        self._use(id_)
        self._calls += 1

    def assign(self, header: CallHeader, name: str, canonical: bool) -> tuple[str, bool]:
        """Return the call's id, and whether it is the model's own."""
        own = header.id or (canonical_id(name, header.index) if header.index else "")
        id_ = own
        number = self._calls
        self._calls += 1
        if not own or self._fit_id(own) in self._used:
            while True:
                digested = f"{self._seed}\0{number}\0{name}".encode(errors="surrogatepass")
                id_ = canonical_id(name, number) if canonical else f"call_{sha256(digested).hexdigest()[:24]}"
                if self._fit_id(id_) not in self._used:
                    break
                number += 1
        fitted = self._fit_id(id_)
        self._use(fitted)
        return fitted, id_ == own

    def _use(self, id_: str) -> None:
        if isinstance(self._used, frozenset):
            self._used = set(self._used)
        self._used.add(id_)

    def _fit_id(self, id_: str) -> str:
        return id_ if self._alphabet is None else fit_alphabet(id_, self._alphabet)


# --- Kimi's ids in a request: every call and its result, in order, as `functions.NAME:N`
# (docs/dialects/raw_tools.md#names-and-ids).
#
# Kimi's templates print only the id of a call, so that with foreign ids the model does not know which tool it called.
# The count runs over the whole conversation, so it needs no state and is the same for the same turns.


def number_calls(conversation: Conversation, notes: Notes) -> Conversation:
    """Return the conversation with Kimi's ids: every call gets its running number, every result that of its call."""
    numbering = _Numbering(notes)
    messages = tuple([numbering.message(message) for message in conversation.messages])
    return conversation if messages == conversation.messages else structs.replace(conversation, messages=messages)


class _Numbering:
    """Numbers the calls of one request."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._count = 0
        self._latest: dict[str, str] = {}
        self._open: dict[str, deque[str]] = {}  # ids of the last turn with calls; an id may occur twice

    def message(self, message: Message) -> Message:
        """Return the next message with numbered ids."""
        if message.role == "assistant" and any(isinstance(block, ToolCall) for block in message.blocks):
            self._open = {}
        blocks = tuple([self._block(block) for block in message.blocks])
        return message if blocks == message.blocks else structs.replace(message, blocks=blocks)

    def _block(self, block: Block) -> Block:
        if isinstance(block, ToolCall):
            id_ = canonical_id(block.name, self._count)
            self._count += 1
            self._latest[block.id] = id_
            self._open.setdefault(block.id, deque()).append(id_)
            if id_ == block.id:
                return block
            self._notes.renamed("raw_tools.ids", block.at.path, f"the call {block.id!r} is sent as {id_!r}")
            return structs.replace(block, id=id_)
        if isinstance(block, ToolResult):
            waiting = self._open.get(block.call_id)
            id_ = waiting.popleft() if waiting else self._latest.get(block.call_id, block.call_id)
            return block if id_ == block.call_id else structs.replace(block, call_id=id_)
        return block
