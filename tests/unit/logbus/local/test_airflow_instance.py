from __future__ import annotations

import json
import stat
import sys
from pathlib import Path

import pytest
from logbus.local.airflow_instance import AirflowSettings, airflow_environment, instance_keys


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    settings = AirflowSettings(
        home=tmp_path / "airflow",
        run_directory=tmp_path / "run",
        project=Path("/project"),
        port=8123,
        database_url="postgresql+psycopg://postgres@/airflow?host=/sock",
        connections={"kafka_default": {"conn_type": "kafka", "extra": {"bootstrap.servers": "h:1"}}},
    )
    inherited = {"PATH": "/usr/bin", "AIRFLOW__CORE__EXECUTOR": "CeleryExecutor", "AIRFLOW_HOME": "/mine", "LANG": "C"}
    inherited["LOGBUS_AIRFLOW_HOSTS"] = "build.example.com"
    return airflow_environment(settings, inherited)


def test_both_sides_of_airflow_reach_the_database_through_its_socket(environment: dict[str, str]) -> None:
    assert environment["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"] == "postgresql+psycopg2://postgres@/airflow?host=%2Fsock"
    assert environment["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_ASYNC"] == "postgresql+asyncpg://postgres@/airflow?host=%2Fsock"


def test_the_users_own_airflow_does_not_leak_in_and_the_rest_of_the_environment_stays(environment: dict[str, str]) -> None:
    assert environment["AIRFLOW__CORE__EXECUTOR"] == "LocalExecutor"
    assert environment["AIRFLOW_HOME"] != "/mine"
    assert environment["LANG"] == "C"


def test_airflow_reads_every_dag_file_whatever_words_are_in_it(environment: dict[str, str]) -> None:
    assert environment["AIRFLOW__CORE__DAG_DISCOVERY_SAFE_MODE"] == "False"


def test_tasks_find_our_spark_submit_first(environment: dict[str, str]) -> None:
    assert environment["PATH"].split(":") == [str(Path(sys.executable).parent), "/usr/bin"]


def test_connections_travel_as_json(environment: dict[str, str]) -> None:
    assert json.loads(environment["AIRFLOW_CONN_KAFKA_DEFAULT"])["extra"] == {"bootstrap.servers": "h:1"}


def test_everything_points_at_the_chosen_port(environment: dict[str, str]) -> None:
    assert environment["AIRFLOW__CORE__EXECUTION_API_SERVER_URL"] == "http://127.0.0.1:8123/execution/"
    assert environment["AIRFLOW__API__PORT"] == "8123"


def test_the_api_server_is_told_the_names_it_answers_to(environment: dict[str, str]) -> None:
    assert environment["LOGBUS_AIRFLOW_HOSTS"] == "127.0.0.1,localhost,build.example.com"


def test_keys_are_made_once_and_are_for_the_owners_eyes(tmp_path: Path) -> None:
    path = tmp_path / "home" / "keys.json"
    made = instance_keys(path)
    assert instance_keys(path) == made
    assert len(made["jwt_secret"]) >= 64
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
