"""The rows computed from memory and CPU of idle servers."""

from __future__ import annotations

from benchmarks.costs.waiting import KIB, MIB, SILENT, WAITING, Idle, idle_figures
from benchmarks.sides import KAFKA, OURS

ALONE = {OURS: Idle(rss_bytes=30 * MIB, cpu_seconds=0.01), KAFKA: Idle(rss_bytes=600 * MIB, cpu_seconds=0.2)}
CROWDED = {OURS: Idle(rss_bytes=30 * MIB + 15_000 * KIB, cpu_seconds=0.02), KAFKA: Idle(rss_bytes=900 * MIB, cpu_seconds=0.4)}


def test_memory_is_told_in_all_and_for_one_connection():
    rows = {row.figure: row for row in idle_figures(ALONE, CROWDED, 10.0, "")}
    crowd = rows["memory, 500 connections and 1,000 waiting fetches"]
    assert (crowd.ours, crowd.peer, crowd.held) == (44.648, 900, True)
    assert rows["memory of one of these connections"].ours == 15_000 / (SILENT + WAITING)
    assert rows["CPU of an idle second, nobody connected"].ours == 1.0


def test_a_missing_peer_keeps_its_rows_and_the_reason():
    rows = list(idle_figures({OURS: ALONE[OURS]}, {OURS: CROWDED[OURS]}, 10.0, "no `java` on PATH"))
    assert {row.note for row in rows if row.against} == {"no `java` on PATH"}
    assert all(row.held is not False for row in rows)
