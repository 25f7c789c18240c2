"""What tests ask of a running Airflow beyond what the local stack itself needs."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from confluent_kafka import Producer
from logbus.local.airflow_api import POLL_SECONDS, AirflowApi, DagRun
from logbus.local.stack import LocalStack
from logbus.windows.boundaries import milliseconds

WAIT_SECONDS_MAX = 300.0  # nothing here is timed; a loaded machine may take long


def produce_json(stack: LocalStack, topic: str, stamped: Iterable[tuple[datetime, dict[str, Any]]]) -> None:
    """Sends records with these timestamps; returns when all are acknowledged."""
    failures: list[str] = []
    producer = Producer({**stack.client_config, "enable.idempotence": True})
    for at, value in stamped:
        producer.produce(
            topic,
            value=json.dumps(value).encode(),
            timestamp=milliseconds(at),
            on_delivery=lambda error, message: failures.append(str(error)) if error else None,
        )
    assert producer.flush(30.0) == 0
    assert failures == []


def wait_for(api: AirflowApi, dag_id: str, count: int, *, run_type: str | None = None) -> list[DagRun]:
    """Waits until `count` runs of the DAG have ended well; raises with the story of one that has not."""
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while True:
        runs = [run for run in api.runs(dag_id) if run_type is None or run.run_id.startswith(run_type)]
        for run in runs:
            if run.state == "failed":
                raise AssertionError(f"{run.dag_id} {run.run_id} failed\n{api.story(run)}")
        ended = [run for run in runs if run.state == "success"]
        if len(ended) >= count:
            return ended
        if time.monotonic() > deadline:
            stories = "\n".join(f"{run.run_id} {run.state}: {api.story(run)}" for run in runs)
            raise AssertionError(f"{len(ended)} of {count} runs of {dag_id} ended within {WAIT_SECONDS_MAX:.0f} s\n{stories}")
        time.sleep(POLL_SECONDS)
