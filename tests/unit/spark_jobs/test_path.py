from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from logbus.spark_submit import application_path, environment, pyspark_home


def test_a_load_imports_pyspark_compiled_although_spark_submit_puts_its_archive_first() -> None:
    archives = [str(path) for path in (Path(pyspark_home()) / "python" / "lib").glob("*.zip")]
    # As spark-submit runs it: nothing of the package is imported before.
    imported = f"import runpy; runpy.run_path({str(application_path())!r})"
    program = f"{imported}; import pyspark, py4j; print(pyspark.__file__, py4j.__file__)"
    path = os.pathsep.join([*archives, environment(None, {})["PYTHONPATH"]])
    found = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=True
    )
    assert len(archives) == 2
    assert not [place for place in found.stdout.split() if ".zip" in place]


def modules_after(program: str) -> set[str]:
    """What a new process has imported in the end."""
    ended = subprocess.run(
        [sys.executable, "-c", f"{program}\nimport sys; print(*sys.modules)"],
        env={**os.environ, "PYTHONPATH": environment(None, {})["PYTHONPATH"]},
        capture_output=True,
        text=True,
        check=True,
    )
    return set(ended.stdout.split())


def test_python_workers_of_spark_start_without_what_no_task_needs() -> None:
    heavy = {"pandas", "sqlalchemy", "psycopg", "airflow", "httpx", "fastavro", "google.protobuf"}
    arrays = "import logbus_spark.worker_daemon as daemon; daemon.load_task.keep_pandas_out(); import pyarrow; pyarrow.array([1])"
    assert not modules_after(arrays) & heavy
    # Files are written by Arrow; tables and catalogs are the driver's.
    assert not modules_after("import logbus_spark.sinks.iceberg") & (heavy | {"pyiceberg"})


def test_a_driver_of_loads_starts_without_what_only_schemas_need() -> None:
    assert not modules_after("import logbus_spark.load_windows") & {"pandas", "airflow", "httpx", "fastavro", "google.protobuf"}


def test_a_program_whose_workers_had_no_pandas_may_have_it_later() -> None:
    assert "pandas" in modules_after("from logbus_spark.load_task import keep_pandas_out; keep_pandas_out(); import pandas")
