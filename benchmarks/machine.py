"""The same machine for every run: nothing waits to be written back, and free memory is really backed by memory.

A virtual machine may return free memory to its host (free page reporting). The first write to such a page then costs the time the
host needs to find another one: measured, 11 us for 4 KiB instead of 0.5, charged to the process that happens to write there. For
a log that is every page it appends: a third of our CPU and a quarter of Kafka's, and most for the side that ran first in a round.
It is the host's work and means nothing for a broker, so before each run enough memory for it is written once and freed.
"""

from __future__ import annotations

import mmap
import os

SETTLED_BYTES = 1 << 30  # the largest load appends 420 MB


def settle(wanted_bytes: int = SETTLED_BYTES) -> None:
    """Writes back dirty pages, and touches this much memory, but at most half of what is free."""
    os.sync()
    free_bytes = os.sysconf("SC_AVPHYS_PAGES") * mmap.PAGESIZE
    size = min(wanted_bytes, free_bytes // 2)
    if size < mmap.PAGESIZE:
        return
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        for position in range(0, size, mmap.PAGESIZE):
            memory[position] = 1
