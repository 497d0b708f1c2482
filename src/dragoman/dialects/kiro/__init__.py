"""Kiro's GenerateAssistantResponse API. docs/dialects/kiro.md describes what the dialect can express.

    codec           capabilities and settings; paths, headers and framing; the list of models
    request         render requests; token estimates; names that all modules of the dialect use
    request_parser  parse requests
    quirks          filters that only this dialect needs
    stream          decode frames to events
    encoder         encode events as frames; whole replies, which are whole streams
    faults          parse and render errors
    models          the known models: windows, thinking styles, name spellings
    rules, stream_rules, raw_request
                    the requirements of the service, as a table and a lint of requests and streams

Only the registry and the simulator import this package. It does no I/O.
"""

from __future__ import annotations

from dragoman.dialects.base import Dialect
from dragoman.dialects.kiro.codec import MODEL_LIST, KiroBinding, KiroCodec, KiroListing, KiroTargetBinding
from dragoman.dialects.kiro.faults import refusal_rules
from dragoman.dialects.kiro.models import MODEL_NAMES

__all__ = ["DIALECT", "KiroBinding", "KiroCodec", "KiroTargetBinding"]

DIALECT = Dialect(
    "kiro",
    KiroCodec(),
    KiroBinding(),
    listing=KiroListing(),
    model_list=MODEL_LIST,
    models=MODEL_NAMES,
    refusal_rules=refusal_rules,
    title="Kiro (AWS CodeWhisperer)",
)
