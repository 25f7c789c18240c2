"""Java, Spark and Airflow on all kinds of machines: what is reported, always with advice on how to fix it."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from logbus.status import installation_checks
from logbus.status.checks import Check, Machine, ProgramOutput, Severity

JAVA_21 = 'openjdk version "21.0.4" 2024-07-16\nOpenJDK Runtime Environment'
PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}\n"


def around(
    outputs: Mapping[str, str | ProgramOutput] | None = None,
    *,
    home: Path = Path("/nowhere"),
    java: str | None = None,
    **environment: str,
) -> Machine:
    """A machine with these variables, where a program whose path ends with a key of `outputs` prints its value."""

    def run(command: Sequence[str], more: Mapping[str, str] = {}) -> ProgramOutput:
        for ending, said in (outputs or {}).items():
            if command[0].endswith(ending):
                return said if isinstance(said, ProgramOutput) else ProgramOutput(text=said, status=0)
        return ProgramOutput(text="No such file or directory", status=127)

    clock = datetime(2026, 11, 21, tzinfo=UTC)
    return Machine(clock=lambda: clock, environment=environment, home=home, run=run, which=lambda name: java)


def told(check: Check, surroundings: Machine) -> list[tuple[str, str]]:
    """Severity and message of each finding; every finding that is not OK must have advice."""
    found = list(check(surroundings))
    assert all(one.advice for one in found if one.severity is not Severity.OK)
    return [(str(one.severity), one.message) for one in found]


@pytest.mark.parametrize(
    ("surroundings", "severity", "message"),
    [
        (around({"bin/java": JAVA_21}, java="/usr/bin/java"), "ok", "21.0.4 (/usr/bin/java); JAVA_HOME is not set"),
        (around({"/j/bin/java": JAVA_21}, JAVA_HOME="/j"), "ok", "21.0.4 (/j/bin/java)"),
        (around(), "error", "no Java on the PATH"),
    ],
)
def test_java_is_there_runs_and_is_new_enough(surroundings: Machine, severity: str, message: str) -> None:
    ((found_severity, found_message),) = told(installation_checks.check_java, surroundings)
    assert found_severity == severity
    assert found_message.startswith(message)


def test_spark_is_one_version_here() -> None:
    ((severity, message),) = told(installation_checks.check_spark, around())
    assert (severity, message) == ("ok", f"pyspark and pyspark-client {installation_checks.installed('pyspark')}")


def test_two_versions_of_spark_in_one_directory_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, version in (("pyspark", "4.1.3"), ("pyspark-client", "4.2.0")):
        facts = tmp_path / f"{name.replace('-', '_')}-{version}.dist-info" / "METADATA"
        facts.parent.mkdir()
        facts.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    monkeypatch.syspath_prepend(tmp_path)
    (found,) = installation_checks.check_spark(around())
    assert "pyspark 4.1.3, pyspark-client 4.2.0" in found.message
    assert found.advice.endswith("pyspark==4.1.3 pyspark-client==4.1.3")


def test_another_spark_that_spark_home_names_wins_and_is_said(tmp_path: Path) -> None:
    (tmp_path / "jars").mkdir()
    assert ("error", f"SPARK_HOME is {tmp_path}, where there is no Spark") in told(
        installation_checks.check_spark, around(SPARK_HOME=str(tmp_path))
    )
    (tmp_path / "jars" / "spark-core_2.12-3.5.1.jar").touch()
    (_, (severity, message)) = told(installation_checks.check_spark, around(SPARK_HOME=str(tmp_path)))
    assert (severity, "spark-core_2.12-3.5.1.jar" in message) == ("warning", True)


@pytest.mark.parametrize(("said", "severity"), [(PYTHON, "ok"), ("3.4\n", "warning")])
def test_workers_of_another_python_are_said(said: str, severity: str) -> None:
    found = told(installation_checks.check_spark, around({"/opt/python": said}, PYSPARK_PYTHON="/opt/python"))
    assert found[-1][0] == severity


@pytest.mark.parametrize(
    ("said", "severity"),
    [
        (ProgramOutput(text="Welcome\n   version 4.1.3\n", status=0), "ok"),
        (ProgramOutput(text="JAVA_HOME is not set", status=1), "error"),
    ],
)
def test_spark_submit_is_started(said: ProgramOutput, severity: str) -> None:
    ((found, message),) = told(installation_checks.check_spark_submit, around({"spark-submit": said}))
    assert (found, "JAVA_HOME is not set" in message) == (severity, severity == "error")


def test_what_is_installed_here_is_what_logbus_was_made_for() -> None:
    ((severity, message),) = told(installation_checks.check_versions, around())
    assert severity == "ok"
    assert f"Python {sys.version.split()[0]}" in message


def test_a_requirement_that_is_not_met_is_an_error_with_the_version_that_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        installation_checks.metadata,
        "requires",
        lambda name: ["click>=999", "no-such-thing==1", "pyiceberg>=999; extra == 'x'", "no-such-extra; extra == 'x'"],
    )
    found = told(installation_checks.check_versions, around())
    assert [message.split(", logbus")[0].split(" is ")[0] for _, message in found] == ["click", "no-such-thing", "pyiceberg"]
    assert found[1][1] == "no-such-thing is not installed, logbus needs no-such-thing==1"


THERE = {name: {"type": kind, "place": "here"} for name, kind in installation_checks.CONNECTIONS.items()}


def airflow(tmp_path: Path, output: str | None = None, **changes: Any) -> list[tuple[str, str]]:
    """What is found in an Airflow that is well but for the changes, or whose query ends with this output."""
    (tmp_path / "airflow").mkdir(exist_ok=True)
    (tmp_path / "airflow" / "airflow.cfg").touch()
    answer = json.dumps({"connections": THERE, "has_pool": True, "skipped": [], **changes})
    said = output or f"a warning\n{installation_checks.MARK}{answer}\n"
    return told(installation_checks.check_airflow, around({Path(sys.executable).name: said}, home=tmp_path))


def test_an_airflow_that_is_not_set_up_is_not_asked(tmp_path: Path) -> None:
    assert told(installation_checks.check_airflow, around(home=tmp_path))[0][0] == "note"


def test_an_airflow_has_the_connections_and_the_pool(tmp_path: Path) -> None:
    assert [severity for severity, _ in airflow(tmp_path)] == ["ok"]
    assert airflow(tmp_path, connections={**THERE, "kafka_default": {"type": "http", "place": ""}}, has_pool=False) == [
        ("error", "connection kafka_default is of type http, not kafka"),
        ("error", "there is no pool logbus_load: loads stay in the state scheduled forever"),
    ]
    missing = airflow(tmp_path, connections={})
    assert [message for _, message in missing] == [f"there is no connection {name}" for name in installation_checks.CONNECTIONS]


def test_a_dag_that_airflow_skips_is_an_error_that_says_how_it_is_seen(tmp_path: Path) -> None:
    found = airflow(tmp_path, skipped=["/dags/web.py"])
    assert found[0] == ("error", "/dags/web.py uses logbus.pipelines, but Airflow skips it without a message")


def test_an_airflow_that_cannot_be_asked_says_why(tmp_path: Path) -> None:
    ((severity, message),) = airflow(tmp_path, "Traceback\nOperationalError: no such table: connection\n")
    assert (severity, message.endswith("OperationalError: no such table: connection")) == ("error", True)
