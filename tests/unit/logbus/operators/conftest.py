from __future__ import annotations

import json

import pytest
from airflow.providers.apache.spark.hooks import spark_submit as provider

from tests.support.airflow_context import HOUR_START, runs  # noqa: F401
from tests.support.fake_log import FakeLog
from tests.support.fake_submit import Submitted, subprocess_with

FIRST_MS = int(HOUR_START.timestamp() * 1000)


@pytest.fixture
def submitted(monkeypatch: pytest.MonkeyPatch) -> Submitted:
    """All spark-submit processes that were started."""
    started = Submitted()
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[2]"}))
    monkeypatch.setattr(provider, "subprocess", subprocess_with(started.start))
    return started


@pytest.fixture
def log() -> FakeLog:
    """Twenty records, one a minute from the hour's start on."""
    made = FakeLog.of("access_log", (FIRST_MS + 60_000 * number for number in range(20)))
    made.ids["access_log"] = "t"  # as the windows of the fake ledger have it
    return made
