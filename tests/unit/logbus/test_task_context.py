from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from airflow.sdk import timezone
from logbus import task_context
from logbus.errors import UserError
from logbus.model import AuditReport, Interval, OffsetRange
from logbus.task_context import run_interval

from tests.support.airflow_context import HOUR_END, HOUR_START, run_context
from tests.support.fake_ledger import window


def test_the_window_is_the_data_interval_and_not_the_logical_date() -> None:
    assert run_interval(run_context()) == Interval(HOUR_START, HOUR_END)


def test_airflows_own_kind_of_instant_becomes_a_plain_one_that_keeps_its_zone() -> None:
    start, end = timezone.parse(HOUR_START.isoformat()), timezone.parse(HOUR_END.isoformat())
    interval = run_interval(run_context(start, end))
    assert (interval.end + timedelta(minutes=5)).tzinfo is not None
    assert interval == Interval(HOUR_START, HOUR_END)


def test_a_run_without_a_data_interval_is_told_what_to_do() -> None:
    with pytest.raises(UserError, match="trigger it with a logical date"):
        run_interval({"run_id": "manual__1"})


def test_an_interval_without_length_names_the_timetable_that_has_one() -> None:
    at = datetime(2015, 5, 17, 10, tzinfo=UTC)
    with pytest.raises(UserError, match="CronDataIntervalTimetable"):
        run_interval(run_context(at, at))


def test_what_a_task_returns_stays_small_however_many_partitions_there_are() -> None:
    ranges = tuple(OffsetRange(topic="t", partition=number, start_offset=0, end_offset=2**40) for number in range(1_000))
    wide = replace(window(HOUR_START, attempt=1), ranges=ranges)
    report = AuditReport(window=wide, expected=dict.fromkeys(range(1_000), 7), counted={})
    extra = task_context.windows_extra([HOUR_START] * 100, [wide] * 100)
    assert [len(one["ranges"] or ()) for one in extra["windows"]] == [1_000] * 2 + [0] * 98
    assert extra["windows"][99]["counts"] == extra["windows"][0]["counts"]
    assert [one["window"]["ranges"] is None for one in task_context.bounded_details([report.summary()] * 2)] == [False, True]
    assert len(json.dumps(extra)) < 200_000
