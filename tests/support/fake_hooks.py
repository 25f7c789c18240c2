"""An operator's hooks without servers, for tests of what it does with ledger, log and consumer groups."""

from __future__ import annotations

from typing import Any, TypeVar

from tests.support.fake_groups import FakeGroups

WAREHOUSE_URL = "postgresql+psycopg://u:warehouse-password@h/d"
CLIENT_CONFIG = {"bootstrap.servers": "b:1", "sasl.password": "broker-password"}

Operator = TypeVar("Operator", bound=Any)


class FakeWarehouse:
    """Instead of a `WarehouseHook`."""

    url = WAREHOUSE_URL

    def __init__(self, ledger: Any) -> None:
        self._ledger = ledger

    def ledger(self) -> Any:
        return self._ledger


class FakeBroker:
    """Instead of a `BrokerHook`; keeps what was sent."""

    def __init__(self, log: Any = None, groups: FakeGroups | None = None) -> None:
        self._log = log
        self._groups = groups
        self.sent: list[tuple[str, list[Any]]] = []

    def client_config(self) -> dict[str, Any]:
        return dict(CLIENT_CONFIG)

    def log_offsets(self) -> Any:
        return self._log

    def group_offsets(self) -> FakeGroups | None:
        return self._groups

    def produce(self, topic: str, records: Any) -> dict[str, Any]:
        self.sent.append((topic, list(records)))
        return {"topic": topic, "records": len(self.sent[-1][1]), "partitions": {}}


def offline(operator: Operator, ledger: Any, log: Any = None, groups: FakeGroups | None = None) -> Operator:
    """The operator, with these instead of its hooks."""
    operator.warehouse, operator.broker = FakeWarehouse(ledger), FakeBroker(log, groups)
    return operator
