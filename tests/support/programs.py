"""Programs outside Python that some tests need."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[2] / ".tools"


def program_or_skip(name: str) -> str:
    """The program's path. If it is missing, the test is skipped, or fails in CI, which is meant to have it."""
    found = shutil.which(name)
    if found is None:
        reason = f"`{name}` is not installed"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return found


def prometheus_tool_or_skip(name: str) -> str:
    """`promtool`, `amtool` or `prometheus`, from where scripts/test-tools.sh unpacks them, or from PATH."""
    unpacked = TOOLS / "prometheus" / "usr" / "bin" / name
    return str(unpacked) if unpacked.exists() else program_or_skip(name)
