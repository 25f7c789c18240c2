"""Many topics: the last closed hour of each, loaded and proven by an Airflow that was just started, on this machine.

500 topics of 1,000 records, a DAG for each by `many_topics`, one slot in the pool of loads and one Spark driver that stays
(`driver_idle_timeout`): from when Airflow is up until all 500 hours are proven, and the processor time of Airflow, driver, broker
and PostgreSQL together.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from random import Random

import psutil
from confluent_kafka import Producer
from logbus.cli.stack import LocalStack, project_directory
from logbus.loads.engine import connect
from logbus.model import HOUR, Grid, milliseconds, utc_now
from logbus.waiting import PATIENCE_SECONDS, wait_until
from logbus.windows.migrations import create_ledger
from rich.console import Console
from sqlalchemy import text

from benchmarks import processes
from benchmarks.figures import Figure, Target, figure
from benchmarks.loads import Scale
from benchmarks.stream_data import COLUMNS, request

TOPICS, RECORDS = 500, 1_000
HOUR_SECONDS = 3600.0
DAGS = f"""\
from datetime import timedelta
from logbus.pipelines import many_topics

many_topics(
    [f"topic_{{number:03}}" for number in range(COUNT)], parse="json", columns={COLUMNS}, lateness=timedelta(0),
    driver_idle_timeout=timedelta(minutes=5), dag_arguments={{"is_paused_upon_creation": False}},
)
"""


def run(console: Console, scale: Scale) -> Sequence[Figure]:
    count = TOPICS if scale.share == 1 else max(3, int(TOPICS * scale.share))
    with tempfile.TemporaryDirectory(prefix="logbus-bench-", ignore_cleanup_errors=True) as scratch:
        dags = Path(scratch) / "dags"
        dags.mkdir()
        (dags / "topics.py").write_text(DAGS.replace("COUNT", str(count)))
        with LocalStack(Path(scratch) / "home", project=project_directory(), environment=os.environ, dags=dags) as stack:
            stack.start_storage()
            fill(stack.bootstrap_servers, count)
            stack.start_airflow()
            began, cpu_before = time.monotonic(), processes.cpu_seconds(psutil.Process().pid)
            wait_until_proven(stack, count, console)
            seconds = time.monotonic() - began
            cpu_seconds = processes.cpu_seconds(psutil.Process().pid) - cpu_before
    name = f"{count} topics, an hour of {RECORDS:,} records each"
    return [
        figure(f"{name}: until all are proven", "s", ours=[seconds], target=Target(ours_max=HOUR_SECONDS * count / TOPICS)),
        figure(f"{name}: of all processes, for each", "CPU s", ours=[cpu_seconds / count]),
    ]


def fill(bootstrap_servers: str, count: int) -> None:
    """The last closed hour of each topic; topics are made by the first record."""
    chance = Random(2011)
    producer = Producer({"bootstrap.servers": bootstrap_servers, "linger.ms": 20, "queue.buffering.max.messages": 1_000_000})
    start = milliseconds(Grid().floor(utc_now()) - HOUR)
    step = int(HOUR / timedelta(milliseconds=1)) // RECORDS
    for topic in range(count):
        for number in range(RECORDS):
            stamp = start + number * step
            producer.produce(f"topic_{topic:03}", request(stamp, chance), timestamp=stamp)
        producer.poll(0)
    if producer.flush(PATIENCE_SECONDS):
        raise RuntimeError("the broker did not take all records")


def wait_until_proven(stack: LocalStack, count: int, console: Console) -> None:
    engine = connect(stack.warehouse_url)
    create_ledger(engine)
    # A window without a record needs no load; its loaded attempt is 0.
    proven = text("select count(distinct pipeline) from logbus.window where loaded_attempt > 0 and audited_at is not null")

    def all_proven() -> bool:
        stack.raise_if_ended()
        with engine.connect() as connection:
            return bool(connection.execute(proven).scalar_one() == count)

    try:
        wait_until(all_proven, what=f"{count} proven hours", timeout_seconds=2 * HOUR_SECONDS, poll_seconds=1, say=console.print)
    finally:
        engine.dispose()
