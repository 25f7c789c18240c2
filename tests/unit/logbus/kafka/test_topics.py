"""Which limits of a topic are in force, and how far datetimes reach; the requests are in tests/contract."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from logbus.kafka.topics import age_kept, deletes, end_of, limits_in_force

WEEK_MS = 604_800_000
WEEK = {"retention.ms": str(WEEK_MS), "retention.bytes": "1000"}


@pytest.mark.parametrize(
    ("policy", "is_deleting"),
    [(None, True), ("delete", True), ("compact,delete", True), ("delete,compact", True), ("compact", False)],
)
def test_limits_are_in_force_where_the_policy_deletes(policy: str | None, is_deleting: bool) -> None:
    settings = {**WEEK, **({"cleanup.policy": policy} if policy else {})}
    assert deletes(settings) == is_deleting
    assert limits_in_force(settings) == ({"retention.ms": WEEK_MS, "retention.bytes": 1000} if is_deleting else {})
    assert age_kept(settings) == (timedelta(days=7) if is_deleting else None)


@pytest.mark.parametrize("retention_ms", ["-1", str(2**63 - 1)])
def test_no_limit_and_one_of_millennia_are_none(retention_ms: str) -> None:
    settings = {"retention.ms": retention_ms, "retention.bytes": str(2**63 - 1)}
    assert limits_in_force(settings) == {"retention.bytes": 2**63 - 1}
    assert age_kept(settings) is None


def test_nothing_is_kept_until_an_instant_that_no_datetime_holds() -> None:
    since = datetime(2026, 11, 1, tzinfo=UTC)
    assert end_of(since, timedelta(days=1)) == datetime(2026, 11, 2, tzinfo=UTC)
    assert end_of(since, timedelta(days=4_000_000)) is None
