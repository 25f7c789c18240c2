"""Producers that number their records: the audit finds what did not arrive or arrived twice. In a real PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from logbus.cli.window_views import history_lines
from logbus.loads.history import window_history

from tests.support.ledgers import World, at
from tests.support.loads import Loading

HOURS = (10, 11, 12)
EACH = 4


@pytest.fixture
def hours(world: World) -> Hours:
    """Three hours with four records each, in one partition."""
    world.fill(*(hour + minute / 10 for hour in HOURS for minute in range(EACH)))
    return Hours(world)


class Hours:
    """Loads hours whose records carry the given numbers, and audits them."""

    def __init__(self, world: World) -> None:
        self.world = world

    def load(self, hour: int, numbers: Sequence[int | None], stream: str = "web-1") -> None:
        window = self.world.freeze(hour)
        start = window.ranges[0].start_offset
        sent = {(0, start + place): f"{stream}:{number}".encode() for place, number in enumerate(numbers) if number is not None}
        Loading(world=self.world, url=self.world.url, window=window, numbers=sent).load()


def test_numbers_without_a_hole_over_all_hours_are_exact(hours: Hours) -> None:
    for hour, first in zip(HOURS, (1, 5, 9), strict=True):
        hours.load(hour, range(first, first + EACH))
    for hour in HOURS:
        report = hours.world.audit(hour)
        assert (report.problems, report.notes) == ((), ())


def test_a_record_that_did_not_arrive_is_named_with_what_was_sent(hours: Hours) -> None:
    hours.load(10, [1, 2, 4, 5])
    assert hours.world.audit(10).problems == ("producer 'web-1' sent 5 records (numbers 1 to 5), 4 arrived: 3 missing",)


def test_a_loss_between_two_hours_belongs_to_the_later_one(hours: Hours) -> None:
    hours.load(10, [1, 2, 3, 4])
    hours.load(11, [7, 8, 9, 10])
    assert hours.world.audit(10).ok
    assert hours.world.audit(11).problems == ("producer 'web-1' sent 6 records (numbers 5 to 10), 4 arrived: 5 to 6 missing",)


def test_a_record_that_arrived_twice_is_counted(hours: Hours) -> None:
    hours.load(10, [1, 2, 2, 3])
    hours.load(11, [3, 4, 5, 6])
    assert hours.world.audit(10).problems == ("2 records of producer 'web-1' arrived twice",)
    assert hours.world.audit(11).problems == ("1 record of producer 'web-1' arrived twice",)


def test_what_may_lie_in_an_hour_that_is_not_loaded_is_noted_and_no_problem(hours: Hours) -> None:
    hours.load(10, [1, 2, 3, 4])
    hours.load(12, [9, 10, 11, 12])
    report = hours.world.audit(12)
    assert report.ok
    assert "may lie in windows before that are not loaded" in report.notes[0]
    hours.load(11, [5, 6, 7, 8])
    assert hours.world.audit(12).notes == ()


def test_a_quiet_hour_in_between_is_no_hole(hours: Hours) -> None:
    hours.load(10, [1, 2, 3, 4])
    hours.load(11, [None] * EACH)
    hours.load(12, [5, 6, 7, 9])
    assert hours.world.audit(11).ok
    assert hours.world.audit(12).problems == ("producer 'web-1' sent 5 records (numbers 5 to 9), 4 arrived: 8 missing",)


def test_a_reload_counts_once_and_the_window_shows_its_producers(hours: Hours) -> None:
    hours.load(10, [1, 2, 3, 4])
    hours.load(10, [1, 2, 3, 4])
    assert hours.world.audit(10).ok
    history = window_history(hours.world.ledger.engine, "p", at(10))
    assert history.summary()["producers"] == [{"stream": "web-1", "records": 4, "first": 1, "last": 4}]
    assert "  producer web-1: 4 records, numbers 1 to 4" in list(history_lines(history))


def test_two_producers_do_not_make_up_for_each_other(hours: Hours) -> None:
    hours.load(10, [1, 2, 3, 4], stream="web-1")
    hours.load(11, [1, 2, 4, 5], stream="web-2")
    assert hours.world.audit(10).ok
    assert hours.world.audit(11).problems == ("producer 'web-2' sent 5 records (numbers 1 to 5), 4 arrived: 3 missing",)


def test_a_producer_that_began_before_the_windows_is_noted(hours: Hours) -> None:
    hours.load(11, [100, 101, 102, 103])
    report = hours.world.audit(11)
    assert (report.ok, report.notes) == (True, ("producer 'web-1' begins with number 100 in these windows",))


def test_the_first_numbers_of_a_stream_are_missing_where_all_of_the_topic_was_loaded(hours: Hours) -> None:
    """The log was restored from a backup without them before any later boundary was frozen, so no boundary can show it."""
    hours.load(10, [1, 2, 3, 4])
    hours.load(11, [3, 4, 5, 6], stream="web-2")
    assert hours.world.audit(10).ok
    said = "producer 'web-2' begins with number 3, and the topic was loaded from its first record on: 1 to 2 missing"
    assert hours.world.audit(11).problems == (said,)


def test_a_producer_that_began_on_a_former_topic_of_the_name_is_noted(hours: Hours) -> None:
    hours.load(10, [1, 2, 3, 4])
    hours.world.execute("update logbus.\"window\" set topic_id = 'former'")
    hours.load(11, [100, 101, 102, 103], stream="web-2")
    assert hours.world.audit(11).ok


def test_gaps_that_the_pipeline_accepts_are_notes(hours: Hours) -> None:
    hours.world.register(settings={"accept_producer_gaps": True})
    hours.load(10, [1, 2, 4, 5])
    report = hours.world.audit(10)
    assert (report.ok, len(report.notes)) == (True, 1)


def test_an_attempt_that_nobody_counted_leaves_the_question_open(hours: Hours) -> None:
    """Loaded before producers were counted, or committed from its table after a crash."""
    hours.load(10, [1, 2, 3, 4])
    hours.load(11, [5, 6, 7, 8])
    hours.load(12, [9, 10, 11, 12])
    hours.world.execute(
        "delete from logbus.producer_count where first_number = 5",
        "update logbus.attempt set streams = null from logbus.window where id = window_id and starts_at = '2015-05-17T11:00:00Z'",
    )
    report = hours.world.audit(12)
    assert report.ok
    assert "may lie in windows before" in report.notes[0]
