from __future__ import annotations

import stat
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


def test_the_users_own_airflow_does_not_leak_in_and_the_rest_of_the_environment_stays(environment: dict[str, str]) -> None:
    assert environment["AIRFLOW__CORE__EXECUTOR"] == "LocalExecutor"
    assert environment["AIRFLOW_HOME"] != "/mine"
    assert environment["LANG"] == "C"


def test_airflow_reads_every_dag_file_whatever_words_are_in_it(environment: dict[str, str]) -> None:
    assert environment["AIRFLOW__CORE__DAG_DISCOVERY_SAFE_MODE"] == "False"


def test_the_api_server_is_told_the_names_it_answers_to(environment: dict[str, str]) -> None:
    assert environment["LOGBUS_AIRFLOW_HOSTS"] == "127.0.0.1,localhost,build.example.com"


def test_keys_are_made_once_and_are_for_the_owners_eyes(tmp_path: Path) -> None:
    path = tmp_path / "home" / "keys.json"
    made = instance_keys(path)
    assert instance_keys(path) == made
    assert len(made["jwt_secret"]) >= 64
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
