"""ElectLeaders: elects the preferred leaders or, unclean, any live replica (KIP-183, KIP-460); AlterPartitionReassignments and
ListPartitionReassignments: partitions move to other brokers while they are read and written (KIP-455).

Only the controller elects, and it keeps such a request in memory only, so other brokers answer NOT_CONTROLLER: admin clients send
it to the controller anyway, and on that error look for it again. The answer is sent when the image shows the new leaders, or
after the request's timeout.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from logbus_broker import errors
from logbus_broker.api import authorization, error_codes, handler
from logbus_broker.cluster.cluster_view import PartitionView
from logbus_broker.cluster.metadata_image import NO_LEADER
from logbus_broker.cluster.topic_registry import Topic
from logbus_broker.errors import BrokerError, InvalidReplicationFactor
from logbus_broker.log.background_tasks import Steps, Until
from logbus_broker.log.topic_admin import Moves
from logbus_broker.protocol import api, codec

if TYPE_CHECKING:
    from logbus_broker.cluster.metadata_image import MetadataImage


_PREFERRED, _UNCLEAN = 0, 1

_OVER = (errors.ElectionNotNeeded, errors.UnknownTopicOrPartition)  # elected, or deleted in the meantime

Key = tuple[str, int]


@handler.answered_in_slices
def handle_elect_leaders(message: Any, version: int, caller: authorization.Caller, context: handler.Context) -> handler.Answering:
    outcomes: dict[Key, errors.BrokerError | None] = {}
    code = api.ErrorCode.NONE
    try:
        caller.check(authorization.CLUSTER)
        kind = message.election_type if version >= 1 else _PREFERRED
        if kind not in (_PREFERRED, _UNCLEAN):
            raise errors.InvalidRequest(f"election type {kind}: it is 0 (preferred) or 1 (unclean)")
        if context.view.controller_id != context.config.broker_id:
            raise errors.NotController(f"broker {context.view.controller_id} is the controller")
        outcomes = yield from _elect(message, kind == _UNCLEAN, context)
    except errors.BrokerError as error:
        code = error_codes.code_of(error)
        outcomes = {} if message.topic_partitions is None else dict.fromkeys(_named(message), error)
    response = codec.response_class(api.ApiKey.ELECT_LEADERS)
    by_topic: dict[str, list[Any]] = {}
    result = response.ReplicaElectionResult
    for (topic, index), outcome in outcomes.items():
        row = result.PartitionResult(
            partition_id=index,
            error_code=api.ErrorCode.NONE if outcome is None else error_codes.code_of(outcome),
            error_message=None if outcome is None else error_codes.text_of(outcome),
        )
        by_topic.setdefault(topic, []).append(row)
    rows = [result(topic=topic, partition_result=partitions) for topic, partitions in by_topic.items()]
    answer = response(error_code=code, replica_election_results=rows)
    return (yield from handler.encode_in_slices(answer, version, *by_topic.values()))


def _named(message: Any) -> Iterator[Key]:
    for row in message.topic_partitions:
        for index in row.partitions:
            yield row.topic, index


def _elect(message: Any, is_unclean: bool, context: handler.Context) -> Steps:
    """The outcome for each partition. If all are requested, those that need no election are left out, as in Kafka."""
    registry = context.partitions.registry
    is_all = message.topic_partitions is None
    if is_all:
        keys = [(topic.name, index) for topic in registry for index in range(topic.partition_count)]
    else:
        keys = list(dict.fromkeys(_named(message)))
    outcomes: dict[Key, errors.BrokerError | None] = {}
    for key in keys:
        outcomes[key] = _why_not(key, is_unclean, context)
        yield None
    if is_all:
        outcomes = {key: outcome for key, outcome in outcomes.items() if not isinstance(outcome, errors.ElectionNotNeeded)}
    unelected = [key for key, outcome in outcomes.items() if outcome is None]
    if unelected:
        late = yield from _wait_for(unelected, is_unclean, message.timeout_ms, context)
        outcomes.update(late)
    return outcomes


def _why_not(key: Key, is_unclean: bool, context: handler.Context) -> errors.BrokerError | None:
    topic, index = key
    name = f"{topic}-{index}"
    if not context.partitions.has(topic, index):
        return errors.UnknownTopicOrPartition(f"no partition {name}")
    (partition,) = context.view.partitions(context.partitions.registry.get(topic), [index])
    preferred = partition.replicas[0]
    if _is_elected(partition, is_unclean):
        return errors.ElectionNotNeeded(f"broker {partition.leader} leads {name}")
    if is_unclean and len(partition.offline) == len(partition.replicas):
        return errors.EligibleLeadersNotAvailable(f"no replica of {name} is alive: its brokers are {list(partition.replicas)}")
    if not is_unclean and (preferred in partition.offline or preferred not in partition.isr):
        return errors.PreferredLeaderNotAvailable(f"broker {preferred} is not in the in-sync set of {name}")
    return None


def _is_elected(partition: PartitionView, is_unclean: bool) -> bool:
    return partition.leader != NO_LEADER if is_unclean else partition.leader == partition.replicas[0]


def _wait_for(keys: list[Key], is_unclean: bool, timeout_ms: int, context: handler.Context) -> Steps:
    """The errors of the partitions without a new leader in time."""
    member = context.cluster
    assert member is not None, "a broker that is alone leads all it has"

    def missing(_: MetadataImage) -> list[Key]:
        return [key for key in keys if not isinstance(_why_not(key, is_unclean, context), _OVER)]

    member.elect(keys, is_unclean)
    try:
        yield Until(lambda go_on: member.when_seen(lambda image: not missing(image), partial(go_on, None), timeout_ms))
    except errors.RequestTimedOut as error:
        return dict.fromkeys(missing(member.image), error)
    return {}


# AlterPartitionReassignments and ListPartitionReassignments: partitions move to other brokers while they are read and
# written (KIP-455).


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
