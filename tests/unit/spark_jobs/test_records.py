from __future__ import annotations

import json

from logbus.parsing import storable

from spark_jobs.records import Records, headers_json, of_batch, to_batch


def records(window_id: int, partition: int, *offsets: int, headers: bool = False) -> Records:
    size = len(offsets)
    return Records(
        window_id=window_id,
        partition=partition,
        offsets=list(offsets),
        stamps_ms=[1] * size,
        keys=[None] * size,
        values=[b"v"] * size,
        headers=[[("name", None), ("name", b"x")]] + [[]] * (size - 1) if headers else None,
    )


def test_records_come_back_out_of_a_batch_as_they_went_in() -> None:
    for found in (records(1, 2, 5, 6, 9), records(1, 2, 5, 6, headers=True)):
        assert list(of_batch(to_batch(found))) == [found]


def test_a_batch_is_cut_wherever_its_window_or_partition_changes() -> None:
    """Spark merges the batches of several input partitions into one."""
    from pyarrow import Table

    parts = [records(1, 0, 5, 6), records(2, 0, 7), records(2, 1, 7), records(1, 0, 8)]
    (merged,) = Table.from_batches([to_batch(part) for part in parts]).combine_chunks().to_batches()
    assert list(of_batch(merged)) == parts


def test_an_empty_batch_holds_no_records() -> None:
    assert list(of_batch(to_batch(records(1, 0)))) == []


def test_any_error_text_can_be_stored() -> None:
    assert storable("a\0b\ud800") == "a\\0b\\ud800"


def test_headers_are_pairs_and_content_that_is_no_text_is_base64() -> None:
    found = headers_json([("a", b"x"), ("a", None), ("b", b"\xff"), ("c", b"\0")])
    assert found is not None
    assert json.loads(found) == [["a", "x"], ["a", None], ["b", {"base64": "/w=="}], ["c", {"base64": "AA=="}]]
    assert headers_json([]) is None
