"""kill -9 of a real Spark application, or of its spark-submit alone, at each numbered step of docs/exactly-once.md; and tasks
whose first attempt fails after its commit. Each test costs a spark-submit."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from logbus.waiting import PATIENCE_SECONDS
from logbus_spark.application import LoadState
from sqlalchemy import Engine, text

from tests.support import disturbed_load
from tests.support.ledgers import NOW, at
from tests.support.real_pipeline import HOURS, RealPipeline, secrets

pytestmark = pytest.mark.usefixtures("without_spark")

# The driver's position when it is killed.
STEPS = {
    "behind its first question": "SELECT logbus.attempt",
    "while staging tables are made": 'create table if not exists "logbus_staging"',
    "with staging tables and no rows": 'create table if not exists "logbus_staging"|after commit',
    "with everything staged": 'create table if not exists "logbus_staging"|after commit|SELECT logbus."window".last_attempt',
    "while a table is sealed": 'alter table "logbus_staging"',
    "with a sealed table": 'alter table "logbus_staging"|after commit',
    "inside the commit": "UPDATE logbus.window_range",
    "before the commit's end": "UPDATE logbus.window_range|before commit",
    "behind the commit of the first hour": "UPDATE logbus.window_range|after commit",
}


def begin(pipeline: RealPipeline, folder: Path, **how: str) -> subprocess.Popen[bytes]:
    attempts = pipeline.ledger.begin_attempts(pipeline.name, [at(number) for number in HOURS], "killed", 1, NOW)
    return disturbed_load.start(pipeline.name, attempts, secrets(pipeline), folder, **how)


def drivers_of(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """The Python side of the application. Processes that have since ended no longer have a command line."""
    found = []
    for child in psutil.Process(process.pid).children(recursive=True):
        with suppress(psutil.Error):
            found += [child] if any("disturbed_load" in word for word in child.cmdline()) else []
    return found


def retry(pipeline: RealPipeline) -> list[LoadState]:
    return [outcome.state for outcome in pipeline.load(*HOURS)]


def problems(pipeline: RealPipeline) -> list[str]:
    """What the audits of all hours find; first of all whether they are loaded."""
    missing = [f"hour {number} is not loaded" for number in HOURS if number not in pipeline.loaded_hours()]
    return missing + [str(problem) for number in HOURS for problem in pipeline.audit(number).problems]


def left_over(engine: Engine) -> list[str]:
    """Tables of attempts that no driver works on any longer."""
    with engine.connect() as connection:
        return list(connection.execute(text("select tablename from pg_tables where schemaname = 'logbus_staging'")).scalars())


ALL_COMMITTED = [LoadState.COMMITTED] * len(HOURS)


def assert_whole_hours_and_retry(pipeline: RealPipeline, engine: Engine) -> None:
    assert pipeline.found() == pipeline.expected(), "whole hours or none"
    assert retry(pipeline) == ALL_COMMITTED
    assert pipeline.found() == pipeline.expected()
    assert (problems(pipeline), left_over(engine)) == ([], [])


def kill_at(step: str, pipeline: RealPipeline, folder: Path, *, driver_survives: bool) -> None:
    process = begin(pipeline, folder, stop=STEPS[step])
    try:
        disturbed_load.wait_for(folder, process)
        if driver_survives:
            drivers = drivers_of(process)
            os.kill(process.pid, signal.SIGKILL)
            (folder / "go").touch()
            psutil.wait_procs(drivers, timeout=PATIENCE_SECONDS)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(PATIENCE_SECONDS)


@pytest.mark.parametrize("step", STEPS)
def test_an_application_killed_at_any_step_leaves_whole_hours(
    two_hours: RealPipeline, engine: Engine, tmp_path: Path, step: str
) -> None:
    kill_at(step, two_hours, tmp_path, driver_survives=False)
    assert_whole_hours_and_retry(two_hours, engine)


@pytest.mark.parametrize(
    "step", ["with staging tables and no rows", "with everything staged", "with a sealed table", "inside the commit"]
)
def test_a_driver_that_survives_its_spark_submit_never_makes_half_an_hour_public(
    two_hours: RealPipeline, engine: Engine, tmp_path: Path, step: str
) -> None:
    """Its JVM is killed; the driver continues alone, commits what it can or fails, and a retry settles everything."""
    kill_at(step, two_hours, tmp_path, driver_survives=True)
    assert_whole_hours_and_retry(two_hours, engine)


@pytest.mark.parametrize("how", ["kill", "fail"])
def test_tasks_that_fail_after_their_commit_are_repeated_and_count_once(
    two_hours: RealPipeline, engine: Engine, tmp_path: Path, how: str
) -> None:
    load = begin(two_hours, tmp_path, master="local[2,3]", tasks=how)
    assert load.wait(PATIENCE_SECONDS) == 0, (tmp_path / "output").read_text()[-3000:]
    assert list(tmp_path.glob("task-*")), "some task ended badly"
    assert (two_hours.found(), problems(two_hours), left_over(engine)) == (two_hours.expected(), [], [])
    assert_whole_hours_and_retry(two_hours, engine)
