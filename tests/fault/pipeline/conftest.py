from __future__ import annotations

from tests.support.broker import broker  # noqa: F401
from tests.support.in_process import without_spark  # noqa: F401
from tests.support.kafka_peer import apache_kafka, kafka_peer  # noqa: F401
from tests.support.ledgers import world  # noqa: F401
from tests.support.postgres import postgres_server, server_directory, warehouse_url  # noqa: F401
from tests.support.real_pipeline import engine, two_hours  # noqa: F401
from tests.support.restoring import restorable  # noqa: F401
