"""The tutorial's last step: the DAG that its reader writes, in the Airflow that the demo left running."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from logbus.model import HOUR, Interval
from logbus.shipper.sample import write_sample
from logbus.shipper.ship import ship
from logbus.waiting import PATIENCE_SECONDS

from tests.support.airflow_runs import ask_for_run
from tests.support.demos import SecondDemo

LINES = 100
LAST_HOUR = datetime(2015, 5, 20, 23, tzinfo=UTC)


def test_the_tutorials_dag_loads_and_audits_an_hour(second: SecondDemo, tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    write_sample(log, lines=LINES, hours=1, end=LAST_HOUR + HOUR)
    ship([log], topic="web", client_config=second.stack.client_config, state_path=tmp_path / "state.json")
    api = second.stack.airflow.api
    run = api.wait(ask_for_run(api, "web", Interval(LAST_HOUR, LAST_HOUR + HOUR)), PATIENCE_SECONDS)
    api.pause("web")
    assert (api.xcom(run, "load")["read"], api.xcom(run, "audit")["audited"]) == (LINES, 1)
