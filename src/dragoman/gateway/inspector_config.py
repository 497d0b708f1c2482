"""The settings of the inspector: `[inspector]`. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct

RecordLevel: TypeAlias = Literal["off", "meta", "full"]
LEVELS: Mapping[str, RecordLevel] = {"off": "off", "meta": "meta", "full": "full"}


class InspectorSettings(Struct, frozen=True, kw_only=True):
    """`[inspector]`: what the gateway records, and where the page listens."""

    record: RecordLevel = "off"  # meta: without bodies; full: bodies, too
    bytes: Annotated[int, Meta(ge=1024 * 1024)] = 256 * 1024 * 1024  # that recordings may take on disk
    hours: Annotated[float, Meta(gt=0, le=8760)] = 24.0  # after which a recording is deleted
    port: Annotated[int, Meta(ge=0, le=65535)] = 0  # of the page, on 127.0.0.1; 0: a free one
