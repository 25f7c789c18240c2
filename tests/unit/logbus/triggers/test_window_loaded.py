from __future__ import annotations

import asyncio

from logbus.errors import WarehouseUnavailable
from logbus.hooks.warehouse import WarehouseHook
from logbus.ledger.ledger import Ledger
from logbus.triggers.window_loaded import WindowLoadedTrigger

SPAN = {"start": "2015-05-17T00:00:00Z", "end": "2015-05-18T00:00:00Z"}


def test_a_warehouse_that_is_away_is_waited_for() -> None:
    class Away(WarehouseHook):
        def ledger(self) -> Ledger:
            raise WarehouseUnavailable("restarting")

    assert asyncio.run(WindowLoadedTrigger(pipeline="p", **SPAN).is_loaded(Away())) is False


def test_it_is_rebuilt_from_what_it_is_stored_as() -> None:
    stamped = {"event_time": True, "lateness_seconds": 600.0}
    made = WindowLoadedTrigger(pipeline="p", **SPAN, audited=True, **stamped, warehouse_conn_id="w", poll_seconds=1.5)
    path, arguments = made.serialize()
    assert path == f"{WindowLoadedTrigger.__module__}.{WindowLoadedTrigger.__qualname__}"
    assert WindowLoadedTrigger(**arguments).serialize() == (path, arguments)
