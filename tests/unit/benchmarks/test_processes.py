"""What a measured process costs, with all its descendants."""

from __future__ import annotations

import os

from benchmarks import processes


def test_memory_and_cpu_of_this_process_are_counted():
    assert processes.rss_bytes(os.getpid()) > 1 << 20
    assert processes.cpu_seconds(os.getpid()) > 0
    assert processes.scheduled_seconds(os.getpid()) > 0


def test_a_directory_occupies_its_blocks_and_a_hole_none(tmp_path):
    (tmp_path / "full").write_bytes(b"x" * 65_536)
    (tmp_path / "hole").touch()
    os.truncate(tmp_path / "hole", 1 << 30)
    assert 65_536 <= processes.disk_bytes(tmp_path) < 1 << 20
