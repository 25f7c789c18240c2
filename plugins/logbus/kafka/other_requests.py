"""Requests that librdkafka does not have, sent by kafka-python's admin client: the only place that needs a second library.

The admin client of confluent-kafka 2.16 lacks ApiVersions (which requests a broker supports), DescribeLogDirs (bytes on its
disks), ListPartitionReassignments and DescribeTopicPartitions (eligible leader replicas), and leaves the offline replicas out of
a topic's description. Everything else goes through `Client`. The configuration is the same, translated; a setting that has no
kafka-python equivalent is left out. Each use is one short conversation: no connection stays open. It begins when `Client` has had
an answer, as kafka-python does not tell a broker that is away from one that is slow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from logbus.errors import UserError
from logbus.kafka.client import Client
from logbus.kafka.errors import MEANINGS, explain_code
from logbus.waiting import announced

# librdkafka's names, and kafka-python's for the same.
NAMES: Mapping[str, str] = {
    "bootstrap.servers": "bootstrap_servers",
    "client.id": "client_id",
    "security.protocol": "security_protocol",
    "sasl.mechanism": "sasl_mechanism",
    "sasl.mechanisms": "sasl_mechanism",
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
    "ssl.ca.location": "ssl_cafile",
    "ssl.certificate.location": "ssl_certfile",
    "ssl.key.location": "ssl_keyfile",
    "ssl.key.password": "ssl_password",
}
UPPER_CASE = ("security_protocol", "sasl_mechanism")


@contextmanager
def conversation(client: Client) -> Iterator[Any]:
    """A `KafkaAdminClient` connected to the client's broker; its errors are raised as logbus errors."""
    from kafka.admin import KafkaAdminClient
    from kafka.errors import KafkaError

    client.ask(client.ask_cluster)
    limit_ms = int(client.slow_seconds_max * 1000)
    with announced(f"the broker at {client.address}", client.say):
        try:
            found = KafkaAdminClient(**translated(client.config), bootstrap_timeout_ms=limit_ms, request_timeout_ms=limit_ms)
        except (KafkaError, OSError, ValueError, AssertionError) as error:
            raise explained(client, error) from None
        try:
            yield found
        except KafkaError as error:
            raise explained(client, error) from None
        finally:
            found.close()


def explained(client: Client, error: Exception) -> UserError:
    """kafka-python gives the broker's own errors Kafka's codes; other failures have none and mean an unavailable broker."""
    code: int = 0 if isinstance(error, OSError) else getattr(error, "errno", 0)
    if code in MEANINGS:
        return explain_code(code, str(error), broker=f"the broker at {client.address}")
    return client.unavailable(str(error))


def translated(client_config: Mapping[str, Any]) -> dict[str, Any]:
    settings = {NAMES[name]: value for name, value in client_config.items() if name in NAMES}
    return {name: str(value).upper() if name in UPPER_CASE else value for name, value in settings.items()}
