from __future__ import annotations

import asyncio

import pytest
from logbus.errors import UserError, WarehouseUnavailable
from logbus.hooks.warehouse import WarehouseHook
from logbus.ledger.ledger import Ledger
from logbus.triggers.window_loaded import WindowLoadedTrigger
from sqlalchemy.exc import InterfaceError, OperationalError

SPAN = {"start": "2015-05-17T00:00:00Z", "end": "2015-05-18T00:00:00Z"}


def failing(error: Exception) -> WarehouseHook:
    class Failing(WarehouseHook):
        def ledger(self) -> Ledger:
            raise error

    return Failing()


@pytest.mark.parametrize(
    "error",
    [
        WarehouseUnavailable("restarting"),
        OperationalError("select", None, Exception("terminating connection due to administrator command")),
        InterfaceError("select", None, Exception("the connection is closed")),
    ],
)
def test_a_warehouse_that_is_away_is_waited_for(error: Exception) -> None:
    assert asyncio.run(WindowLoadedTrigger(pipeline="p", **SPAN).is_loaded(failing(error))) is False


def test_a_wrong_request_fails_the_wait_at_once() -> None:
    with pytest.raises(UserError, match="newer"):
        asyncio.run(WindowLoadedTrigger(pipeline="p", **SPAN).is_loaded(failing(UserError("install a newer logbus"))))


def test_it_is_rebuilt_from_what_it_is_stored_as() -> None:
    stamped = {"event_time": True, "lateness_seconds": 600.0}
    made = WindowLoadedTrigger(pipeline="p", **SPAN, audited=True, **stamped, warehouse_conn_id="w", poll_seconds=1.5)
    path, arguments = made.serialize()
    assert path == f"{WindowLoadedTrigger.__module__}.{WindowLoadedTrigger.__qualname__}"
    assert WindowLoadedTrigger(**arguments).serialize() == (path, arguments)
