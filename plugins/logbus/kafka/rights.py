"""What a connection may do: the operations that the broker allows its user, on the cluster, on topics and on groups.

The broker itself says so (`include_authorized_operations`, Kafka 2.3): nothing is tried, and no right to read its ACLs is needed.
Operations are named as kafka-acls writes them. A topic or a group that the user may not describe does not exist for it: the
broker lists neither, a topic that is asked for by name is refused, and such a group cannot be asked for.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from confluent_kafka import KafkaError

from logbus import errors
from logbus.kafka.client import INTERNAL_PREFIX, Client
from logbus.kafka.errors import explain_code
from logbus.kafka.groups import Groups
from logbus.kafka.topics import allowed_operations

RESOURCES_MAX = 200  # of a kind: those asked for by name first


class ResourceKind(StrEnum):
    """What ACLs are about."""

    CLUSTER = "cluster"
    TOPIC = "topic"
    GROUP = "group"


# What Kafka has for each kind, without ClusterAction, which is for brokers.
OPERATIONS: Mapping[ResourceKind, Sequence[str]] = {
    ResourceKind.CLUSTER: ("Describe", "DescribeConfigs", "AlterConfigs", "Create", "Alter", "IdempotentWrite"),
    ResourceKind.TOPIC: ("Describe", "Read", "Write", "DescribeConfigs", "AlterConfigs", "Create", "Alter", "Delete"),
    ResourceKind.GROUP: ("Describe", "Read", "Delete"),
}
DENIED: Mapping[ResourceKind, int] = {
    ResourceKind.CLUSTER: KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    ResourceKind.TOPIC: KafkaError.TOPIC_AUTHORIZATION_FAILED,
    ResourceKind.GROUP: KafkaError.GROUP_AUTHORIZATION_FAILED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceRights:
    """What the user may do with one of them. `allowed` is None where the broker does not say: then `error` has the reason, or
    there is none, and the broker asks nobody for rights."""

    kind: ResourceKind
    name: str
    user: str
    allowed: frozenset[str] | None
    error: errors.LogbusError | None = None

    def may(self, operation: str) -> bool | None:
        """None where it is not known."""
        if self.error is not None:
            return None
        return self.allowed is None or operation in self.allowed

    def lacking(self) -> dict[str, str]:
        """The operations that the user may not do, each with the sentence on how to grant it."""
        code, operations = DENIED[self.kind], OPERATIONS[self.kind]
        return {
            operation: str(explain_code(code, "", self.name, needs=operation, user=self.user))
            for operation in operations
            if self.may(operation) is False
        }

    def summary(self) -> dict[str, Any]:
        """As JSON-ready values."""
        return {
            "kind": self.kind.value,
            "name": self.name,
            "operations": {operation: self.may(operation) for operation in OPERATIONS[self.kind]},
            "lacking": self.lacking(),
            "problem": None if self.error is None else str(self.error),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionRights:
    """Of one connection; `left_out` is how many topics and groups were not asked about."""

    resources: Sequence[ResourceRights]
    left_out: int


def read_rights(client: Client, topics: Collection[str] = ()) -> ConnectionRights:
    """On the cluster, on these topics and all others that the user sees, and on the groups that it sees. `BrokerUnavailable`
    where the broker does not answer at all."""
    visible = (name for name in client.metadata().topics if not name.startswith(INTERNAL_PREFIX))
    names = [*sorted(topics), *sorted(set(visible) - set(topics))]
    groups = _group_names(client)
    topic_names, group_names = names[:RESOURCES_MAX], groups[:RESOURCES_MAX]
    # All are in flight together.
    answers: list[tuple[ResourceKind, Mapping[str, Future[Any]]]] = [
        (ResourceKind.CLUSTER, client.ask_cluster(with_operations=True)),
        (ResourceKind.TOPIC, client.ask_topics(topic_names, with_operations=True) if topic_names else {}),
        (ResourceKind.GROUP, client.ask_groups(group_names, with_operations=True) if group_names else {}),
    ]
    cluster, *others = [
        _rights_of(client, kind, name, client.outcome(future, name))
        for kind, futures in answers
        for name, future in futures.items()
    ]
    left_out = len(names) - len(topic_names) + len(groups) - len(group_names)
    return ConnectionRights(resources=[_told_apart(cluster, others), *others], left_out=left_out)


def _told_apart(cluster: ResourceRights, others: Sequence[ResourceRights]) -> ResourceRights:
    """The client gives the same answer where nothing is allowed and where the broker does not say. On a topic or a group at least
    Describe is allowed, or it is refused: so they show whether this broker says."""
    if cluster.allowed is not None or cluster.error is not None:
        return cluster
    if not others:
        return replace(cluster, error=errors.UserError("not known: this user sees neither a topic nor a group"))
    says = any(other.allowed is not None or isinstance(other.error, errors.AccessDenied) for other in others)
    return replace(cluster, allowed=frozenset()) if says else cluster


def _group_names(client: Client) -> list[str]:
    try:
        return list(Groups(client).states())
    except errors.AccessDenied:
        return []


def _rights_of(client: Client, kind: ResourceKind, name: str, answer: Any) -> ResourceRights:
    if isinstance(answer, errors.LogbusError):
        return ResourceRights(kind=kind, name=name, user=client.user, allowed=None, error=answer)
    return ResourceRights(kind=kind, name=name, user=client.user, allowed=allowed_operations(answer))
