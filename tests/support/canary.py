"""Secrets that are planted, and where they must not be found: command lines, files, what programs print, a database."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread

from logbus.formatting import spellings
from logbus.loads.embedded import binary
from logbus.loads.engine import libpq_uri

LOOK_SECONDS = 0.2  # an application of Spark runs for several seconds


@contextmanager
def command_lines() -> Iterator[set[bytes]]:
    """Those of all processes of the machine that run during the block."""
    seen: set[bytes] = set()
    over = Event()

    def look() -> None:
        while not over.wait(LOOK_SECONDS):
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                with suppress(OSError):  # the process has ended
                    seen.add(path.read_bytes())

    looking = Thread(target=look, daemon=True)
    looking.start()
    try:
        yield seen
    finally:
        over.set()
        looking.join()


def files_below(folder: Path, *, without: Iterable[Path]) -> Iterator[tuple[str, bytes]]:
    given = set(without)
    yield from ((str(path), path.read_bytes()) for path in folder.rglob("*") if path.is_file() and path not in given)


def dump(warehouse_url: str) -> bytes:
    """All that is in the database."""
    return subprocess.run([binary("pg_dump"), libpq_uri(warehouse_url)], check=True, capture_output=True).stdout


def found(secrets: Iterable[str], places: Iterable[tuple[str, bytes]]) -> list[tuple[str, str]]:
    """Which secret is where, however it is spelled."""
    looked_for = [(secret, spelling.encode()) for secret in secrets for spelling in spellings(secret)]
    return [(name, secret) for name, content in places for secret, spelling in looked_for if spelling in content]
