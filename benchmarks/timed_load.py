"""The entry point for spark-submit in the benchmarks of loads and streams: starts the session, then times one job in it.

    spark-submit timed_load.py ours --pipeline NAME --window ...      our application, as it is
    spark-submit timed_load.py barest '{"topic": ...}'                the barest job
    spark-submit timed_load.py usual '{"topic": ...}'                 Spark's Kafka source, from_json and write.jdbc
    spark-submit timed_load.py stream --stream NAME --once            our stream, as it is
    spark-submit timed_load.py structured '{"topic": ...}'            the same in plain Structured Streaming

Prints one line `LOGBUS_BENCH {"seconds": ..., "commit_seconds": [...], "cpu_seconds": ...}`. The session's start, the same for
all, is not counted.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

PREFIX = "LOGBUS_BENCH "


def timed_ours(session: Any, arguments: Sequence[str]) -> dict[str, Any]:
    """The application's own `run`, with each commit timed as well."""
    from logbus.loads.sinks.postgres import PostgresSink
    from logbus_spark import load_windows

    commit_seconds: list[float] = []
    commit = PostgresSink.commit

    def timed_commit(*inner: Any) -> Any:
        started = time.monotonic()
        try:
            return commit(*inner)
        finally:
            commit_seconds.append(time.monotonic() - started)

    PostgresSink.commit = timed_commit  # type: ignore[assignment,method-assign]
    started = time.monotonic()
    outcomes = load_windows.run(arguments, os.environ)
    seconds = time.monotonic() - started
    if any(outcome.error for outcome in outcomes):
        raise SystemExit(f"not every window was committed: {[outcome.error for outcome in outcomes]}")
    return {"seconds": seconds, "commit_seconds": commit_seconds}


def timed_barest(session: Any, arguments: Sequence[str]) -> dict[str, Any]:
    from benchmarks.barest_load import ask_of, load

    ask = ask_of(arguments[0], os.environ["LOGBUS_BENCH_URI"])
    started = time.monotonic()
    load(session.sparkContext, ask)
    return {"seconds": time.monotonic() - started, "commit_seconds": []}


def timed_usual(session: Any, arguments: Sequence[str]) -> dict[str, Any]:
    from benchmarks.barest_load import ask_of, load_usually

    ask = ask_of(arguments[0], os.environ["LOGBUS_BENCH_URI"])
    started = time.monotonic()
    load_usually(session, ask)
    return {"seconds": time.monotonic() - started, "commit_seconds": []}


def timed_stream(session: Any, arguments: Sequence[str]) -> dict[str, Any]:
    from logbus_spark import stream

    started = time.monotonic()
    stream.run(arguments, os.environ)
    return {"seconds": time.monotonic() - started, "commit_seconds": []}


def timed_structured(session: Any, arguments: Sequence[str]) -> dict[str, Any]:
    from benchmarks.structured_stream import StructuredAsk, query

    ask = StructuredAsk(**json.loads(arguments[0]), uri=os.environ["LOGBUS_BENCH_URI"])
    started = time.monotonic()
    query(session, ask).awaitTermination()
    return {"seconds": time.monotonic() - started, "commit_seconds": []}


SIDES = {"ours": timed_ours, "barest": timed_barest, "usual": timed_usual, "stream": timed_stream, "structured": timed_structured}


def main() -> None:
    from pyspark.sql import SparkSession

    from benchmarks.processes import cpu_seconds

    side, *arguments = sys.argv[1:]
    session = SparkSession.builder.getOrCreate()
    jvm = os.getppid()  # of which driver and workers are children
    cpu_before = cpu_seconds(jvm)
    timed = SIDES[side](session, arguments)
    print(PREFIX + json.dumps({**timed, "cpu_seconds": cpu_seconds(jvm) - cpu_before}), flush=True)
    session.stop()


if __name__ == "__main__":
    main()
