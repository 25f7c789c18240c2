"""A ledger in a fresh database, a log in memory, and the hours that tests use."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from logbus.loads.audit import audit_window
from logbus.loads.engine import connect
from logbus.loads.ledger import Ledger
from logbus.loads.sinks import sink_for
from logbus.loads.target import table_columns
from logbus.model import Attempt, AuditReport, FrozenWindow, Interval, Pipeline, TaskKey, milliseconds
from logbus.windows import recovery, schema
from logbus.windows.catch_up import LoadPlan, parts_of
from logbus.windows.table_names import parse_table
from sqlalchemy import text, update

from tests.support.databases import LedgerDatabases
from tests.support.fake_log import FakeLog

DAY = datetime(2015, 5, 17, tzinfo=UTC)
NOW = datetime(2026, 11, 21, 12, 30, tzinfo=UTC)


def at(hour: float) -> datetime:
    """The instant `hour` hours into DAY; 10.5 is half past ten."""
    return DAY + timedelta(hours=hour)


def stamps(*hours: float) -> list[int]:
    return [milliseconds(at(hour)) for hour in hours]


def intervals_of(plan: LoadPlan) -> list[Interval]:
    """The windows that a load takes."""
    return [interval for step in plan.steps for interval in parts_of(step, plan.pipeline)]


def hour(number: int) -> Interval:
    return Interval.hour(at(number))


def remember_dag(ledger: Ledger, pipeline_name: str, dag_id: str, now: datetime = NOW) -> None:
    """As if a run of the DAG had defined the pipeline as it is registered."""
    ledger.define(ledger.registered(pipeline_name), FakeLog(), now, dag_id=dag_id)


@dataclass
class World:
    """One pipeline `p` from topic `t` into table `t`, unless a test changes that."""

    ledger: Ledger
    log: FakeLog

    @property
    def url(self) -> str:
        return self.ledger.engine.url.render_as_string(hide_password=False)

    def execute(self, *statements: str) -> None:
        with self.ledger.engine.begin() as connection:
            for statement in statements:
                connection.execute(text(statement))

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with self.ledger.engine.connect() as connection:
            return [tuple(row) for row in connection.execute(text(query))]

    def one(self, query: str) -> Any:
        """The only value of the only row."""
        ((value,),) = self.rows(query)
        return value

    def columns(self) -> list[str]:
        """Those of table `t`."""
        with self.ledger.engine.connect() as connection:
            return list(table_columns(connection, parse_table("t")))

    def register(self, **changes: Any) -> Pipeline:
        values: dict[str, Any] = {"name": "p", "topic": "t", "table": "t", "parse": "lines", "lateness": timedelta(minutes=5)}
        return self.ledger.register(Pipeline(**{**values, **changes}), self.log, NOW)

    def fill(self, *hours: float, freeze: Sequence[int] = (), **changes: Any) -> Pipeline:
        """Records stamped with these hours, the pipeline, and its windows of the hours `freeze`."""
        self.log.append("t", *stamps(*hours))
        pipeline = self.register(**changes)
        for number in freeze:
            self.freeze(number)
        return pipeline

    def freeze(self, number: int, now: datetime = NOW) -> FrozenWindow:
        return self.ledger.freeze_or_get("p", hour(number), self.log, now)

    def begin(self, *numbers: int, run_id: str = "run", now: datetime = NOW, task: TaskKey | None = None) -> list[Attempt]:
        """Attempts at these hours, which are frozen."""
        return self.ledger.begin_attempts("p", [at(number) for number in numbers], run_id, 1, now, task)

    def audit(self, number: int = 10) -> AuditReport:
        return audit_window(self.ledger.engine, self.log, "p", at(number), NOW, sink_for)

    def accept_loss(self, number: int, now: datetime = NOW) -> FrozenWindow:
        return recovery.accept_loss(self.ledger.engine, "p", hour(number), self.log, now, by="mary", reason="gone")

    def mark(self, number: int, **values: object) -> None:
        """Sets these columns of an hour's window, as a load or an audit would."""
        with self.ledger.engine.begin() as connection:
            connection.execute(update(schema.window).where(schema.window.c.starts_at == at(number)).values(values))

    def offsets(self, number: int, partition: int = 0) -> tuple[int, int]:
        """The frozen range of an hour."""
        (part,) = [part for part in self.freeze(number).ranges if part.partition == partition]
        return part.start_offset, part.end_offset


@contextmanager
def opened(url: str) -> Iterator[World]:
    log = FakeLog()
    log.create("t")
    ledger = Ledger(connect(url))
    yield World(ledger=ledger, log=log)
    ledger.engine.dispose()


@pytest.fixture
def world(warehouse_url: str) -> Iterator[World]:
    with opened(warehouse_url) as opened_world:
        yield opened_world


@pytest.fixture(scope="module")
def shared_world(ledger_databases: LedgerDatabases) -> Iterator[World]:
    """One for all tests of a module that only look at it."""
    name = ledger_databases.take()
    with opened(ledger_databases.url(name)) as opened_world:
        yield opened_world
    ledger_databases.give_back(name)
