"""A reader's terminal for the pages that a test follows."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.reader import Terminal, fresh_environment


@pytest.fixture(scope="module")
def terminal() -> Iterator[Terminal]:
    """Not in pytest's directories, which the server's account may not enter if tests run as root."""
    with tempfile.TemporaryDirectory(prefix="logbus-reader-") as place:
        # As one's own directories are: a start as root would open it to other accounts, and print a note about that.
        Path(place).chmod(0o755)
        home, directory = Path(place) / "home", Path(place) / "logbus"
        for folder in (home, directory):
            folder.mkdir()
        made = Terminal(directory=directory, environment=fresh_environment(home), left=Path(place) / "left")
        try:
            yield made
        finally:
            for other in made.others:
                if other.process.poll() is None:
                    other.interrupt()
