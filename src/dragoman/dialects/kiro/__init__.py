"""Kiro (`GenerateAssistantResponse`). docs/dialects/kiro.md says what it can and cannot say."""

from __future__ import annotations

from dragoman.dialects.base import Dialect
from dragoman.dialects.kiro.codec import KiroBinding, KiroCodec, KiroListing, KiroTargetBinding
from dragoman.dialects.kiro.models import MODEL_NAMES

__all__ = ["DIALECT", "KiroBinding", "KiroCodec", "KiroTargetBinding"]

DIALECT = Dialect("kiro", KiroCodec(), KiroBinding(), listing=KiroListing(), models=MODEL_NAMES)
