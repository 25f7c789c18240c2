from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.execution_time.context import OutletEventAccessors
from logbus import assets
from logbus.errors import AuditMismatch
from logbus.model import WindowState, instant_text
from logbus.operators.audit import AuditWindowOperator
from sqlalchemy import text

from tests.support.airflow_context import run_context
from tests.support.fake_hooks import FakeBroker
from tests.support.ledgers import World, at
from tests.support.loads import load_hours


@pytest.fixture
def loaded(world: World) -> World:
    """Hours 9 and 10, with one and four records."""
    world.fill(9.5, 10, 10.2, 10.4, 10.6, 11)
    load_hours(world, 9, 10)
    return world


def audit(world: World, context: Mapping[str, Any] = MappingProxyType({}), **arguments: Any) -> dict[str, Any]:
    operator = AuditWindowOperator(task_id="audit", pipeline="p", **arguments)
    operator.broker = FakeBroker(world.log)  # type: ignore[assignment]
    result: dict[str, Any] = operator.execute({**run_context(), **context})  # type: ignore[arg-type]
    return result


def test_an_exact_window_is_counted(loaded: World) -> None:
    result = audit(loaded)
    assert result["audited"] == 1
    assert result["windows"][0]["counted"] == {"0": 4}
    assert loaded.ledger.window("p", at(10)).state is WindowState.AUDITED


def test_one_wrong_window_of_many_fails_the_run_and_is_named(loaded: World) -> None:
    with loaded.ledger.engine.begin() as connection:
        connection.execute(text("delete from t where _timestamp > :at and _offset = 2"), {"at": at(10)})
    with pytest.raises(AuditMismatch, match="2015-05-17T10:00:00Z: .* holds 4 records, accounted for: 3") as failure:
        audit(loaded, windows=[instant_text(at(9)), instant_text(at(10))])
    assert "2015-05-17T09" not in str(failure.value)


def test_what_is_proven_is_told_to_airflow_also_under_the_tables_own_name(loaded: World) -> None:
    events, state, mine = OutletEventAccessors(), {}, assets.table_asset("p")
    store = SimpleNamespace(set=state.__setitem__, delete=state.pop)
    context = {"outlet_events": events, "asset_state_store": {mine: store}}
    audit(loaded, context, windows=[instant_text(at(9)), instant_text(at(10))], outlets=assets.outlets("p"))
    assert events[assets.windows_asset("p")].partition_keys == {"2015-05-17T09:00:00", "2015-05-17T10:00:00"}
    [of_table] = events[assets.table_alias("p")].asset_alias_events
    assert of_table.dest_asset_key.uri.endswith("/public/t")
    assert events[mine].extra["loaded"] == of_table.extra["loaded"] == 5
    assert state == {"complete_until": instant_text(at(11))}
    with loaded.ledger.engine.begin() as connection:
        connection.execute(text("delete from t where _offset = 0"))
    with pytest.raises(AuditMismatch):
        audit(loaded, context, windows=[instant_text(at(9))], outlets=assets.outlets("p"))
    assert state == {"complete_until": instant_text(at(9))}
