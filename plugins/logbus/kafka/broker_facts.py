"""What librdkafka cannot ask a broker: which requests it takes in which versions, and how full its log directories are.

kafka-python's admin client asks both. It takes the same configuration as every other client here, translated; a setting that it
has no word for is left out. One short conversation each time: no connection stays open.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from logbus.errors import BrokerUnavailable

TIMEOUT_SECONDS = 5.0  # a broker that is there answers in milliseconds

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


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDirectory:
    """One directory of one broker. Bytes of the whole file system are None where the broker does not say."""

    broker_id: int
    path: str
    total_bytes: int | None
    usable_bytes: int | None
    partition_bytes: Mapping[tuple[str, int], int]

    @property
    def usable_share(self) -> float | None:
        """0.1 where a tenth of the file system is free."""
        return None if not self.total_bytes or self.usable_bytes is None else self.usable_bytes / self.total_bytes


def api_versions(client_config: Mapping[str, Any], timeout_seconds: float | None = None) -> dict[str, tuple[int, int]]:
    """By the request's name in the protocol (`Produce`, `ListOffsets`) the first and the last version that the broker takes."""
    with admin(client_config, timeout_seconds) as client:
        return {camel_case(key.name): (first, last) for key, (first, last) in client.api_versions().items()}


def log_directories(client_config: Mapping[str, Any], timeout_seconds: float | None = None) -> list[LogDirectory]:
    """Every log directory of every broker, with the bytes that each partition takes."""
    with admin(client_config, timeout_seconds) as client:
        answers = client.describe_log_dirs()
    return [log_directory(answer["broker"], found) for answer in answers for found in answer["log_dirs"]]


def log_directory(broker_id: int, found: Mapping[str, Any]) -> LogDirectory:
    sizes = {
        (topic["name"], partition["partition_index"]): partition["partition_size"]
        for topic in found["topics"]
        for partition in topic["partitions"]
    }
    total, usable = (known(found.get(name)) for name in ("total_bytes", "usable_bytes"))
    return LogDirectory(broker_id=broker_id, path=found["log_dir"], total_bytes=total, usable_bytes=usable, partition_bytes=sizes)


def partition_bytes(directories: list[LogDirectory]) -> dict[tuple[str, int], int]:
    """The size of each partition: of its largest replica, where several brokers hold it."""
    sizes: dict[tuple[str, int], int] = {}
    for directory in directories:
        for place, size in directory.partition_bytes.items():
            sizes[place] = max(size, sizes.get(place, 0))
    return sizes


@contextmanager
def admin(client_config: Mapping[str, Any], timeout_seconds: float | None) -> Iterator[Any]:
    from kafka.admin import KafkaAdminClient
    from kafka.errors import KafkaError

    limit_ms = int((TIMEOUT_SECONDS if timeout_seconds is None else timeout_seconds) * 1000)
    try:
        client = KafkaAdminClient(**translated(client_config), bootstrap_timeout_ms=limit_ms, request_timeout_ms=limit_ms)
    except (KafkaError, OSError, ValueError, AssertionError) as error:
        raise unavailable(client_config, error) from None
    try:
        yield client
    except KafkaError as error:
        raise unavailable(client_config, error) from None
    finally:
        client.close()


def unavailable(client_config: Mapping[str, Any], error: Exception) -> BrokerUnavailable:
    return BrokerUnavailable(f"the broker at {client_config.get('bootstrap.servers')} did not answer: {error}")


def translated(client_config: Mapping[str, Any]) -> dict[str, Any]:
    settings = {NAMES[name]: value for name, value in client_config.items() if name in NAMES}
    return {name: str(value).upper() if name in UPPER_CASE else value for name, value in settings.items()}


def camel_case(name: str) -> str:
    """`LIST_OFFSETS` as the protocol spells it, whichever way the library does."""
    return name if "_" not in name and not name.isupper() else "".join(word.capitalize() for word in name.split("_"))


def known(count: int | None) -> int | None:
    """A broker that cannot tell says -1."""
    return None if count is None or count < 0 else count
