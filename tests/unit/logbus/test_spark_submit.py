from __future__ import annotations

import json
import sys
from pathlib import Path

from logbus import spark_submit

from tests.support.fake_ledger import attempt_at
from tests.support.ledgers import at

URL = "postgresql://me:sesame@db/logs"


def test_the_command_names_pipeline_and_attempts_and_no_secret() -> None:
    command = spark_submit.command("p", spark_submit.application_arguments("p", [attempt_at(at(10), 3)]), master="local[3]")
    assert command[-4:] == ["--pipeline", "p", "--window", "2015-05-17T10:00:00Z=3"]
    assert command[command.index("--master") + 1] == "local[3]"
    assert "sesame" not in " ".join(command)


def test_a_load_behind_spark_connect_is_the_program_alone() -> None:
    limits = spark_submit.TaskLimits(warehouse_connections=2)
    arguments = spark_submit.application_arguments("p", [attempt_at(at(10), 3)], limits)
    command = spark_submit.command("p", arguments, is_remote=True)
    program = [sys.executable, str(spark_submit.application_path())]
    assert command == [*program, "--warehouse-connections", "2", "--pipeline", "p", "--window", "2015-05-17T10:00:00Z=3"]


def test_secrets_travel_by_environment() -> None:
    environment = spark_submit.environment(URL, {"bootstrap.servers": "b:9092", "sasl.password": "sesame"})
    assert environment["LOGBUS_WAREHOUSE_URL"] == URL
    assert json.loads(environment["LOGBUS_KAFKA_CONFIG"])["sasl.password"] == "sesame"
    assert Path(environment["PYSPARK_PYTHON"]).exists()


def test_the_application_and_its_quiet_logging_are_there() -> None:
    assert spark_submit.application_path().is_file()
    path = spark_submit.conf()["spark.driver.extraJavaOptions"].partition("log4j2.configurationFile=file://")[2]
    assert Path(path).is_file()


def test_the_workers_find_both_packages() -> None:
    roots = [Path(root) for root in spark_submit.environment(None, {})["PYTHONPATH"].split(":")]
    assert any((root / "logbus").is_dir() for root in roots)
    assert any((root / "logbus_spark").is_dir() for root in roots)
