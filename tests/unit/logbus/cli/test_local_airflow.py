from __future__ import annotations

import json
import stat
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.fernet import Fernet
from logbus.cli import local_airflow
from logbus.errors import NotInTime


def test_the_environment_is_ours_and_the_users_without_his_own_airflow(tmp_path: Path) -> None:
    settings = local_airflow.AirflowSettings(
        home=tmp_path / "airflow",
        run_directory=tmp_path / "run",
        project=Path("/project"),
        port=8123,
        database_url="postgresql+psycopg://airflow@/airflow?host=/sock",
        connections={"kafka_default": {"conn_type": "kafka", "extra": {"bootstrap.servers": "h:1"}}},
    )
    inherited = {"PATH": "/usr/bin", "AIRFLOW__CORE__EXECUTOR": "CeleryExecutor", "AIRFLOW_HOME": "/mine", "LANG": "C"}
    environment = local_airflow.airflow_environment(settings, {**inherited, "LOGBUS_AIRFLOW_HOSTS": "build.example.com"})
    assert environment["AIRFLOW__CORE__EXECUTOR"] == "LocalExecutor"
    assert environment["AIRFLOW_HOME"] != "/mine"
    assert environment["LANG"] == "C"
    assert environment["AIRFLOW__CORE__DAG_DISCOVERY_SAFE_MODE"] == "False"  # a DAG file need not hold the word "airflow"
    assert environment["LOGBUS_AIRFLOW_HOSTS"] == "127.0.0.1,localhost,build.example.com"
    Fernet(environment["AIRFLOW__CORE__FERNET_KEY"])


def test_keys_are_made_once_are_for_the_owners_eyes_and_those_of_an_older_home_stay(tmp_path: Path) -> None:
    path = tmp_path / "home" / "keys.json"
    path.parent.mkdir()
    path.write_text('{"jwt_secret": "older"}')
    made = local_airflow.kept_secrets(path, local_airflow.new_keys)
    assert local_airflow.kept_secrets(path, local_airflow.new_keys) == made
    assert (made["jwt_secret"], len(made["api_secret_key"]) >= 64) == ("older", True)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


RUN = local_airflow.ApiDagRun(dag_id="access_log", run_id="r1", state="queued")
STARTED = datetime(2026, 11, 21, 12, tzinfo=UTC)
Answers = dict[tuple[str, str], Callable[[httpx.Request], httpx.Response] | Any]


def api(answers: Answers, requests: list[httpx.Request] | None = None) -> local_airflow.AirflowApi:
    """A client whose server answers from a table of (method, path); a list holds successive responses."""

    def answer(request: httpx.Request) -> httpx.Response:
        if requests is not None:
            requests.append(request)
        if request.url.path == "/auth/token":
            assert json.loads(request.content) == {"username": "admin", "password": "sesame"}
            return httpx.Response(201, json={"access_token": "token"})
        found = answers[(request.method, request.url.path)]
        if callable(found):
            return found(request)
        if isinstance(found, list):
            found = found.pop(0)
        return found if isinstance(found, httpx.Response) else httpx.Response(200, json=found)

    return local_airflow.AirflowApi("http://airflow", "sesame", transport=httpx.MockTransport(answer))


def health(scheduler: str | None, dag_processor: str | None, triggerer: str | None) -> Answers:
    beats = {"scheduler": scheduler, "dag_processor": dag_processor, "triggerer": triggerer}
    return {("GET", "/api/v2/monitor/health"): {name: {f"latest_{name}_heartbeat": beat} for name, beat in beats.items()}}


NEW, OLD = "2026-11-21T12:00:05+00:00", "2026-11-21T11:00:00+00:00"


@pytest.mark.parametrize(
    ("beats", "is_healthy"),
    [((NEW, NEW, NEW), True), ((NEW, NEW, None), False), ((OLD, NEW, NEW), False), ((NEW, OLD, NEW), False)],
)
def test_airflow_is_healthy_when_every_component_has_beaten_since_the_start(
    beats: tuple[str | None, str | None, str | None], is_healthy: bool
) -> None:
    assert api(health(*beats)).is_healthy(STARTED) == is_healthy


def test_an_airflow_that_is_not_up_yet_neither_answers_nor_is_healthy() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    starting = local_airflow.AirflowApi("http://airflow", "sesame", transport=httpx.MockTransport(refuse))
    assert not starting.answers()
    assert not starting.is_healthy(STARTED)


def test_a_refused_request_is_told_in_airflows_words() -> None:
    answers = {("POST", "/api/v2/dags/access_log/dagRuns"): httpx.Response(404, json={"detail": "no such DAG"})}
    with pytest.raises(local_airflow.AirflowApiError, match="no such DAG"):
        api(answers).trigger("access_log")


def test_a_run_is_always_asked_for_with_a_logical_date_because_airflow_drops_the_interval_without_one() -> None:
    requests: list[httpx.Request] = []
    run = {"dag_id": "access_log", "dag_run_id": "r1", "state": "queued"}
    asked = api({("POST", "/api/v2/dags/access_log/dagRuns"): run}, requests)
    assert asked.trigger("access_log", logical_date="2015-05-17T10:00:00Z", data_interval_start="2015-05-17T10:00:00Z") == RUN
    assert json.loads(requests[-1].content)["logical_date"] == "2015-05-17T10:00:00Z"
    assert requests[-1].headers["Authorization"] == "Bearer token"


def test_an_existing_pool_is_brought_to_the_wanted_size() -> None:
    requests: list[httpx.Request] = []
    answers: Answers = {("POST", "/api/v2/pools"): httpx.Response(409, json={}), ("PATCH", "/api/v2/pools/p"): {}}
    api(answers, requests).ensure_pool("p", 1, "one at a time")
    assert [request.method for request in requests[1:]] == ["POST", "PATCH"]


def test_only_runs_that_are_not_over_are_given_up() -> None:
    requests: list[httpx.Request] = []
    runs = "/api/v2/dags/access_log/dagRuns"
    found = [{"dag_id": "access_log", "dag_run_id": name, "state": name} for name in ("running", "success", "queued", "failed")]
    answers: Answers = {
        ("GET", runs): {"dag_runs": found},
        ("PATCH", f"{runs}/running"): {},
        ("PATCH", f"{runs}/queued"): {},
    }
    api(answers, requests).give_up_active_runs("access_log")
    assert [request.url.path.rpartition("/")[2] for request in requests if request.method == "PATCH"] == ["running", "queued"]


def states(*names: str) -> list[dict[str, str]]:
    return [{"dag_id": "access_log", "dag_run_id": "r1", "state": name} for name in names]


def test_waiting_ends_with_success() -> None:
    answers: Answers = {("GET", "/api/v2/dags/access_log/dagRuns/r1"): states("queued", "running", "success")}
    assert api(answers).wait(RUN, 60).state == "success"


def slow(times: int, *, reads: bool) -> tuple[local_airflow.AirflowApi, list[str]]:
    """An Airflow that is held up this many times, and the methods that it was sent."""
    sent: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(request.method)
        if len(sent) <= times:
            raise httpx.ReadTimeout("timed out") if reads else httpx.ConnectError("refused")
        return httpx.Response(200, json={"import_errors": [], "dag_id": "d", "dag_run_id": "r", "state": "queued"})

    return api({("GET", "/api/v2/importErrors"): answer, ("POST", "/api/v2/dags/d/dagRuns"): answer}), sent


def test_a_question_is_asked_again_until_it_is_answered() -> None:
    asked, sent = slow(3, reads=True)
    assert asked.import_errors() == []
    assert sent == ["GET"] * 4


def test_a_change_is_sent_again_only_if_it_was_not_received() -> None:
    asked, sent = slow(3, reads=False)
    assert asked.trigger("d").state == "queued"
    assert sent == ["POST"] * 4
    asked, sent = slow(1, reads=True)
    with pytest.raises(local_airflow.AirflowApiError, match="whether it was done"):
        asked.trigger("d")
    assert sent == ["POST"]


def database_error(cause: str) -> httpx.Response:
    return httpx.Response(500, json={"detail": {"reason": "Database error", "orig_error": cause}})


def test_a_change_that_a_deadlock_undid_is_sent_again_and_no_other_error_of_the_database() -> None:
    victim = database_error("(psycopg2.errors.DeadlockDetected) deadlock detected\nDETAIL:  Process 2960 waits for ShareLock")
    full = database_error("(psycopg2.errors.DiskFull) could not extend file")
    requests: list[httpx.Request] = []
    answers: Answers = {("POST", "/api/v2/dags/access_log/dagRuns/r1/clear"): [victim, victim, {}, full]}
    asked = api(answers, requests)
    asked.clear_run("access_log", "r1")
    assert [request.method for request in requests[1:]] == ["POST"] * 3
    with pytest.raises(local_airflow.AirflowApiError, match="could not extend file"):
        asked.clear_run("access_log", "r1")


def test_a_failed_run_shows_the_end_of_the_failed_tasks_log() -> None:
    tasks = [
        {"task_id": "load", "state": "failed", "try_number": 3},
        {"task_id": "audit", "state": "upstream_failed", "try_number": 0},
    ]
    run = "/api/v2/dags/access_log/dagRuns/r1"
    answers: Answers = {
        ("GET", run): states("failed"),
        ("GET", f"{run}/taskInstances"): {"task_instances": tasks},
        ("GET", f"{run}/taskInstances/load/logs/3"): {"content": [{"event": "out of luck"}]},
    }
    with pytest.raises(local_airflow.RunFailed, match="load failed, audit upstream_failed") as failure:
        api(answers).wait(RUN, 60)
    assert "out of luck" in str(failure.value)


def test_a_run_that_does_not_end_is_given_up_with_its_story() -> None:
    run = "/api/v2/dags/access_log/dagRuns/r1"
    answers: Answers = {("GET", run): states("running"), ("GET", f"{run}/taskInstances"): {"task_instances": []}}
    with pytest.raises(NotInTime, match="gave up waiting for the end of access_log r1 after 0 s"):
        api(answers).wait(RUN, 0.0)


def test_a_very_long_log_line_is_cut() -> None:
    assert len(local_airflow.log_line({"event": "x" * 10_000})) == local_airflow.LOG_LINE_CHARACTERS_MAX


def test_an_error_in_a_log_line_is_named() -> None:
    error = {"exc_type": "LoadFailed", "exc_value": "short read"}
    assert local_airflow.log_line({"event": "Task failed", "error_detail": [error]}) == "Task failed LoadFailed: short read"
