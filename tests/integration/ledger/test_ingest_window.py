"""One task that freezes, loads and audits: the real operator on a real ledger; Spark's driver runs in this process."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk.exceptions import TaskDeferred
from airflow.sdk.execution_time.context import OutletEventAccessors
from logbus import assets
from logbus.errors import AuditMismatch, UserError
from logbus.hooks.broker import BrokerHook
from logbus.hooks.warehouse import WarehouseHook
from logbus.model import Pipeline, WindowState
from logbus.operators.load_window import IngestWindowOperator

from tests.support.airflow_context import run_context
from tests.support.cluster_loads import tokens
from tests.support.in_process import driver
from tests.support.ledgers import NOW, World, at, stamps

PIPELINE = Pipeline(name="p", topic="t", table="t", parse="lines")
RETRIES = 2


@pytest.fixture(autouse=True)
def connected(world: World, without_spark: None, monkeypatch: pytest.MonkeyPatch) -> None:
    world.log.append("t", *stamps(10, 10.2, 10.4, 11.5))
    monkeypatch.setattr(WarehouseHook, "ledger", lambda hook: world.ledger)
    monkeypatch.setattr(WarehouseHook, "get_engine", lambda hook: world.ledger.engine)
    monkeypatch.setattr(BrokerHook, "log_offsets", lambda hook: world.log)
    monkeypatch.setattr(
        IngestWindowOperator,
        "_submit",
        lambda operator, *_: driver(world.ledger, world.log).load("p", tokens(operator.application_args)),
    )


class Task:
    """The task of one run over hour 10, across tries and clears, counted as Airflow counts them."""

    try_number, max_tries = 0, RETRIES

    def run(self, hour: int = 10, **arguments: Any) -> tuple[dict[str, Any], OutletEventAccessors]:
        self.try_number += 1
        operator = IngestWindowOperator(
            task_id="load",
            pipeline=PIPELINE,
            credentials_in_environment=False,
            retries=RETRIES,
            outlets=assets.outlets("p"),
            now=lambda: NOW,
            **arguments,
        )
        context = run_context(at(hour), at(hour + 1), self.try_number, asked_at=NOW)
        context["ti"].max_tries = self.max_tries
        context["outlet_events"] = events = OutletEventAccessors()
        return operator.execute(context), events  # type: ignore[arg-type]

    def clear(self) -> None:
        self.max_tries = self.try_number + RETRIES


def test_the_window_is_frozen_loaded_and_audited_and_its_success_is_told(world: World) -> None:
    done, events = Task().run()
    window = world.ledger.window("p", at(10))
    assert (window.state, window.record_count) == (WindowState.AUDITED, 3)
    assert (done["read"], done["audited"], done["filled"], done["adopted"]) == (3, 1, [], False)
    assert events[assets.windows_asset("p")].partition_keys == {"2015-05-17T10:00:00"}


def test_a_try_that_failed_at_the_audit_is_repeated_from_there_and_a_cleared_task_loads_again(world: World) -> None:
    """Otherwise a retry would mend a table that somebody has changed, and nobody would learn of it."""
    task = Task()
    task.run()
    task.clear()
    loaded_before = world.ledger.window("p", at(10)).loaded_attempt
    audit = IngestWindowOperator._audit

    def audit_what_was_changed(operator: IngestWindowOperator, *arguments: Any) -> Any:
        world.execute("delete from t where _offset = 1")
        return audit(operator, *arguments)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(IngestWindowOperator, "_audit", audit_what_was_changed)
        with pytest.raises(AuditMismatch, match="holds 3 records, accounted for: 2"):
            task.run()
    loaded = world.ledger.window("p", at(10)).loaded_attempt
    assert loaded != loaded_before
    with pytest.raises(AuditMismatch, match="holds 3 records, accounted for: 2"):
        task.run()
    assert world.ledger.window("p", at(10)).loaded_attempt == loaded
    task.clear()
    assert task.run()[0]["audited"] == 1
    assert world.ledger.window("p", at(10)).loaded_attempt != loaded


def test_a_scheduled_run_audits_the_hours_that_it_has_filled(world: World) -> None:
    Task().run(9)
    operator = IngestWindowOperator(
        task_id="load",
        pipeline=PIPELINE,
        credentials_in_environment=False,
        fill_gaps=True,
        now=lambda: NOW,
    )
    context = {**run_context(at(11), at(12), run_type="scheduled"), "outlet_events": OutletEventAccessors()}
    done = operator.execute(context)  # type: ignore[arg-type]
    assert (done["filled"], done["audited"]) == (["2015-05-17T10:00:00Z"], 2)
    assert {world.ledger.window("p", at(hour)).state for hour in (10, 11)} == {WindowState.AUDITED}


def test_a_run_before_its_hour_is_closed_waits_without_a_slot_of_the_pool() -> None:
    operator = IngestWindowOperator(task_id="load", pipeline=PIPELINE, now=lambda: at(11))
    with pytest.raises(TaskDeferred) as deferred:
        operator.execute(run_context(at(10), at(11)))  # type: ignore[arg-type]
    assert deferred.value.method_name == "resume"


def test_windows_of_other_runs_are_not_its_work() -> None:
    with pytest.raises(UserError, match="IngestWindowOperator works on the window of its run"):
        IngestWindowOperator(task_id="load", pipeline=PIPELINE, windows=["2015-05-17T10:00:00Z"])
