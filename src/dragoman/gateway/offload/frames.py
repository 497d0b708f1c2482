"""What the gateway and its worker process say to each other: a head, a pickled job or reply, and a body beside it."""

from __future__ import annotations

import struct
from typing import Any, Final

from msgspec import Struct

from dragoman.errors import DragomanError

HEAD = struct.Struct("!QQ?")  # bytes of the pickle, bytes of the body, whether there is a body
UNKNOWN: Final = "unknown"  # the worker does not remember this request


class Job(Struct, frozen=True):
    """A job, and the id of the request that it is about. The first job of a worker are its dialects."""

    work: Any
    request_id: str = ""


class Failed(Struct, frozen=True):
    """The worker could not do it, by no fault of the request."""

    message: str
    unpicklable: bool = False


class Reply(Struct, frozen=True):
    """What came of a job: a result, an error for the client, or a failure of the worker."""

    result: Any = None
    error: DragomanError | None = None
    failed: Failed | None = None
