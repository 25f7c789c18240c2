"""The whole platform: a real broker, PostgreSQL, Airflow and spark-submit, run to its end as a user runs it (`logbus demo`), then
started again from inside in the same place, so that what it stored can be inspected while it runs.
"""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from cryptography.fernet import Fernet
from logbus.cli.demo import CATCH_UP_DAG, PIPELINE
from logbus.loads.engine import libpq_uri
from logbus.model import LATENESS_DEFAULT
from logbus.waiting import PATIENCE_SECONDS
from sqlalchemy import make_url

from tests.support.demos import HOURS, LINES, OTHER_ADDRESS, FirstDemo, SecondDemo
from tests.support.pages import ANYTHING, PROJECT, blocks, shows


def get(demo: SecondDemo, path: str, bearer: str | None = None) -> httpx.Response:
    """As its user, unless another token is given."""
    headers = {"Authorization": f"Bearer {bearer or demo.stack.airflow.api.token()}"}
    url = f"{demo.stack.airflow.settings.url}{path}"
    return httpx.get(url, headers=headers, follow_redirects=True, timeout=PATIENCE_SECONDS, trust_env=False)


def test_the_demo_reads_every_line_audits_every_hour_and_reloads_one_identically(first: FirstDemo) -> None:
    assert first.exit_code == 0, first.output
    report = {name: value for name, value in first.report.items() if name not in {"seconds", "loaded", "dead_lettered"}}
    assert report == {"hours": HOURS, "read": LINES, "audited_hours": HOURS, "rerun_identical": True}
    assert first.report["loaded"] + first.report["dead_lettered"] == LINES


def test_the_demo_ends_as_the_readme_shows(first: FirstDemo) -> None:
    [shown] = [block.text for block in blocks(PROJECT / "README.md") if block.mark == "the end of the demo"]
    promised = re.sub(r"[0-9a-f]{16}|\d[\d,.:-]*", ANYTHING, shown)
    assert shows(first.output, f"{ANYTHING}\n{promised}{ANYTHING}\n"), first.output


def test_nothing_the_demo_started_outlives_it(first: FirstDemo) -> None:
    assert first.survivors == []


def test_every_hour_is_audited_one_was_loaded_again_and_no_row_is_there_twice(
    second: SecondDemo, rows: Callable[[str], list[Any]]
) -> None:
    assert all(window.audited_at is not None for window in second.windows)
    assert (second.reloaded.loaded_attempt or 0) >= 2
    end = second.windows[-1].interval.end  # other tests load later hours of this pipeline
    demos_hours = f"from {PIPELINE} where _window_start < '{end}'"
    [(count, distinct)] = rows(f"select count(*), count(distinct (_topic, _partition, _offset)) {demos_hours}")
    demos_letters = (
        f"from logbus.dead_letter join logbus.\"window\" on id = window_id where topic = '{PIPELINE}' and starts_at < '{end}'"
    )
    [(letters,)] = rows(f"select count(*) {demos_letters}")
    assert count == distinct
    assert count + letters == LINES


def test_the_hourly_dag_ran_its_one_task_for_the_hour(second: SecondDemo) -> None:
    api, start = second.stack.airflow.api, second.reloaded.interval.start
    [run] = api.runs(PIPELINE, logical_date=start.isoformat())
    assert run.state == "success"
    states = {task["task_id"]: task["state"] for task in api.task_instances(run)}
    assert states == {"load": "success"}


def test_the_schedules_next_run_is_due_when_its_hour_is_closed(second: SecondDemo) -> None:
    dag = second.stack.airflow.api.request("GET", f"/api/v2/dags/{PIPELINE}")
    end, due = (datetime.fromisoformat(dag[name]) for name in ("next_dagrun_data_interval_end", "next_dagrun_run_after"))
    assert due - end == LATENESS_DEFAULT


def test_airflow_shows_what_was_read_with_the_run(second: SecondDemo) -> None:
    api, after = second.stack.airflow.api, second.reloaded
    [run] = api.runs(PIPELINE, logical_date=after.interval.start.isoformat())
    loaded = api.xcom(run, "load")
    assert after.counts is not None
    assert loaded["read"] == after.counts.read
    assert loaded["windows"][0]["fingerprint"] == after.fingerprint
    assert loaded["audited"] == 1


def test_airflow_lists_the_runs_of_both_dags_and_serves_its_pages(second: SecondDemo) -> None:
    api = second.stack.airflow.api
    assert [run.state for run in api.runs(CATCH_UP_DAG)] == ["success"]
    assert get(second, f"/dags/{PIPELINE}").status_code == httpx.codes.OK
    assert get(second, "/ui/dependencies").status_code == httpx.codes.OK
    assert api.import_errors() == []


def test_airflow_offers_the_warehouses_connection_type(second: SecondDemo) -> None:
    offered = get(second, "/ui/connections/hook_meta").json()
    assert "logbus_warehouse" in {hook["connection_type"] for hook in offered}


def test_nobody_is_let_in_without_the_password_that_the_demo_has_printed(first: FirstDemo, second: SecondDemo) -> None:
    settings = second.stack.airflow.settings
    assert f"user admin, password {settings.password}" in first.output
    assert stat.S_IMODE((settings.home / "passwords.json").stat().st_mode) == 0o600
    wrong = {"username": "admin", "password": "admin"}
    answers = [
        httpx.get(f"{settings.url}/auth/token", timeout=PATIENCE_SECONDS, trust_env=False),
        httpx.post(f"{settings.url}/auth/token", json=wrong, timeout=PATIENCE_SECONDS, trust_env=False),
        get(second, "/api/v2/connections", "made up"),
    ]
    assert all(answer.is_client_error for answer in answers), answers


def test_airflow_and_the_loads_have_a_database_and_a_role_each(second: SecondDemo) -> None:
    environment = second.stack.airflow.environment
    own = environment["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"].replace("+psycopg2", "")
    assert make_url(own).username == "airflow"
    assert Fernet(environment["AIRFLOW__CORE__FERNET_KEY"])
    for url, database in ((second.stack.warehouse_url, "airflow"), (own, "logbus")):
        with pytest.raises(psycopg.OperationalError, match="permission denied for database"):
            psycopg.connect(libpq_uri(make_url(url).set(database=database)))
        with psycopg.connect(libpq_uri(url)) as connection:
            assert connection.execute("select rolsuper from pg_roles where rolname = session_user").fetchone() == (False,)


def test_sparks_tasks_had_logins_of_their_own_that_are_gone(second: SecondDemo, rows: Callable[[str], list[Any]]) -> None:
    of_jobs = "from logbus.attempt where state = 'committed' and task_logins_note is not null"
    assert rows(f"select distinct task_logins_note, task_logins {of_jobs}") == [("", None)]
    assert rows("select rolname from pg_roles where rolname like 'logbus_task\\_%'") == []


def test_no_secret_and_no_warehouse_url_is_in_the_log_of_a_load(second: SecondDemo) -> None:
    logs = list((second.stack.home / "airflow" / "logs").rglob("task_id=load/*.log"))
    assert logs
    assert not [path for path in logs if "postgresql+psycopg" in path.read_text(errors="replace")]


def test_another_machine_ships_with_what_connect_prints_and_without_it_nothing_gets_in(
    second: SecondDemo, tmp_path: Path
) -> None:
    def logbus(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        command, environment = [sys.executable, "-m", "logbus", *words], {**os.environ, **variables}
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS)

    printed = logbus("connect", "--for", "java", "--user", "shipper", LOGBUS_CLIENT_CONFIG=str(second.stack.client_file))
    assert f"bootstrap.servers={OTHER_ADDRESS}:" in printed.stdout, printed.stderr
    (tmp_path / "client.properties").write_text(printed.stdout)
    (tmp_path / "one.log").write_text("2015-05-17T10:00:00Z hello\n")
    shipped = logbus("ship", "one.log", "--topic", "from_elsewhere", "--accept-times", "--client-config", "client.properties")
    assert shipped.returncode == 0, shipped.stderr
    told = logbus("topic", "describe", "from_elsewhere", "-o", "json", LOGBUS_CLIENT_CONFIG=str(second.stack.client_file))
    assert [topic["records"] for topic in json.loads(told.stdout)] == [1]
    wrong = (tmp_path / "client.properties").read_text().replace("shipper", "admin")
    (tmp_path / "wrong.properties").write_text(wrong)
    for words in (["-b", second.stack.bootstrap_servers], ["--client-config", "wrong.properties"]):
        refused = logbus("topic", "ls", *words)
        assert (refused.returncode, refused.stdout) in ((1, ""), (4, "")), refused.stderr


def test_a_stack_where_one_runs_already_is_refused(second: SecondDemo) -> None:
    command = [sys.executable, "-m", "logbus", "demo", "--log", str(second_log(second)), "--home", str(second.stack.home.parent)]
    refused = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert refused.returncode == 1
    assert "another stack" in refused.stderr
    assert second.stack.airflow.api.answers()


def second_log(demo: SecondDemo) -> Path:
    return demo.stack.home.parent.parent / "access.log"
