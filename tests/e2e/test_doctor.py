"""`logbus doctor` where a demo runs: what it looks at on the machine is there and well."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.support.demos import SecondDemo

# Not the disk, which may be full here, nor the pipelines, which other tests play with.
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
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    findings = json.loads(done.stdout)
    assert [one for one in findings if one["severity"] != "ok"] == []
    assert {one["subject"] for one in findings} == set(AREAS)
