from __future__ import annotations

import pytest
from logbus.model import Pipeline

from tests.support.fake_groups import FakeGroups
from tests.support.fake_ledger import FakeLedger


@pytest.fixture
def pipeline() -> Pipeline:
    return Pipeline(name="access_log", topic="access_log", table="access_log", parse="combined")


@pytest.fixture
def groups() -> FakeGroups:
    return FakeGroups()


@pytest.fixture
def ledger() -> FakeLedger:
    return FakeLedger()
