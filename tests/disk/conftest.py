"""`DRAGOMAN_KILLS` says how often each writer is killed; the suite's forty are a few seconds' worth."""

from __future__ import annotations

import os

import pytest

FEW = 40


@pytest.fixture
def kills() -> int:
    return int(os.environ.get("DRAGOMAN_KILLS", FEW))
