from __future__ import annotations

import pytest
from logbus.hooks.broker import BrokerHook
from logbus.hooks.warehouse import WarehouseHook
from logbus.model import Pipeline

from tests.support.fake_ledger import FakeLedger

WAREHOUSE_URL = "postgresql+psycopg://u:warehouse-password@h/d"


@pytest.fixture
def pipeline() -> Pipeline:
    return Pipeline(name="access_log", topic="access_log", table="access_log", parse="combined")


@pytest.fixture
def ledger(monkeypatch: pytest.MonkeyPatch) -> FakeLedger:
    """What every hook answers with in these tests; no connection is looked up."""
    fake = FakeLedger()
    monkeypatch.setattr(WarehouseHook, "ledger", lambda hook: fake)
    monkeypatch.setattr(WarehouseHook, "get_engine", lambda hook: object())
    monkeypatch.setattr(WarehouseHook, "url", WAREHOUSE_URL)
    monkeypatch.setattr(BrokerHook, "log_offsets", lambda hook: object())
    monkeypatch.setattr(
        BrokerHook, "client_config", lambda hook: {"bootstrap.servers": "b:1", "sasl.password": "broker-password"}
    )
    return fake
