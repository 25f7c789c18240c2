from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import psutil
import pytest
from airflow.sdk import DAG, TaskGroup
from airflow.sdk.exceptions import AirflowFailException
from airflow.serialization.serialized_objects import DagSerialization
from logbus import spark_submit
from logbus.errors import LoadFailed, TopicRecreated, UserError
from logbus.model import Interval, Pipeline, TaskKey
from logbus.operators import load_window
from logbus.operators.freeze_window import FreezeWindowOperator
from logbus.operators.load_window import LoadWindowOperator, ReplayOperator
from logbus.status.replay import ReplayPlan, ReplayWindow, Span

from tests.support.airflow_context import ASKED_AT, HOUR_START, run_context
from tests.support.fake_hooks import offline
from tests.support.fake_ledger import FakeLedger, window
from tests.support.fake_submit import Submitted

Load = Callable[..., dict[str, Any]]
SECRETS = ("warehouse-password", "broker-password")


@pytest.fixture
def failing(submitted: Submitted, ledger: FakeLedger) -> None:
    """The application fails and loads nothing."""
    submitted.exit_code, ledger.loads = 1, False


def operator(pipeline: Pipeline, ledger: FakeLedger, **arguments: Any) -> LoadWindowOperator:
    return offline(LoadWindowOperator(task_id="load", pipeline=pipeline, **arguments), ledger)


@pytest.fixture
def load(pipeline: Pipeline, ledger: FakeLedger, submitted: Submitted) -> Load:
    """Runs the task, with these arguments of its author."""
    return lambda context, **arguments: operator(pipeline, ledger, **arguments).execute(context)


def test_a_parser_of_the_users_own_is_imported_anew_by_each_load(
    pipeline: Pipeline, ledger: FakeLedger, submitted: Submitted
) -> None:
    """A driver that stays would go on with the parser that it has imported."""
    own = replace(pipeline, parse="mine:Parser")
    operator(own, ledger, driver_idle_timeout=timedelta(minutes=5)).execute(run_context())  # type: ignore[arg-type]
    assert "--stay" not in submitted[0].command


def test_the_attempt_is_taken_before_submit_and_handed_over(load: Load, ledger: FakeLedger, submitted: Submitted) -> None:
    load(run_context(try_number=3))
    assert ledger.begun == [([HOUR_START], "manual__1", 3)]
    assert (ledger.dags, ledger.tasks) == ([("access_log", "access_log")], [TaskKey(dag_id="access_log", task_id="load")])
    command = submitted[0].command
    assert command[-4:] == ["--pipeline", "access_log", "--window", "2015-05-17T10:00:00Z=1"]


def test_a_load_registers_the_pipeline_as_its_dag_defines_it(load: Load, pipeline: Pipeline, ledger: FakeLedger) -> None:
    """As the freeze does: if only the load is cleared after its DAG was edited, it runs the new parser."""
    load(run_context())
    assert (ledger.registered, ledger.begun_as) == ([pipeline], [pipeline])


@pytest.fixture
def dag() -> DAG:
    """Created before submitting is faked: the first DAG in a process runs `file` to find out about its interpreter."""
    return DAG("access_log")


def test_tasks_of_one_dag_that_define_a_pipeline_differently_are_refused(
    dag: DAG, pipeline: Pipeline, ledger: FakeLedger, submitted: Submitted
) -> None:
    with dag:
        load = operator(pipeline, ledger)
        FreezeWindowOperator(task_id="freeze", pipeline=replace(pipeline, parse="raw"))
    with pytest.raises(AirflowFailException, match="parse: combined against raw"):
        load.execute({**run_context(), "dag": dag})
    assert (ledger.registered, ledger.begun) == ([], [])


AUTHORS = {"pool": "mine", "driver_memory": "4g", "conf": {"spark.ui.enabled": "true"}, "name": "nightly"}


def test_what_the_author_gives_wins_over_our_defaults(pipeline: Pipeline) -> None:
    """Given to the task, or in default_args of the DAG or of a task group."""
    with DAG("clicks", schedule=None, default_args=AUTHORS):
        of_dag = LoadWindowOperator(task_id="load", pipeline=pipeline)
        with TaskGroup("group", default_args={"pool": "group's"}):
            of_group = LoadWindowOperator(task_id="load", pipeline=pipeline)
        given = LoadWindowOperator(task_id="given", pipeline=pipeline, pool="given", default_args={"driver_memory": "2g"})
    assert (of_dag.pool, of_dag._driver_memory, of_dag.name, of_dag.conf["spark.ui.enabled"]) == ("mine", "4g", "nightly", "true")
    assert (of_group.pool, of_group._driver_memory) == ("group's", "4g")
    assert (given.pool, given._driver_memory) == ("given", "2g")


def test_without_a_word_of_the_author_loads_keep_to_their_pool(pipeline: Pipeline) -> None:
    load = LoadWindowOperator(task_id="load", pipeline=pipeline)
    assert (load.pool, load._driver_memory, load.name) == ("logbus_load", "512m", "logbus load access_log")


@pytest.mark.parametrize(
    ("default_args", "arguments", "pool"),
    [({}, {}, "logbus_load"), ({"pool": "mine"}, {}, "mine"), ({"pool": "mine"}, {"pool": "given"}, "given")],
)
def test_a_mapped_load_is_scheduled_in_its_pool(
    pipeline: Pipeline, default_args: dict[str, Any], arguments: dict[str, Any], pool: str
) -> None:
    """Otherwise as many Spark drivers as Airflow has slots would start at once."""
    with DAG("clicks", schedule=None, default_args=default_args) as dag:
        LoadWindowOperator.partial(task_id="load", pipeline=pipeline, **arguments).expand(windows=[["a"], ["b"]])
    assert DagSerialization.from_dict(DagSerialization.to_dict(dag)).get_task("load").pool == pool
    assert dag.get_task("load").unmap({"windows": ["a"]}).pool == pool


@pytest.mark.parametrize("number", ["84", None, 0, -3, 1.5, True])
def test_a_number_of_windows_that_means_nothing_is_refused_when_the_dag_is_parsed(pipeline: Pipeline, number: Any) -> None:
    with pytest.raises(UserError, match="max_windows_per_application is a number of windows, 1 or more"):
        LoadWindowOperator(task_id="load", pipeline=pipeline, max_windows_per_application=number)


def test_what_tasks_may_take_is_told_the_application_and_may_be_a_default(
    pipeline: Pipeline, ledger: FakeLedger, submitted: Submitted
) -> None:
    with DAG("clicks", schedule=None, default_args={"warehouse_connections": 8}):
        operator(pipeline, ledger, max_task_bytes=5).execute(run_context())
    assert submitted[0].command[-8:-4] == ["--max-task-bytes", "5", "--warehouse-connections", "8"]
    with pytest.raises(UserError, match="warehouse_connections is a number, 1 or more, not 0"):
        LoadWindowOperator(task_id="load", pipeline=pipeline, warehouse_connections=0)


def test_many_windows_go_into_one_application(load: Load, submitted: Submitted) -> None:
    windows = [(HOUR_START + timedelta(hours=hour)).isoformat() for hour in range(84)]
    result = load(run_context(), windows=windows)
    assert len(submitted) == 1
    assert submitted[0].command.count("--window") == 84
    assert (result["read"], result["loaded"], result["dead_lettered"], len(result["windows"])) == (840, 756, 84, 84)


NEXT_HOURS = [HOUR_START + timedelta(hours=number) for number in range(1, 12)]


def test_very_many_windows_go_into_one_application_after_another(load: Load, ledger: FakeLedger, submitted: Submitted) -> None:
    """The length of a command line is limited."""
    most = spark_submit.WINDOWS_PER_APPLICATION_MAX
    hours = [HOUR_START + timedelta(hours=number) for number in range(2 * most + 1)]
    load(run_context(), windows=[hour.isoformat() for hour in hours])
    assert [begun for begun, _, _ in ledger.begun] == [hours[:most], hours[most : 2 * most], hours[2 * most :]]
    assert len(submitted) == 3


def test_the_first_of_a_backfill_loads_the_hours_of_those_that_wait_beside_it(
    load: Load, ledger: FakeLedger, submitted: Submitted
) -> None:
    result = load(run_context(waiting=NEXT_HOURS))
    assert [starts for starts, _, _ in ledger.begun] == [[HOUR_START, *NEXT_HOURS]]
    assert [part.start for part in ledger.frozen] == NEXT_HOURS
    assert submitted[0].command.count("--window") == 12
    assert [part["start"] for part in result["windows"]] == ["2015-05-17T10:00:00Z"]
    assert result["adopted"] is False


def test_the_others_find_their_hour_loaded_and_start_nothing(load: Load, ledger: FakeLedger, submitted: Submitted) -> None:
    ledger.loaded_at[HOUR_START] = ASKED_AT + timedelta(seconds=1)
    result = load(run_context(waiting=NEXT_HOURS))
    assert result["adopted"] is True
    assert (ledger.begun, submitted) == ([], [])
    assert load(run_context(asked_at=ASKED_AT + timedelta(seconds=1)))["adopted"] is False


def test_a_run_of_the_schedule_loads_the_hours_before_it_that_are_missing_and_names_them_for_the_audit(
    load: Load, ledger: FakeLedger, submitted: Submitted
) -> None:
    missing = [HOUR_START - timedelta(hours=number) for number in (3, 2)]
    ledger.closed = [Interval.hour(start) for start in missing]
    ledger.unaudited = {HOUR_START, *missing}
    result = load(run_context(run_type="scheduled"), fill_gaps=True)
    assert ledger.begun == [([HOUR_START, *missing], "manual__1", 1)]
    assert len(submitted) == 1
    assert result["filled"] == ["2015-05-17T07:00:00Z", "2015-05-17T08:00:00Z"]
    assert len(result["windows"]) == 1


@pytest.mark.parametrize(("run_type", "fills"), [("manual", True), ("backfill", True), ("scheduled", False)])
def test_a_run_that_somebody_asked_for_loads_what_was_asked_for_and_no_more(
    load: Load, ledger: FakeLedger, run_type: str, fills: bool
) -> None:
    ledger.closed = [Interval.hour(HOUR_START - timedelta(hours=2))]
    result = load(run_context(run_type=run_type), fill_gaps=fills)
    assert (ledger.begun, result["filled"]) == ([([HOUR_START], "manual__1", 1)], [])


def test_one_application_takes_only_as_many_hours_as_it_may(load: Load, ledger: FakeLedger) -> None:
    load(run_context(waiting=NEXT_HOURS), max_windows_per_application=4)
    load(run_context(waiting=NEXT_HOURS), max_windows_per_application=1)
    assert [starts for starts, _, _ in ledger.begun] == [[HOUR_START, *NEXT_HOURS[:3]], [HOUR_START]]


def test_somebody_elses_bad_hour_does_not_fail_ours(load: Load, ledger: FakeLedger, submitted: Submitted) -> None:
    submitted.exit_code = 1  # the application's status when one of its windows failed
    assert load(run_context(waiting=NEXT_HOURS))["adopted"] is False
    assert ledger.failed


@pytest.mark.usefixtures("failing")
def test_our_own_bad_hour_fails_us_whatever_became_of_the_others(load: Load) -> None:
    with pytest.raises(LoadFailed):
        load(run_context(waiting=NEXT_HOURS))


def test_secrets_travel_in_the_environment_and_nowhere_else(pipeline: Pipeline, ledger: FakeLedger, submitted: Submitted) -> None:
    load = operator(pipeline, ledger)
    load.execute(run_context())
    environment = submitted[0].env
    assert all(any(secret in value for value in environment.values()) for secret in SECRETS)
    assert environment["PYSPARK_PYTHON"] == sys.executable
    seen_by_anyone = [*submitted[0].command, *(str(getattr(load, field)) for field in load.template_fields)]
    assert not [text for text in seen_by_anyone if any(secret in text for secret in SECRETS)]


@pytest.mark.usefixtures("failing")
def test_a_failed_application_is_told_by_its_last_lines_and_noted_in_the_ledger(load: Load, ledger: FakeLedger) -> None:
    with pytest.raises(LoadFailed, match="out of luck") as failure:
        load(run_context())
    assert "--pipeline" not in str(failure.value)
    [(attempts, error)] = ledger.failed
    assert [attempt.number for attempt in attempts] == [1]
    assert "out of luck" in error


@pytest.mark.usefixtures("failing")
def test_an_hour_of_which_too_much_does_not_parse_is_not_retried(load: Load, ledger: FakeLedger) -> None:
    ledger.too_much.append("7 of 10 records cannot be parsed")
    with pytest.raises(AirflowFailException, match="7 of 10"):
        load(run_context())


@pytest.mark.parametrize(("said", "accepted"), [(True, [HOUR_START]), ("True", [HOUR_START]), (False, []), ("False", [])])
def test_other_records_are_accepted_for_the_hours_of_the_run_that_says_so_and_not_for_those_beside_it(
    load: Load, ledger: FakeLedger, said: bool | str, accepted: list[datetime]
) -> None:
    load(run_context(waiting=NEXT_HOURS), accept_other_records=said)
    assert ledger.accepted == accepted
    assert len(ledger.begun[0][0]) == 1 + len(NEXT_HOURS)


def test_a_recreated_topic_is_not_retried(load: Load, ledger: FakeLedger, submitted: Submitted) -> None:
    ledger.refused = {HOUR_START: TopicRecreated("another topic id")}
    with pytest.raises(AirflowFailException, match="another topic id"):
        load(run_context())
    assert submitted == []


def test_a_master_that_would_show_secrets_on_its_command_line_is_refused(
    load: Load, submitted: Submitted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "yarn"}))
    with pytest.raises(UserError, match="credentials_in_environment=False"):
        load(run_context())
    assert submitted == []
    load(run_context(), credentials_in_environment=False)
    assert not [word for word in submitted[0].command if any(secret in word for secret in SECRETS)]


def test_on_kill_ends_the_driver_below_spark_submit_too(
    pipeline: Pipeline, ledger: FakeLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[2]"}))
    load = operator(pipeline, ledger)
    load._hook = load._get_hook()
    program = "import subprocess, sys; child = subprocess.Popen(['sleep', '600']); print(child.pid, flush=True); child.wait()"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None
        driver = psutil.Process(int(launcher.stdout.readline()))
        load._hook._submit_sp = launcher
        load.on_kill()
        assert launcher.wait(10) != 0
        _, alive = psutil.wait_procs([driver], timeout=10)
        assert alive == []


HOURS = [HOUR_START + timedelta(hours=number) for number in range(3)]
Replayed = Callable[..., dict[str, Any]]


class FakePlan:
    """Keeps the span it was called with; the window of the second hour may be lost."""

    def __init__(self, lost: tuple[str, ...] = ()) -> None:
        self.lost = lost
        self.asked: list[tuple[Span, str]] = []

    def __call__(self, ledger: object, log: object, name: str, span: Span, now: datetime, run_id: str) -> ReplayPlan:
        self.asked.append((span, run_id))
        windows = [ReplayWindow(window=window(hour, attempt=1), lost=self.lost if hour == HOURS[1] else ()) for hour in HOURS]
        return ReplayPlan(pipeline=name, windows=tuple(windows))


@pytest.fixture
def replayed(monkeypatch: pytest.MonkeyPatch, pipeline: Pipeline, ledger: FakeLedger, submitted: Submitted) -> Replayed:
    """Runs the operator with a plan; the application it starts loads the attempts begun in the ledger."""

    def run(plan: FakePlan, **arguments: Any) -> dict[str, Any]:
        monkeypatch.setattr(load_window.replay, "plan", plan)
        result: dict[str, Any] = offline(ReplayOperator(task_id="replay", pipeline=pipeline, **arguments), ledger).execute(
            run_context()
        )
        return result

    return run


def loaded(ledger: FakeLedger) -> list[list[datetime]]:
    return [starts for starts, _, _ in ledger.begun]


def test_it_loads_the_windows_of_the_span(replayed: Replayed, ledger: FakeLedger) -> None:
    plan = FakePlan()
    result = replayed(plan, since="2015-05-17T10:00:00Z", until="None")
    assert (result["read"], result["starts"]) == (30, ["2015-05-17T10:00:00Z", "2015-05-17T11:00:00Z", "2015-05-17T12:00:00Z"])
    assert plan.asked == [(Span(since=HOUR_START), "manual__1")]
    assert loaded(ledger) == [HOURS]


def test_it_loads_the_windows_that_are_named(replayed: Replayed, ledger: FakeLedger) -> None:
    plan = FakePlan()
    replayed(plan, windows=["2015-05-17T10:00:00Z"])
    assert plan.asked[0][0] == Span(starts=(HOUR_START,))


def test_a_lost_window_fails_it_at_once_or_is_left_out(replayed: Replayed, ledger: FakeLedger) -> None:
    plan = FakePlan(lost=("access_log-0 [0, 9)",))
    with pytest.raises(AirflowFailException, match="access_log-0"):
        replayed(plan, since="2015-05-17T10:00:00Z")
    assert loaded(ledger) == []
    replayed(plan, since="2015-05-17T10:00:00Z", skip_lost=True)
    assert loaded(ledger) == [[HOURS[0], HOURS[2]]]


def test_without_a_span_it_never_takes_the_runs_own_window(replayed: Replayed, ledger: FakeLedger) -> None:
    with pytest.raises(UserError, match="say which windows"):
        replayed(FakePlan())
