"""Fixture `kills`: how often each writer is killed (`DRAGOMAN_KILLS`): few times in the suite, many in `make laws-long`."""

from __future__ import annotations

import os

import pytest

FEW = 15


@pytest.fixture
def kills() -> int:
    return int(os.environ.get("DRAGOMAN_KILLS", FEW))
