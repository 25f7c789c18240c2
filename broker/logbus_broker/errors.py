"""Every failure the broker can name, grouped by cause; `api/error_codes.py` turns them into wire codes.

A peer's bytes raise a ProtocolError or a RequestError; our own disk raises a StorageError; malformed data in ZooKeeper raises a
MalformedNode; an operator's settings raise a ConfigError or a StartupError, whose text says what to do. Our own bugs are asserts,
not exceptions.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class BrokerError(Exception):
    """Root of the tree."""


class ConfigError(BrokerError):
    """A setting is unknown or has a value that cannot be used; the text names it and what would be accepted."""


class StartupError(BrokerError):
    """The broker cannot start here (port in use, data directory of another broker, newer format); the text says what to do."""


class ProtocolError(BrokerError):
    """The peer's bytes make no sense as Kafka protocol: the connection is closed, nothing is answered."""


class UnsupportedVersion(ProtocolError):
    """A known API in a version that is not offered."""


class TlsFailure(BrokerError):
    """A client's handshake or record cannot be used, or its certificate is refused: the connection is closed."""


class StorageError(BrokerError):
    """The disk failed. What was stored before is untouched; the failed turn was rolled back as a whole."""


@contextmanager
def storage_errors(action: str) -> Iterator[None]:
    """An OSError raised inside becomes a StorageError: the broker cannot do the action."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"cannot {action}: {error}") from error


class MalformedNode(BrokerError):
    """A node under one of our ZooKeeper paths holds data that neither Kafka nor this broker writes there."""


class ReplicationRefused(BrokerError):
    """What a leader sent to a replica is damaged, or does not follow what the replica has: none of it is stored."""


class RequestError(BrokerError):
    """A well-formed request that cannot be fulfilled: answered with an error code."""


class CorruptMessage(RequestError):
    """The batch's CRC-32C does not match its bytes."""


class InvalidRecord(RequestError):
    """The batch contradicts itself (counts, lengths, magic) or is of a kind that clients may not send."""


class InvalidTimestamp(RequestError):
    """A record's timestamp is further from the broker's clock than message.timestamp.{before,after}.max.ms allow."""


class MessageTooLarge(RequestError):
    """The batch is larger than max.message.bytes."""


class UnsupportedCompressionType(RequestError):
    """The batch names a codec that the v2 format does not have."""


class OffsetOutOfRange(RequestError):
    """The offset is below the log start offset or beyond the log end offset."""


class OutOfOrderSequence(RequestError):
    """An idempotent producer skipped a sequence number, or repeats one too old to be remembered."""


class InvalidProducerEpoch(RequestError):
    """An older incarnation of a producer is writing."""


class RequestTimedOut(RequestError):
    """What the request waits for did not happen within its timeout."""


class InspectionTooLong(RequestTimedOut):
    """The broker would have to read more records for one request than it has time for. Nothing of this batch was stored."""


class UnknownTopicOrPartition(RequestError):
    """No such topic, or no such partition of it."""


class UnknownTopicId(RequestError):
    """No topic has this id."""


class TopicAlreadyExists(RequestError):
    """A topic of this name exists."""


class InvalidTopic(RequestError):
    """The topic name is not valid: 1 to 249 of [a-zA-Z0-9._-], not '.' or '..'."""


class InvalidPartitions(RequestError):
    """The number of partitions is not positive, or above the limit."""


class InvalidReplicationFactor(RequestError):
    """More replicas requested than there are brokers."""


class InvalidReplicaAssignment(RequestError):
    """Partitions are assigned to brokers that do not exist."""


class InvalidConfig(RequestError):
    """A topic setting is unknown or has a value that cannot be used."""


class PolicyViolation(RequestError):
    """Records would be deleted from a topic that is compacted only."""


class InvalidRequest(RequestError):
    """The request contradicts itself."""


class InvalidRequiredAcks(RequestError):
    """acks is not 0, 1 or -1."""


class FencedLeaderEpoch(RequestError):
    """The client knows an older leader epoch than ours."""


class UnknownLeaderEpoch(RequestError):
    """The client knows a newer leader epoch than ours."""


class NotLeaderOrFollower(RequestError):
    """The partition exists, but another broker leads it, or it has no leader."""


class NotController(RequestError):
    """Only the controller can do it, and another broker is the controller, or there is currently none."""


class PreferredLeaderNotAvailable(RequestError):
    """The preferred (first) replica is not alive, or not in the in-sync set: it cannot lead."""


class EligibleLeadersNotAvailable(RequestError):
    """No broker with a replica is alive."""


class ElectionNotNeeded(RequestError):
    """The broker that should lead the partition already leads it."""


class NoReassignmentInProgress(RequestError):
    """There is nothing to cancel: the partition is not being moved."""


class NotEnoughReplicas(RequestError):
    """The in-sync set is smaller than min.insync.replicas: nothing was written."""


class NotEnoughReplicasAfterAppend(RequestError):
    """The batch is written, and the in-sync set became smaller than min.insync.replicas before it held it."""


class OffsetNotAvailable(RequestError):
    """Acknowledged records are not visible yet, so the latest offset cannot be reported without going backwards."""


class InvalidGroupId(RequestError):
    """The group id is empty or too long."""


class OffsetMetadataTooLarge(RequestError):
    """The committed metadata is longer than offset.metadata.max.bytes."""


class UnknownMember(RequestError):
    """The group does not (or no longer) have this member, or it has members and the request came without membership."""


class MemberIdRequired(RequestError):
    """A new member must join again with the id carried by this error (KIP-394)."""

    def __init__(self, member_id: str) -> None:
        super().__init__(f"join again as {member_id!r}")
        self.member_id = member_id


class FencedInstanceId(RequestError):
    """Another process has taken the static member's instance id."""


class IllegalGeneration(RequestError):
    """The member's generation is over."""


class RebalanceInProgress(RequestError):
    """The group is moving to a new generation: the member should rejoin."""


class InconsistentGroupProtocol(RequestError):
    """The member supports no protocol that all others support."""


class InvalidSessionTimeout(RequestError):
    """The session timeout is outside group.{min,max}.session.timeout.ms."""


class GroupMaxSizeReached(RequestError):
    """The group has as many members as group.max.size allows."""


class CoordinatorNotAvailable(RequestError):
    """The group's coordinator cannot serve it at the moment, for example because the broker holds the maximum of groups."""


class NotCoordinator(RequestError):
    """Another broker coordinates the group, or this one cannot be sure that none does."""


class CoordinatorLoadInProgress(RequestError):
    """The broker has just become the group's coordinator and is still reading committed offsets."""


class GroupIdNotFound(RequestError):
    """There is no group of this name, and no offsets of it."""


class NonEmptyGroup(RequestError):
    """The group has members, so it, or its offsets, cannot be deleted."""


class GroupSubscribedToTopic(RequestError):
    """A member reads the topic, so the group's offsets of it cannot be deleted."""


class TransactionsNotSupported(RequestError):
    """The request carries a transactional id; this broker has no transactions."""


class AuthenticationError(RequestError):
    """The peer has not shown who it is; the text never says whether a user exists. `reason` is one word for the broker's own log
    and metrics, which do tell such cases apart; `user` is who the peer claims to be, as far as it has said so."""

    def __init__(self, text: str, *, reason: str, user: str = "") -> None:
        super().__init__(text)
        self.reason = reason
        self.user = user


class SaslAuthenticationFailed(AuthenticationError):
    """Wrong user, password or token."""


class UnsupportedSaslMechanism(AuthenticationError):
    """The listener does not offer the mechanism; the text names those that it offers."""


class IllegalSaslState(AuthenticationError):
    """The request is not the next one of a login, or the listener has none."""


class AuthorizationError(RequestError):
    """No ACL allows it, or one denies it; the text names operation and resource."""


class TopicAuthorizationFailed(AuthorizationError):
    """An operation on a topic."""


class GroupAuthorizationFailed(AuthorizationError):
    """An operation on a consumer group."""


class ClusterAuthorizationFailed(AuthorizationError):
    """An operation on the cluster."""


class SecurityDisabled(RequestError):
    """ACLs are asked for or changed, and none are enforced: authorizer.class.name is not set."""


class UnacceptableCredential(RequestError):
    """A SCRAM credential with too few or too many iterations, or without a user."""


class ResourceNotFound(RequestError):
    """A credential that does not exist."""


class DuplicateResource(RequestError):
    """One request changes the same credential twice."""


class ThrottlingQuotaExceeded(RequestError):
    """The quota for creating and deleting topics is used up: later."""
