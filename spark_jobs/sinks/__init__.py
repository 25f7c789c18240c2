"""Sinks, as a task sees them: what takes the rows. The driver's side, under the same names, is `logbus.loads.sinks`.

Each is a separate module that is imported only when a job uses it, so no worker pays for another sink's libraries.

A sink is a context manager. Everything a task writes is one unit of work: it counts if the sink is exited without an error, and
leaves nothing that counts otherwise. Spark may run a task twice, so what a task writes is tagged with the task attempt; the
driver takes what the winners wrote.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pkgutil import resolve_name
from types import TracebackType
from typing import Protocol, Self, cast

import pyarrow as pa
from logbus.errors import UserError

from spark_jobs.job import StagedWindow, TaskJob


class TaskSink(Protocol):
    """Where one task attempt puts the records of many windows, in any order."""

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...

    def write_rows(self, window: StagedWindow, rows: pa.RecordBatch) -> None:
        """Rows of `schemas.row_schema(columns)`."""

    def write_dead_letters(self, window: StagedWindow, rows: pa.RecordBatch) -> None:
        """Rows of `schemas.DEAD_LETTER_SCHEMA`."""

    def files(self, window: StagedWindow) -> tuple[str, ...]:
        """The files that the driver must commit for the window, after a normal exit. None if the rows are in known tables."""


# (the job, the parser's columns: name to PostgreSQL type, the task attempt's number) to a sink
MakeSink = Callable[[TaskJob, Mapping[str, str], int], TaskSink]

SINKS: Mapping[str, str] = {
    "postgres": "spark_jobs.sinks.postgres:postgres_sink",
    "iceberg": "spark_jobs.sinks.iceberg:iceberg_sink",
}


def sink_for(job: TaskJob, columns: Mapping[str, str], task: int) -> TaskSink:
    """The sink that a job names, built for one task attempt."""
    if job.sink not in SINKS:
        raise UserError(f"no sink {job.sink!r}; a pipeline loads into one of {', '.join(SINKS)}")
    make = cast(MakeSink, resolve_name(SINKS[job.sink]))
    return make(job, columns, task)
