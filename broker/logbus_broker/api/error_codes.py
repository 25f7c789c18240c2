"""The table from the broker's errors to Kafka's codes, and how a row of an answer reports an error.

Admin requests name many things, and each has its own row in the answer: an error in one must not keep the others from being done.
So a row is created first, as if it had succeeded, and `refusing` writes an error raised in its block into it. A client that has
requested a partition from the wrong broker also gets the current leader (KIP-951).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from logbus_broker import errors
from logbus_broker.api.handler import Context
from logbus_broker.cluster.topic_registry import Topic
from logbus_broker.errors import UnknownTopicId, UnknownTopicOrPartition
from logbus_broker.protocol import api, framing

_CODES: dict[type[errors.BrokerError], api.ErrorCode] = {
    errors.CorruptMessage: api.ErrorCode.CORRUPT_MESSAGE,
    errors.InvalidRecord: api.ErrorCode.INVALID_RECORD,
    errors.InvalidTimestamp: api.ErrorCode.INVALID_TIMESTAMP,
    errors.MessageTooLarge: api.ErrorCode.MESSAGE_TOO_LARGE,
    errors.UnsupportedCompressionType: api.ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
    errors.OffsetOutOfRange: api.ErrorCode.OFFSET_OUT_OF_RANGE,
    errors.OutOfOrderSequence: api.ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    errors.InvalidProducerEpoch: api.ErrorCode.INVALID_PRODUCER_EPOCH,
    errors.RequestTimedOut: api.ErrorCode.REQUEST_TIMED_OUT,
    errors.UnknownTopicOrPartition: api.ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    errors.UnknownTopicId: api.ErrorCode.UNKNOWN_TOPIC_ID,
    errors.TopicAlreadyExists: api.ErrorCode.TOPIC_ALREADY_EXISTS,
    errors.InvalidTopic: api.ErrorCode.INVALID_TOPIC_EXCEPTION,
    errors.InvalidPartitions: api.ErrorCode.INVALID_PARTITIONS,
    errors.InvalidReplicationFactor: api.ErrorCode.INVALID_REPLICATION_FACTOR,
    errors.InvalidReplicaAssignment: api.ErrorCode.INVALID_REPLICA_ASSIGNMENT,
    errors.InvalidConfig: api.ErrorCode.INVALID_CONFIG,
    errors.PolicyViolation: api.ErrorCode.POLICY_VIOLATION,
    errors.InvalidRequest: api.ErrorCode.INVALID_REQUEST,
    errors.InvalidRequiredAcks: api.ErrorCode.INVALID_REQUIRED_ACKS,
    errors.TransactionsNotSupported: api.ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    errors.FencedLeaderEpoch: api.ErrorCode.FENCED_LEADER_EPOCH,
    errors.UnknownLeaderEpoch: api.ErrorCode.UNKNOWN_LEADER_EPOCH,
    errors.NotLeaderOrFollower: api.ErrorCode.NOT_LEADER_OR_FOLLOWER,
    errors.NotController: api.ErrorCode.NOT_CONTROLLER,
    errors.PreferredLeaderNotAvailable: api.ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
    errors.EligibleLeadersNotAvailable: api.ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
    errors.ElectionNotNeeded: api.ErrorCode.ELECTION_NOT_NEEDED,
    errors.NoReassignmentInProgress: api.ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
    errors.NotEnoughReplicas: api.ErrorCode.NOT_ENOUGH_REPLICAS,
    errors.NotEnoughReplicasAfterAppend: api.ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    errors.OffsetNotAvailable: api.ErrorCode.OFFSET_NOT_AVAILABLE,
    errors.InvalidGroupId: api.ErrorCode.INVALID_GROUP_ID,
    errors.OffsetMetadataTooLarge: api.ErrorCode.OFFSET_METADATA_TOO_LARGE,
    errors.UnknownMember: api.ErrorCode.UNKNOWN_MEMBER_ID,
    errors.MemberIdRequired: api.ErrorCode.MEMBER_ID_REQUIRED,
    errors.FencedInstanceId: api.ErrorCode.FENCED_INSTANCE_ID,
    errors.IllegalGeneration: api.ErrorCode.ILLEGAL_GENERATION,
    errors.RebalanceInProgress: api.ErrorCode.REBALANCE_IN_PROGRESS,
    errors.InconsistentGroupProtocol: api.ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
    errors.InvalidSessionTimeout: api.ErrorCode.INVALID_SESSION_TIMEOUT,
    errors.GroupMaxSizeReached: api.ErrorCode.GROUP_MAX_SIZE_REACHED,
    errors.CoordinatorNotAvailable: api.ErrorCode.COORDINATOR_NOT_AVAILABLE,
    errors.NotCoordinator: api.ErrorCode.NOT_COORDINATOR,
    errors.CoordinatorLoadInProgress: api.ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    errors.GroupIdNotFound: api.ErrorCode.GROUP_ID_NOT_FOUND,
    errors.NonEmptyGroup: api.ErrorCode.NON_EMPTY_GROUP,
    errors.GroupSubscribedToTopic: api.ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
    errors.StorageError: api.ErrorCode.KAFKA_STORAGE_ERROR,
    errors.SaslAuthenticationFailed: api.ErrorCode.SASL_AUTHENTICATION_FAILED,
    errors.UnsupportedSaslMechanism: api.ErrorCode.UNSUPPORTED_SASL_MECHANISM,
    errors.IllegalSaslState: api.ErrorCode.ILLEGAL_SASL_STATE,
    errors.TopicAuthorizationFailed: api.ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    errors.GroupAuthorizationFailed: api.ErrorCode.GROUP_AUTHORIZATION_FAILED,
    errors.ClusterAuthorizationFailed: api.ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    errors.SecurityDisabled: api.ErrorCode.SECURITY_DISABLED,
    errors.UnacceptableCredential: api.ErrorCode.UNACCEPTABLE_CREDENTIAL,
    errors.ResourceNotFound: api.ErrorCode.RESOURCE_NOT_FOUND,
    errors.DuplicateResource: api.ErrorCode.DUPLICATE_RESOURCE,
    errors.ThrottlingQuotaExceeded: api.ErrorCode.THROTTLING_QUOTA_EXCEEDED,
}


# Enough for a sentence that quotes a name. Names chosen by clients may have any length, a string in older versions holds at most
# 32,767 bytes, and one answer may contain thousands of such texts.
_TEXT_LENGTH_MAX = 300


def text_of(error: BaseException) -> str:
    """The error message for an answer."""
    return str(error)[:_TEXT_LENGTH_MAX]


def code_of(error: BaseException) -> api.ErrorCode:
    """The wire code of an error, or of its nearest base class in the table; UNKNOWN_SERVER_ERROR if there is none."""
    return next((_CODES[kind] for kind in type(error).__mro__ if kind in _CODES), api.ErrorCode.UNKNOWN_SERVER_ERROR)


def refuse(row: Any, error: errors.BrokerError) -> None:
    """Write the error into a row that has `error_code` and `error_message`."""
    row.error_code, row.error_message = code_of(error), text_of(error)


@contextmanager
def refusing(row: Any) -> Iterator[None]:
    """A BrokerError raised inside becomes this row's error. Anything else is a bug of ours, and propagates."""
    try:
        yield
    except errors.BrokerError as error:
        refuse(row, error)


_ELSEWHERE = frozenset({api.ErrorCode.NOT_LEADER_OR_FOLLOWER, api.ErrorCode.FENCED_LEADER_EPOCH})


def current_leader(error: int, topic: str | bytes, index: int, listener: str, context: Context) -> framing.CurrentLeader | None:
    """None if the error does not send the client to another broker, or that broker is unknown, or this broker is about to lead:
    then the client refreshes its metadata after its back-off. `topic` is a name, or the bytes of an id."""
    if context.cluster is None or error not in _ELSEWHERE:
        return None
    with suppress(UnknownTopicOrPartition, UnknownTopicId):  # deleted in the meantime
        (partition,) = context.view.partitions(_topic(topic, context), [index])
        if partition.leader != context.config.broker_id or error == api.ErrorCode.FENCED_LEADER_EPOCH:
            for broker_id, host, port, rack in context.view.brokers(listener):
                if broker_id == partition.leader:
                    return framing.CurrentLeader(broker_id, partition.leader_epoch, host, port, rack)
    return None


def _topic(topic: str | bytes, context: Context) -> Topic:
    registry = context.partitions.registry
    return registry.get(topic) if isinstance(topic, str) else registry.get_by_id(uuid.UUID(bytes=topic))
