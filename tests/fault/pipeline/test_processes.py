"""A Spark driver that outlives its task, as a real process. It costs a spark-submit; kills at each single step, and tasks
that fail after their commit, are in tests/soak/test_spark_kills.py."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest
from logbus.waiting import PATIENCE_SECONDS
from sqlalchemy import Engine, text

from spark_jobs.outcomes import LoadState
from tests.support import disturbed_load
from tests.support.ledgers import NOW, at
from tests.support.real_pipeline import HOURS, RealPipeline, secrets

pytestmark = [pytest.mark.usefixtures("without_spark"), pytest.mark.long]


def test_a_driver_that_outlives_its_task_is_refused_when_it_seals(
    two_hours: RealPipeline, engine: Engine, tmp_path: Path
) -> None:
    """Airflow kills spark-submit; the Python driver survives, everything staged. The retry loads; then the old driver goes on."""
    pipeline = two_hours
    attempts = pipeline.ledger.begin_attempts(pipeline.name, [at(number) for number in HOURS], "old", 1, NOW)
    old = disturbed_load.start(
        pipeline.name,
        attempts,
        secrets(pipeline),
        tmp_path,
        stop='create table if not exists "logbus_staging"|SELECT logbus.pipeline',
    )
    try:
        disturbed_load.wait_for(tmp_path, old)
        survivors = [child for child in psutil.Process(old.pid).children(recursive=True) if "python" in child.name()]
        assert survivors, "the driver is a process of its own"
        assert [outcome.state for outcome in pipeline.load(*HOURS)] == [LoadState.COMMITTED] * len(HOURS)
        (tmp_path / "go").touch()
        old.wait(PATIENCE_SECONDS)
    finally:
        if old.poll() is None:
            os.killpg(old.pid, signal.SIGKILL)
            old.wait(PATIENCE_SECONDS)
    assert (tmp_path / "output").read_text().count(" superseded ") == len(HOURS)
    assert pipeline.found() == pipeline.expected()
    assert [pipeline.audit(number).problems for number in HOURS] == [(), ()]
    with engine.connect() as connection:
        assert connection.execute(text("select count(*) from pg_tables where schemaname = 'logbus_staging'")).scalar_one() == 0
