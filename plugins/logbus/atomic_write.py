"""Files of our own that survive a power failure: replaced as a whole, and flushed together with their directory.

A module of its own because the shipper, the command line and the Spark jobs share it, and little else.
"""

from __future__ import annotations

import os
from pathlib import Path


def replace_atomically(path: Path, content: bytes, *, mode: int = 0o666) -> None:
    """Afterwards the file has this content, or after a crash still the old one. `mode`, less the umask, holds from the start."""
    temporary = path.with_name(f".{path.name}.new")
    temporary.unlink(missing_ok=True)
    with open(temporary, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
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
