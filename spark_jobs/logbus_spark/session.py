"""A job of ours in a Spark session: plain Python over a list of plans, a task for each.

`SparkSession.builder.getOrCreate()` returns a session in its own process, as spark-submit starts it, or one behind the server
that SPARK_REMOTE names. The second has no `sparkContext`, only data frames: there the plans travel with the function of
`mapInArrow`, whose pickled form Spark shows nowhere, and the frame below it holds nothing but their numbers, one in each of as
many partitions as there are plans. Where there is a `sparkContext` it is used: the first data frame of a session costs its driver
two seconds, in which Spark loads its SQL engine. Either way nothing is shuffled, so Spark has no reason to join partitions, and
each is a task of its own that is retried alone.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

import pyarrow as pa
from logbus import spark_submit
from pyspark.sql import SparkSession

Plan = TypeVar("Plan")
Result = TypeVar("Result")

# If Spark does not say how many tasks it runs at once: those of a small cluster. Too few leave cores idle, too many cost some
# tens of milliseconds each.
PARALLELISM = 8
PARALLELISM_SETTING = "spark.sql.leafNodeDefaultParallelism"


def parallelism(spark: SparkSession) -> int:
    """How many tasks run at once: Spark's setting `spark.sql.leafNodeDefaultParallelism`, by default the cores it has now.

    A session behind Spark Connect tells neither the default nor the cores; but it says into how many parts it would cut a range,
    which is that number.
    """
    if hasattr(spark, "sparkContext"):
        context = spark.sparkContext
        return int(context.getConf().get(PARALLELISM_SETTING) or context.defaultParallelism)
    plan = str(spark.sql("explain select * from range(1)").collect()[0][0])
    splits = re.search(r"\bsplits=(\d+)", plan)
    return int(splits[1]) if splits else PARALLELISM


def run_plans(
    spark: SparkSession, plans: Sequence[Plan], work: Callable[[Iterator[Plan]], Iterator[Result]], *, at_once: int
) -> list[Result]:
    """What `work` returned for each plan in the task attempt that won; never more than `at_once` tasks run at the same time.

    Spark has no such limit for one job of many. So they are jobs one after another, as equal as can be.
    """
    job_count = max(1, -(-len(plans) // at_once))
    results: list[Result] = []
    for job in spark_submit.in_groups(plans, max(1, -(-len(plans) // job_count))):
        if hasattr(spark, "sparkContext"):
            results += spark.sparkContext.parallelize(job, len(job)).mapPartitions(work).collect()
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
