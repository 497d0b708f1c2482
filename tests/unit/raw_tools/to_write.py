"""CallToWrite: a tool call that a renderer writes in some format."""

from __future__ import annotations

from msgspec import Struct

from dragoman.model.conversation import ToolSpec
from dragoman.wire.jsonio import Json


class CallToWrite(Struct, frozen=True):
    """`schema` is the tool's schema; `id` and `index` matter only to the formats that write them."""

    name: str
    arguments: dict[str, Json]
    schema: dict[str, Json]
    id: str = ""
    index: int = 0

    @property
    def tool(self) -> ToolSpec:
        return ToolSpec(self.name, schema=self.schema)
