from __future__ import annotations

from broker.storage.time_index import TimeIndex


def test_only_a_larger_timestamp_makes_an_entry() -> None:
    index = TimeIndex()
    for entry in [(-1, 0), (100, 9), (100, 19), (50, 29), (101, 39)]:
        index.maybe_append(*entry)
    assert [index.entry(number) for number in range(len(index))] == [(100, 9), (101, 39)]
    assert index.last() == (101, 39)


def test_entries_have_the_bytes_that_apache_kafka_writes() -> None:
    index = TimeIndex()
    index.maybe_append(1_700_000_000_000, 258)
    assert bytes(index.data) == bytes.fromhex("0000018bcfe56800 00000102")
    assert TimeIndex(bytes(index.data)).last() == (1_700_000_000_000, 258)
    assert TimeIndex().last() is None
