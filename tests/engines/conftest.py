"""The stages of the engines' tests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from local_stage import Stage


@pytest.fixture
def stage(tmp_path):
    """A runner whose tasks are plain shell scripts."""
    made = Stage(tmp_path)
    yield made
    made.clear()
