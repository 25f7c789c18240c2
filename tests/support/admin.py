"""Admin requests to an engine without sockets, one call each."""

from __future__ import annotations

from typing import Any

from broker.protocol.api import APIS, ApiKey
from broker.protocol.codec import request_class
from tests.support.engine import Harness

TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = range(4)


def newest(api_key: ApiKey) -> int:
    return APIS[api_key].last


def alter(
    broker: Harness, kind: int, name: str, *changes: tuple[str, int, str | None], validate_only: bool = False
) -> tuple[int, str | None]:
    """IncrementalAlterConfigs of one resource, by (setting, operation, value). Returns error code and message."""
    row = request_class(ApiKey.INCREMENTAL_ALTER_CONFIGS).AlterConfigsResource
    configs = [row.AlterableConfig(name=name, config_operation=operation, value=value) for name, operation, value in changes]
    asked = row(resource_type=kind, resource_name=name, configs=configs)
    (answer,) = broker.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, resources=[asked], validate_only=validate_only).responses
    return answer.error_code, answer.error_message


def replace_all(broker: Harness, kind: int, name: str, **configs: str) -> tuple[int, str | None]:
    """AlterConfigs of one resource; underscores in names stand for dots. Returns error code and message."""
    row = request_class(ApiKey.ALTER_CONFIGS).AlterConfigsResource
    rows = [row.AlterableConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()]
    asked = row(resource_type=kind, resource_name=name, configs=rows)
    (answer,) = broker.ask(ApiKey.ALTER_CONFIGS, 2, resources=[asked], validate_only=False).responses
    return answer.error_code, answer.error_message


def describe(broker: Harness, kind: int, name: str, *wanted: str, version: int = 4) -> Any:
    """DescribeConfigs of one resource, with synonyms and documentation. Returns its row."""
    row = request_class(ApiKey.DESCRIBE_CONFIGS).DescribeConfigsResource
    asked = row(resource_type=kind, resource_name=name, configuration_keys=list(wanted) or None)
    (result,) = broker.ask(
        ApiKey.DESCRIBE_CONFIGS, version, resources=[asked], include_synonyms=True, include_documentation=True
    ).results
    return result


def setting(broker: Harness, kind: int, name: str, wanted: str) -> Any:
    """One setting of one resource."""
    (found,) = describe(broker, kind, name, wanted).configs
    return found


def grow(
    broker: Harness, name: str, count: int, *, assignments: list[list[int]] | None = None, validate_only: bool = False
) -> tuple[int, str | None]:
    """CreatePartitions of one topic. Returns error code and message."""
    row = request_class(ApiKey.CREATE_PARTITIONS).CreatePartitionsTopic
    rows = None if assignments is None else [row.CreatePartitionsAssignment(broker_ids=ids) for ids in assignments]
    asked = row(name=name, count=count, assignments=rows)
    (answer,) = broker.ask(ApiKey.CREATE_PARTITIONS, 3, topics=[asked], timeout_ms=1000, validate_only=validate_only).results
    return answer.error_code, answer.error_message


def list_offsets(broker: Harness, timestamp: int, *indexes: int, topic: str = "clicks", version: int = 7) -> list[Any]:
    """The rows of partitions of one topic, in the order in which they were asked for."""
    row = request_class(ApiKey.LIST_OFFSETS).ListOffsetsTopic
    parts = [row.ListOffsetsPartition(partition_index=index, current_leader_epoch=-1, timestamp=timestamp) for index in indexes]
    asked = [row(name=topic, partitions=parts)]
    return broker.ask(ApiKey.LIST_OFFSETS, version, replica_id=-1, isolation_level=0, topics=asked).topics[0].partitions
