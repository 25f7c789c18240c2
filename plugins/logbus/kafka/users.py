"""Users of a cluster, with their passwords; and what a connection may do: the operations that the broker allows its user, on the
cluster, on topics and on groups.

What a connection may do the broker itself says (`include_authorized_operations`, Kafka 2.3): nothing is tried, and no right to
read its ACLs is needed. Operations are named as kafka-acls writes them. A topic or a group that the user may not describe does
not exist for it: the broker lists neither, a topic that is asked for by name is refused, and such a group cannot be asked for.

A password leaves this machine salted and hashed as SCRAM prescribes (RFC 5802); the broker keeps keys from which neither it nor a
login can be made. Users who log in by a certificate or a token are not kept by the cluster, so they are not listed.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Any

from confluent_kafka import KafkaError
from confluent_kafka.admin import (
    AclOperation,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialAlteration,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from logbus import errors
from logbus.kafka import acls
from logbus.kafka.client import INTERNAL_PREFIX, Client
from logbus.kafka.errors import explain_code
from logbus.kafka.exact_reader import CONSUMER_CONFIG
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


# Users of a cluster that log in by SCRAM: which there are, and their passwords.


# In the words of sasl.mechanism. A user has both by default: a client chooses.
MECHANISMS: Mapping[str, ScramMechanism] = {
    "SCRAM-SHA-512": ScramMechanism.SCRAM_SHA_512,
    "SCRAM-SHA-256": ScramMechanism.SCRAM_SHA_256,
}
ITERATIONS = 4096  # Kafka's; a password of `random_password` cannot be guessed at any number of them
# 192 bits as letters, digits, `-` and `_`: in no file and no shell need any of them be quoted.
random_password = partial(secrets.token_urlsafe, 24)


# librdkafka asks for the coordinator of the group that it insists on.
GROUP_OF_READERS = acls.Resource(kind=ResourceType.GROUP, name=CONSUMER_CONFIG["group.id"])


class _NotThere(Exception):
    """There is no such credential."""


class ScramUsers:
    """Those of the client's cluster. Listing needs Describe on the cluster, changing Alter."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def mechanisms(self) -> dict[str, list[str]]:
        """By which mechanisms each user can log in, sorted by name."""
        question = self.client.admin().describe_user_scram_credentials
        answers = self.client.ask(lambda: {"": question(None, **self.client.limits())})
        names = {mechanism: name for name, mechanism in MECHANISMS.items()}
        return {
            user: [names[info.mechanism] for info in described.scram_credential_infos if info.mechanism in names]
            for user, described in sorted(answers[""].items())
        }

    def set_password(self, user: str, password: str, mechanisms: Sequence[str] = tuple(MECHANISMS)) -> None:
        """Makes the user if there is none. Connections that have logged in stay; new ones need this password."""
        for name in mechanisms:  # a request may name a user once
            info = ScramCredentialInfo(MECHANISMS[name], ITERATIONS)
            self._alter(user, UserScramCredentialUpsertion(user, info, password.encode()))

    def delete(self, user: str) -> None:
        """All credentials; `UserError` if there are none. Connections that have logged in stay, as in Kafka."""
        mechanisms = self.mechanisms().get(user)
        if not mechanisms:
            raise unknown_user(user)
        for name in mechanisms:
            self._alter(user, UserScramCredentialDeletion(user, MECHANISMS[name]))

    def forget(self, user: str, mechanism: str) -> None:
        """Deletes the credential of this mechanism, if it is there."""
        with suppress(_NotThere):
            self._alter(user, UserScramCredentialDeletion(user, MECHANISMS[mechanism]), _NotThere())

    def _alter(self, user: str, alteration: UserScramCredentialAlteration, unknown: Exception | None = None) -> None:
        question = self.client.admin().alter_user_scram_credentials
        explained = {KafkaError.RESOURCE_NOT_FOUND: unknown or unknown_user(user)}
        self.client.ask(lambda: question([alteration], **self.client.limits()), user, needs="Alter", explained=explained)


class RangeReaders:
    """Users of the client's own, `NAME/...`, who may read ranges of offsets and nothing else: on our broker. There its user NAME
    need not be an administrator for that."""

    def __init__(self, client: Client) -> None:
        self._users = ScramUsers(client)
        self._acls = acls.Acls(client)

    def add(self, user: str, password: str, mechanism: str, ranges: Sequence[acls.AclRange]) -> None:
        """At least one range, all of one topic. `UserError` where there are no such users."""
        principal, topic = f"User:{user}", ranges[0].topic
        self._acls.add([acls.reading(principal, allowed) for allowed in ranges])
        with suppress(errors.AccessDenied):  # the client may not itself; then its readers ask for the group's coordinator in vain
            self._acls.add([acls.allowing(principal, AclOperation.DESCRIBE, GROUP_OF_READERS)])
        if not self._acls.matching(acls.about(principal, topic)):
            # Another Kafka, where this client may do everything: it keeps such ACLs, and they are about no topic.
            self._acls.delete_of(principal)
            raise errors.UserError("this Kafka has no ACLs for ranges of offsets")
        self._users.set_password(user, password, [mechanism])

    def delete(self, user: str, mechanism: str) -> None:
        """Whatever of it is there. What it has open is refused from then on."""
        self._acls.delete_of(f"User:{user}")
        self._users.forget(user, mechanism)


def unknown_user(user: str) -> errors.UserError:
    return errors.UserError(f"there is no user {user!r} who logs in by SCRAM: `logbus user ls` lists those there are")
