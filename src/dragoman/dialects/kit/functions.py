"""Tools and calls as `{"function": {"name": ...}}`, arguments an object, as services after OpenAI have it.

Unknown fields of the outer and the inner object are kept for the family.
"""

from __future__ import annotations

from dragoman.dialects.kit.kept import Kept
from dragoman.dialects.kit.pairing import Pairs
from dragoman.dialects.kit.tools import render_arguments, tool_body
from dragoman.dialects.kit.values import json_text
from dragoman.errors import DragomanError, Unrepresentable
from dragoman.model.blocks import Extra, Opaque, ToolCall, Where
from dragoman.model.conversation import ToolSpec, to_keep
from dragoman.wire.fields import Fields
from dragoman.wire.jsonio import Json

_NO_PARAMETERS: dict[str, Json] = {"type": "object", "properties": {}}


class Functions:
    """Reads and writes the tools and calls of one family."""

    def __init__(self, kept: Kept) -> None:
        self._kept = kept

    def parse_tool(self, fields: Fields) -> ToolSpec | Opaque:
        """Read a tool; one of another type than a function is opaque."""
        kind = fields.peek("type")
        if kind not in (None, "function"):
            return self._kept.opaque(fields, str(kind))
        fields.any("type")
        function = fields.child("function")
        name, description = function.identifier("name"), function.text("description", "")
        parameters = function.maybe_child("parameters")
        function.any("parameters")
        schema = _NO_PARAMETERS if parameters is None else parameters.rest()
        at = Where(fields.at, bare=parameters is None)
        return ToolSpec(name, description, schema, extra=self._beside(fields, function), at=at)

    def render_tool(self, tool: ToolSpec | Opaque) -> Json:
        """Write a tool. Raises Unrepresentable for one without a schema and for one of another family."""
        if isinstance(tool, Opaque):
            return self._kept.own_data(tool, Unrepresentable)
        function: dict[str, Json] = {**tool_body(tool), "parameters": {**(tool.schema or {})}}
        return self._kept.with_extra({"type": "function", "function": function}, tool.extra)

    def parse_call(self, fields: Fields, pairs: Pairs | None = None) -> ToolCall:
        """Read a call. `pairs` gives an id to one without; in an answer a filter does."""
        call_id, function = fields.maybe_identifier("id"), fields.child("function")
        name, value = function.identifier("name"), function.any("arguments")
        if value is not None and not isinstance(value, dict):
            function.fail("arguments", "expected an object")
        arguments = "" if value is None else json_text(value, function.path("arguments"), function.blame)
        function.any("index")  # servers number several calls alike: their order counts
        call_id = pairs.called(call_id, name) if pairs else call_id
        return ToolCall(call_id, name, arguments, extra=self._beside(fields, function), at=Where(fields.at))

    def render_call(self, call: ToolCall, blame: type[DragomanError] = Unrepresentable) -> dict[str, Json]:
        """Write a call. Raises `blame` for arguments that are no object."""
        function: Json = {"name": call.name, "arguments": render_arguments(call, blame)}
        return self._kept.with_extra({"id": call.id, "function": function}, call.extra)

    def _beside(self, fields: Fields, function: Fields) -> Extra | None:
        rest = function.rest()
        return self._kept.extra_of(to_keep(fields.rest()) | ({"function": rest} if rest else {}))
