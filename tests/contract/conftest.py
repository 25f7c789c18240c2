"""What contract suites run against: our broker, Apache Kafka, an empty database."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.broker import broker  # noqa: F401
from tests.support.kafka_peer import apache_kafka, kafka_peer, stop_peer  # noqa: F401
from tests.support.kafka_sides import side, topic  # noqa: F401
from tests.support.postgres import postgres_server, server_directory, warehouse_url  # noqa: F401
from tests.support.secured_kafka import secured_kafka  # noqa: F401


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    if nextitem is None or Path(__file__).parent not in nextitem.path.parents:
        stop_peer(item.session)
