"""Loads through Spark Connect: the program in a process without a JVM, its session in the server that our Spark runs beside itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from logbus import spark_submit
from logbus.loading import Load, Loader
from logbus.waiting import wait_until
from logbus_spark.session import parallelism, run_plans
from pyspark.sql import SparkSession
from sqlalchemy import Engine, text

from tests.support import disturbed_load
from tests.support.ledgers import NOW, at
from tests.support.real_pipeline import HOURS, RealPipeline, engine, secrets, two_hours  # noqa: F401
from tests.support.spark import connect_service

APPENDING = "select count(*) from pg_stat_activity where application_name = 'logbus task'"


@pytest.mark.parametrize("session", ["spark_session", "remote_session"])
def test_each_plan_is_a_task_and_what_it_returns_comes_back(session: str, request: pytest.FixtureRequest) -> None:
    spark = request.getfixturevalue(session)

    def work(plans: Iterator[tuple[str, int]]) -> Iterator[tuple[int, int, str]]:
        from pyspark import TaskContext

        task = TaskContext.get()
        assert task is not None
        yield from ((task.partitionId(), task.stageId(), name * count) for name, count in plans)

    assert parallelism(spark) == 2
    results = run_plans(spark, [("a", 1), ("b", 2), ("c", 3), ("d", 4), ("e", 5)], work, at_once=3)
    assert [(part, text) for part, _, text in results] == [(0, "a"), (1, "bb"), (2, "ccc"), (0, "dddd"), (1, "eeeee")]
    assert len({stage for _, stage, _ in results}) == 2, "two jobs, since at most three tasks run at once"


def test_an_hour_is_loaded_exactly_though_a_task_fails_after_its_commit(
    two_hours: RealPipeline,  # noqa: F811
    engine: Engine,  # noqa: F811
    spark_connect: str,
    tmp_path: Path,
) -> None:
    """By several tasks of a few kilobytes, of which only one appends at a time. An attempt that is overtaken loads nothing."""
    attempts = two_hours.ledger.begin_attempts(two_hours.name, [at(number) for number in HOURS], "first", 1, NOW)
    two_hours.ledger.begin_attempts(two_hours.name, [at(HOURS[1])], "newer", 1, NOW)
    limits = spark_submit.TaskLimits(max_task_bytes=20_000, warehouse_connections=1)
    load = disturbed_load.start(
        two_hours.name, attempts, secrets(two_hours), tmp_path, remote=spark_connect, tasks="fail", limits=limits
    )
    appending = [0]

    def has_ended() -> bool:
        with engine.connect() as connection:
            appending.append(connection.execute(text(APPENDING)).scalar_one())
        return load.poll() is not None

    wait_until(has_ended, what="the load")
    output = (tmp_path / "output").read_text()
    assert load.returncode == 0, output[-3000:]
    result = json.loads(output.rpartition(spark_submit.RESULT_PREFIX)[2])
    assert {window["start"][11:13]: window["state"] for window in result["windows"]} == {"10": "committed", "11": "superseded"}
    assert [mark.name for mark in tmp_path.glob("task-*")] == ["task-0"]
    assert max(appending) <= limits.warehouse_connections
    assert (two_hours.loaded_hours(), two_hours.found()) == ([HOURS[0]], two_hours.expected())
    assert two_hours.audit(HOURS[0]).problems == ()


def test_the_command_loads_there_too_and_leaves_the_server(
    two_hours: RealPipeline,  # noqa: F811
    spark_connect: str,
    spark_session: SparkSession,
) -> None:
    sessions = connect_service(spark_session).sessionManager()
    before = sessions.listActiveSessions().size()
    url, config = secrets(two_hours)
    loader = Loader(warehouse_url=url, client_config=config, now=lambda: NOW, say=print)
    hours = [at(number) for number in HOURS]
    reports = loader.reload(Load(pipeline=two_hours.name, remote=spark_connect), hours)
    assert [report.verdict for report in reports] == ["exact", "exact"]
    assert sessions.listActiveSessions().size() == before
