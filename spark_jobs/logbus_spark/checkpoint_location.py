"""The setting that says where Structured Streaming keeps its checkpoints: a stream has none, and says what it overrules.

Nothing is read from there but what the line says, and nothing that lies there keeps a stream from running.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

from logbus import formatting
from logbus.streams.stream_ledger import Ownership

SETTING = "spark.sql.streaming.checkpointLocation"

OFFSETS_NAMED_MAX = 20
QUERIES_NAMED_MAX = 3
# What is looked at, so that no directory holds a stream up: queries without a name leave one each time they are started.
QUERIES_MAX = 100
BATCHES_MAX = 10_000  # Spark keeps a hundred
METADATA_BYTES_MAX = 4_096

UNREADABLE = (OSError, LookupError, TypeError, ValueError, RecursionError)


def overruled(location: str, ownership: Ownership) -> str:
    """The line for a stream that begins here."""
    offsets = [f"{partition}:{offset}" for partition, offset in ownership.positions.items()]
    queries = formatting.several(list(queries_in(location)), QUERIES_NAMED_MAX, separator="; ")
    return formatting.printable(
        f"{SETTING} = {location} is overruled: a stream keeps no checkpoint, and by the ledger {ownership.stream} is at epoch "
        f"{ownership.epoch:,}, offsets {formatting.several(offsets, OFFSETS_NAMED_MAX)}"
        f"{'. The directory holds ' if queries else ''}{queries}"
    )


def queries_in(location: str) -> Iterator[str]:
    """Those whose checkpoint the directory is or, as Spark has it where this setting alone names it, directories below it are."""
    root = Path(location.removeprefix("file:"))
    try:
        below = sorted(islice(root.iterdir(), QUERIES_MAX))
    except UNREADABLE:  # nothing is there, or on another file system
        return
    for label, directory in [("", root), *((f"{path.name}: ", path) for path in below)]:
        if parts := [*query_id(directory), *last_batch(directory)]:
            yield label + ", ".join(parts)


def query_id(directory: Path) -> Iterator[str]:
    with suppress(*UNREADABLE):
        if (directory / "metadata").is_file():  # opening a pipe would wait
            with (directory / "metadata").open("rb") as file:
                yield f"query {formatting.first_line(str(json.loads(file.read(METADATA_BYTES_MAX))['id']))}"


def last_batch(directory: Path) -> Iterator[str]:
    with suppress(*UNREADABLE):
        names = [path.name for path in islice((directory / "offsets").iterdir(), BATCHES_MAX)]
        if numbers := [int(name) for name in names if name.isdecimal()]:
            yield f"last batch {max(numbers)}"
