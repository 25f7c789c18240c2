"""Hours behind, in chains built here over an in-memory log with ten records an hour. Hours close five minutes late."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from logbus.model import Pipeline
from logbus.status.lag import MANAGED, Lag, lag_over
from logbus.status.retention_plan import RetentionPolicy
from logbus.windows.pipeline_chains import Anchor, PipelineChain

from tests.support.fake_log import FakeLog
from tests.support.retention import at, chain, hourly, policy, stamps

NOW = at(9.5)
LONG_AFTER = at(24 * 365)


@pytest.fixture
def log() -> FakeLog:
    """Hours 0 to 5, with a record every six minutes."""
    return FakeLog.of("t", stamps(*(number / 10 for number in range(60))))


def lag(log: FakeLog, windows: PipelineChain, now: datetime = NOW, limit: RetentionPolicy | None = None, **settings: Any) -> Lag:
    pipeline = Pipeline(name="p", topic="t", table="t", parse="lines", **settings)
    return lag_over(pipeline, windows, log, now, log.topic("t").partitions, limit)


def loaded(*hours: int) -> PipelineChain:
    return chain([hourly(hour, audited=False) for hour in hours])


def test_closed_hours_that_are_not_loaded_count_frozen_or_not(log: FakeLog) -> None:
    before = lag(log, loaded(0, 1, 2))
    assert (before.hours_behind, before.oldest_hour, before.records, before.records_open) == (3, at(3), 30, 0)
    assert before.age(NOW) == timedelta(hours=6.5)
    frozen = lag(log, chain([hourly(hour, loaded=hour < 3) for hour in range(5)]))
    assert replace(frozen, gaps=before.gaps) == before


def test_the_open_hour_is_no_lag(log: FakeLog) -> None:
    log.append("t", *stamps(9.1, 9.2, 9.3))
    found = lag(log, loaded(*range(6)))
    assert (found.hours_behind, found.records, found.records_open) == (0, 0, 3)
    assert lag(log, loaded(*range(6)), at(10.05)).hours_behind == 0
    closed = lag(log, loaded(*range(6)), at(10.1))
    assert (closed.hours_behind, closed.hours_empty, closed.oldest_hour) == (1, 3, at(9))


def test_hours_without_records_behind_the_last_are_none_and_those_before_it_are_counted_apart(log: FakeLog) -> None:
    assert lag(log, loaded(0, 1, 2), LONG_AFTER).hours_behind == 3
    done = lag(log, loaded(*range(6)), LONG_AFTER)
    assert (done.hours_behind, done.oldest_hour, done.records, done.age(NOW), done.expires_by) == (0, None, 0, None, None)
    log.append("t", *stamps(100.5))
    later = lag(log, loaded(*range(6)), LONG_AFTER)
    assert (later.hours_behind, later.hours_empty, later.oldest_hour) == (1, 94, at(100))


def test_a_gap_in_the_middle_is_the_oldest_hour(log: FakeLog) -> None:
    found = lag(log, loaded(0, 1, 4, 5))
    assert (found.hours_behind, found.oldest_hour, found.records) == (2, at(2), 20)
    assert found.oldest_record_at == at(2)


def test_a_pipeline_that_has_frozen_nothing_counts_from_its_first_record_or_its_start(log: FakeLog) -> None:
    everything = lag(log, chain([]))
    assert (everything.hours_behind, everything.oldest_hour, everything.records) == (6, at(0), 60)
    later = lag(log, chain([], anchors={0: Anchor(offset=40, at=at(4))}), starts_at=at(4))
    assert (later.hours_behind, later.oldest_hour, later.records) == (2, at(4), 20)


def test_a_stamp_of_2099_hides_nothing(log: FakeLog) -> None:
    log.append("t", *stamps(24 * 365 * 73))
    log.append("t", *stamps(8.2, 9.2))
    found = lag(log, loaded(*range(5)))
    assert (found.hours_behind, found.hours_empty, found.records, found.records_open) == (2, 2, 12, 1)


def test_partitions_are_counted_one_by_one(log: FakeLog) -> None:
    log.create("t", 2)
    log.append("t", *stamps(*(number / 10 for number in range(20))), partition=0)
    log.append("t", *stamps(*(number / 10 for number in range(25))), partition=1)
    found = lag(log, chain([hourly(0, partitions=2)]))
    assert found.records_behind == {0: 10, 1: 15}
    assert found.summary(NOW)["records_behind_by_partition"] == {"0": 10, "1": 15}


def test_what_was_deleted_unloaded_is_lost_and_not_behind(log: FakeLog) -> None:
    log.delete_records("t", before_offset=35)
    found = lag(log, loaded(0, 1, 2))
    assert (found.records_lost, found.records, found.hours_behind) == (5, 25, 3)


def test_a_topic_that_was_recreated_is_a_problem_and_no_number(log: FakeLog) -> None:
    found = lag(log, chain([], is_other_topic=True))
    assert "`logbus pipeline rebase p`" in str(found.problem)
    assert (found.hours_behind, found.records) == (0, 0)


def test_when_the_oldest_record_would_be_deleted_and_by_what(log: FakeLog) -> None:
    found = lag(log, loaded(0, 1, 2))
    assert (found.expires_at, found.expires_by) == (at(3 + 7 * 24), "retention.ms")
    log.change_settings("t", {"retention.ms": "-1"})
    assert lag(log, loaded(0, 1, 2)).expires_by is None
    log.change_settings("t", {"retention.bytes": "1000000"})
    assert (lag(log, loaded(0, 1, 2)).expires_at, lag(log, loaded(0, 1, 2)).expires_by) == (None, "retention.bytes")
    managed = lag(log, loaded(0, 1, 2), limit=policy(24, max_hold=timedelta(hours=10), when_overdue="delete"))
    assert (managed.expires_at, managed.expires_by) == (at(4 + 34), MANAGED)


def test_of_a_topic_that_is_only_compacted_nothing_is_deleted_whatever_its_limits(log: FakeLog) -> None:
    limit = policy(24, max_hold=timedelta(hours=10), when_overdue="delete")
    log.change_settings("t", {"cleanup.policy": "compact", "retention.bytes": "1000000"})
    found = lag(log, loaded(0, 1, 2), limit=limit)
    assert (found.records, found.expires_at, found.expires_by) == (30, None, None)
    log.change_settings("t", {"cleanup.policy": "compact,delete"})
    assert lag(log, loaded(0, 1, 2)).expires_by == "retention.ms"


@pytest.mark.parametrize("retention_ms", [10**14, 2**63 - 1])
def test_a_limit_behind_the_end_of_all_datetimes_takes_nothing(log: FakeLog, retention_ms: int) -> None:
    log.create("t")
    log.append("t", *stamps(24 * 365 * 7_900))
    log.change_settings("t", {"retention.ms": str(retention_ms)})
    found = lag(log, chain([]), at(24 * 365 * 7_950))
    assert (found.records, found.expires_at, found.expires_by) == (1, None, None)


def test_a_user_who_may_not_see_settings_sees_the_lag_and_that_the_expiry_is_unknown(log: FakeLog) -> None:
    before = lag(log, loaded(0, 1, 2))
    log.denied = {"DescribeConfigs"}
    found = lag(log, loaded(0, 1, 2))
    assert "lacks DescribeConfigs" in str(found.expiry_problem)
    assert replace(found, expiry_problem=None) == replace(before, expires_at=None, expires_by=None)
    assert lag(log, loaded(*range(6))).expiry_problem is None
