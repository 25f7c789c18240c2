"""A job of ours in a Spark session: plain Python over a list of plans, a task for each.

Where spark-submit has started the driver it is a `SparkContext` alone: a session costs the JVM two seconds of CPU, in which
it loads Spark's SQL engine, and its first data frame as much again. Behind the server that SPARK_REMOTE names there are only
a session and its data frames: there the plans travel with the function of `mapInArrow`, whose pickled form Spark shows
nowhere, and the frame below it holds nothing but their numbers, one in each of as many partitions as there are plans. Either
way nothing is shuffled, so Spark has no reason to join partitions, and each is a task of its own that is retried alone.
"""

from __future__ import annotations

import os
import pickle
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa
from logbus import spark_submit
from pyspark.sql import SparkSession

if TYPE_CHECKING:  # which pyspark-client does not have
    from pyspark import SparkContext

Plan = TypeVar("Plan")
Result = TypeVar("Result")

# If Spark does not say how many tasks it runs at once: those of a small cluster. Too few leave cores idle, too many cost some
# tens of milliseconds each.
PARALLELISM = 8
PARALLELISM_SETTING = "spark.sql.leafNodeDefaultParallelism"

# Spark's own: what spark-submit tells a driver beside a JVM, and what says that its session is behind Spark Connect anyway.
GATEWAY_VARIABLE = "PYSPARK_GATEWAY_PORT"
CONNECT_VARIABLES = (spark_submit.REMOTE_VARIABLE, "SPARK_CONNECT_MODE_ENABLED")


def has_own_jvm(environ: Mapping[str, str]) -> bool:
    return GATEWAY_VARIABLE in environ and not any(name in environ for name in CONNECT_VARIABLES)


def started() -> SparkContext | SparkSession:
    """Spark, as this program was submitted; the first call starts it."""
    if has_own_jvm(os.environ):
        from pyspark import SparkContext

        return SparkContext.getOrCreate()
    return SparkSession.builder.getOrCreate()


def setting_of_jvm(name: str, environ: Mapping[str, str]) -> str | None:
    """A setting that this program was submitted with, without starting Spark; None behind Spark Connect, whose settings are the
    server's, and where nobody answers."""
    if not has_own_jvm(environ):
        return None
    from pyspark import SparkConf, SparkContext

    try:
        SparkContext._ensure_initialized()  # the connection alone, which Spark takes over
        return SparkConf().get(name)
    except Exception:  # Py4J's and the socket's: what needs Spark will say so
        return None


def context_of(spark: SparkContext | SparkSession) -> SparkContext | None:
    """None behind Spark Connect."""
    return spark if hasattr(spark, "parallelize") else getattr(spark, "sparkContext", None)


def parallelism(spark: SparkContext | SparkSession) -> int:
    """How many tasks run at once: Spark's setting `spark.sql.leafNodeDefaultParallelism`, by default the cores it has now.

    A session behind Spark Connect tells neither the default nor the cores; but it says into how many parts it would cut a range,
    which is that number.
    """
    if (context := context_of(spark)) is not None:
        return int(context.getConf().get(PARALLELISM_SETTING) or context.defaultParallelism)
    plan = str(spark.sql("explain select * from range(1)").collect()[0][0])
    splits = re.search(r"\bsplits=(\d+)", plan)
    return int(splits[1]) if splits else PARALLELISM


def run_plans(
    spark: SparkContext | SparkSession,
    plans: Sequence[Plan],
    work: Callable[[Iterator[Plan]], Iterator[Result]],
    *,
    at_once: int,
) -> list[Result]:
    """What `work` returned for each plan in the task attempt that won; never more than `at_once` tasks run at the same time.

    Spark has no such limit for one job of many. So they are jobs one after another, as equal as can be.
    """
    job_count = max(1, -(-len(plans) // at_once))
    results: list[Result] = []
    for job in spark_submit.in_groups(plans, max(1, -(-len(plans) // job_count))):
        if (context := context_of(spark)) is not None:
            results += context.parallelize(job, len(job)).mapPartitions(work).collect()
            continue
        frame = spark.range(0, len(job), 1, len(job)).mapInArrow(on_batches(work, job), "results binary")
        results += [result for row in frame.collect() for result in pickle.loads(row.results)]
    return results


def leave_server(environ: Mapping[str, str]) -> None:
    """Ends the session behind Spark Connect, and what it runs; by itself a server keeps both for a while."""
    if spark_submit.REMOTE_VARIABLE in environ and (spark := SparkSession.getActiveSession()) is not None:
        spark.interruptAll()
        spark.stop()


def on_batches(
    work: Callable[[Iterator[Plan]], Iterator[Result]], plans: Sequence[Plan]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """`work` as `mapInArrow` takes it: plans by their numbers, results pickled."""
    pickled = [pickle.dumps(plan) for plan in plans]  # one by one: a task unpickles its own

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        chosen = (pickle.loads(pickled[number]) for batch in batches for number in batch.column("id").to_pylist())
        yield pa.RecordBatch.from_pydict({"results": pa.array([pickle.dumps(list(work(chosen)))], pa.binary())})

    return run
