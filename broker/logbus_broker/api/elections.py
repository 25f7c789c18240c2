"""ElectLeaders: elects the preferred leaders or, unclean, any live replica (KIP-183, KIP-460).

Only the controller elects, and it keeps such a request in memory only, so other brokers answer NOT_CONTROLLER: admin clients send
it to the controller anyway, and on that error look for it again. The answer is sent when the image shows the new leaders, or
after the request's timeout.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from logbus_broker import errors
from logbus_broker.api import authorization, error_codes, handler
from logbus_broker.cluster.cluster_view import PartitionView
from logbus_broker.cluster.metadata_image import NO_LEADER
from logbus_broker.log.background_tasks import Steps, Until
from logbus_broker.protocol import api, codec

if TYPE_CHECKING:  # a standalone broker imports no cluster code
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
