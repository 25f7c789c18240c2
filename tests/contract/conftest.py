"""What contract suites run on: our broker, Apache Kafka, an empty database."""

from __future__ import annotations

from tests.support.broker import broker  # noqa: F401
from tests.support.kafka_peer import apache_kafka  # noqa: F401
from tests.support.postgres import postgres_server, server_directory, warehouse_url  # noqa: F401
