"""What tests need of a running Airflow beyond what the local stack itself needs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from logbus.cli.local_airflow import RUN_OVER_STATES, AirflowApi, ApiDagRun
from logbus.cli.stack import LocalStack
from logbus.kafka.client import Client
from logbus.kafka.topics import Topics
from logbus.model import Interval, instant_text, milliseconds
from logbus.waiting import wait_until

from tests.support.topics import send


def produce_json(stack: LocalStack, topic: str, stamped: Iterable[tuple[datetime, dict[str, Any]]]) -> None:
    """Creates the topic and sends records with these timestamps; returns when all are acknowledged. The timestamps are old, so
    the broker's retention, which runs every five minutes, would delete the records during a longer test: it is off for this
    topic."""
    Topics(Client(stack.client_config)).create(topic, partitions=1, settings={"retention.ms": "-1"})
    records = ({"value": json.dumps(value), "timestamp": milliseconds(at)} for at, value in stamped)
    send(stack.bootstrap_servers, topic, records, {**stack.client_config, "enable.idempotence": True})


def wait_for_files(api: AirflowApi, names: set[str]) -> None:
    """Waits until Airflow has a DAG from each of these files in its DAGs folder."""

    def known() -> set[str]:
        return {dag["relative_fileloc"] for dag in api.request("GET", "/api/v2/dags", params={"limit": 100})["dags"]}

    wait_until(lambda: names <= known(), what=f"a DAG of each of {sorted(names)}")


def unpause_and_read_again(api: AirflowApi, dag_id: str) -> None:
    """Unpauses a DAG and has its file parsed at once: the watchers of its assets start with the next parse."""
    api.unpause(dag_id)
    token = api.request("GET", f"/api/v2/dags/{dag_id}")["file_token"]
    api.request("PUT", f"/api/v2/parseDagFile/{token}")


def unpause_without_the_hour_that_is_due(api: AirflowApi, dag_id: str) -> None:
    """Unpauses a scheduled DAG and gives up the run that Airflow creates at once for the last hour, which no test wants."""
    api.unpause(dag_id)
    wait_until(lambda: bool(api.runs(dag_id)), what=f"the run of {dag_id} that is due")
    api.give_up_active_runs(dag_id)


def ask_for_run(api: AirflowApi, dag_id: str, span: Interval) -> ApiDagRun:
    """Triggers a run over a past span before the DAG is unpaused, so that it precedes the run that is due."""
    start, end = instant_text(span.start), instant_text(span.end)
    run = api.trigger(dag_id, logical_date=start, data_interval_start=start, data_interval_end=end, run_after=end)
    api.unpause(dag_id)
    return run


def wait_for_runs(api: AirflowApi, dag_id: str, count: int, *, kind: str) -> list[ApiDagRun]:
    """Waits until `count` runs whose ids begin with `kind` have succeeded; if one fails, raises with its story."""
    ended: list[ApiDagRun] = []

    def are_there() -> bool:
        runs = [run for run in api.runs(dag_id) if run.run_id.startswith(kind)]
        for run in runs:
            if run.state == "failed":
                raise AssertionError(f"{run.dag_id} {run.run_id} failed\n{api.story(run)}")
        ended[:] = [run for run in runs if run.state == "success"]
        return len(ended) >= count

    wait_until(are_there, what=f"{count} runs {kind} of {dag_id}")
    return ended


def wait_for_no_run(api: AirflowApi, dag_id: str) -> None:
    """Waits until no run of the DAG is active."""
    wait_until(lambda: all(run.state in RUN_OVER_STATES for run in api.runs(dag_id)), what=f"the end of all runs of {dag_id}")
