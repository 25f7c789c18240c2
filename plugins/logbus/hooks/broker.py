"""The broker's Airflow connection: the Kafka provider's own type `kafka`, whose extra is the client's configuration.

What the extra leaves out may be in the connection's own fields: host and port are the broker, login and password those of SASL.
Airflow shows a password nowhere, and an extra to those who may see connections.

The configuration is also passed to Spark, as JSON. So what makes the tokens of OAUTHBEARER stays a text
(`logbus.kafka.client_config`); a function of the user's has to be in the Kafka provider's own list of those that are trusted.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from airflow.sdk import BaseHook
from airflow.sdk.configuration import conf

from logbus.errors import UserError
from logbus.hooks.warehouse import mask_everywhere
from logbus.kafka import client_config, groups, topics
from logbus.kafka.client import Client
from logbus.kafka.producing import produce


class BrokerHook(BaseHook):
    """Reads the connection; creates a client only when one is needed."""

    conn_name_attr = "kafka_conn_id"
    default_conn_name = "kafka_default"
    conn_type = "kafka"
    hook_name = "Apache Kafka"

    def __init__(self, kafka_conn_id: str = default_conn_name, *, kafka_config_id: str | None = None) -> None:
        """`kafka_config_id` is the Kafka provider's name for the same, here as in the operators."""
        super().__init__()
        self.kafka_conn_id = kafka_config_id or kafka_conn_id
        self._client: Client | None = None

    def client_config(self) -> dict[str, Any]:
        """The configuration for a confluent-kafka client; its secrets are masked in logs from now on."""
        connection = self.get_connection(self.kafka_conn_id)
        port = f":{connection.port}" if connection.port else ""
        of_fields = {
            "bootstrap.servers": connection.host and f"{connection.host}{port}",
            "sasl.username": connection.login,
            "sasl.password": connection.password,
        }
        config = {name: value for name, value in of_fields.items() if value}
        config |= client_config.translated(connection.extra_dejson)
        if "bootstrap.servers" not in config:
            raise UserError(
                f"the connection {self.kafka_conn_id!r} names no broker: set its host and port, or its extra to "
                '{"bootstrap.servers": "host:9092"}'
            )
        if "." in (function := str(config.get(client_config.RECIPE, ""))) and function not in self._trusted_functions():
            raise UserError(
                f"the connection {self.kafka_conn_id!r} names the function {function!r} as oauth_cb: add it to "
                "callback_allowlist in the section [apache_kafka] of Airflow's configuration"
            )
        for name, value in config.items():
            if client_config.is_secret(name) and isinstance(value, str):
                mask_everywhere(value)
        return config

    @staticmethod
    def _trusted_functions() -> list[str]:
        return [name.strip() for name in conf.get("apache_kafka", "callback_allowlist", fallback="").split(",")]

    def client(self) -> Client:
        """The hook's only client, for `Topics`, `Groups` and the other classes of `logbus.kafka`."""
        if self._client is None:
            self._client = Client(self.client_config())
        return self._client

    def log_offsets(self) -> topics.Topics:
        """Topics and their offsets: what the ledger reads from the broker, and what managed retention deletes."""
        return topics.Topics(self.client())

    def group_offsets(self) -> groups.Groups:
        """Consumer groups and their committed offsets."""
        return groups.Groups(self.client())

    def produce(self, topic: str, records: Iterable[Any]) -> dict[str, Any]:
        """Sends records; returns once all are acknowledged, or raises for the first that is not (`logbus.kafka.producing`)."""
        return produce(self.client_config(), topic, records)
