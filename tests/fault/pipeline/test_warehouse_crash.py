"""kill -9 of PostgreSQL, all its processes at once, while tasks write; and a full disk. A kill behind any other statement is a
lost connection to the driver: test_every_statement.py.

The server is these tests' own, and recovers from its WAL while the run goes on.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from logbus.loads.embedded import EmbeddedPostgres
from logbus.loads.engine import connect
from logbus_spark.application import LoadState
from logbus_spark.records import Records, TaskPlan
from logbus_spark.sinks import postgres
from sqlalchemy import Engine

from tests.support.hourly import HOURS, Hourly
from tests.support.in_process import Tasks
from tests.support.postgres import SURVIVES_A_KILL, crash
from tests.support.small_disk import fill, run_alone, small_disk

pytestmark = pytest.mark.usefixtures("without_spark")


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
