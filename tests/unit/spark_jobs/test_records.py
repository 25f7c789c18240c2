from __future__ import annotations

import json

from logbus.parsing import storable
from logbus_spark.records import Records, headers_json, to_batch


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


def test_a_batch_has_a_row_for_each_record() -> None:
    rows = to_batch(records(1, 2, 5, 6, headers=True)).to_pylist()
    places = [(row["window_id"], row["partition"], row["offset"], row["timestamp_ms"]) for row in rows]
    assert places == [(1, 2, 5, 1), (1, 2, 6, 1)]
    assert [(row["key"], row["value"]) for row in rows] == [(None, b"v")] * 2
    assert [row["headers"] for row in rows] == [[{"name": "name", "content": None}, {"name": "name", "content": b"x"}], []]
    assert [row["headers"] for row in to_batch(records(1, 2, 5, 6)).to_pylist()] == [[], []]


def test_an_empty_batch_holds_no_records() -> None:
    assert to_batch(records(1, 0)).to_pylist() == []


def test_any_error_text_can_be_stored() -> None:
    assert storable("a\0b\ud800") == "a\\0b\\ud800"


def test_headers_are_pairs_and_content_that_is_no_text_is_base64() -> None:
    found = headers_json([("a", b"x"), ("a", None), ("b", b"\xff"), ("c", b"\0")])
    assert found is not None
    assert json.loads(found) == [["a", "x"], ["a", None], ["b", {"base64": "/w=="}], ["c", {"base64": "AA=="}]]
    assert headers_json([]) is None
