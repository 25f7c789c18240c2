"""How soon after its end a window is proven, in a whole platform: PostgreSQL, a broker, Airflow and Spark on this machine, as
`logbus up` starts them, and a DAG of one-minute windows without lateness, to whose topic a thousand records a second are sent and
whose Spark driver stays.

Fifteen windows are measured, sixty with --hour, after the one that starts the driver; in seconds from the window's end, by the
ledger and by Airflow's own times of the task. Then a stream is begun, computed by a process of its own and proven by a DAG: of
five windows, in seconds from the window's audit. All clocks are this machine's.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from logbus.cli.local_airflow import AirflowApi
from logbus.cli.stack import LocalStack, project_directory
from logbus.expressions import count as count_of
from logbus.loads.engine import connect
from logbus.loads.ledger import Ledger
from logbus.model import FrozenWindow, WindowState, utc_now
from logbus.streams import stream_ledger
from logbus.streams.definition import define_stream
from logbus.waiting import PATIENCE_SECONDS, wait_until
from logbus.windows.migrations import create_ledger
from rich.console import Console
from sqlalchemy import text

from benchmarks import processes
from benchmarks.figures import Figure, Target, figure
from benchmarks.loads import FULL, Scale
from benchmarks.stream_data import COLUMNS, SteadyProducer

PIPELINE, RATE = "minutes", 1_000
SEND_SECONDS, TASK_ENDS_SECONDS = 0.02, 5.0
PROVEN = "it is proven and its task has ended"
WINDOWS, WINDOWS_OF_HOUR, WINDOWS_QUICK, WARM_UP = 15, 60, 2, 1
STREAM, STREAM_WINDOWS, STREAM_WINDOWS_QUICK = "minutes_live", 5, 1
DAG = f"""\
from datetime import timedelta
from logbus.pipelines import ingest, windowed_counts

ingest(
    "{PIPELINE}", parse="json", columns={COLUMNS}, every="1m", lateness=timedelta(0), driver_idle_timeout=timedelta(minutes=5),
    dag_arguments={{"is_paused_upon_creation": False}},
)
windowed_counts("{PIPELINE}", name="{STREAM}", keys=["host"], continuous=True)
"""
PROOFS = text(
    "select audited_at, proven_at, state from logbus.stream_hour join logbus.window on starts_at = hour "
    "where stream = :stream and pipeline = :pipeline and stream_hour.record_count > 0 order by hour"
)


def run(console: Console, scale: Scale) -> Sequence[Figure]:
    is_quick = scale.share < 1
    count = WINDOWS_QUICK if is_quick else WINDOWS if scale.steady_seconds == FULL.steady_seconds else WINDOWS_OF_HOUR
    with tempfile.TemporaryDirectory(prefix="logbus-bench-", ignore_cleanup_errors=True) as scratch:
        dags = Path(scratch) / "dags"
        dags.mkdir()
        (dags / "minutes.py").write_text(DAG)
        home = Path(scratch) / "home"
        with LocalStack(home, project=project_directory(), environment=os.environ, dags=dags) as stack:
            stack.start_storage()
            with sending(stack.bootstrap_servers):
                stack.start_airflow()
                windows, missing = proven(stack, WARM_UP + count, console)
                phases = [phases_of(window, stack.airflow.api) for window in windows[WARM_UP:]]
                of_stream = stream_proofs(stack, STREAM_WINDOWS_QUICK if is_quick else STREAM_WINDOWS, console)
    for window, seconds in zip(windows[WARM_UP:], phases, strict=True):
        story = ", ".join(f"{name} {value:.2f}" for name, value in seconds.items())
        console.print(f"{window.interval.start:%H:%M}, {window.record_count:,} records: {story}", highlight=False)
    parts = [figure(f"until {name}", "s", ours=[seconds[name] for seconds in phases]) for name in phases[0] if name != PROVEN]
    return [
        figure(
            f"{count} windows of a minute, {RATE * 60:,} records each: from its end until it is proven",
            "s",
            ours=[seconds[PROVEN] for seconds in phases],
            target=Target(ours_max=5),
        ),
        figure("the slowest of them", "s", ours=[max(seconds[PROVEN] for seconds in phases)]),
        figure("windows between them that are not proven", "windows", ours=[float(missing)], target=Target(ours_max=0)),
        *parts,
        figure(
            f"a stream: from a window's audit until it is proven, the slowest of {len(of_stream)}",
            "s",
            ours=[max(of_stream)],
            target=Target(ours_max=120),
        ),
    ]


@contextmanager
def sending(bootstrap_servers: str) -> Iterator[None]:
    """Records at the rate, until the block ends."""
    producer, over = SteadyProducer({"bootstrap.servers": bootstrap_servers}, PIPELINE, RATE), threading.Event()

    def send() -> None:
        while not over.wait(SEND_SECONDS):
            producer.send_due()

    sender = threading.Thread(target=send)
    sender.start()
    try:
        yield
    finally:
        over.set()
        sender.join()
        producer.flush()


def proven(stack: LocalStack, count: int, console: Console) -> tuple[list[FrozenWindow], int]:
    """The first windows with records, in order, once so many are proven; and how many between them are not."""
    engine = connect(stack.warehouse_url)
    ledger = Ledger(engine)
    create_ledger(engine)

    def enough() -> list[FrozenWindow] | None:
        stack.raise_if_ended()
        windows = [window for window in ledger.windows(PIPELINE) if window.record_count] if ledger.pipelines() else []
        done = [number for number, window in enumerate(windows) if window.state is WindowState.AUDITED]
        return windows[: done[count - 1] + 1] if len(done) >= count else None

    try:
        seconds = PATIENCE_SECONDS + 60 * count
        windows = wait_until(enough, what=f"{count} proven windows", timeout_seconds=seconds, poll_seconds=1, say=console.print)
    finally:
        engine.dispose()
    time.sleep(TASK_ENDS_SECONDS)
    audited = [window for window in windows if window.state is WindowState.AUDITED]
    return audited, len(windows) - len(audited)


def stream_proofs(stack: LocalStack, count: int, console: Console) -> list[float]:
    """Seconds from the audit until the proof, of the first windows of a stream that begins here."""
    engine = connect(stack.warehouse_url)
    stream_ledger.define(engine, define_stream(STREAM, PIPELINE, keys=["host"], measures={"count": count_of()}), utc_now())
    places = {"LOGBUS_WAREHOUSE_URL": stack.warehouse_url, "LOGBUS_BOOTSTRAP_SERVER": stack.bootstrap_servers}
    command = [sys.executable, "-m", "logbus", "stream", "run", STREAM]
    out = stack.home / "stream.out"
    process = processes.start(command, log_path=out, env={**os.environ, **places})
    stack.airflow.api.unpause(STREAM)

    def enough() -> Sequence[Any] | None:
        stack.raise_if_ended()
        if process.poll() is not None:
            raise RuntimeError(f"the stream ended with {process.returncode}:\n{processes.tail(out)}")
        with engine.connect() as connection:
            hours = connection.execute(PROOFS, {"stream": STREAM, "pipeline": PIPELINE}).all()
        return hours if len(hours) >= count else None

    try:
        seconds = PATIENCE_SECONDS + 60 * count
        hours = wait_until(enough, what=f"{count} proofs", timeout_seconds=seconds, poll_seconds=1, say=console.print)
    finally:
        processes.stop(process)
        engine.dispose()
    if {hour.state for hour in hours} != {"proven"}:
        raise RuntimeError(f"the stream is not what was loaded: {hours}")
    return [(hour.proven_at - hour.audited_at) / timedelta(seconds=1) for hour in hours]


def phases_of(window: FrozenWindow, api: AirflowApi) -> dict[str, float]:
    """Seconds from the window's end, by what was then reached."""
    [run] = api.runs(PIPELINE, logical_date=window.interval.start.isoformat())
    [task] = api.task_instances(run)
    assert window.loaded_at is not None
    instants = {
        "its task starts": datetime.fromisoformat(task["start_date"]),
        "its rows are public": window.loaded_at,
        PROVEN: datetime.fromisoformat(task["end_date"]),  # later than the audit, which notes when it began
    }
    return {name: (at - window.interval.end) / timedelta(seconds=1) for name, at in instants.items()}
