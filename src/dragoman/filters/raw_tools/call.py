"""One call while it is read: it streams, or it waits for its name or its end."""

from __future__ import annotations

from typing import Literal, TypeAlias

from dragoman.filters.raw_tools.names import Header, Ids, Tools
from dragoman.filters.raw_tools.outputs import Arguments, CallEnded, CallStarted, Carrier, Output, Remark
from dragoman.filters.raw_tools.table import Table

HELD_LIMIT = 1024 * 1024  # characters of a call that may be held (D22)

Mode: TypeAlias = Literal["live", "buffered"]


class Call:
    """A call that is being read. Before it has started its arguments are kept; after that they go out at once."""

    __slots__ = ("_header", "_muted", "_pieces", "_tools", "carrier", "drops", "name", "streams", "table")

    def __init__(self, table: Table, header: Header, carrier: Carrier, tools: Tools, *, muted: bool) -> None:
        self.table = table
        self.name = header.name
        self.carrier = carrier
        self.streams = False  # what is read goes out at once
        self.drops = False  # nothing of it goes out: it is certainly a call, and tool_choice is none
        self._header = header
        self._tools = tools
        self._muted = muted
        self._pieces: list[str] = []

    @property
    def arguments(self) -> str:
        """What was read so far of a call that waits."""
        return "".join(self._pieces)

    def start(self, ids: Ids, out: list[Output]) -> None:
        """Tell that it begins, and what was read of it so far."""
        id_, own = ids.of(self._header, self.name, self.table.numbered)
        out.append(CallStarted(id_, self.name, self.table.name, self.carrier))
        if not own and self.table.numbered:
            out.append(Remark("id_minted", f"the call of {self.name} had no id of its own that is free; it is {id_}"))
        self.streams = True
        if self._pieces:
            out.append(Arguments("".join(self._pieces)))
            self._pieces = []

    def write(self, piece: str, out: list[Output]) -> None:
        if self.streams:
            out.append(Arguments(piece))
        elif not self.drops:
            self._pieces.append(piece)

    def infer(self, out: list[Output]) -> bool:
        """Find the name of a call that has none by its arguments; False if they fit no tool."""
        self.name = self._tools.infer(self.arguments) or ""
        if self.name:
            out.append(Remark("name_inferred", f"a call without a name was taken for {self.name}, by its arguments"))
        return bool(self.name)

    def end(self, closed: bool, valid: bool, out: list[Output]) -> bool:
        """Tell that it is over; whether it is a call that a client can carry out."""
        if self._muted:
            out.append(Remark("suppressed", f"a call of {self.name or 'a tool'} was left out: tool_choice is none"))
            return False
        complete = closed and valid
        out.append(CallEnded(complete))
        if not closed:
            out.append(Remark("cut_off", f"the call of {self.name} was cut off; what came of it stands"))
        elif not valid:
            out.append(Remark("broken_arguments", f"the arguments of the call of {self.name} are not valid JSON"))
        return complete
