from __future__ import annotations

import json

import pytest

from spark_jobs.load_task import StagedWindow, Tally, count, headers_json, storable
from spark_jobs.warehouse_sink import timestamp_us

WINDOW = StagedWindow(window_id=1, attempt=1, start_ms=1000, end_ms=2000, staging_table="s", dead_letter_table="d")


@pytest.mark.parametrize(("stamp", "late", "early"), [(999, 1, 0), (1000, 0, 0), (1999, 0, 0), (2000, 0, 1), (-1, 1, 0)])
def test_a_record_outside_its_hour_is_late_or_early(stamp: int, late: int, early: int) -> None:
    tally = Tally()
    count(tally, WINDOW, stamp, 7, 5)
    assert (tally.read, tally.late, tally.early, tally.bytes, tally.fingerprint) == (1, late, early, 7, 5)


def test_the_fingerprint_wraps_at_64_bits() -> None:
    tally = Tally()
    count(tally, WINDOW, 1000, 0, 2**64 - 1)
    count(tally, WINDOW, 1000, 0, 3)
    assert tally.fingerprint == 2


@pytest.mark.parametrize("stamp", [-1, 2**62, -(2**62)])
def test_a_stamp_that_no_calendar_reaches_is_null(stamp: int) -> None:
    assert timestamp_us(stamp) is None


def test_an_ordinary_stamp_becomes_microseconds() -> None:
    assert timestamp_us(1_431_856_800_123) == 1_431_856_800_123_000


def test_any_error_text_can_be_stored() -> None:
    assert storable("a\0b\ud800") == "a\\0b\\ud800"


def test_headers_are_pairs_and_content_that_is_no_text_is_base64() -> None:
    found = headers_json([("a", b"x"), ("a", None), ("b", b"\xff"), ("c", b"\0")])
    assert found is not None
    assert found[:1] == b"\x01"
    assert json.loads(found[1:]) == [["a", "x"], ["a", None], ["b", {"base64": "/w=="}], ["c", {"base64": "AA=="}]]
    assert headers_json([]) is None
