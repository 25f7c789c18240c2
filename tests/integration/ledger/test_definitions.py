"""Two DAGs of one pipeline, and a DAG that is edited: the real operators on a real ledger, without running Airflow or Spark."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException
from airflow.sdk.execution_time.context import OutletEventAccessors
from logbus.hooks.broker import BrokerHook
from logbus.hooks.warehouse import WarehouseHook
from logbus.operators.load_window import LoadWindowOperator
from logbus.pipelines import catch_up, define_pipeline, hourly_ingest

from tests.support.airflow_context import run_context
from tests.support.cluster_loads import tokens
from tests.support.in_process import driver
from tests.support.ledgers import NOW, World, at, stamps

COMMON: dict[str, Any] = {"topic": "t", "table": "t", "parse": "json"}
HOURLY = {**COMMON, "columns": {"url": "text", "visitor": "bigint"}, "max_error_rate": 0.01}
CATCH_UP = {**COMMON, "columns": {"url": "text"}}


@pytest.fixture(autouse=True)
def connected(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hour 10 has no records, so its load needs no Spark; hour 11 has one."""
    world.log.append("t", *stamps(11))
    monkeypatch.setattr(WarehouseHook, "ledger", lambda self: world.ledger)
    monkeypatch.setattr(WarehouseHook, "get_engine", lambda self: world.ledger.engine)
    monkeypatch.setattr(BrokerHook, "log_offsets", lambda self: world.log)
    application = driver(world.ledger, world.log, {})
    monkeypatch.setattr(
        LoadWindowOperator, "_submit", lambda operator, *_: application.load("p", tokens(operator.application_args))
    )


def run(dag: DAG, task_id: str, try_number: int = 1) -> None:
    """Each time as if the task had been cleared."""
    context = run_context(at(10), at(11), try_number)
    context["ti"].dag_id, context["ti"].task_id, context["dag"] = dag.dag_id, task_id, dag
    context["outlet_events"] = OutletEventAccessors()
    task = dag.get_task(task_id)
    context["ti"].max_tries = try_number - 1 + task.retries
    task._now = lambda: NOW
    task.credentials_in_environment = False
    task.since = task.until = None  # as the catch-up's templates render without params
    task.execute(context)


def columns(world: World) -> set[str]:
    return {name for name in world.columns() if not name.startswith("_")}


def test_a_catch_up_that_knows_less_of_the_pipeline_than_the_hourly_dag_fails_at_once(world: World) -> None:
    """It used to load its hours with one of two columns and without the error budget, and their audits were exact."""
    run(hourly_ingest("p", **HOURLY), "load")
    with pytest.raises(AirflowFailException, match="DAG p_catchup defines pipeline p otherwise than DAG p does") as refused:
        run(catch_up("p", **CATCH_UP), "freeze")
    assert "max_error_rate: 0.01 against not given" in str(refused.value)
    assert world.ledger.pipeline("p") == define_pipeline("p", **HOURLY)


def test_a_load_that_is_cleared_alone_after_its_dag_was_edited_runs_the_new_parser(world: World) -> None:
    run(hourly_ingest("p", **CATCH_UP), "load")
    world.mark(10, audited_at=None)  # as if an audit had found something: then an empty hour is loaded as any other
    run(hourly_ingest("p", **CATCH_UP), "load", 2)
    assert columns(world) == {"url"}
    run(hourly_ingest("p", **HOURLY), "load", 3)
    assert columns(world) == {"url", "visitor"}
    assert world.ledger.window("p", at(10)).loaded_attempt == 2
