"""Loads by every cluster manager: a first run, a retry, a clear, a kill, a backfill. What the manager remembers decides nothing.

The operator, the Spark provider, the ledger and the table are the real ones; the cluster is tests.support.resource_managers,
whose drivers run the load's own code here, over a log in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException
from logbus.errors import LoadFailed, LogbusError, UserError
from logbus.operators.load_window import LoadWindowOperator
from logbus.waiting import wait_until
from logbus_spark.application import LoadState

from tests.support.airflow_context import run_context
from tests.support.cluster_loads import HOUR, PIPELINE, StartTask, Task, nothing, tokens
from tests.support.ledgers import NOW, at
from tests.support.resource_managers import IN_CLIENT_MODE, Manager

pytestmark = pytest.mark.usefixtures("without_spark")

EVERY_MANAGER = [manager for manager in Manager if manager is not Manager.STANDALONE]  # which runs no Python program
TRACKED = [Manager.YARN_TRACKED, Manager.KUBERNETES_TRACKED]
NEAR_AND_FAR = pytest.mark.parametrize(
    "task", [Manager.CLIENT, Manager.YARN, Manager.KUBERNETES_TRACKED], ids=lambda manager: manager.value, indirect=True
)


@pytest.fixture(params=EVERY_MANAGER, ids=lambda manager: manager.value)
def task(request: pytest.FixtureRequest, start_task: StartTask) -> Task:
    return start_task(request.param)


def test_a_first_run_loads_its_hour(task: Task) -> None:
    result = task.run()
    assert (result["read"], result["adopted"]) == (5, False)
    assert (task.loaded_by, task.states()) == (1, ["committed"])


def test_a_clear_submits_anew_and_loads_again(task: Task) -> None:
    """The cluster manager, and Airflow's state of the task, still have a driver that ended successfully."""
    task.run()
    task.clear()
    assert task.run()["adopted"] is False
    assert (task.loaded_by, task.states(), task.rows()) == (2, ["committed"] * 2, 4)
    assert [tokens(driver.arguments) for driver in task.cluster.drivers.values()][1:] in ([], [["2015-05-17T10:00:00Z=2"]])


def test_a_retry_after_a_failed_driver_submits_anew(task: Task) -> None:
    with pytest.raises(LoadFailed):
        task.run(lambda arguments: 1)
    assert task.states() == ["failed"]
    task.run()
    assert (task.loaded_by, task.states()) == (2, ["failed", "committed"])


@pytest.mark.parametrize("manager", TRACKED, ids=lambda manager: manager.value)
def test_a_retry_does_not_adopt_the_driver_of_a_try_that_died(start_task: StartTask, manager: Manager) -> None:
    """The worker was lost; the driver it submitted is fenced by the retry's attempt, and ends without a commit."""
    task = start_task(manager)
    (first,) = task.world.ledger.begin_attempts("p", [at(HOUR)], "manual__1", 1, NOW)
    orphan = task.cluster.submitted(["--pipeline", "p", "--window", first.token])
    namespace = "spark:" if manager is Manager.KUBERNETES_TRACKED else ""
    task.store.set("spark_job_id", namespace + orphan.id)
    task.try_number = 1
    task.run()
    assert (task.loaded_by, task.states()) == (2, ["superseded", "committed"])
    assert [outcome.state for outcome in task.outcomes(orphan.arguments)] == [LoadState.SUPERSEDED]


def test_a_driver_that_ends_well_without_a_commit_fails_the_task_and_cannot_commit_later(task: Task) -> None:
    with pytest.raises(LoadFailed, match=r"2015-05-17T10:00:00Z: attempt 1 is failed \(the Spark application ended"):
        task.run(nothing)
    assert (task.loaded_by, task.states()) == (None, ["failed"])
    (outcome,) = task.outcomes(["--window", "2015-05-17T10:00:00Z=1"])
    assert (outcome.state, task.loaded_by) == (LoadState.SUPERSEDED, None)


def test_a_reload_that_commits_nothing_does_not_pass_for_the_load_before(task: Task) -> None:
    task.run()
    task.clear()
    with pytest.raises(LoadFailed, match="attempt 2 is failed"):
        task.run(nothing)
    assert (task.loaded_by, task.rows()) == (1, 4)


def test_a_driver_called_failed_after_its_commit_has_loaded_its_hour(task: Task, capsys: pytest.CaptureFixture[str]) -> None:
    """spark-submit lost its cluster manager, or the JVM died while exiting."""
    assert task.run(lambda arguments: task.load(arguments) or 1)["read"] == 5
    assert task.states() == ["committed"]
    assert "The windows are loaded, although the application failed" in capsys.readouterr().out


def test_a_kill_ends_the_driver_of_this_try_and_no_other_and_it_cannot_commit(task: Task) -> None:
    with pytest.raises(LoadFailed):
        task.run(lambda arguments: 1)
    ended: list[LoadState] = []

    def killed_while_it_loads(arguments: Sequence[str]) -> int:
        assert task.operator is not None
        wait_until(lambda: knows_its_driver(task), what="the driver's id", poll_seconds=0.005)
        task.cluster.killed.clear()
        task.operator.on_kill()
        ended.extend(outcome.state for outcome in task.outcomes(arguments))  # the kill did not reach it
        return 0

    with pytest.raises(LogbusError):
        task.run(killed_while_it_loads)
    wait_until(lambda: ended, what="the end of the driver", poll_seconds=0.005)
    assert task.cluster.killed == list(task.cluster.drivers)[1:]
    assert (ended, task.loaded_by, task.states()) == ([LoadState.SUPERSEDED], None, ["failed", "failed"])


def knows_its_driver(task: Task) -> bool:
    """spark-submit's output is read on a different thread from the one that simulates the cluster."""
    hook: Any = task.operator and task.operator._hook
    if hook is None or hook._submit_sp is None:
        return False
    return task.cluster.manager in IN_CLIENT_MODE or bool(hook._yarn_application_id or hook._kubernetes_driver_pod)


def test_a_backfill_is_one_application_and_the_other_runs_find_their_hours_loaded(task: Task) -> None:
    hours = [at(number) for number in range(HOUR + 1, HOUR + 4)]
    assert task.run(waiting=hours)["read"] == 5
    assert [window.loaded_attempt for window in task.world.ledger.windows("p")] == [1] * 4
    submissions = len(task.cluster.commands)
    assert task.run()["adopted"] is True
    assert (len(task.cluster.commands), task.states()) == (submissions, ["committed"])


@NEAR_AND_FAR
def test_a_backfill_of_which_only_another_hour_was_loaded_fails_ours(task: Task) -> None:
    with pytest.raises(LoadFailed, match="not loaded, according to the ledger: 1 of 1 window"):
        task.run(lambda arguments: task.load(arguments[:2] + arguments[4:]), waiting=[at(HOUR + 1)])
    assert [window.loaded_attempt for window in task.world.ledger.windows("p")] == [None, 1, None, None]
    task.run(waiting=[at(HOUR + 1)])
    assert [window.loaded_attempt for window in task.world.ledger.windows("p")] == [2, 1, None, None]


@NEAR_AND_FAR
def test_a_run_that_starts_beside_a_shared_load_has_its_own_hour_and_both_are_loaded(task: Task) -> None:
    def beside(arguments: Sequence[str]) -> int:
        (its,) = task.world.ledger.begin_attempts("p", [at(HOUR + 1)], "beside", 1, NOW)
        assert task.outcomes(["--window", its.token])[0].state is LoadState.COMMITTED
        return task.load(arguments)

    assert task.run(beside, waiting=[at(HOUR + 1), at(HOUR + 2)])["adopted"] is False
    assert [window.loaded_attempt for window in task.world.ledger.windows("p")] == [1, 2, 1, None]


# A newer attempt takes the hour over. A superseded driver ends successfully.


@NEAR_AND_FAR
def test_a_load_taken_over_by_one_that_has_loaded_the_hour_is_done_and_says_so(task: Task) -> None:
    def taken_over(arguments: Sequence[str]) -> int:
        assert task.outcomes(["--window", task.begin_elsewhere().token])[0].state is LoadState.COMMITTED
        return task.load(arguments)

    result = task.run(taken_over)
    assert (result["adopted"], task.loaded_by, task.states()) == (True, 2, ["superseded", "committed"])


@NEAR_AND_FAR
def test_a_load_taken_over_by_one_still_at_work_fails_at_once_and_takes_nothing_back(task: Task) -> None:
    def taken_over(arguments: Sequence[str]) -> int:
        task.begin_elsewhere()
        return task.load(arguments)

    with pytest.raises(AirflowFailException, match="attempt 2 of run another took over from attempt 1 and is at work on it"):
        task.run(taken_over)
    assert task.states() == ["superseded", "running"]


@NEAR_AND_FAR
def test_a_load_taken_over_by_one_that_failed_is_retried(task: Task) -> None:
    def taken_over(arguments: Sequence[str]) -> int:
        task.world.ledger.fail_attempts([task.begin_elsewhere()], "boom", NOW)
        return task.load(arguments)

    with pytest.raises(LoadFailed, match="attempt 2 of run another took over from attempt 1 and is failed"):
        task.run(taken_over)
    task.run()
    assert task.loaded_by == 3


# What is refused before anything has begun


def test_a_standalone_cluster_is_for_client_mode_only(start_task: StartTask) -> None:
    task = start_task(Manager.STANDALONE)
    with pytest.raises(UserError, match="set the deploy mode to client"):
        task.run()
    assert (task.cluster.commands, task.states()) == ([], [])


@pytest.mark.parametrize("manager", [Manager.YARN, Manager.KUBERNETES_TRACKED], ids=lambda manager: manager.value)
def test_a_cluster_that_would_show_secrets_takes_no_attempt(start_task: StartTask, manager: Manager) -> None:
    task = start_task(manager)
    load = LoadWindowOperator(task_id="load", pipeline=PIPELINE, now=lambda: NOW)
    with pytest.raises(UserError, match="mount LOGBUS_WAREHOUSE_URL and LOGBUS_KAFKA_CONFIG as secrets"):
        load.execute(run_context(at(HOUR), at(HOUR + 1)))  # type: ignore[arg-type]
    assert (task.cluster.commands, task.states()) == ([], [])


def test_a_load_that_should_reconnect_is_refused_where_the_dag_is_read() -> None:
    arguments: Mapping[str, Any] = {"task_id": "load", "pipeline": PIPELINE}
    assert LoadWindowOperator(**arguments).durable is False
    for asked in ({"durable": True}, {"default_args": {"durable": True}}):
        with pytest.raises(UserError, match="durable=True does not work for a load"):
            LoadWindowOperator(**arguments, **asked)


# Nor is what the provider takes from spark-submit's output the driver's own result


def test_a_sidecars_exit_code_does_not_pass_for_the_drivers(start_task: StartTask, monkeypatch: pytest.MonkeyPatch) -> None:
    task = start_task(Manager.KUBERNETES)
    said = task.cluster.submit_to_kubernetes

    def with_a_sidecar(driver: Any, waits: bool) -> Iterator[str]:
        lines = list(said(driver, waits))
        yield from [*lines[:-1], "\t container name: istio-proxy", "\t exit code: 0", lines[-1]]

    monkeypatch.setattr(task.cluster, "submit_to_kubernetes", with_a_sidecar)
    with pytest.raises(LoadFailed, match="not loaded, according to the ledger: 1 of 1 window"):
        task.run(lambda arguments: 1)


@pytest.mark.parametrize(
    ("manager", "setting"),
    [
        (Manager.YARN, "spark.yarn.submit.waitAppCompletion"),
        (Manager.KUBERNETES, "spark.kubernetes.submission.waitAppCompletion"),
    ],
    ids=["yarn", "kubernetes"],
)
def test_a_spark_submit_that_does_not_wait_has_loaded_nothing(start_task: StartTask, manager: Manager, setting: str) -> None:
    task = start_task(manager)
    with pytest.raises(LoadFailed):
        task.run(conf={setting: "false"})
    assert task.states() == ["failed"]
    (driver,) = task.cluster.drivers.values()
    assert [outcome.state for outcome in task.outcomes(driver.arguments)] == [LoadState.SUPERSEDED]
