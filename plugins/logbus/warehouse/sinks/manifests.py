"""Manifests: which files belong to a window, one small JSON file per window, replaced by a rename.

    {"entry": {the ledger entry}, "files": ["_window_start=.../w7_a2_t12_3f6c0a9be01d.parquet"]}

The content is flushed before the rename and the directory after it, so after a power failure there is either the old
manifest or the new one. Writers hold a lock on the table's directory; readers need none.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from logbus.durable_files import replace_atomically
from logbus.errors import LogbusError
from logbus.model import utc
from logbus.warehouse.directory import STAMP
from logbus.warehouse.sinks.entry import LedgerEntry

Manifest = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Manifests:
    """The manifests of one table."""

    directory: Path

    def path(self, start: datetime) -> Path:
        return self.directory / f"{utc(start):{STAMP}}.json"

    def read(self, start: datetime) -> Manifest | None:
        return read_manifest(self.path(start))

    def all(self) -> Iterator[Manifest]:
        """The manifest of every window, oldest first, then the schema's."""
        found = (read_manifest(path) for path in sorted(self.directory.glob("*.json")))
        return (manifest for manifest in found if manifest is not None)

    def write(self, entry: LedgerEntry, files: Sequence[str]) -> None:
        content = json.dumps({"entry": json.loads(entry.to_json()), "files": list(files)})
        replace_atomically(self.path(entry.interval.start), content.encode())

    def write_schema(self, files: Sequence[str]) -> None:
        """Files without rows that define the columns: they belong to no window, and are read with all of them."""
        content = json.dumps({"entry": None, "files": list(files)})
        replace_atomically(self.directory / "schema.json", content.encode())


def read_manifest(path: Path) -> Manifest | None:
    try:
        manifest: Manifest = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise LogbusError(f"the manifest {path} cannot be read: {error}") from error
    return manifest


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """One writer at a time; the lock is released with its process, however that ends."""
    with (directory / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
