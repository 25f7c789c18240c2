"""What a measured process costs, with all its descendants."""

from __future__ import annotations

import os

from benchmarks import processes
from benchmarks.startup import METADATA_V4_OF_NO_TOPIC


def test_memory_and_cpu_of_this_process_are_counted():
    assert processes.rss_bytes(os.getpid()) > 1 << 20
    assert processes.cpu_seconds(os.getpid()) > 0
    assert processes.scheduled_seconds(os.getpid()) > 0


def test_a_tree_is_a_process_and_all_its_living_descendants():
    parents = {1: 0, 10: 1, 11: 10, 12: 10, 13: 12, 20: 1}
    stats = {pid: ["S", str(parent)] for pid, parent in parents.items()}
    assert sorted(processes._tree(10, stats)) == [10, 11, 12, 13]


def test_a_directory_occupies_its_blocks_and_a_hole_none(tmp_path):
    (tmp_path / "full").write_bytes(b"x" * 65_536)
    (tmp_path / "hole").touch()
    os.truncate(tmp_path / "hole", 1 << 30)
    assert 65_536 <= processes.disk_bytes(tmp_path) < 1 << 20


def test_the_first_question_announces_its_own_length():
    assert int.from_bytes(METADATA_V4_OF_NO_TOPIC[:4]) == len(METADATA_V4_OF_NO_TOPIC) - 4
