from __future__ import annotations

from pathlib import Path

from rich.console import Console

from benchmarks.costs.replica_append import ANSWERS, BATCH_RECORDS, cpu_per_million, figures
from benchmarks.loads import Scale


def test_all_that_is_asked_for_is_stored(tmp_path: Path) -> None:
    assert cpu_per_million(tmp_path / "log", 10 * BATCH_RECORDS, 2) > 0
    (segment,) = (tmp_path / "log").glob("*.log")
    assert segment.stat().st_size > 10 * BATCH_RECORDS * 200


def test_each_way_has_its_figure(tmp_path: Path) -> None:
    found = list(figures(tmp_path, Scale(rounds=1, share=0.001), Console(quiet=True)))
    assert [one.unit for one in found] == ["s/million"] * len(ANSWERS)
