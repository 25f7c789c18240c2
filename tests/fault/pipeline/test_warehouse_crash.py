"""kill -9 of PostgreSQL, all its processes at once, in the middle of each step of a run; and a full disk.

These tests have a server to themselves: it is killed again and again. It recovers from its WAL while the run is still going on.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from logbus.ledger.ledger import Ledger
from logbus.warehouse.embedded import EmbeddedPostgres
from logbus.warehouse.engine import connect
from sqlalchemy import Engine

from spark_jobs.outcomes import LoadState
from spark_jobs.packing import TaskPlan
from spark_jobs.records import Records
from spark_jobs.sinks import postgres
from tests.support.cutting import Cut, kill
from tests.support.hourly import HOURS, Hourly, cut_at, cut_engine
from tests.support.in_process import Tasks
from tests.support.postgres import SURVIVES_A_KILL, crash
from tests.support.small_disk import fill, run_alone, small_disk

pytestmark = pytest.mark.usefixtures("without_spark")

# A step, and the statement or commit behind which the server is killed.
STEPS = {
    "while an hour is frozen": "INSERT INTO logbus.boundary",
    "while attempts are taken": "INSERT INTO logbus.attempt",
    "while staging tables are made": 'create table if not exists "logbus_staging"',
    "while a table is sealed": 'alter table "logbus_staging"',
    "while rows become public": 'insert into "public"',
    "before the commit": "before commit",
    "when the commit is done and nobody knows": "after commit",
}


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedPostgres]:
    with (
        tempfile.TemporaryDirectory(prefix="logbus-test-", ignore_cleanup_errors=True) as directory,
        EmbeddedPostgres(Path(directory) / "pg", settings=SURVIVES_A_KILL) as server,
    ):
        yield server


@pytest.fixture(scope="module")
def url(server: EmbeddedPostgres) -> str:
    return server.create_database("crashes")


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    engine = connect(url)
    yield engine
    engine.dispose()


def loaded(url: str, engine: Engine, name: str) -> Hourly:
    """A pipeline whose hours are loaded: the run under test reloads them."""
    hourly = Hourly.make(url, engine, name)
    hourly.settle()
    return hourly


def point_of(url: str, hourly: Hourly, statement: str) -> int:
    """The last point of that kind up to the commit of the first window."""
    cut = Cut(kill)
    hourly.run(cut_engine(url, cut))
    committed = next(number for number, what in enumerate(cut.passed) if what.startswith("UPDATE logbus.window_range"))
    until = next(number for number in range(committed, len(cut.passed)) if cut.passed[number] == "after commit")
    return max(number for number, what in enumerate(cut.passed[: until + 1]) if what.startswith(statement))


@pytest.mark.parametrize("step", [step for step in STEPS if "frozen" not in step])
def test_a_server_killed_in_the_middle_of_a_reload_leaves_the_hours_whole(
    server: EmbeddedPostgres, url: str, engine: Engine, step: str
) -> None:
    hourly = loaded(url, engine, step.replace(" ", "_"))
    cut_at(url, hourly, lambda connection: crash(server), point_of(url, hourly, STEPS[step]))
    assert hourly.check() == set(HOURS)
    hourly.settle()


def test_a_server_killed_while_an_hour_is_frozen_leaves_no_half_window(
    server: EmbeddedPostgres, url: str, engine: Engine
) -> None:
    loaded(url, engine, "frozen_before")
    point = point_of(url, Hourly.make(url, engine, "counted"), STEPS["while an hour is frozen"])
    hourly = Hourly.make(url, engine, "frozen")
    cut_at(url, hourly, lambda connection: crash(server), point)
    assert [len(window.ranges) for window in Ledger(engine).windows("frozen")] == [2]
    assert hourly.check() == set()
    hourly.settle()


@dataclass(kw_only=True)
class Disturbed(Tasks):
    """Tasks interrupted halfway, once: some rows have been sent but not committed, and more are to come."""

    disturb: Callable[[], None]
    times: int = 1

    def records(self, plan: TaskPlan, topic: str) -> Iterator[Records]:
        for number, chunk in enumerate(super().records(plan, topic)):
            if number == 1 and self.times:
                self.times -= 1
                self.disturb()
            yield chunk


def test_a_server_killed_while_tasks_write_fails_the_load_and_keeps_the_hours(
    server: EmbeddedPostgres, url: str, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "BUFFERED_ROWS_MAX", 1)
    hourly = loaded(url, engine, "tasks")
    hourly.tasks = Disturbed(log=hourly.log, disturb=lambda: crash(server))
    assert [outcome.state for outcome in hourly.run(engine)] == [LoadState.FAILED] * len(HOURS)
    assert hourly.check() == set(HOURS)
    hourly.settle()


def test_a_full_disk_fails_the_load_with_the_reason_and_keeps_the_hours(url: str, engine: Engine) -> None:
    """Staging tables and leaves are on a disk that another writer fills while the tasks write."""
    hourly = loaded(url, engine, "full_disk")
    with small_disk() as disk:
        run_alone(engine, f"create tablespace small location '{disk}'")
        run_alone(engine, "alter database crashes set default_tablespace = small")
        engine.dispose()
        try:
            run_alone(engine, "create table filler (text text)")
            hourly.tasks = Disturbed(log=hourly.log, disturb=lambda: fill(engine))
            outcomes = hourly.run(engine)
            assert [outcome.state for outcome in outcomes] == [LoadState.FAILED] * len(HOURS)
            assert "No space left on device" in str(outcomes[0].error)
            assert hourly.check() == set(HOURS)
            run_alone(engine, "drop table filler")
            hourly.settle()
        finally:
            run_alone(engine, "alter database crashes reset default_tablespace")
            engine.dispose()
            run_alone(engine, "drop table if exists filler, full_disk")
            run_alone(engine, "drop tablespace small")
