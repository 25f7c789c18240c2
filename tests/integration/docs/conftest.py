"""A reader's terminal, for the pages that tests follow."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.reader import Terminal, fresh_environment


@pytest.fixture(scope="module")
def terminal() -> Iterator[Terminal]:
    """Not in pytest's own folders: when tests run as root, the PostgreSQL server's account may not enter those."""
    with tempfile.TemporaryDirectory(prefix="logbus-reader-") as place:
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
