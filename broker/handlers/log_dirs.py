"""DescribeLogDirs: how much disk space each partition takes, and how much is left."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from broker.errors import StorageError
from broker.handlers.context import Context
from broker.handlers.slices import Answering, answered_in_slices, encode_in_slices
from broker.partitions.partition import Partition
from broker.protocol.api import ApiKey, ErrorCode
from broker.protocol.control import response_class


@answered_in_slices
def handle_describe_log_dirs(message: Any, version: int, context: Context) -> Answering:
    """There is one directory, whatever is requested; unknown partitions are left out, as in Kafka."""
    response = response_class(ApiKey.DESCRIBE_LOG_DIRS)
    row = response.DescribeLogDirsResult
    by_topic: dict[str, list[Any]] = {}
    for partition in _asked_for(message, context):
        by_topic.setdefault(partition.topic, []).append(_partition_row(partition))
        yield None
    error = ErrorCode.NONE
    try:
        total_bytes, usable_bytes = context.partitions.disk_space()
    except StorageError:
        error, total_bytes, usable_bytes = ErrorCode.KAFKA_STORAGE_ERROR, -1, -1
    result = row(
        error_code=error,
        log_dir=str(context.config.log_dirs.absolute()),
        topics=[row.DescribeLogDirsTopic(name=name, partitions=partitions) for name, partitions in by_topic.items()],
        total_bytes=total_bytes,
        usable_bytes=usable_bytes,
    )
    answer = response(throttle_time_ms=0, error_code=ErrorCode.NONE, results=[result])
    return (yield from encode_in_slices(answer, version, *by_topic.values()))


def _asked_for(message: Any, context: Context) -> Iterable[Partition]:
    partitions = list(context.partitions)  # topics may be created and deleted between two slices
    if message.topics is None:
        return partitions
    wanted = {(topic.topic, index) for topic in message.topics for index in topic.partitions}
    return (partition for partition in partitions if (partition.topic, partition.index) in wanted)


def _partition_row(partition: Partition) -> Any:
    row = response_class(ApiKey.DESCRIBE_LOG_DIRS).DescribeLogDirsResult.DescribeLogDirsTopic.DescribeLogDirsPartition
    return row(partition_index=partition.index, partition_size=partition.log.size_bytes, offset_lag=0, is_future_key=False)
