"""`AuditTableOperator` on a table in PostgreSQL that something else loaded."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException
from logbus.errors import AuditMismatch
from logbus.operators.audit import AuditTableOperator
from logbus.status.ledger_facts import read_ledger

from tests.support.airflow_context import run_context
from tests.support.fake_hooks import FakeBroker
from tests.support.ledgers import World


@pytest.fixture
def theirs(world: World) -> World:
    """Four records, of which their table lacks one."""
    world.log.append("t", *(1_431_856_800_000 + number for number in range(4)))
    world.execute('create table theirs (partition int, "offset" bigint)', "insert into theirs values (0, 0), (0, 1), (0, 3)")
    return world


def audit(world: World, table: str = "theirs", **arguments: Any) -> dict[str, Any]:
    operator = AuditTableOperator(task_id="audit", table=table, topic="t", **arguments)
    operator.broker = FakeBroker(world.log)  # type: ignore[assignment]
    return operator.execute(run_context())  # type: ignore[arg-type]


def test_a_missing_record_fails_the_task_and_is_kept_in_the_ledger(theirs: World) -> None:
    with pytest.raises(AuditMismatch, match=r"1 of 1 hour .*: 1 missing\n2015-05-17T10:00:00Z missing: t-0 \[2, 3\)"):
        audit(theirs)
    (facts,) = read_ledger(theirs.ledger.engine, timeout_seconds=60).tables
    assert (facts.table, facts.missing, facts.hours["wrong"]) == ("public.theirs", 1, 1)


def test_a_whole_table_passes_and_a_span_without_records_too(theirs: World) -> None:
    theirs.execute("insert into theirs values (0, 2)")
    assert audit(theirs)["audited"] == 1
    assert audit(theirs, since="2020-01-01", until="None")["audited"] == 0


def test_a_table_or_column_that_does_not_exist_fails_without_a_retry(theirs: World) -> None:
    with pytest.raises(AirflowFailException, match=r"there is no table shop\.orders"):
        audit(theirs, table="shop.orders")
    with pytest.raises(AirflowFailException, match=r"public\.theirs has no column 'sent_at'; its columns are partition, offset"):
        audit(theirs, timestamp_column="sent_at")
