"""The Spark application without Spark: the code of driver and tasks, one task after another in this process.

Records come from a log in memory. A record's value is a function of its topic's id, partition and offset, so that reading a
deleted record or another topic's is detected. `without_spark` replaces Spark by this; the driver then gets `Tasks` in its client
configuration, which passes through it untouched.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from typing import Any

import adbc_driver_postgresql
import pytest
from adbc_driver_manager import AdbcDatabase
from logbus.errors import RecordsLost, ShortRead
from logbus.kafka.client import Client
from logbus.loads.ledger import Ledger
from logbus.model import FrozenWindow, Pipeline
from logbus.parsing import Parser, Unparsable
from logbus.spark_submit import TaskLimits
from logbus_spark import application
from logbus_spark.load_task import load
from logbus_spark.records import TASKS_PER_CORE, Records, Run, TaskJob, TaskPlan, TaskResult, pack, read_plan

from tests.support.fake_log import KEY, FakeLog
from tests.support.ledgers import NOW

TASKS = "tasks"

_task_ids = itertools.count(1)


def is_dead(parser: Parser, value: bytes | None) -> bool:
    """Whether a record with this value is a dead letter."""
    if value is None:
        return parser.of_no_value is None
    try:
        parser.parse(value)
    except Unparsable:
        return True
    return False


@dataclass(kw_only=True)
class Tasks:
    """Runs a job's tasks. `pause` is called before each; `repeats` yields whether a task runs twice: the first attempt commits,
    the second wins."""

    log: FakeLog
    pause: Callable[[str], None] = lambda where: None
    repeats: Iterator[bool] = field(default_factory=lambda: itertools.repeat(False))

    def run(self, plans: Sequence[TaskPlan], job: TaskJob) -> list[TaskResult]:
        return [result for plan in plans for result in self.run_task(plan, job)]

    def run_task(self, plan: TaskPlan, job: TaskJob) -> list[TaskResult]:
        if next(self.repeats):
            self.pause("task")
            load(self.records(plan, job.topic), job, next(_task_ids))
        self.pause("task")
        return load(self.records(plan, job.topic), job, next(_task_ids))

    def records(self, plan: TaskPlan, topic: str) -> Iterator[Records]:
        for run in plan.runs:
            yield from self.read(run, topic)

    def read(self, run: Run, topic: str) -> Iterator[Records]:
        """What the exact reader returns or raises for this range of the log in its current state."""
        part, missing = self.log.topics[topic][run.partition], f"{topic}-{run.partition} [{run.start_offset}, {run.end_offset})"
        if part.start_offset > run.start_offset:
            raise RecordsLost(f"{missing} cannot be read from its start", lost=[missing])
        if len(part.stamps_ms) < run.end_offset:
            raise ShortRead(f"{missing} is not there")
        found = list(part.records(run.start_offset, run.end_offset))
        for window_id, start, end in run.split([record.offset for record in found]):
            chosen = found[start:end]
            yield Records(
                window_id=window_id,
                partition=run.partition,
                offsets=[record.offset for record in chosen],
                stamps_ms=[record.timestamp_ms for record in chosen],
                keys=[KEY] * len(chosen),
                values=[self.log.value(topic, run.partition, record) for record in chosen],
            )


def driver(
    ledger: Ledger, log: Any, client_config: Mapping[str, Any] | None = None, now: Callable[[], datetime] = lambda: NOW
) -> application.Application:
    """The load's driver; without a client configuration its tasks read the log in memory."""
    config = {TASKS: Tasks(log=log)} if client_config is None else client_config
    return application.Application(ledger=ledger, log=log, client=Client(config), now=now, report=lambda outcome: None)


def run_job(
    pipeline: Pipeline, windows: Sequence[FrozenWindow], job: TaskJob, client_config: Mapping[str, Any], limits: TaskLimits
) -> list[TaskResult]:
    """As on one core. In memory if the client configuration holds `Tasks`; otherwise with the real reader, from a real broker."""
    plans = pack(windows, TASKS_PER_CORE)
    if TASKS in client_config:
        tasks: Tasks = client_config[TASKS]
        return tasks.run(plans, job)
    return [
        result
        for plan in plans
        for result in load(read_plan(plan, client_config, pipeline.topic, pipeline.isolation_level), job, next(_task_ids))
    ]


class KeptDatabase(AdbcDatabase):  # type: ignore[misc]
    """Stays open when a sink closes it."""

    def close(self) -> None:
        pass


@cache
def kept_database(uri: str) -> KeptDatabase:
    """Instead of `adbc_driver_postgresql.connect`, which queries all types of the server each time: 50 ms a task."""
    return KeptDatabase(driver=adbc_driver_postgresql._driver_path(), uri=uri)


@pytest.fixture
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Driver and tasks run in this process."""
    replace_spark(monkeypatch)


def replace_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for callers that are not tests."""
    monkeypatch.setattr(application, "run_job", run_job)
    monkeypatch.setattr(adbc_driver_postgresql, "connect", kept_database)
