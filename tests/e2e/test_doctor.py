"""`logbus doctor` while a demo runs: what it checks on the machine is present and healthy."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from logbus.waiting import PATIENCE_SECONDS

from tests.support.demos import SecondDemo

# Not the disk, which may be full here, nor the pipelines, which other tests modify.
AREAS = ("versions", "java", "spark", "spark-submit", "airflow", "broker", "clocks")


def test_the_machine_of_a_running_demo_is_well(second: SecondDemo) -> None:
    stack = second.stack
    environment = {
        **stack.airflow.environment,
        "LOGBUS_WAREHOUSE_URL": stack.warehouse_url,
        "LOGBUS_BOOTSTRAP_SERVER": stack.bootstrap_servers,
    }
    areas = [word for area in AREAS for word in ("--only", area)]
    command = [sys.executable, "-m", "logbus", "doctor", "-o", "json", *areas]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    findings = json.loads(done.stdout)
    assert [one for one in findings if one["severity"] != "ok"] == []
    assert {one["subject"] for one in findings} == set(AREAS)


def test_a_pipeline_that_airflow_does_not_see_is_named(second: SecondDemo, tmp_path: Path) -> None:
    (tmp_path / "quiet.py").write_text(
        'from logbus.pipelines import hourly_ingest\n\nhourly_ingest(pipeline="a", topic="a", table="a")\n'
    )
    environment = second.stack.airflow.environment | {
        "AIRFLOW__CORE__DAGS_FOLDER": str(tmp_path),
        "AIRFLOW__CORE__DAG_DISCOVERY_SAFE_MODE": "True",  # Airflow's default
    }
    command = [sys.executable, "-m", "logbus", "doctor", "-o", "json", "--only", "airflow"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    assert done.returncode == 5, done.stdout + done.stderr
    assert [one["message"] for one in json.loads(done.stdout) if one["severity"] == "error"] == [
        f"{tmp_path / 'quiet.py'} uses logbus.pipelines, but Airflow skips it without a message"
    ]
