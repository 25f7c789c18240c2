"""Programs outside Python that some tests need."""

from __future__ import annotations

import os
import shutil

import pytest


def program_or_skip(name: str) -> str:
    """Its path. Missing it skips the test with the reason, but fails on the build machine, which is meant to have it."""
    found = shutil.which(name)
    if found is None:
        reason = f"`{name}` is not installed"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return found
