"""Dropping cached files before a cold start."""

from __future__ import annotations

from pathlib import Path

from benchmarks.growth import let_go


def test_what_the_system_keeps_is_let_go_by_who_may(tmp_path: Path):
    asked = tmp_path / "drop_caches"
    asked.write_text("")
    let_go(tmp_path, asked)
    assert asked.read_text() == "3\n"


def test_the_files_are_let_go_one_by_one_by_who_may_not(tmp_path: Path):
    (tmp_path / "clicks-0").mkdir()
    (tmp_path / "clicks-0" / "0.log").write_bytes(b"kept on the disk")
    let_go(tmp_path, tmp_path / "nowhere" / "drop_caches")
    assert (tmp_path / "clicks-0" / "0.log").read_bytes() == b"kept on the disk"
