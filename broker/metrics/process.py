"""The process_* metrics that every Prometheus client exposes, from /proc; without it they are left out."""

from __future__ import annotations

import os
import resource
from pathlib import Path

from broker.metrics.exposition import Metric, Sample

_PROC = Path("/proc/self")
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

CPU = Metric(name="process_cpu_seconds_total", kind="counter", help="User and system CPU time of the broker's process.")
RESIDENT = Metric(name="process_resident_memory_bytes", kind="gauge", help="Resident memory; the page cache is not in it.")
VIRTUAL = Metric(name="process_virtual_memory_bytes", kind="gauge", help="Virtual memory.")
STARTED = Metric(name="process_start_time_seconds", kind="gauge", help="Start of the process, seconds since the epoch.")
OPEN_FILES = Metric(name="process_open_fds", kind="gauge", help="Open file descriptors: log segments and connections.")
FILES_MAX = Metric(name="process_max_fds", kind="gauge", help="How many file descriptors the process may open.")


def process_metrics() -> dict[Metric, list[Sample]]:
    """The system's current figures for this process."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    found = {FILES_MAX: [Sample(limit)]} if limit != resource.RLIM_INFINITY else {}
    try:
        fields = (_PROC / "stat").read_text().rpartition(")")[2].split()
        pages = (_PROC / "statm").read_text().split()
        found[CPU] = [Sample((int(fields[11]) + int(fields[12])) / _TICKS)]
        found[VIRTUAL] = [Sample(int(pages[0]) * _PAGE_BYTES)]
        found[RESIDENT] = [Sample(int(pages[1]) * _PAGE_BYTES)]
        found[STARTED] = [Sample(_boot_time() + int(fields[19]) / _TICKS)]
        found[OPEN_FILES] = [Sample(_open_files())]
    except (OSError, IndexError, ValueError, StopIteration):
        pass
    return found


def _boot_time() -> int:
    lines = Path("/proc/stat").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("btime "))


def _open_files() -> int:
    """Since Linux 6.2 the number is the directory's size; on older kernels the entries are counted."""
    directory = _PROC / "fd"
    return directory.stat().st_size or len(os.listdir(directory)) - 1  # the listing itself holds one open
