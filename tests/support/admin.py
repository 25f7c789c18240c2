"""Admin requests, one call each, to whatever has an `ask`: an engine without sockets, or a connection to a broker."""

from __future__ import annotations

from typing import Any, Protocol

from logbus_broker.protocol.api import APIS, ApiKey
from logbus_broker.protocol.codec import request_class

TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = range(4)


class Asks(Protocol):
    def ask(self, api_key: ApiKey, version: int, **values: Any) -> Any:
        """Send a request, and return its decoded response."""


def newest(api_key: ApiKey) -> int:
    return APIS[api_key].last


def alter(
    broker: Asks, kind: int, name: str, *changes: tuple[str, int, str | None], validate_only: bool = False
) -> tuple[int, str | None]:
    """IncrementalAlterConfigs of one resource, by (setting, operation, value). Returns error code and message."""
    row = request_class(ApiKey.INCREMENTAL_ALTER_CONFIGS).AlterConfigsResource
    configs = [row.AlterableConfig(name=name, config_operation=operation, value=value) for name, operation, value in changes]
    resource = row(resource_type=kind, resource_name=name, configs=configs)
    (answer,) = broker.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource], validate_only=validate_only).responses
    return answer.error_code, answer.error_message


def replace_all(broker: Asks, kind: int, name: str, **configs: str) -> tuple[int, str | None]:
    """AlterConfigs of one resource; underscores in names stand for dots. Returns error code and message."""
    row = request_class(ApiKey.ALTER_CONFIGS).AlterConfigsResource
    rows = [row.AlterableConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()]
    resource = row(resource_type=kind, resource_name=name, configs=rows)
    (answer,) = broker.ask(ApiKey.ALTER_CONFIGS, 2, resources=[resource], validate_only=False).responses
    return answer.error_code, answer.error_message


def describe(broker: Asks, kind: int, name: str, *settings: str, version: int = 4) -> Any:
    """DescribeConfigs of one resource, with synonyms and documentation. Returns its row."""
    row = request_class(ApiKey.DESCRIBE_CONFIGS).DescribeConfigsResource
    resource = row(resource_type=kind, resource_name=name, configuration_keys=list(settings) or None)
    (result,) = broker.ask(
        ApiKey.DESCRIBE_CONFIGS, version, resources=[resource], include_synonyms=True, include_documentation=True
    ).results
    return result


def setting(broker: Asks, kind: int, name: str, setting_name: str) -> Any:
    """One setting of one resource."""
    (row,) = describe(broker, kind, name, setting_name).configs
    return row


def create(broker: Asks, name: str, partitions: int = 1, **configs: str) -> Any:
    """CreateTopics of one topic; underscores in names of settings stand for dots. Returns its row."""
    row = request_class(ApiKey.CREATE_TOPICS).CreatableTopic
    rows = [row.CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()]
    topic = row(name=name, num_partitions=partitions, replication_factor=1, assignments=[], configs=rows)
    (result,) = broker.ask(ApiKey.CREATE_TOPICS, 7, topics=[topic], timeout_ms=5_000, validate_only=False).topics
    return result


def delete(broker: Asks, name: str) -> Any:
    """DeleteTopics of one topic. Returns its row."""
    row = request_class(ApiKey.DELETE_TOPICS).DeleteTopicState(name=name, topic_id=None)
    (result,) = broker.ask(ApiKey.DELETE_TOPICS, 6, topics=[row], timeout_ms=5_000).responses
    return result


def grow(
    broker: Asks, name: str, count: int, *, assignments: list[list[int]] | None = None, validate_only: bool = False
) -> tuple[int, str | None]:
    """CreatePartitions of one topic. Returns error code and message."""
    row = request_class(ApiKey.CREATE_PARTITIONS).CreatePartitionsTopic
    rows = None if assignments is None else [row.CreatePartitionsAssignment(broker_ids=ids) for ids in assignments]
    topic = row(name=name, count=count, assignments=rows)
    (answer,) = broker.ask(ApiKey.CREATE_PARTITIONS, 3, topics=[topic], timeout_ms=5_000, validate_only=validate_only).results
    return answer.error_code, answer.error_message


def delete_records(broker: Asks, name: str, offset: int, *indexes: int) -> list[tuple[int, int]]:
    """DeleteRecords of partitions of one topic. Returns error codes and low watermarks."""
    row = request_class(ApiKey.DELETE_RECORDS).DeleteRecordsTopic
    parts = [row.DeleteRecordsPartition(partition_index=index, offset=offset) for index in indexes]
    answer = broker.ask(ApiKey.DELETE_RECORDS, 2, topics=[row(name=name, partitions=parts)], timeout_ms=5_000)
    return [(part.error_code, part.low_watermark) for part in answer.topics[0].partitions]


def list_offsets(broker: Asks, timestamp: int, *indexes: int, topic: str = "clicks", version: int = 7) -> list[Any]:
    """The rows of partitions of one topic, in the order of `indexes`."""
    row = request_class(ApiKey.LIST_OFFSETS).ListOffsetsTopic
    parts = [row.ListOffsetsPartition(partition_index=index, current_leader_epoch=-1, timestamp=timestamp) for index in indexes]
    topics = [row(name=topic, partitions=parts)]
    return broker.ask(ApiKey.LIST_OFFSETS, version, replica_id=-1, isolation_level=0, topics=topics).topics[0].partitions
