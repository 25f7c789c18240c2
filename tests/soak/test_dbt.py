"""The example for dbt's microbatch, with a real dbt on a real table: the batch of an hour holds that hour, and no other is touched."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag
from logbus.cli.stack import project_directory
from logbus.loads.engine import connect
from logbus.loads.sinks import sink_for
from logbus.model import Pipeline
from sqlalchemy import make_url, text

from scripts.grid import uv_program

# The newest that are wheels: dbt-core 1.12 fetches a program from elsewhere when it is installed.
DBT = ("dbt-core>=1.9,<1.12", "dbt-postgres>=1.9,<1.11")
EXAMPLE = project_directory() / "dags" / "examples" / "dbt_microbatch.py"
VIEW = "insert into page_views (_topic, _partition, _offset, _window_start, _fingerprint, url, visitor) values ('t', 0, {}, '{}', 5, '{}', 1)"


@pytest.fixture
def dbt() -> Iterator[Path]:
    """The folder of an environment's programs; gone after the test."""
    with TemporaryDirectory(prefix="logbus-dbt-") as folder:
        uv, python = uv_program(), f"{folder}/bin/python"
        subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, folder], check=True)
        subprocess.run([uv, "pip", "install", "--quiet", "--no-config", "--python", python, *DBT], check=True)
        yield Path(folder, "bin")


def test_a_batch_of_dbt_holds_its_proven_hour_and_no_other(dbt: Path, warehouse_url: str, tmp_path: Path) -> None:
    url, engine = make_url(warehouse_url), connect(warehouse_url)
    pipeline = Pipeline(name="page_views", topic="t", table="page_views", parse="raw")
    sink_for(pipeline, engine).ensure_target({"url": "text", "visitor": "bigint"})

    def execute(*statements: str) -> None:
        with engine.begin() as connection:
            for statement in statements:
                connection.execute(text(statement))

    def batches() -> list[tuple[Any, ...]]:
        query = "select to_char(_window_start, 'HH24'), url, views from page_views_by_hour order by 1, 2"
        with engine.connect() as connection:
            return [tuple(row) for row in connection.execute(text(query))]

    def run(partition_key: str) -> None:
        command = DagBag(EXAMPLE, load_op_links=False).dags["page_views_dbt"].get_task("batch").python_callable(partition_key)
        server = {"PGHOST": str(url.host or url.query["host"]), "PGPORT": str(url.port or 5432), "PGDATABASE": str(url.database)}
        environment = {
            **os.environ,
            **server,
            "PGUSER": str(url.username),
            "DBT_TARGET_PATH": str(tmp_path),
            "DBT_LOG_PATH": str(tmp_path),
        }
        ended = subprocess.run(
            [str(dbt / shlex.split(command)[0]), *shlex.split(command)[1:]], env=environment, capture_output=True, text=True
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr

    for number in (9, 10, 11):
        hour = f"2015-05-17T{number:02}:00:00Z"
        execute(
            f"create table page_views_{number} partition of page_views for values from ('{hour}') to ('2015-05-17T{number + 1}:00:00Z')",
            VIEW.format(number, hour, "/a"),
        )
    run("2015-05-17T10:00:00")
    assert batches() == [("10", "/a", 1)]
    run("2015-05-17T09:00:00")
    execute(VIEW.format(20, "2015-05-17T10:00:00Z", "/a"), VIEW.format(21, "2015-05-17T09:00:00Z", "/b"))
    run("2015-05-17T10:00:00")  # proven again
    assert batches() == [("09", "/a", 1), ("10", "/a", 2)]
