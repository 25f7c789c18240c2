"""Who leads a partition that a client has asked for here in vain (KIP-951): what the answer says besides the error."""

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
    """None: the error does not send the client elsewhere, or it is not known where, or this broker is about to lead itself: then
    the client looks for itself after its back-off. `topic` is a name, or the bytes of an id."""
    if context.cluster is None or error not in _ELSEWHERE:
        return None
    with suppress(UnknownTopicOrPartition, UnknownTopicId):  # deleted meanwhile
        (one,) = context.view.partitions(_topic(topic, context), [index])
        if one.leader != context.config.broker_id or error == ErrorCode.FENCED_LEADER_EPOCH:
            for broker_id, host, port, rack in context.view.brokers(listener):
                if broker_id == one.leader:
                    return CurrentLeader(broker_id, one.leader_epoch, host, port, rack)
    return None


def _topic(topic: str | bytes, context: Context) -> Topic:
    registry = context.partitions.registry
    return registry.get(topic) if isinstance(topic, str) else registry.get_by_id(uuid.UUID(bytes=topic))
