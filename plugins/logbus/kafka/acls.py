"""The ACLs of a cluster: which there are, which one decides, and what would change that.

`Acls` asks a broker. `decide` is Kafka's rule over what it answered, so `logbus acl explain` works on any Kafka. A super user may
do everything; of the ACLs that name the resource (literally, by a prefix, or as `*`), any that denies refuses; else any that
allows passes; else nothing does, unless no ACL names the resource and allow.everyone.if.no.acl.found is set. Read, Write, Delete
and Alter imply Describe, and AlterConfigs implies DescribeConfigs, but only where they are allowed. Our broker gives the same
reason for a refusal, in the same words; it may import nothing of this, nor this of it, so a test compares them.

On our broker alone, the ACL `ALLOW READ` on the literal topic `web:0:100-200` allows one user to read the offsets 100 to 199 of
partition 0 of the topic `web` and to describe `web`; on any other Kafka it names nothing, since no topic has a colon in its name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ConfigResource,
    ResourcePatternType,
    ResourceType,
)

from logbus import errors, formatting
from logbus.kafka.client import Client

# What an ACL can be about, in the words of kafka-acls.
KINDS: Mapping[str, ResourceType] = {
    "topic": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "cluster": ResourceType.BROKER,
    "transactional-id": ResourceType.TRANSACTIONAL_ID,
}
CLUSTER_NAME = "kafka-cluster"  # the only resource of kind cluster
ANY_NAME, EVERYBODY = "*", "User:*"  # as a literal name or a host; as a principal
IMPLIED_BY: Mapping[AclOperation, frozenset[AclOperation]] = {
    AclOperation.DESCRIBE: frozenset({AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER}),
    AclOperation.DESCRIBE_CONFIGS: frozenset({AclOperation.ALTER_CONFIGS}),
}
SUPER_USERS, ALLOW_EVERYONE = "super.users", "allow.everyone.if.no.acl.found"


def operation_words(operation: AclOperation) -> str:
    """As kafka-acls writes it: `DescribeConfigs`."""
    return "".join(word.title() for word in operation.name.split("_"))


OPERATIONS: Mapping[str, AclOperation] = {
    operation_words(operation): operation
    for operation in AclOperation
    if operation not in (AclOperation.UNKNOWN, AclOperation.ANY)
}


RANGE = re.compile(r"([^:]+):(0|[1-9][0-9]{0,9}):(0|[1-9][0-9]{0,18})-([1-9][0-9]{0,18})")
RANGES_SHOWN_MAX = 3


class AclRange(NamedTuple):
    """The offsets from `start` on and before `end` of one partition; as a text, the name of a topic in an ACL."""

    topic: str
    partition: int
    start: int
    end: int

    def __str__(self) -> str:
        return f"{self.topic}:{self.partition}:{self.start}-{self.end}"


def range_of(acl: AclBinding) -> AclRange | None:
    """The range that the ACL allows to be read, on our broker."""
    match = RANGE.fullmatch(acl.name) if acl.name and acl.resource_pattern_type is ResourcePatternType.LITERAL else None
    is_reading = (acl.restype, acl.operation, acl.permission_type) == (
        ResourceType.TOPIC,
        AclOperation.READ,
        AclPermissionType.ALLOW,
    )
    return AclRange(match[1], *map(int, match.groups()[1:])) if match and is_reading else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """What something is to be done to. Its name is that of one topic, group or transactional id."""

    kind: ResourceType
    name: str

    def is_named_by(self, acl: AclBinding) -> bool:
        if acl.restype is not self.kind:
            return False
        if acl.resource_pattern_type is ResourcePatternType.PREFIXED:
            return self.name.startswith(acl.name)
        return acl.name in (self.name, ANY_NAME)

    def has_range_of(self, acl: AclBinding) -> bool:
        """Whether it is a topic of which the ACL allows some offsets."""
        allowed = range_of(acl)
        return self.kind is ResourceType.TOPIC and allowed is not None and allowed.topic == self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorizerSettings:
    """What decides beside the ACLs; None where the broker does not show it."""

    super_users: frozenset[str] | None = None
    allows_everyone: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AclDecision:
    """Whether something is allowed, by which ACL (None: by none), and why, as the end of a sentence."""

    is_allowed: bool
    acl: AclBinding | None
    reason: str


def decide(
    acls: Iterable[AclBinding],
    principal: str,
    host: str,
    operation: AclOperation,
    resource: Resource,
    settings: AuthorizerSettings,
) -> AclDecision:
    """Kafka's decision about a request of `principal` from `host`; the host `*` is one that no ACL names."""
    if principal in (settings.super_users or ()):
        return AclDecision(is_allowed=True, acl=None, reason=f"one of {SUPER_USERS}")
    acls = list(acls)
    naming = sorted((acl for acl in acls if resource.is_named_by(acl)), key=precedence)
    fitting = [acl for acl in naming if acl.principal in (principal, EVERYBODY) and acl.host in (host, ANY_NAME)]
    meant = (operation, AclOperation.ALL)
    implying = (*meant, *IMPLIED_BY.get(operation, ()))
    for acl in fitting:
        if acl.permission_type is AclPermissionType.DENY and acl.operation in meant:
            reason = f"the ACL {as_text(acl)!r} decides, and would have to be deleted"
            return AclDecision(is_allowed=False, acl=acl, reason=reason)
    ranges = sorted(
        (acl for acl in acls if acl.principal == principal and resource.has_range_of(acl)),
        key=lambda acl: tuple(range_of(acl) or ()),
    )
    if operation is AclOperation.DESCRIBE:
        fitting += [acl for acl in ranges if acl.host in (host, ANY_NAME)]
    for acl in fitting:
        if acl.permission_type is AclPermissionType.ALLOW and acl.operation in implying:
            return AclDecision(is_allowed=True, acl=acl, reason=f"the ACL {as_text(acl)!r} decides")
    if not naming and settings.allows_everyone:
        return AclDecision(is_allowed=True, acl=None, reason=f"it has no ACLs, and {ALLOW_EVERYONE} is set")
    reason = f"no ACL allows it; {as_text(allowing(principal, operation, resource))!r} would"
    if operation is AclOperation.READ and (names := [acl.name for acl in ranges if acl.host == ANY_NAME]):
        reason = f"its ACLs allow only {formatting.several(names, RANGES_SHOWN_MAX)}"
    return AclDecision(is_allowed=False, acl=None, reason=reason)


def precedence(acl: AclBinding) -> tuple[bool, bool, int, AclBinding]:
    """Of several that decide the same, the first is named: one for this very name, for every name, by the shortest prefix."""
    is_prefixed = acl.resource_pattern_type is ResourcePatternType.PREFIXED
    return is_prefixed, not is_prefixed and acl.name == ANY_NAME, len(acl.name), acl


def allowing(principal: str, operation: AclOperation, resource: Resource) -> AclBinding:
    """The narrowest ACL that allows it, from every host."""
    literal, allow = ResourcePatternType.LITERAL, AclPermissionType.ALLOW
    return AclBinding(resource.kind, resource.name, literal, principal, ANY_NAME, operation, allow)


def reading(principal: str, allowed: AclRange) -> AclBinding:
    """The ACL that allows a range of offsets to be read."""
    literal, allow = ResourcePatternType.LITERAL, AclPermissionType.ALLOW
    return AclBinding(ResourceType.TOPIC, str(allowed), literal, principal, ANY_NAME, AclOperation.READ, allow)


def about(principal: str, topic: str) -> AclBindingFilter:
    """What the broker takes for the principal's ACLs about the topic."""
    match, every = ResourcePatternType.MATCH, AclPermissionType.ANY
    return AclBindingFilter(ResourceType.TOPIC, topic, match, principal, None, AclOperation.ANY, every)


def kind_of(acl: AclBinding) -> str:
    """In the words of kafka-acls; librdkafka calls the cluster `BROKER`."""
    return next((name for name, kind in KINDS.items() if kind is acl.restype), acl.restype.name.lower())


def as_text(acl: AclBinding) -> str:
    """For people: `ALLOW READ to User:ann from * on PREFIXED TOPIC web.`"""
    resource = f"{acl.resource_pattern_type.name} {kind_of(acl).upper().replace('-', '_')} {acl.name}"
    return f"{acl.permission_type.name} {acl.operation.name} to {acl.principal} from {acl.host} on {resource}"


def in_filter(acl: AclBinding) -> AclBindingFilter:
    """The filter that finds this ACL and no other."""
    return AclBindingFilter(
        acl.restype, acl.name, acl.resource_pattern_type, acl.principal, acl.host, acl.operation, acl.permission_type
    )


EVERY_ACL = AclBindingFilter(ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY)


class Acls:
    """Those of the client's cluster. Asking needs Describe on the cluster, changing Alter."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def matching(self, acl_filter: AclBindingFilter = EVERY_ACL) -> list[AclBinding]:
        """Sorted: by kind, name and principal."""
        question = self.client.admin().describe_acls
        answers = self.client.ask(lambda: {"": question(acl_filter, **self.client.limits())})
        return sorted(answers[""])

    def add(self, acls: Sequence[AclBinding]) -> None:
        """All of them; what is there already stays."""
        if acls:
            self.client.ask(lambda: self.client.admin().create_acls(list(acls), **self.client.limits()), needs="Alter")

    def delete(self, acls: Sequence[AclBinding]) -> None:
        """Exactly these; what is gone already is no error."""
        filters = [in_filter(acl) for acl in acls]
        if filters:
            self.client.ask(lambda: self.client.admin().delete_acls(filters, **self.client.limits()), needs="Alter")

    def delete_of(self, principal: str) -> None:
        """All ACLs of the principal."""
        chosen = AclBindingFilter(
            ResourceType.ANY, None, ResourcePatternType.ANY, principal, None, AclOperation.ANY, AclPermissionType.ANY
        )
        self.client.ask(lambda: self.client.admin().delete_acls([chosen], **self.client.limits()), needs="Alter")

    def settings(self) -> AuthorizerSettings:
        """Of the broker that answers; unknown where this user may not see its settings, or it does not show these."""
        try:
            cluster = self.client.ask(self.client.ask_cluster)[""]
            broker = ConfigResource(ResourceType.BROKER, str(cluster.nodes[0].id))
            question = self.client.admin().describe_configs
            answers = self.client.ask(lambda: question([broker], **self.client.limits()), needs="DescribeConfigs")
        except errors.AccessDenied:
            return AuthorizerSettings()
        values = {name: entry.value for name, entry in next(iter(answers.values())).items()}
        users, everyone = values.get(SUPER_USERS), values.get(ALLOW_EVERYONE)
        return AuthorizerSettings(
            super_users=None if users is None else frozenset(name.strip() for name in users.split(";") if name.strip()),
            allows_everyone=None if everyone is None else everyone.lower() == "true",
        )
