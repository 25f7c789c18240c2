"""The real spark-submit, and a real standalone master, instead of those of tests.support.resource_managers: the stand-ins behave
like these. Each test costs a JVM or two."""

from __future__ import annotations

import json
import os
import subprocess
import sysconfig
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pyspark
import pytest
from logbus.errors import LoadFailed
from logbus.hooks.broker import BrokerHook
from logbus.hooks.warehouse import WarehouseHook
from logbus.operators.spark_submit_window import SparkSubmitWindowOperator
from logbus.waiting import wait_until

from tests.support.airflow_context import run_context
from tests.support.cluster_loads import StartTask
from tests.support.ledgers import NOW, World, at
from tests.support.resource_managers import ON_KUBERNETES, Manager
from tests.support.standalone_spark import standalone_spark

SPARK_HOME = Path(pyspark.__file__).parent
ON_AN_IMAGE = {"application": "local:///opt/spark_jobs/load_windows.py", "conf": {"spark.kubernetes.container.image": "logbus"}}


@pytest.fixture(autouse=True)
def real_spark_submit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", sysconfig.get_path("scripts"), prepend=os.pathsep)


@pytest.mark.usefixtures("without_spark")
@pytest.mark.parametrize("manager", ON_KUBERNETES, ids=lambda manager: manager.value)
def test_a_load_by_kubernetes(start_task: StartTask, manager: Manager) -> None:
    """spark-submit creates a pod; the provider reads from its output the pod's name and, if it waits, the exit code."""
    task = start_task(manager, programs=[])
    with pytest.raises(LoadFailed):
        task.run(lambda arguments: 3, **ON_AN_IMAGE)
    assert task.run(**ON_AN_IMAGE)["read"] == 5
    assert (task.loaded_by, task.states()) == (2, ["failed", "committed"])
    names = list(task.cluster.drivers)
    assert task.operator is not None
    assert task.operator._hook is not None
    assert task.operator._hook._kubernetes_driver_pod == names[1]


@pytest.fixture
def standalone_master(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A master without workers: a submitted driver waits for one. Yields the address of its REST interface."""
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    with standalone_spark(tmp_path, workers=0) as spark:
        extra = {"deploy-mode": "cluster", "rest-port": int(spark.rest_address.rpartition(":")[2])}
        monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": spark.url, "extra": extra}))
        yield spark.rest_address


def test_a_kill_ends_the_driver_of_a_standalone_cluster(
    world: World, standalone_master: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WarehouseHook, "ledger", lambda hook: world.ledger)
    monkeypatch.setattr(BrokerHook, "log_offsets", lambda hook: world.log)
    world.register()
    jar = next((SPARK_HOME / "jars").glob("spark-tags_*.jar"))
    arguments: dict[str, Any] = {"application": str(jar), "java_class": "Any", "credentials_in_environment": False}
    operator = SparkSubmitWindowOperator(task_id="mine", pipeline="p", now=lambda: NOW, **arguments)

    def kill() -> None:
        wait_until(lambda: operator._hook is not None and operator._hook._driver_id, what="the driver's id")
        operator.on_kill()

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(LoadFailed):
        operator.execute(run_context(at(10), at(11)))  # type: ignore[arg-type]
    killer.join()
    assert operator._hook is not None
    with urlopen(f"http://{standalone_master}/v1/submissions/status/{operator._hook._driver_id}") as answer:
        assert json.load(answer)["driverState"] == "KILLED"


def test_spark_runs_no_python_program_in_cluster_mode_on_a_standalone_cluster() -> None:
    """That is why a load refuses it before it begins."""
    command = ["spark-submit", "--master", "spark://127.0.0.1:1", "--deploy-mode", "cluster", "mine.py"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "Cluster deploy mode is currently not supported for python applications on standalone clusters" in ended.stderr
