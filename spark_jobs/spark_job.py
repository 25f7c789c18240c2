"""One Spark job over the plans of a group of windows: each task reads, parses and stages, and returns only what it did.

The tasks are plain Python over a list of plans. With a Python data source in front of them, each row went from Python to the JVM
and back, and planning it started three more processes (docs/decisions).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pkgutil import resolve_name
from typing import Any, cast

from logbus.errors import UserError
from logbus.model import Pipeline
from pyspark import TaskContext
from pyspark.sql import SparkSession

from spark_jobs.job import TaskJob, TaskResult
from spark_jobs.load_task import load
from spark_jobs.packing import TaskPlan
from spark_jobs.records import read_plan

RunJob = Callable[[SparkSession, Pipeline, Sequence[TaskPlan], TaskJob, Mapping[str, Any]], list[TaskResult]]

# By the pipeline's setting `reader`. A reader is imported only when it is used.
READERS: Mapping[str, str] = {
    "python": "spark_jobs.spark_job:run_job",
    "connector": "spark_jobs.connector:run_connector_job",
}


def runner_for(pipeline: Pipeline) -> RunJob:
    """The function that runs a job with the pipeline's reader."""
    name = pipeline.options.reader
    if name not in READERS:
        raise UserError(f"pipeline {pipeline.name} reads by {name!r}, which is none of {', '.join(READERS)}")
    return cast(RunJob, resolve_name(READERS[name]))


def run_job(
    spark: SparkSession, pipeline: Pipeline, plans: Sequence[TaskPlan], job: TaskJob, client_config: Mapping[str, Any]
) -> list[TaskResult]:
    """The results of the task attempts that won; a task that fails for good raises one of Spark's own errors."""
    return spark.sparkContext.parallelize(plans, len(plans)).mapPartitions(load_plans(pipeline, job, client_config)).collect()


def load_plans(
    pipeline: Pipeline, job: TaskJob, client_config: Mapping[str, Any]
) -> Callable[[Iterator[TaskPlan]], Iterator[TaskResult]]:
    """The tasks' function. It is sent pickled, with the secrets it holds."""

    def run(plans: Iterator[TaskPlan]) -> Iterator[TaskResult]:
        task = TaskContext.get()
        assert task is not None, "runs inside a Spark task only"
        chunks = (
            records for plan in plans for records in read_plan(plan, client_config, pipeline.topic, pipeline.isolation_level)
        )
        yield from load(chunks, job, task.taskAttemptId())

    return run
