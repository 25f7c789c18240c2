"""Programs outside Python that some tests need."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

# Packages of servers, which scripts/test-tools.sh unpacks instead of installing them.
UNPACKED = Path(__file__).parents[2] / ".tools" / "unpacked"


def program_or_skip(name: str) -> str:
    """The program's path, among what was unpacked or in PATH. If it is missing, the test is skipped, or fails in CI, which is
    meant to have it."""
    directories = [str(UNPACKED / "usr" / "bin"), str(UNPACKED / "usr" / "sbin"), os.environ.get("PATH", os.defpath)]
    found = shutil.which(name, path=os.pathsep.join(directories))
    if found is None:
        reason = f"`{name}` is not installed"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return found
