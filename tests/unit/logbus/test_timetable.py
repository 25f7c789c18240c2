"""When runs are due, with Airflow's own serializer and DAGs; tests/e2e runs a scheduler."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from importlib import metadata
from types import SimpleNamespace

import logbus.timetable as module
import pendulum
import pytest
from airflow import plugins_manager
from airflow.serialization.decoders import decode_deadline_alert, decode_timetable
from airflow.serialization.encoders import encode_deadline_alert, encode_timetable
from airflow.serialization.serialized_objects import DagSerialization
from airflow.timetables.base import DataInterval, TimeRestriction
from logbus.pipelines import hourly_ingest
from logbus.timetable import WindowTimetable

LATENESS = timedelta(minutes=5)
FROM_2000 = TimeRestriction(earliest=pendulum.datetime(2000, 1, 1), latest=None, catchup=False)


def at(hour: float, day: int = 17) -> pendulum.DateTime:
    return pendulum.datetime(2026, 5, day) + timedelta(hours=hour)


def hour(number: int) -> DataInterval:
    return DataInterval(at(number), at(number + 1))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[datetime]]:
    """The current time, which a test can set."""
    now: list[datetime] = [at(8)]
    monkeypatch.setattr(module, "utc_now", lambda: now[0])
    yield now


@pytest.fixture
def registered() -> Iterator[None]:
    """Airflow with the plugins of installed packages loaded."""
    caches = (
        plugins_manager._get_plugins,
        plugins_manager.get_timetables_plugins,
        plugins_manager.get_deadline_references_plugins,
    )
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


def due(
    last: DataInterval | None, restriction: TimeRestriction = FROM_2000, lateness: timedelta = LATENESS
) -> tuple[DataInterval, datetime]:
    info = WindowTimetable(lateness=lateness).next_dagrun_info(last_automated_data_interval=last, restriction=restriction)
    assert info is not None
    assert info.data_interval is not None
    assert info.logical_date == info.data_interval.start
    return info.data_interval, info.run_after


def test_a_run_is_due_when_its_hour_is_closed(clock: list[datetime]) -> None:
    clock[0] = at(8.02)
    assert due(hour(6)) == (hour(7), at(8) + LATENESS)
    assert due(hour(7)) == (hour(8), at(9) + LATENESS)


def test_a_dag_that_is_switched_on_or_a_scheduler_that_was_away_begins_with_the_hour_that_was_closed_last(
    clock: list[datetime],
) -> None:
    """The hours in between are gaps in the schedule; the run fills them (`fill_gaps`)."""
    clock[0] = at(8.02)
    assert due(None) == (hour(6), at(7) + LATENESS)
    clock[0] = at(8) + LATENESS
    assert due(None) == due(hour(2)) == (hour(7), at(8) + LATENESS)


def test_a_lateness_of_more_than_an_hour_skips_no_hour(clock: list[datetime]) -> None:
    """Airflow asks again whenever it parses the file, also while the next run is not yet due."""
    last, made = hour(4), []
    for minutes in range(0, 600, 5):
        clock[0] = at(6.6) + timedelta(minutes=minutes)
        interval, run_after = due(last, lateness=timedelta(minutes=90))
        if run_after <= clock[0]:
            made.append(interval)
            last = interval
    assert made == [hour(number) for number in range(5, 15)]


def test_with_catching_up_every_hour_comes_in_order(clock: list[datetime]) -> None:
    every = TimeRestriction(earliest=at(3), latest=at(5), catchup=True)
    assert due(None, every) == (hour(3), at(4) + LATENESS)
    assert due(hour(3), every) == (hour(4), at(5) + LATENESS)
    timetable = WindowTimetable(lateness=LATENESS)
    assert timetable.next_dagrun_info(last_automated_data_interval=hour(5), restriction=every) is None


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        (8.0, 7),  # an hour named by its end
        (8.02, 6),  # triggered at 08:01: seven to eight is open until 08:05
        (8.5, 7),
    ],
)
def test_a_run_that_is_asked_for_stands_for_the_hour_named_or_the_last_that_was_closed(asked: float, meant: int) -> None:
    assert WindowTimetable(lateness=LATENESS).infer_manual_data_interval(run_after=at(asked)) == hour(meant)


def test_it_is_stored_and_read_again_as_the_same(registered: None) -> None:
    timetable = WindowTimetable(lateness=timedelta(minutes=20))
    again = decode_timetable(encode_timetable(timetable))
    assert (type(again), again, hash(again)) == (WindowTimetable, timetable, hash(timetable))
    assert (again.lateness, again == WindowTimetable(lateness=LATENESS)) == (timedelta(minutes=20), False)


def test_airflow_stores_the_hourly_dag_and_makes_its_backfills(registered: None) -> None:
    dag = hourly_ingest(pipeline="clicks", parse="json", lateness=timedelta(minutes=20))
    stored = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    infos = list(stored.iter_dagrun_infos_between(at(3), at(5)))
    assert [info.data_interval for info in infos] == [hour(3), hour(4), hour(5)]
    assert [info.run_after - info.data_interval.end for info in infos] == [timedelta(minutes=20)] * 3


def test_an_installed_package_brings_its_plugin() -> None:
    (entry_point,) = (one for one in metadata.entry_points(group="airflow.plugins") if one.dist and one.dist.name == "logbus")
    assert entry_point.load()().timetables == [WindowTimetable]


def test_an_hour_is_late_as_long_after_its_end_and_one_of_the_past_after_it_was_asked_for(
    registered: None, clock: list[datetime]
) -> None:
    """As the scheduler reads the alert again and evaluates it for a new run."""
    alert = hourly_ingest("clicks", parse="json", proven_within=timedelta(hours=1)).deadline[0]  # type: ignore[index]
    read = decode_deadline_alert(encode_deadline_alert(alert))

    def due(found: tuple[datetime | None, str] | None) -> datetime | None:
        row = None if found is None else SimpleNamespace(data_interval_end=found[0], run_type=found[1])
        session = SimpleNamespace(execute=lambda query: SimpleNamespace(one_or_none=lambda: row))
        return read.reference.evaluate_with(session=session, interval=read.interval, dag_id="clicks", run_id="r")

    assert due((at(3), "scheduled")) == at(4)
    assert due((at(3), "backfill")) == due((at(3), "manual")) == at(9)
    assert due((at(11), "manual")) == at(12)
    assert due((None, "manual")) is due(None) is None
