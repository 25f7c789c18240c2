"""How a stream is, from what the ledger and the broker say."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from logbus.expressions import count
from logbus.streams import listing
from logbus.streams.definition import define_stream
from logbus.streams.listing import StreamLag, StreamStatus

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
STREAM = define_stream("live", "p", keys=["status"], measures={"count": count()})


def status(**changes: Any) -> StreamStatus:
    """It runs, has read 7 and 3 records, and the newest of them is a minute old."""
    values: dict[str, Any] = {
        **{"stream": STREAM, "topic": "t", "isolation_level": "read_committed", "at": NOW, "state": listing.RUNNING, "owner": 1},
        **{"run_id": "run", "began_at": NOW - timedelta(hours=1), "heartbeat_at": NOW - timedelta(seconds=2), "ended_at": None},
        **{"error": None, "positions": {0: 7, 1: 3}, "epochs": 5, "committed_at": NOW - timedelta(seconds=3), "read_lately": 4},
        **{"newest_timestamp": NOW - timedelta(minutes=1), "proven": 2, "different": 0, "behind": 1},
    }
    return StreamStatus(**{**values, **changes})


@pytest.mark.parametrize(
    ("ends", "lag"),
    [
        (None, StreamLag()),
        ({}, StreamLag()),
        ({0: 7, 1: 3}, StreamLag(records=0, seconds=0.0)),
        ({0: 9, 1: 4}, StreamLag(records=3, seconds=60.0)),
        ({0: 7, 1: 3, 2: 5}, StreamLag(records=5, seconds=60.0)),
        ({0: 5, 1: 3}, StreamLag(records=0, seconds=0.0)),
    ],
    ids=["unknown", "no broker", "all counted", "some wait", "a new partition", "the log's end is of a moment before"],
)
def test_lag_is_the_age_of_the_newest_that_is_counted_while_others_wait(ends: dict[int, int] | None, lag: StreamLag) -> None:
    assert status().lag(ends) == lag


def test_before_the_first_epoch_its_age_is_unknown_and_a_stamp_of_the_future_is_no_negative_one() -> None:
    assert status(newest_timestamp=None).lag({0: 9}) == StreamLag(records=2, seconds=None)
    assert status(newest_timestamp=NOW + timedelta(days=1)).lag({0: 9}) == StreamLag(records=2, seconds=0.0)


@pytest.mark.parametrize(
    ("changes", "lag", "problem"),
    [
        ({}, StreamLag(records=0, seconds=0.0), None),
        ({}, StreamLag(records=9, seconds=299.0), None),
        ({}, StreamLag(records=9, seconds=301.0), "9 records not counted yet, and what is counted ends 0:05:01 ago"),
        ({}, StreamLag(records=1, seconds=None), "1 record not counted yet"),
        ({}, StreamLag(), "unknown: the broker does not answer"),
        ({"state": listing.SILENT}, StreamLag(records=0, seconds=0.0), "last heartbeat 0:00:02 ago"),
        ({"state": listing.STOPPED}, StreamLag(records=0, seconds=0.0), "was stopped"),
        ({"state": listing.NEW}, StreamLag(records=0, seconds=0.0), "no driver has run it yet"),
        ({"error": "no broker"}, StreamLag(records=0, seconds=0.0), "its driver waits: no broker"),
        ({"state": listing.FAILED, "error": "full\nmore"}, StreamLag(records=0, seconds=0.0), "its driver ended: full$"),
    ],
)
def test_a_stream_is_well_if_its_driver_is_at_work_and_its_counts_are_fresh(
    changes: dict[str, Any], lag: StreamLag, problem: str | None
) -> None:
    reason = status(**changes).problem(lag, 300)
    assert reason is None if problem is None else reason is not None and re.search(problem, reason)


def test_a_heartbeat_has_an_age_only_while_a_driver_ought_to_send_one() -> None:
    assert status().heartbeat_age == 2
    assert status(state=listing.SILENT).heartbeat_age == 2
    assert status(state=listing.STOPPED).heartbeat_age is None


def test_the_summary_has_only_what_json_has() -> None:
    summary = status().summary(StreamLag(records=3, seconds=60.0))
    assert (summary["name"], summary["keys"], summary["heartbeat_at"]) == ("live", ["status"], "2026-11-21T11:59:58Z")
    assert (summary["positions"], summary["lag_records"], summary["ended_at"]) == ({"0": 7, "1": 3}, 3, None)
