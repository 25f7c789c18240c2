"""Files of our own that survive a power failure: replaced as a whole, and flushed together with their directory.

A module of its own because the shipper and the Spark jobs share it, and nothing else.
"""

from __future__ import annotations

import os
from pathlib import Path


def replace_atomically(path: Path, content: bytes) -> None:
    """Afterwards the file has this content, or after a crash still the old one."""
    temporary = path.with_name(f".{path.name}.new")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync(path.parent)


def sync(path: str | Path) -> None:
    """Makes a local file's content, or a directory's entries, survive a power failure."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
