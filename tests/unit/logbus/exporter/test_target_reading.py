"""One reading shared by all, a deadline for each, a reason for each failure. Events instead of clocks and sleeps."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from logbus.errors import BrokerUnavailable, LedgerMissing, TopicMissing, UserError, WarehouseUnavailable
from logbus.exporter.target_reading import Outcome, TargetReading, reason_of, wait

LONG = 30.0  # never reached


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def shared(read: Callable[[], int], clock: Clock | None = None) -> TargetReading[int]:
    return TargetReading("it", read, max_age_seconds=5.0, clock=clock or Clock())


def test_all_who_come_while_it_reads_wait_for_the_same_reading() -> None:
    may_end, count = threading.Event(), []

    def read() -> int:
        count.append(1)
        may_end.wait(LONG)
        return 7

    it = shared(read)
    waited_for = [it.begin() for _ in range(20)]
    may_end.set()
    assert {wait(one, LONG).value for one in waited_for} == {7}
    assert len(count) == 1


def test_a_reading_is_shared_until_it_is_too_old() -> None:
    clock, numbers = Clock(), iter(range(10))
    it = shared(lambda: next(numbers), clock)
    assert wait(it.begin(), LONG).value == 0
    clock.now = 4.9
    assert wait(it.begin(), LONG).value == 0
    clock.now = 5.0
    assert wait(it.begin(), LONG).value == 1


def test_who_cannot_wait_gets_timeout_and_the_reading_is_not_begun_again() -> None:
    may_end, count = threading.Event(), []

    def read() -> int:
        count.append(1)
        may_end.wait(LONG)
        return 7

    it = shared(read)
    assert wait(it.begin(), 0.0) == Outcome(reason="timeout")
    later = it.begin()
    may_end.set()
    assert wait(later, LONG).value == 7
    assert len(count) == 1


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (BrokerUnavailable("b"), "unreachable"),
        (WarehouseUnavailable("w"), "unreachable"),
        (LedgerMissing("l"), "no_ledger"),
        (TopicMissing("t"), "topic_missing"),
        (UserError("u"), "refused"),
        (ZeroDivisionError(), "defect"),
    ],
)
def test_each_failure_has_a_reason(error: Exception, reason: str) -> None:
    assert reason_of(error) == reason


def test_a_failure_is_an_outcome_and_is_logged_once_for_each_change(caplog: pytest.LogCaptureFixture) -> None:
    clock, errors = Clock(), [BrokerUnavailable("no"), BrokerUnavailable("still no"), WarehouseUnavailable("other")]

    def read() -> int:
        raise errors.pop(0)

    it = TargetReading("it", read, max_age_seconds=0.0, clock=clock)
    assert [wait(it.begin(), LONG).reason for _ in range(2)] == ["unreachable", "unreachable"]
    assert [record.getMessage() for record in caplog.records] == ["it: no"]
    assert it.last.value is None
