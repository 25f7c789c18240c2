"""One Spark job over the plans of a group of windows: each task reads, parses and stages, and only what it did comes back.

The tasks are plain Python over a list of plans. With a data source in Python before them, each row went from Python to the JVM
and back, and planning it started three more processes (docs/decisions).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from logbus.windows.model import Pipeline
from pyspark import SparkContext, TaskContext

from spark_jobs.kafka_source import read_plan
from spark_jobs.load_task import load
from spark_jobs.packing import TaskPlan
from spark_jobs.task_job import TaskJob, TaskResult


def run_job(
    context: SparkContext, pipeline: Pipeline, plans: Sequence[TaskPlan], job: TaskJob, client_config: Mapping[str, Any]
) -> list[TaskResult]:
    """The results of the task attempts that won; what failed for good raises Spark's own kinds of errors."""
    return context.parallelize(plans, len(plans)).mapPartitions(load_plans(pipeline, job, client_config)).collect()


def load_plans(
    pipeline: Pipeline, job: TaskJob, client_config: Mapping[str, Any]
) -> Callable[[Iterator[TaskPlan]], Iterator[TaskResult]]:
    """The tasks' function. It travels pickled, with the secrets it holds."""

    def run(plans: Iterator[TaskPlan]) -> Iterator[TaskResult]:
        task = TaskContext.get()
        assert task is not None, "runs inside a Spark task only"
        chunks = (
            records for plan in plans for records in read_plan(plan, client_config, pipeline.topic, pipeline.isolation_level)
        )
        yield from load(chunks, job, task.taskAttemptId())

    return run
