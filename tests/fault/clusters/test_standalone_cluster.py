"""A user's own program in cluster mode on a standalone cluster, which runs compiled programs but no Python.

It gets its offsets through Spark's settings. What it writes is its own business; starting it again when asked for is ours.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from logbus.errors import LoadFailed, UserError
from logbus.hooks.broker import BrokerHook
from logbus.hooks.warehouse import WarehouseHook
from logbus.operators.spark_submit_window import SparkSubmitWindowOperator
from logbus.waiting import wait_until

from tests.support.airflow_context import run_context
from tests.support.ledgers import NOW, World, at
from tests.support.resource_managers import Cluster, Manager, TaskStateStore, running


@pytest.fixture
def cluster(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setattr(WarehouseHook, "ledger", lambda hook: world.ledger)
    monkeypatch.setattr(BrokerHook, "log_offsets", lambda hook: world.log)
    monkeypatch.setattr(BrokerHook, "client_config", lambda hook: {"bootstrap.servers": "b:1"})
    world.register()
    with running(Cluster(manager=Manager.STANDALONE, work=lambda arguments: 0), tmp_path, monkeypatch) as cluster:
        yield cluster


@pytest.fixture
def store() -> TaskStateStore:
    return TaskStateStore()


def operator(**arguments: Any) -> SparkSubmitWindowOperator:
    mine = {"application": "mine.jar", "java_class": "Mine", "credentials_in_environment": False, "status_poll_interval": 0}
    return SparkSubmitWindowOperator(task_id="mine", pipeline="p", now=lambda: NOW, **{**mine, **arguments})


def run(store: TaskStateStore, operator: SparkSubmitWindowOperator) -> dict[str, Any]:
    context = {**run_context(at(10), at(11)), "task_state_store": store}
    return operator.execute(context)  # type: ignore[arg-type]


def test_every_try_and_every_clear_submits_anew(cluster: Cluster, store: TaskStateStore) -> None:
    run(store, operator())
    run(store, operator())
    assert len(cluster.drivers) == 2


def test_a_driver_that_failed_fails_the_task(cluster: Cluster, store: TaskStateStore) -> None:
    cluster.work = lambda arguments: 1
    with pytest.raises(LoadFailed, match="driver-20261121123000-0001 exited with status FAILED"):
        run(store, operator())


def test_who_asks_for_it_goes_on_with_the_driver_of_the_try_before(cluster: Cluster, store: TaskStateStore) -> None:
    store.set("spark_job_id", cluster.submitted([]).id)
    run(store, operator(durable=True))
    assert cluster.commands == []
    assert [driver.exit_status for driver in cluster.drivers.values()] == [0]


def test_a_kill_ends_the_driver_of_this_try(cluster: Cluster, store: TaskStateStore) -> None:
    mine = operator()
    run(store, mine)

    def kill(arguments: Sequence[str]) -> int:
        wait_until(lambda: mine._hook is not None and mine._hook._driver_id, what="the driver's id", poll_seconds=0.005)
        mine.on_kill()
        return 0

    cluster.work = kill
    with pytest.raises(LoadFailed, match="exited with status KILLED"):
        run(store, mine)
    assert cluster.killed == ["driver-20261121123000-0002"]


def test_what_cannot_run_there_is_refused_before_it_is_submitted(cluster: Cluster, store: TaskStateStore) -> None:
    with pytest.raises(UserError, match="runs no Python program"):
        run(store, operator(application="mine.py"))
    with pytest.raises(UserError, match="gives its drivers no environment variables: set LOGBUS_KAFKA_CONFIG"):
        run(store, operator(credentials_in_environment=True))
    assert cluster.commands == []
