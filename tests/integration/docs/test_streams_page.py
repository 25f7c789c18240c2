"""docs/how-to/streams.md, as a reader follows it: a real broker, a real warehouse, and the stream's driver in this process."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from logbus.cli import main
from logbus_spark.records import PlanSlice, pack_slices
from logbus_spark.stream_driver import StreamDriver
from logbus_spark.stream_task import EpochJob, EpochTaskResult, epoch_plans
from sqlalchemy import Engine

from tests.support.broker import AnyBroker, broker  # noqa: F401
from tests.support.in_process import driver, without_spark  # noqa: F401
from tests.support.ledgers import NOW, at
from tests.support.pages import PROJECT, blocks, shows
from tests.support.postgres import postgres_server, server_directory, warehouse_url  # noqa: F401
from tests.support.real_pipeline import RealPipeline, engine  # noqa: F401

PAGE = PROJECT / "docs" / "how-to" / "streams.md"
COLUMNS = {"url": "text", "visitor": "bigint", "at": "timestamptz"}

pytestmark = pytest.mark.usefixtures("without_spark")


def run_tasks_here(job: EpochJob, slices: Sequence[PlanSlice], config: Mapping[str, Any]) -> list[EpochTaskResult]:
    return list(epoch_plans(job, config)(iter(pack_slices(slices, 1, records_per_task_min=1))))


def count_all(pipeline: RealPipeline) -> None:
    """What `logbus stream once clicks_live` does in Spark."""
    application = driver(pipeline.ledger, pipeline.log, pipeline.client_config, lambda: NOW)
    once = StreamDriver(application=application, name="clicks_live", run_id="once", say=print, run_tasks=run_tasks_here)
    once.run(once=True)


def click(hour: float, happened: float) -> tuple[float, bytes]:
    return hour, json.dumps({"url": f"/{happened:g}", "visitor": 1, "at": at(happened).isoformat()}).encode()


def test_the_page_is_true(broker: AnyBroker, engine: Engine, tmp_path: Path) -> None:  # noqa: F811
    clicks = RealPipeline(broker.bootstrap, engine, partitions=1, parse="json", settings={"columns": COLUMNS}, name="clicks")
    clicks.send([click(number + part, number + part - 0.1) for number in (10, 11) for part in (0.2, 0.4, 0.6)])
    clicks.freeze(10)
    url = engine.url.render_as_string(hide_password=False)
    environment = {"LOGBUS_WAREHOUSE_URL": url, "LOGBUS_BOOTSTRAP_SERVER": broker.bootstrap, "COLUMNS": "200"}
    runner, printed = CliRunner(env=environment), ""
    for block in blocks(PAGE):
        if block.mark == "run":
            if block.text.startswith("logbus stream prove"):
                clicks.load(10, freeze=False)
                clicks.audit(10)
            printed = runner.invoke(main, shlex.split(block.text)[1:], catch_exceptions=False).output
        elif block.mark == "counted by the test":
            count_all(clicks)
        elif block.mark == "see":
            assert shows(printed, block.text), printed
    with engine.connect() as connection:
        live = connection.exec_driver_sql("select sum(clicks), max(last_click) from clicks_live").one()
    assert tuple(live) == (6, at(11.5))
