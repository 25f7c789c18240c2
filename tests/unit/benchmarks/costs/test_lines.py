"""The lines sent: as long as the paper's, all different, and as compressible as a log."""

from __future__ import annotations

from logbus_broker.protocol.records import read_records

from benchmarks.costs.lines import batches_of, log_lines


def test_lines_have_200_bytes_and_are_the_same_for_the_same_seed():
    lines = log_lines(500, seed=1)
    assert {len(line) for line in lines} == {200}
    assert len(set(lines)) == 500
    assert lines == log_lines(500, seed=1) != log_lines(500, seed=2)


def test_batches_hold_fifty_records_in_order_with_their_keys():
    lines, keys = log_lines(120, seed=1), [b"key-%d" % number for number in range(120)]
    batches = batches_of(lines, now_ms=1, keys=keys)
    records = [list(read_records(raw)) for raw in batches]
    assert [len(one) for one in records] == [50, 50, 20]
    assert [(one.key, one.value) for part in records for one in part] == list(zip(keys, lines, strict=True))
