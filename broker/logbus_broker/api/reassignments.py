"""AlterPartitionReassignments and ListPartitionReassignments: partitions move to other brokers while they are read and written
(KIP-455)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from operator import attrgetter
from typing import Any

from logbus_broker.api import authorization, error_codes, handler
from logbus_broker.cluster.topic_registry import Topic
from logbus_broker.errors import BrokerError, InvalidReplicationFactor
from logbus_broker.log.topic_admin import Moves
from logbus_broker.protocol import api, codec


@handler.answered_in_turn
def handle_alter_partition_reassignments(
    message: Any, version: int, caller: authorization.Caller, context: handler.Context
) -> handler.Answering:
    response = codec.response_class(api.ApiKey.ALTER_PARTITION_REASSIGNMENTS)
    try:
        caller.check(authorization.CLUSTER)
    except BrokerError as error:
        refused = response(error_code=error_codes.code_of(error), error_message=error_codes.text_of(error))
        return [codec.encode_response(refused, version)]
    may_change_factor = version < 1 or message.allow_replication_factor_change
    rows = []
    for name, entries in handler.by_name(message.topics, attrgetter("name")).items():
        parts = handler.by_name((part for entry in entries for part in entry.partitions), attrgetter("partition_index"))
        try:
            handler.only_one(entries, f"topic {name!r}")
            topic = context.partitions.registry.get(name)
            moves = {index: _target(handler.only_one(same, f"partition {name}-{index}")) for index, same in parts.items()}
            failed = {} if may_change_factor else _not_allowed(topic, moves)
            allowed = {index: target for index, target in moves.items() if index not in failed}
            failed |= yield from context.topic_changes.reassign(topic, allowed, message.timeout_ms)
        except BrokerError as error:
            failed = dict.fromkeys(parts, error)
        rows.append(_topic_row(name, parts, failed))
        yield None
    answer = response(allow_replication_factor_change=may_change_factor, error_message=None, responses=rows)
    return (yield from handler.encode_in_slices(answer, version, *(row.partitions for row in rows)))


def _target(part: Any) -> tuple[int, ...] | None:
    return None if part.replicas is None else tuple(part.replicas)


def _not_allowed(topic: Topic, moves: Moves) -> dict[int, BrokerError]:
    """The partitions whose number of replicas would change although the request forbids it."""
    error = InvalidReplicationFactor(f"topic {topic.name!r} has {topic.replication_factor} replicas of each partition")
    factor = topic.replication_factor
    return {index: error for index, target in moves.items() if target is not None and len(target) != factor}


def _topic_row(name: str, indexes: Iterable[int], failed: Mapping[int, BrokerError]) -> Any:
    row = codec.response_class(api.ApiKey.ALTER_PARTITION_REASSIGNMENTS).ReassignableTopicResponse
    return row(
        name=name,
        partitions=[
            row.ReassignablePartitionResponse(
                partition_index=index,
                error_code=error_codes.code_of(error) if (error := failed.get(index)) else api.ErrorCode.NONE,
                error_message=error_codes.text_of(error) if error else None,
            )
            for index in indexes
        ],
    )


@handler.answered_in_slices
def handle_list_partition_reassignments(
    message: Any, version: int, caller: authorization.Caller, context: handler.Context
) -> handler.Answering:
    """Partitions that are not being moved, or are unknown, are left out, as in Kafka."""
    response = codec.response_class(api.ApiKey.LIST_PARTITION_REASSIGNMENTS)
    row = response.OngoingTopicReassignment
    rows = []
    try:
        caller.check(authorization.CLUSTER)
    except BrokerError as error:
        refused = response(error_code=error_codes.code_of(error), error_message=error_codes.text_of(error))
        return [codec.encode_response(refused, version)]
    for topic, indexes in _requested(message, context):
        partitions = [
            row.OngoingPartitionReassignment(
                partition_index=index,
                replicas=partition.replicas,
                adding_replicas=partition.adding,
                removing_replicas=partition.removing,
            )
            for index, partition in zip(indexes, context.view.partitions(topic, indexes), strict=True)
            if partition.adding or partition.removing
        ]
        if partitions:
            rows.append(row(name=topic.name, partitions=partitions))
        yield None
    answer = response(error_message=None, topics=rows)
    return (yield from handler.encode_in_slices(answer, version, *(row.partitions for row in rows)))


def _requested(message: Any, context: handler.Context) -> Iterator[tuple[Topic, list[int]]]:
    registry = context.partitions.registry
    if message.topics is None:
        requested = [(name, None) for name in registry.names()]
    else:
        requested = [(row.name, row.partition_indexes) for row in message.topics]
    for name, indexes in requested:
        if name in registry:  # topics may be created and deleted between two slices
            topic = registry.get(name)
            every = range(topic.partition_count)
            yield topic, list(every) if indexes is None else [index for index in indexes if index in every]
