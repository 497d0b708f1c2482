"""One call while it is read: whether it streams, waits for its name or its end, or is kept from the client."""

from __future__ import annotations

from typing import Literal, TypeAlias

from dragoman.filters.raw_tools.names import Header, Ids, Tools
from dragoman.filters.raw_tools.outputs import Arguments, CallEnded, CallStarted, Carrier, Output, Remark
from dragoman.filters.raw_tools.readers import Reader
from dragoman.filters.raw_tools.tables import Table
from dragoman.filters.raw_tools.wrapped import WrappedJson

HELD_LIMIT = 1024 * 1024  # characters of a call that may be held (D22)

Mode: TypeAlias = Literal["live", "buffered"]


class Call:
    """A call that is being read. While `holds`, nothing of it has gone out and its raw text is kept."""

    def __init__(self, table: Table, header: Header, carrier: Carrier, tools: Tools, mode: Mode, muted: bool) -> None:
        self.table = table
        self.lead = ""  # what stood before its body, should it go out as text
        self.holds = False
        self.streams = False  # what is read goes out at once
        self.raw: list[str] = []  # what it was read from, to give it back as text
        self.size = 0  # of that
        self._header = header
        self._name = header.name
        self._carrier = carrier
        self._tools = tools
        self._buffered = mode == "buffered"
        self._muted = muted
        self._pieces: list[str] = []
        self.reader: Reader = table.reader(lambda key: tools.kinds(self._name, key))
        self.tentative = isinstance(self.reader, WrappedJson)  # its name comes within its body

    def begin(self, ids: Ids, out: list[Output]) -> None:
        """Say that it begins, if that can be said."""
        self.holds = self.tentative or (not self._muted and (self._buffered or not self._name))
        if not self.holds and not self._muted:
            self._start(ids, out)

    def write(self, pieces: list[str], out: list[Output]) -> None:
        if self.streams:
            out.extend([Arguments(piece) for piece in pieces])
        elif self.holds:
            self._pieces.extend(pieces)

    def may_be(self, declared: bool, ids: Ids, out: list[Output]) -> bool:
        """A call that tells its name within its body: False if it turns out to be none, or not `declared`."""
        reader = self.reader
        if not isinstance(reader, WrappedJson):
            return True
        name = self._tools.resolve(reader.name)
        if reader.failed or (declared and reader.name and name is None):
            return False
        if reader.sure:
            self.named(name or reader.name, ids, out)
        return True

    def named(self, name: str, ids: Ids, out: list[Output]) -> None:
        """Its body has told its name."""
        self._name = name
        self.tentative = False
        self.begin(ids, out)
        if not self.holds:
            self.write(self._pieces, out)
            self.raw, self._pieces, self.size = [], [], 0

    def taken_back(self) -> str:
        """All of it, as the text it was."""
        return self.lead + "".join(self.raw)

    def end(self, complete: bool, ids: Ids, out: list[Output]) -> bool:
        """Say that it is over; False if there is nothing to say of it."""
        if self._muted:
            out.append(Remark("suppressed", f"a call of {self._name or 'a tool'} was left out: tool_choice is none"))
            return False
        if not self.streams:
            if not complete:
                out.append(Remark("unfinished", f"a call of {self._name or 'a tool'} was cut off and left out"))
                return False
            if not self._name and not self._infer(out):
                return False
            self._start(ids, out)
            self.holds = False
            self.write(["".join(self._pieces)], out)
        out.append(CallEnded(complete))
        if not complete:
            out.append(Remark("cut_off", f"the call of {self._name} was cut off; what came of it stands"))
        return True

    def _infer(self, out: list[Output]) -> bool:
        self._name = self._tools.infer("".join(self._pieces)) or ""
        if self._name:
            out.append(Remark("name_inferred", f"a call without a name was taken for {self._name}, by its arguments"))
        else:
            out.append(Remark("nameless", "a call without a name fits no declared tool and was left out"))
        return bool(self._name)

    def _start(self, ids: Ids, out: list[Output]) -> None:
        id_, own = ids.of(self._header, self._name, self.table.numbered)
        out.append(CallStarted(id_, self._name, self.table.name, self._carrier))
        if not own and self.table.numbered:
            out.append(Remark("id_minted", f"the call of {self._name} had no id of its own that is free; it is {id_}"))
        self.streams = True
