"""Sinks, as a task sees them: who takes the rows. The driver's side, under the same names, is `logbus.warehouse.sinks`.

Each lies in a module of its own that is imported when a job asks for it, so no worker pays for the libraries of another sink.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import cast

from logbus.errors import UserError

from spark_jobs.job import TaskJob
from spark_jobs.sinks.base import TaskSink

# (the job, the parser's columns: name to PostgreSQL type, the task attempt's number) to a sink
MakeSink = Callable[[TaskJob, Mapping[str, str], int], TaskSink]

SINKS: Mapping[str, str] = {
    "postgres": "spark_jobs.sinks.postgres:postgres_sink",
    "iceberg": "spark_jobs.sinks.files:file_sink",
    "parquet": "spark_jobs.sinks.files:file_sink",
}


def sink_for(job: TaskJob, columns: Mapping[str, str], task: int) -> TaskSink:
    """The sink a job asks for, built for one task attempt."""
    if job.sink not in SINKS:
        raise UserError(f"no sink {job.sink!r}; a pipeline loads into one of {', '.join(SINKS)}")
    module_name, _, attribute = SINKS[job.sink].partition(":")
    make = cast(MakeSink, getattr(importlib.import_module(module_name), attribute))
    return make(job, columns, task)


__all__ = ["SINKS", "TaskSink", "sink_for"]
