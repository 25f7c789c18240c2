"""Programs outside Python that some tests need."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

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


@cache
def built(name: str) -> TemporaryDirectory[str]:
    """The directory of a client in another language, with what it needs fetched and compiled: half a minute, the first time."""
    directory = TemporaryDirectory()
    shutil.copytree(Path(__file__).parent / name, directory.name, dirs_exist_ok=True)
    command = [program_or_skip("go"), "build"] if name == "go_clients" else [program_or_skip("npm"), "ci"]
    done = subprocess.run(command, cwd=directory.name, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return directory
