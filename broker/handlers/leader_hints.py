"""The current leader of a partition that a client has requested from the wrong broker (KIP-951), sent along with the error."""

from __future__ import annotations

import uuid
from contextlib import suppress

from broker.coordination.local import Topic
from broker.errors import UnknownTopicId, UnknownTopicOrPartition
from broker.handlers.context import Context
from broker.protocol.api import ErrorCode
from broker.protocol.leader_hints import CurrentLeader

_ELSEWHERE = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})


def leader_hint(error: int, topic: str | bytes, index: int, listener: str, context: Context) -> CurrentLeader | None:
    """None if the error does not send the client to another broker, or that broker is unknown, or this broker is about to lead:
    then the client refreshes its metadata after its back-off. `topic` is a name, or the bytes of an id."""
    if context.cluster is None or error not in _ELSEWHERE:
        return None
    with suppress(UnknownTopicOrPartition, UnknownTopicId):  # deleted in the meantime
        (one,) = context.view.partitions(_topic(topic, context), [index])
        if one.leader != context.config.broker_id or error == ErrorCode.FENCED_LEADER_EPOCH:
            for broker_id, host, port, rack in context.view.brokers(listener):
                if broker_id == one.leader:
                    return CurrentLeader(broker_id, one.leader_epoch, host, port, rack)
    return None


def _topic(topic: str | bytes, context: Context) -> Topic:
    registry = context.partitions.registry
    return registry.get(topic) if isinstance(topic, str) else registry.get_by_id(uuid.UUID(bytes=topic))
