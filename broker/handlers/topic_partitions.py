"""CreatePartitions and DescribeTopicPartitions: how many partitions a topic has, and which brokers hold them.

The number of partitions only grows: records are never moved from one partition to another.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter
from typing import Any

from broker.coordination.image import NO_LEADER
from broker.coordination.local import INTERNAL_TOPICS, NO_TOPIC_ID, Topic, check_topic_name
from broker.errors import BrokerError, InvalidTopic
from broker.handlers.context import Context
from broker.handlers.error_codes import code_of, refuse, refusing
from broker.handlers.repeated import by_name, only_one
from broker.handlers.slices import Answering, answered_in_slices, answered_in_turn, encode_in_slices
from broker.partitions.topic_admin import Growth
from broker.protocol.api import ApiKey, ErrorCode
from broker.protocol.control import response_class

_PARTITIONS_PER_ANSWER_MAX = 2000  # Kafka's max.request.partition.size.limit: a large cluster is described in pages


@answered_in_turn
def handle_create_partitions(message: Any, version: int, context: Context) -> Answering:
    response = response_class(ApiKey.CREATE_PARTITIONS)
    rows: dict[str, Any] = {}
    wanted: dict[str, Growth] = {}
    added = 0
    for name, entries in by_name(message.topics, attrgetter("name")).items():
        row = rows[name] = response.CreatePartitionsTopicResult(name=name, error_code=0, error_message=None)
        with refusing(row):
            growth = _growth(only_one(entries, f"topic {name!r}"))
            added += context.topic_changes.check_growth(growth, planned=added)
            wanted[name] = growth
        yield None
    if wanted and not message.validate_only:
        failed = yield from context.topic_changes.grow(wanted, message.timeout_ms)
        for name, failure in failed.items():
            refuse(rows[name], failure)
    results = list(rows.values())
    return (yield from encode_in_slices(response(throttle_time_ms=0, results=results), version, results))


def _growth(asked: Any) -> Growth:
    if asked.name in INTERNAL_TOPICS:
        raise InvalidTopic(f"{asked.name} is internal: the broker alone says how many partitions it has")
    assignments = None if asked.assignments is None else [row.broker_ids for row in asked.assignments]
    return Growth(name=asked.name, count=asked.count, assignments=assignments)


@answered_in_slices
def handle_describe_topic_partitions(message: Any, version: int, context: Context) -> Answering:
    """Topics in order of name, from the cursor on, until the limit is reached; the returned cursor is where to continue."""
    response = response_class(ApiKey.DESCRIBE_TOPIC_PARTITIONS)
    left = max(1, min(message.response_partition_limit, _PARTITIONS_PER_ANSWER_MAX))
    rows, cursor = [], None
    for name, start in _from_cursor(message, context):
        if left == 0:
            cursor = response.Cursor(topic_name=name, partition_index=start)
            break
        yield None
        try:
            check_topic_name(name)
            topic = context.partitions.registry.get(name)
            end = min(topic.partition_count, start + left)
            rows.append(_topic_row(topic, range(start, end), context))
        except BrokerError as error:
            rows.append(_missing_row(name, code_of(error)))
            continue
        left -= max(0, end - start)
        if end < topic.partition_count:
            cursor = response.Cursor(topic_name=name, partition_index=end)
            break
    answer = response(throttle_time_ms=0, topics=rows, next_cursor=cursor)
    return (yield from encode_in_slices(answer, version, rows, *(row.partitions for row in rows)))


def _from_cursor(message: Any, context: Context) -> Iterator[tuple[str, int]]:
    """Each requested name (all if none is given) with the partition to start at."""
    names = sorted({row.name for row in message.topics}) or context.partitions.registry.names()
    cursor = message.cursor
    if cursor is None:
        yield from ((name, 0) for name in names)
        return
    for name in names:
        if name >= cursor.topic_name:
            yield name, max(0, cursor.partition_index) if name == cursor.topic_name else 0


def _missing_row(name: str, code: int) -> Any:
    return response_class(ApiKey.DESCRIBE_TOPIC_PARTITIONS).DescribeTopicPartitionsResponseTopic(
        error_code=code,
        name=name,
        topic_id=NO_TOPIC_ID,
        is_internal=False,
        partitions=[],
    )


def _topic_row(topic: Topic, indexes: range, context: Context) -> Any:
    row = response_class(ApiKey.DESCRIBE_TOPIC_PARTITIONS).DescribeTopicPartitionsResponseTopic
    partitions = [
        row.DescribeTopicPartitionsResponsePartition(
            error_code=ErrorCode.NONE if one.leader != NO_LEADER else ErrorCode.LEADER_NOT_AVAILABLE,
            partition_index=index,
            leader_id=one.leader,
            leader_epoch=one.leader_epoch,
            replica_nodes=one.replicas,
            isr_nodes=one.isr,
            eligible_leader_replicas=one.eligible,
            last_known_elr=[],
            offline_replicas=one.offline,
        )
        for index, one in zip(indexes, context.view.partitions(topic, indexes), strict=True)
    ]
    return row(
        error_code=ErrorCode.NONE,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=partitions,
    )
