"""AlterPartitionReassignments and ListPartitionReassignments: partitions move to other brokers while they are read and written
(KIP-455)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from broker.coordination.local import Topic
from broker.errors import BrokerError, InvalidReplicationFactor, InvalidRequest
from broker.handlers.context import Context
from broker.handlers.error_codes import check_named_once, code_of, text_of
from broker.handlers.slices import Answering, answered_in_slices, answered_in_turn, encode_in_slices
from broker.partitions.topic_admin import Moves
from broker.protocol.api import ApiKey, ErrorCode
from broker.protocol.control import response_class


@answered_in_turn
def handle_alter_partition_reassignments(message: Any, version: int, context: Context) -> Answering:
    response = response_class(ApiKey.ALTER_PARTITION_REASSIGNMENTS)
    may_change_factor = version < 1 or message.allow_replication_factor_change
    names: set[str] = set()
    rows = []
    for asked in message.topics:
        try:
            check_named_once(1 + (asked.name in names), f"topic {asked.name!r}")
            names.add(asked.name)
            topic = context.partitions.registry.get(asked.name)
            failed = _not_allowed(topic, asked, may_change_factor)
            moves = _moves(part for part in asked.partitions if part.partition_index not in failed)
            failed |= yield from context.topic_changes.reassign(topic, moves, message.timeout_ms)
        except BrokerError as error:
            failed = {part.partition_index: error for part in asked.partitions}
        rows.append(_topic_row(asked, failed))
        yield None
    answer = response(
        throttle_time_ms=0,
        allow_replication_factor_change=may_change_factor,
        error_code=ErrorCode.NONE,
        error_message=None,
        responses=rows,
    )
    return (yield from encode_in_slices(answer, version, *(row.partitions for row in rows)))


def _not_allowed(topic: Topic, asked: Any, may_change_factor: bool) -> dict[int, BrokerError]:
    """The partitions whose number of replicas would change although the request forbids it."""
    if may_change_factor:
        return {}
    error = InvalidReplicationFactor(f"topic {topic.name!r} has {topic.replication_factor} replicas of each partition")
    rows = [part for part in asked.partitions if part.replicas is not None]
    return {part.partition_index: error for part in rows if len(part.replicas) != topic.replication_factor}


def _moves(rows: Iterable[Any]) -> Moves:
    moves: dict[int, tuple[int, ...] | None] = {}
    for row in rows:
        if row.partition_index in moves:
            raise InvalidRequest(f"partition {row.partition_index} is named twice in one request")
        moves[row.partition_index] = None if row.replicas is None else tuple(row.replicas)
    return moves


def _topic_row(asked: Any, failed: dict[int, BrokerError]) -> Any:
    row = response_class(ApiKey.ALTER_PARTITION_REASSIGNMENTS).ReassignableTopicResponse
    return row(
        name=asked.name,
        partitions=[
            row.ReassignablePartitionResponse(
                partition_index=part.partition_index,
                error_code=code_of(error) if (error := failed.get(part.partition_index)) else ErrorCode.NONE,
                error_message=text_of(error) if error else None,
            )
            for part in asked.partitions
        ],
    )


@answered_in_slices
def handle_list_partition_reassignments(message: Any, version: int, context: Context) -> Answering:
    """Partitions that are not being moved, or are unknown, are left out, as in Kafka."""
    response = response_class(ApiKey.LIST_PARTITION_REASSIGNMENTS)
    row = response.OngoingTopicReassignment
    rows = []
    for topic, indexes in _asked_for(message, context):
        partitions = [
            row.OngoingPartitionReassignment(
                partition_index=index, replicas=one.replicas, adding_replicas=one.adding, removing_replicas=one.removing
            )
            for index, one in zip(indexes, context.view.partitions(topic, indexes), strict=True)
            if one.adding or one.removing
        ]
        if partitions:
            rows.append(row(name=topic.name, partitions=partitions))
        yield None
    answer = response(throttle_time_ms=0, error_code=ErrorCode.NONE, error_message=None, topics=rows)
    return (yield from encode_in_slices(answer, version, *(row.partitions for row in rows)))


def _asked_for(message: Any, context: Context) -> Iterator[tuple[Topic, list[int]]]:
    registry = context.partitions.registry
    if message.topics is None:
        asked = [(name, None) for name in registry.names()]
    else:
        asked = [(row.name, row.partition_indexes) for row in message.topics]
    for name, indexes in asked:
        if name in registry:  # topics may be created and deleted between two slices
            topic = registry.get(name)
            every = range(topic.partition_count)
            yield topic, list(every) if indexes is None else [index for index in indexes if index in every]
