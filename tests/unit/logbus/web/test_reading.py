"""One reading for all who ask; pages get the previous value meanwhile, scrapes a deadline and a reason for each failure."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from logbus.errors import BrokerUnavailable, LedgerMissing, TopicMissing, UserError, WarehouseUnavailable
from logbus.web import reading
from logbus.web.exporter import logged_failures


class Source:
    """Counts its reads, which block at the gate if a test closes it; and a clock that the test moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.reads = 0
        self.gate, self.began = threading.Event(), threading.Event()
        self.gate.set()
        self.error: Exception | None = None

    def clock(self) -> float:
        return self.now

    def __call__(self) -> int:
        self.reads += 1
        self.began.set()
        self.gate.wait()
        if self.error:
            raise self.error
        return self.reads

    def open(self) -> None:
        """Opens the gate, and waits until nothing reads."""
        self.gate.set()
        for thread in threading.enumerate():
            if thread.name == reading.Reading(self, self.clock).name:
                thread.join()


@pytest.fixture
def source() -> Source:
    return Source()


def test_many_looks_within_some_seconds_are_one_reading(source: Source) -> None:
    shared = reading.Reading(source, source.clock)
    assert [shared.get() for _ in range(20)] == [1] * 20
    source.now += reading.KEPT_SECONDS
    assert shared.get() == 2


def test_a_failure_is_kept_like_an_answer(source: Source) -> None:
    source.error = ValueError("down")
    shared = reading.Reading(source, source.clock)
    for _ in range(3):
        with pytest.raises(ValueError, match="down"):
            shared.get()
    assert source.reads == 1


def begin(shared: reading.Reading[int], answers: list[int]) -> threading.Thread:
    thread = threading.Thread(target=lambda: answers.append(shared.get()))
    thread.start()
    return thread


def test_those_who_come_while_it_is_read_get_what_was_before(source: Source) -> None:
    shared = reading.Reading(source, source.clock, patience_seconds=0)
    shared.get()
    source.now += reading.KEPT_SECONDS
    source.gate.clear()
    assert [shared.get(), shared.get()] == [1, 1]
    source.open()
    assert (shared.get(), source.reads) == (2, 2)


def test_who_has_patience_gets_what_is_new(source: Source) -> None:
    shared = reading.Reading(source, source.clock, patience_seconds=60)
    shared.get()
    source.now += reading.KEPT_SECONDS
    assert shared.get() == 2


def test_patience_is_counted_from_when_the_reading_began(source: Source) -> None:
    shared = reading.Reading(source, source.clock, patience_seconds=20)
    shared.get()
    source.now += reading.KEPT_SECONDS
    source.gate.clear()
    shared.begin()
    source.now += 20
    assert shared.get() == 1
    source.open()


def slow_reading(source: Source, answers_first_seconds: float, seconds: float = 1.5) -> reading.Reading[int]:
    """Its first reading took longer than a request has patience; the value is too old by now."""
    shared = reading.Reading(source, source.clock, patience_seconds=1, answers_first_seconds=answers_first_seconds)
    source.gate.clear()
    shared.begin()
    source.began.wait()
    source.now += seconds
    source.open()
    source.now += reading.KEPT_SECONDS
    return shared


def test_nobody_waits_for_what_took_too_long_the_last_time(source: Source) -> None:
    shared = slow_reading(source, answers_first_seconds=0)
    source.gate.clear()
    assert shared.get() == 1  # a request that waited would never end
    source.open()
    source.now += reading.KEPT_SECONDS
    assert shared.get() == 3  # the second reading was quick: waiting is worth it again


def test_a_reading_that_nobody_waits_for_lets_the_answers_go_first_until_somebody_waits(source: Source) -> None:
    shared = slow_reading(source, answers_first_seconds=3600)
    assert (shared.get(), shared.get(), source.reads) == (1, 1, 1)
    assert (shared.fresh(), source.reads) == (2, 2)


def test_a_reading_that_waited_for_a_broker_that_was_down_says_nothing_of_the_next(source: Source) -> None:
    shared = slow_reading(source, answers_first_seconds=3600, seconds=reading.DOWN_SECONDS)
    assert shared.get() == 2


def test_a_failure_says_nothing_of_the_next_reading(source: Source) -> None:
    source.error = ValueError("down")
    shared = slow_reading(source, answers_first_seconds=3600)
    source.error = None
    assert shared.get() == 2


def test_what_is_too_old_for_an_answer_is_read_without_delay(source: Source) -> None:
    shared = slow_reading(source, answers_first_seconds=3600)
    assert shared.get() == 1
    source.now += reading.STALE_SECONDS_MAX
    assert (shared.get(), source.reads) == (2, 2)


def test_what_is_begun_is_read_once_and_there_for_who_gets_it(source: Source) -> None:
    shared = reading.Reading(source, source.clock)
    assert shared.before() is None
    shared.begin()
    shared.begin()
    assert (shared.get(), source.reads, shared.before()) == (1, 1, 1)
    shared.begin()
    assert source.reads == 1


def test_the_first_ones_wait_for_one_reading(source: Source) -> None:
    answers = list[int]()
    shared = reading.Reading(source, source.clock)
    source.gate.clear()
    threads = [begin(shared, answers) for _ in range(5)]
    source.began.wait()
    source.gate.set()
    for thread in threads:
        thread.join()
    assert (answers, source.reads) == ([1] * 5, 1)


def test_what_is_too_old_is_nobodys_answer(source: Source) -> None:
    answers = list[int]()
    shared = reading.Reading(source, source.clock, patience_seconds=0)
    shared.get()
    source.now += reading.STALE_SECONDS_MAX + 1
    threads = [begin(shared, answers) for _ in range(2)]
    for thread in threads:
        thread.join()
    assert answers == [2, 2]


def test_a_page_that_got_what_was_read_before_a_pause_asks_again_soon(source: Source) -> None:
    shared = reading.Reading(source, source.clock, patience_seconds=0, answers_first_seconds=0)
    assert (shared.get(), shared.refresh_seconds()) == (1, reading.REFRESH_SECONDS)
    for previous in (1, 2, 3):  # an open page gets what was read for its previous refresh, and goes on as it does
        source.gate.clear()
        source.now += reading.REFRESH_SECONDS
        assert (shared.get(), shared.refresh_seconds()) == (previous, reading.REFRESH_SECONDS)
        source.open()
    source.gate.clear()
    source.now += reading.STALE_SECONDS_MAX
    assert (shared.get(), shared.refresh_seconds()) == (4, reading.SOON_SECONDS)
    source.open()
    source.now += reading.SOON_SECONDS
    assert (shared.get(), shared.refresh_seconds()) == (5, reading.REFRESH_SECONDS)


def test_who_has_a_deadline_gets_nothing_by_then_and_the_reading_is_not_begun_again(source: Source) -> None:
    shared = reading.Reading(source, source.clock)
    source.gate.clear()
    assert shared.begin().wait_for(0.0) is None
    later = shared.begin()
    source.gate.set()
    assert (later.wait().value, source.reads) == (1, 1)


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
    assert reading.reason_of(error) == reason


def test_a_failure_is_logged_once_for_each_change(caplog: pytest.LogCaptureFixture) -> None:
    errors = [BrokerUnavailable("no"), BrokerUnavailable("still no"), WarehouseUnavailable("other"), UserError("refused")]

    def read() -> int:
        raise errors.pop(0)

    broker = reading.Reading(logged_failures("broker", read), lambda: 0.0, max_age_seconds=0.0)
    reasons = [broker.begin().wait().reason for _ in range(4)]
    assert reasons == ["unreachable", "unreachable", "unreachable", "refused"]
    assert [record.getMessage() for record in caplog.records] == ["broker: no", "broker: refused"]


def test_an_engine_is_not_tried_again_right_after_a_failure_and_made_once(source: Source) -> None:
    tries = list[None]()

    def connect() -> Any:
        tries.append(None)
        if len(tries) == 1:
            raise WarehouseUnavailable("down")
        return object()

    engine = reading.LazyEngine(connect, source.clock)
    for _ in range(2):
        with pytest.raises(WarehouseUnavailable, match="down"):
            engine.get()
    assert len(tries) == 1
    source.now += reading.KEPT_SECONDS
    assert engine.get() is engine.get()
    assert len(tries) == 2
