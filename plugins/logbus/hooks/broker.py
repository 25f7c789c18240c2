"""The broker's Airflow connection: the Kafka provider's own type `kafka`, whose extra is the client's configuration.

The configuration is also passed to Spark, as JSON. So what makes the tokens of OAUTHBEARER stays a text (`logbus.kafka.tokens`);
a function of the user's has to be in the Kafka provider's own list of those that are trusted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from airflow.sdk import BaseHook
from airflow.sdk.configuration import conf
from airflow.sdk.log import mask_secret

from logbus.errors import UserError
from logbus.kafka import groups, tokens, topics
from logbus.kafka.client import Client
from logbus.kafka.client_config import translated
from logbus.kafka.producing import produce

SECRET_KEY_WORDS = ("password", "secret", "pem", "oauthbearer.config")  # in names of librdkafka settings that hold credentials


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
        config = translated(self.get_connection(self.kafka_conn_id).extra_dejson)
        if "bootstrap.servers" not in config:
            raise UserError(
                f'the connection {self.kafka_conn_id!r} names no broker: set its extra to {{"bootstrap.servers": "host:9092"}}'
            )
        if "." in (function := str(config.get(tokens.RECIPE, ""))) and function not in self._trusted_functions():
            raise UserError(
                f"the connection {self.kafka_conn_id!r} names the function {function!r} as oauth_cb: add it to "
                "callback_allowlist in the section [apache_kafka] of Airflow's configuration"
            )
        for key, value in config.items():
            if any(word in key for word in SECRET_KEY_WORDS):
                mask_secret(value)
                # The value is also passed inside JSON, where quotes and backslashes are escaped.
                mask_secret(json.dumps(value)[1:-1] if isinstance(value, str) else value)
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
