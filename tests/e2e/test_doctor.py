"""`logbus doctor` where a demo runs: everything it looks at is there and well."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.support.demos import SecondDemo


def test_a_running_demo_is_well_in_every_area(second: SecondDemo) -> None:
    stack = second.stack
    environment = {
        **stack.airflow.environment,
        "LOGBUS_WAREHOUSE_URL": stack.warehouse_url,
        "LOGBUS_BOOTSTRAP_SERVER": stack.bootstrap_servers,
    }
    command = [sys.executable, "-m", "logbus", "doctor", "-o", "json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    findings = json.loads(done.stdout)
    assert [one for one in findings if one["severity"] == "error"] == []
    assert done.returncode == 0
    well = {one["subject"] for one in findings if one["severity"] == "ok"}
    assert {"versions", "java", "spark", "spark-submit", "airflow", "broker", "clocks"} <= well
