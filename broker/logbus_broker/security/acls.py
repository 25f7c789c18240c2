"""Which ACL allows an operation, or refuses it: Kafka's rules, without I/O.

A super user may do everything. Of the ACLs that name the resource (literally, by a prefix, or as `*`), any that denies refuses;
else any that allows passes; else nothing does, unless no ACL at all names the resource and allow.everyone.if.no.acl.found is set.
READ, WRITE, DELETE and ALTER imply DESCRIBE, and ALTER_CONFIGS implies DESCRIBE_CONFIGS, but only where they are allowed: who is
denied READ may still be allowed to DESCRIBE.

Beyond Kafka's rules, an ACL that allows one user to READ the literal topic `web:0:100-200` allows it to read the offsets 100 to
199 of partition 0 of the topic `web`, and to DESCRIBE `web`. No topic has a colon in its name, so on any other Kafka it allows
nothing. It counts as long as the user has a password, and a DENY on `web` wins over it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from operator import attrgetter
from typing import NamedTuple

from logbus_broker.errors import InvalidRequest
from logbus_broker.security.state import AUDIT_TOPIC, CLUSTER_NAME, Acl, AclOperation, AclPermission, AclResourceType, PatternType

ANY_NAME = "*"  # as the name of a literal pattern, as a host, and in `User:*`
_EVERYBODY = "User:*"
_IMPLIED_BY = {
    AclOperation.DESCRIBE: frozenset({AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER}),
    AclOperation.DESCRIBE_CONFIGS: frozenset({AclOperation.ALTER_CONFIGS}),
}
# Kafka asks about this name to find out whether somebody may do something to any resource: a super user may, and everybody if
# nothing has ACLs.
_SOME_NAME = "hardcode"


# As the order of ACLs themselves, in a fraction of the time.
order = attrgetter("resource_type", "pattern_type", "resource_name", "principal", "host", "operation", "permission")


_ByName = dict[str, list[Acl]]


_RANGE = re.compile(r"([^:]+):(0|[1-9][0-9]{0,9}):(0|[1-9][0-9]{0,18})-([1-9][0-9]{0,18})")
_READING = (AclOperation.READ, AclPermission.ALLOW)  # all that a range can be for


class AllowedRange(NamedTuple):
    """The offsets from `start` on and before `end` of one partition."""

    topic: str
    partition: int
    start: int
    end: int


def range_of(acl: Acl) -> AllowedRange | None:
    """What the name of a literal topic says, if it is a range: `web:0:100-200`."""
    if (
        ":" not in acl.resource_name
        or acl.resource_type is not AclResourceType.TOPIC
        or acl.pattern_type is not PatternType.LITERAL
    ):
        return None
    match = _RANGE.fullmatch(acl.resource_name)
    return AllowedRange(match[1], *map(int, match.groups()[1:])) if match else None


class Verdict(NamedTuple):
    """Whether something is allowed, and which ACL decided; None: none did."""

    is_allowed: bool
    acl: Acl | None = None


class AclIndex:
    """The ACLs of a state, so that those which name a resource are found without looking at the others; and what the settings
    say beside them."""

    def __init__(
        self,
        acls: Iterable[Acl],
        *,
        super_users: frozenset[str] = frozenset(),
        allows_if_no_acl_found: bool = False,
        has_password: Callable[[str], bool] = lambda principal: True,
    ) -> None:
        self._super_users = super_users
        self._allows_if_no_acl_found = allows_if_no_acl_found
        self._has_password = has_password
        self._ranges: dict[tuple[str, str], list[tuple[AllowedRange, Acl]]] = defaultdict(list)  # by principal and topic
        # By the type of resource; for prefixes, with their lengths in ascending order.
        self._literal: dict[AclResourceType, _ByName] = defaultdict(lambda: defaultdict(list))
        self._prefixed: dict[AclResourceType, _ByName] = defaultdict(lambda: defaultdict(list))
        for acl in acls:
            if (offsets := range_of(acl)) is not None and (acl.operation, acl.permission) == _READING:
                self._ranges[acl.principal, offsets.topic].append((offsets, acl))
                continue
            patterns = self._prefixed if acl.pattern_type is PatternType.PREFIXED else self._literal
            patterns[acl.resource_type][acl.resource_name].append(acl)
        for by_name in (*self._literal.values(), *self._prefixed.values()):
            for same in by_name.values():
                same.sort(key=order)  # so that of several that decide it is always the same one
        for ranges in self._ranges.values():
            ranges.sort(key=lambda pair: (pair[0], order(pair[1])))
        self._prefix_lengths = {kind: sorted(set(map(len, by_name))) for kind, by_name in self._prefixed.items()}

    def naming(self, resource_type: AclResourceType, name: str) -> Iterator[Acl]:
        """The ACLs whose pattern names the resource."""
        if (literal := self._literal.get(resource_type)) is not None:
            yield from literal.get(name, ())
            if name != ANY_NAME:
                yield from literal.get(ANY_NAME, ())
        for length in self._prefix_lengths.get(resource_type, ()):
            if length > len(name):
                return
            yield from self._prefixed[resource_type].get(name[:length], ())

    def decide(
        self,
        principal: str,
        host: str,
        operation: AclOperation,
        resource_type: AclResourceType,
        name: str,
        *,
        needs_acl: bool = False,
    ) -> Verdict:
        """`needs_acl`: allow.everyone.if.no.acl.found does not extend to this operation."""
        if principal in self._super_users:
            return Verdict(True)
        implied_by = _IMPLIED_BY.get(operation, frozenset())
        allowing: Acl | None = None
        has_acls = False
        for acl in self.naming(resource_type, name):
            has_acls = True
            if acl.principal not in (principal, _EVERYBODY) or acl.host not in (host, ANY_NAME):
                continue
            is_meant = acl.operation in (operation, AclOperation.ALL)
            if acl.permission is AclPermission.DENY:
                if is_meant:
                    return Verdict(False, acl)
            elif allowing is None and (is_meant or acl.operation in implied_by):
                allowing = acl
        if allowing is None and operation is AclOperation.DESCRIBE and resource_type is AclResourceType.TOPIC:
            allowing = next((acl for _, acl in self.ranges(principal, host, name)), None)
        if allowing is not None:
            return Verdict(True, allowing)
        is_open = self._allows_if_no_acl_found and not needs_acl and name != AUDIT_TOPIC
        return Verdict(not has_acls and is_open)

    def ranges(self, principal: str, host: str, topic: str) -> Iterator[tuple[AllowedRange, Acl]]:
        """What the principal may read of the topic if it may not read all of it, sorted."""
        ranges = self._ranges.get((principal, topic), ())
        return (pair for pair in ranges if pair[1].host in (host, ANY_NAME) and self._has_password(principal))

    def range_end(self, principal: str, host: str, topic: str, partition: int, offset: int) -> int | None:
        """Before which offset the reading ends that the principal may begin at this one; None if it may not begin there."""
        if self.decide(principal, host, AclOperation.READ, AclResourceType.TOPIC, topic).acl is not None:
            return None  # denied: somebody who is allowed reads without a range
        ends = (
            offsets.end
            for offsets, _ in self.ranges(principal, host, topic)
            if offsets.partition == partition and offsets.start <= offset < offsets.end
        )
        return max(ends, default=None)

    def is_range_end(self, principal: str, host: str, topic: str, partition: int, offset: int) -> bool:
        """Whether a range that the principal may read ends before this offset."""
        ranges = self.ranges(principal, host, topic)
        return any((allowed.partition, allowed.end) == (partition, offset) for allowed, _ in ranges)

    def is_about(self, topic: str) -> bool:
        """Whether any ACL names the topic, or a range of it."""
        return any(self.naming(AclResourceType.TOPIC, topic)) or any(topic == of_topic for _, of_topic in self._ranges)

    def covers(self, principal: str, acl: Acl) -> bool:
        """Whether ACLs allow the principal itself, from each host that this one is for, whatever this one allows."""
        if principal in self._super_users:
            return True
        offsets = range_of(acl)
        pattern, name = acl.pattern_type, acl.resource_name if offsets is None else offsets.topic
        implied = [operation for operation, by in _IMPLIED_BY.items() if acl.operation in by]
        allowing = (acl.operation, AclOperation.ALL, *_IMPLIED_BY.get(acl.operation, ()))
        is_allowed = False
        for by_type in (self._literal, self._prefixed):
            for own in chain.from_iterable(by_type.get(acl.resource_type, {}).values()):
                if own.principal not in (principal, _EVERYBODY):
                    continue
                if own.permission is AclPermission.ALLOW:
                    is_wide = own.host in (acl.host, ANY_NAME) and own.operation in allowing
                    is_allowed = is_allowed or (is_wide and _names_all(own, pattern, name))
                elif (
                    (acl.operation is AclOperation.ALL or own.operation in (acl.operation, AclOperation.ALL, *implied))
                    and (ANY_NAME in (own.host, acl.host) or own.host == acl.host)
                    and _names_some(own, pattern, name)
                ):
                    return False
        return is_allowed

    def explain(
        self, verdict: Verdict, principal: str, operation: AclOperation, resource_type: AclResourceType, name: str
    ) -> str:
        """Which rule decided, and what would change it, as the end of a sentence."""
        if verdict.acl is not None:
            return f"the ACL {as_text(verdict.acl)!r} decides{'' if verdict.is_allowed else ', and would have to be deleted'}"
        if verdict.is_allowed:
            by_default = "it has no ACLs, and allow.everyone.if.no.acl.found is set"
            return "one of super.users" if principal in self._super_users else by_default
        is_read = operation is AclOperation.READ and resource_type is AclResourceType.TOPIC
        if is_read and (ranges := [acl.resource_name for _, acl in self.ranges(principal, ANY_NAME, name)]):
            return f"its ACLs allow only {_several(ranges)}"
        needed = Acl(
            resource_type=resource_type,
            pattern_type=PatternType.LITERAL,
            resource_name=name,
            principal=principal,
            host=ANY_NAME,
            operation=operation,
            permission=AclPermission.ALLOW,
        )
        return f"no ACL allows it; {as_text(needed)!r} would"

    def allows_on_any(self, principal: str, host: str, operation: AclOperation, resource_type: AclResourceType) -> bool:
        """Whether the operation is allowed on some resource of this type, whether or not that exists: on one that an ACL allows
        and that no other ACL denies."""
        if self.decide(principal, host, operation, resource_type, _SOME_NAME).is_allowed:
            return True
        patterns: dict[AclPermission, set[tuple[PatternType, str]]] = {AclPermission.DENY: set(), AclPermission.ALLOW: set()}
        for by_type in (self._literal, self._prefixed):
            for acl in chain.from_iterable(by_type.get(resource_type, {}).values()):
                is_meant = acl.operation in (operation, AclOperation.ALL)
                if is_meant and acl.principal in (principal, _EVERYBODY) and acl.host in (host, ANY_NAME):
                    patterns[acl.permission].add((acl.pattern_type, acl.resource_name))
        denied = patterns[AclPermission.DENY]
        if (PatternType.LITERAL, ANY_NAME) in denied:
            return False
        prefixes = tuple(name for pattern, name in denied if pattern is PatternType.PREFIXED)
        return any(
            not name.startswith(prefixes) and (pattern, name) not in denied for pattern, name in patterns[AclPermission.ALLOW]
        )


def _names_all(own: Acl, pattern: PatternType, name: str) -> bool:
    """Whether the ACL names all that the other pattern names."""
    if own.pattern_type is PatternType.PREFIXED:
        return name.startswith(own.resource_name) and (pattern is PatternType.PREFIXED or name != ANY_NAME)
    return own.resource_name == ANY_NAME or (pattern is PatternType.LITERAL and own.resource_name == name)


def _names_some(own: Acl, pattern: PatternType, name: str) -> bool:
    """Whether there may be a name that both name."""
    if own.pattern_type is PatternType.PREFIXED and pattern is PatternType.PREFIXED:
        return name.startswith(own.resource_name) or own.resource_name.startswith(name)
    if pattern is PatternType.PREFIXED:
        return own.resource_name == ANY_NAME or own.resource_name.startswith(name)
    return name == ANY_NAME or _names_all(own, pattern, name)


_RANGES_SHOWN_MAX = 3


def _several(ranges: list[str]) -> str:
    more = len(ranges) - _RANGES_SHOWN_MAX
    return ", ".join(ranges[:_RANGES_SHOWN_MAX]) + (f" and {more} more" if more > 0 else "")


class AclFilter(NamedTuple):
    """Which ACLs are asked for, or deleted; None and ANY are everything."""

    resource_type: AclResourceType
    resource_name: str | None
    pattern_type: PatternType
    principal: str | None
    host: str | None
    operation: AclOperation
    permission: AclPermission

    def matches(self, acl: Acl) -> bool:
        return (
            self.resource_type in (AclResourceType.ANY, acl.resource_type)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (AclOperation.ANY, acl.operation)
            and self.permission in (AclPermission.ANY, acl.permission)
            and self._matches_pattern(acl)
        )

    def _matches_pattern(self, acl: Acl) -> bool:
        if self.pattern_type is PatternType.MATCH and self.resource_name is not None:  # whatever names that resource
            if acl.pattern_type is PatternType.PREFIXED:
                return self.resource_name.startswith(acl.resource_name)
            offsets = range_of(acl)
            return acl.resource_name in (self.resource_name, ANY_NAME) or (
                offsets is not None and offsets.topic == self.resource_name
            )
        is_pattern = self.pattern_type in (PatternType.ANY, PatternType.MATCH, acl.pattern_type)
        return is_pattern and self.resource_name in (None, acl.resource_name)


def check_new(acl: Acl) -> None:
    """InvalidRequest if it could name nothing, or nobody."""
    if acl.pattern_type in (PatternType.ANY, PatternType.MATCH):
        raise InvalidRequest(f"pattern type {acl.pattern_type.name} is for filters: an ACL is LITERAL or PREFIXED")
    for value in (acl.resource_type, acl.operation, acl.permission):
        if value.name == "ANY":
            raise InvalidRequest(f"{type(value).__name__} ANY is for filters: an ACL names one")
    if acl.resource_type is AclResourceType.CLUSTER and acl.resource_name != CLUSTER_NAME:
        raise InvalidRequest(f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}")
    if not acl.resource_name:
        raise InvalidRequest("Invalid empty resource name")
    if ":" not in acl.principal:
        raise InvalidRequest(f"a principal is TYPE:NAME, as in User:{acl.principal or 'ann'}; this one has no colon")
    if not acl.host:
        raise InvalidRequest("the host is empty: an address, or * for every host")
    if (offsets := range_of(acl)) is not None:
        if offsets.start >= offsets.end:
            raise InvalidRequest(f"{acl.resource_name} has no offsets: the end is exclusive, and after the start")
        if (acl.operation, acl.permission) != _READING or acl.principal == _EVERYBODY:
            raise InvalidRequest(
                f"{acl.resource_name} is a range of offsets: one user can be allowed to READ it, and nothing else"
            )


def as_text(acl: Acl) -> str:
    """For people: `ALLOW READ to User:ann from * on PREFIXED TOPIC web.`"""
    resource = f"{acl.pattern_type.name} {acl.resource_type.name} {acl.resource_name}"
    return f"{acl.permission.name} {acl.operation.name} to {acl.principal} from {acl.host} on {resource}"
