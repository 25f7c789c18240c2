"""What the broker's promises cost in addition to the traffic itself: clients that wait, reading again, compressed batches,
compaction, retention and ACLs.

Each is measured on its own broker by `benchmarks/costs`, against the same broker without it: with the crowd and without, the
second reading and the first, during the pass and before it. So every ratio is the price of one promise, and 1 means free.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from benchmarks.costs import acls, codecs, compaction, retention, rewind, waiting
from benchmarks.figures import Figure
from benchmarks.loads import Scale

PARTS = {
    "waiting": waiting.figures,
    "rewind": rewind.figures,
    "codecs": codecs.figures,
    "compaction": compaction.figures,
    "retention": retention.figures,
    "acls": acls.figures,
}


def run(console: Console, scale: Scale) -> Sequence[Figure]:
    found: list[Figure] = []
    for name, figures in PARTS.items():
        with tempfile.TemporaryDirectory(prefix=f"logbus-{name}-") as directory:
            found += figures(Path(directory), scale, console)
    return found
