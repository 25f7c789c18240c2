"""The Spark application without Spark: the driver's own code and the tasks' own code, one task after another in this process.

Records come from a log in memory: a `Topic` knows what every record of every topic held that ever had the name, so that reading a
deleted or another topic's record shows. `pause` is called before each task.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from types import SimpleNamespace
from typing import Any

import adbc_driver_postgresql
import pyarrow as pa
from adbc_driver_manager import AdbcDatabase
from logbus.errors import RecordsLost, ShortRead
from logbus.warehouse.engine import libpq_uri
from logbus.windows.model import Pipeline

from spark_jobs.application import Application, Reads, to_reads
from spark_jobs.kafka_source import to_batch
from spark_jobs.load_task import ARROW_RESULT_SCHEMA, StagedWindow, TaskJob, load
from spark_jobs.packing import Run, TaskPlan
from tests.support.fake_log import FakeLog
from tests.support.loads import ResultRow

_task_ids = itertools.count(1)


class InProcessSession:
    """Stands where the driver asks for a Spark session."""

    builder = SimpleNamespace(getOrCreate=lambda: SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=1)))


class KeptDatabase(AdbcDatabase):  # type: ignore[misc]
    """Stays open when a sink closes it."""

    def close(self) -> None:
        pass


@cache
def kept_database(uri: str) -> KeptDatabase:
    """In place of `adbc_driver_postgresql.connect`, which asks the server for all its types each time: fifty milliseconds a task."""
    return KeptDatabase(driver=adbc_driver_postgresql._driver_path(), uri=uri)


def value_of(topic_id: str, partition: int, offset: int) -> bytes:
    """What a record holds: JSON, text that is no JSON, or bytes that are no text, by its offset."""
    name = f"{topic_id}/{partition}/{offset}"
    return {0: b"\xff" + name.encode(), 1: name.encode()}.get(offset % 5, json.dumps({"name": name}).encode())


@dataclass(kw_only=True)
class InProcessApplication(Application):
    """`repeats` says of which tasks a second attempt wins, the first one having committed."""

    pause: Callable[[str], None] = lambda where: None
    repeats: Iterator[bool] = field(default_factory=lambda: itertools.repeat(False))

    def run_job(self, spark: Any, pipeline: Pipeline, plans: Sequence[TaskPlan], windows: Sequence[StagedWindow]) -> Reads:
        assert isinstance(self.log, FakeLog)
        job = TaskJob(
            topic=pipeline.topic,
            parse=pipeline.parse,
            settings=pipeline.settings,
            warehouse_uri=libpq_uri(self.warehouse_url),
            windows={window.window_id: window for window in windows},
        )
        rows: list[ResultRow] = []
        for plan in plans:
            if next(self.repeats):
                self.pause("task")
                run_task(self.log, plan, job)
            self.pause("task")
            rows += run_task(self.log, plan, job)
        return to_reads(rows)


def run_task(log: FakeLog, plan: TaskPlan, job: TaskJob) -> list[ResultRow]:
    """One task attempt, to its commit."""
    batches = [batch for run in plan.runs for batch in batches_of(log, job.topic, run)]
    results = load(iter(batches), job, next(_task_ids))
    return [ResultRow(**row) for batch in results for row in batch.cast(ARROW_RESULT_SCHEMA).to_pylist()]


def batches_of(log: FakeLog, topic: str, run: Run) -> Iterator[pa.RecordBatch]:
    """What the exact reader gives, or raises, for this range of the log as it is now."""
    part, missing = log.topics[topic][run.partition], f"{topic}-{run.partition} [{run.start_offset}, {run.end_offset})"
    if part.start_offset > run.start_offset:
        raise RecordsLost(f"{missing} cannot be read from its start", lost=[missing])
    if len(part.stamps_ms) < run.end_offset:
        raise ShortRead(f"{missing} is not there")
    rows = [
        (run.window_of(found.offset), run.partition, found.offset, found.timestamp_ms, b"key", value, [])
        for found in part.records(run.start_offset, run.end_offset)
        for value in [value_of(log.ids[topic], run.partition, found.offset)]
    ]
    if rows:
        yield to_batch(rows)
