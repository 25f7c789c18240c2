"""Figures of a compaction pass read from the broker's log, and the rows computed from them."""

from __future__ import annotations

from benchmarks.costs.compaction import Pass, pass_figures, said

LINE = 'time=t level=INFO logger=broker.cleaner message="{}-0: compacted up to offset 9, 3 keys: 5000 bytes became 700"\n'


def test_the_pass_of_a_topic_is_found_in_the_log(tmp_path):
    log = tmp_path / "broker.out"
    log.write_text("started\n" + LINE.format("keyed-0"))
    assert said(log, "keyed-0") == (5000, 700)
    assert said(log, "keyed-1") is None


def test_latencies_during_a_pass_are_compared_with_those_before_it():
    one = Pass(bytes_before=20_000_000, bytes_after=5_000_000, seconds=4.0, quiet_ms=[1.0, 1.0, 2.0], busy_ms=[2.0, 3.0, 9.0])
    rows = {row.figure.rpartition(", ")[2]: row for row in pass_figures([one])}
    assert (rows["beside other work"].ours, rows["median"].ratio, rows["99th percentile"].ratio) == (5.0, 3.0, 4.5)
    assert rows["compaction: what is left of a log"].ratio == 0.25
