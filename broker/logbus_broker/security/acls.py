"""Which ACL allows an operation, or refuses it: Kafka's rules, without I/O.

A super user may do everything. Of the ACLs that name the resource (literally, by a prefix, or as `*`), any that denies refuses;
else any that allows passes; else nothing does, unless no ACL at all names the resource and allow.everyone.if.no.acl.found is set.
READ, WRITE, DELETE and ALTER imply DESCRIBE, and ALTER_CONFIGS implies DESCRIBE_CONFIGS, but only where they are allowed: who is
denied READ may still be allowed to DESCRIBE.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import chain
from operator import attrgetter
from typing import NamedTuple

from logbus_broker.errors import InvalidRequest
from logbus_broker.security.state import CLUSTER_NAME, Acl, AclOperation, AclPermission, AclResourceType, PatternType

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


class Verdict(NamedTuple):
    """Whether something is allowed, and which ACL decided; None: none did."""

    is_allowed: bool
    acl: Acl | None = None


class AclIndex:
    """The ACLs of a state, so that those which name a resource are found without looking at the others; and what the settings
    say beside them."""

    def __init__(
        self, acls: Iterable[Acl], *, super_users: frozenset[str] = frozenset(), allows_if_no_acl_found: bool = False
    ) -> None:
        self._super_users = super_users
        self._allows_if_no_acl_found = allows_if_no_acl_found
        # By the type of resource; for prefixes, with their lengths in ascending order.
        self._literal: dict[AclResourceType, _ByName] = defaultdict(lambda: defaultdict(list))
        self._prefixed: dict[AclResourceType, _ByName] = defaultdict(lambda: defaultdict(list))
        for acl in acls:
            patterns = self._prefixed if acl.pattern_type is PatternType.PREFIXED else self._literal
            patterns[acl.resource_type][acl.resource_name].append(acl)
        for by_name in (*self._literal.values(), *self._prefixed.values()):
            for same in by_name.values():
                same.sort(key=order)  # so that of several that decide it is always the same one
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
        if allowing is not None:
            return Verdict(True, allowing)
        return Verdict(not has_acls and self._allows_if_no_acl_found and not needs_acl)

    def explain(
        self, verdict: Verdict, principal: str, operation: AclOperation, resource_type: AclResourceType, name: str
    ) -> str:
        """Which rule decided, and what would change it, as the end of a sentence."""
        if verdict.acl is not None:
            return f"the ACL {as_text(verdict.acl)!r} decides{'' if verdict.is_allowed else ', and would have to be deleted'}"
        if verdict.is_allowed:
            by_default = "it has no ACLs, and allow.everyone.if.no.acl.found is set"
            return "one of super.users" if principal in self._super_users else by_default
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
            return acl.resource_name in (self.resource_name, ANY_NAME)
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


def as_text(acl: Acl) -> str:
    """For people: `ALLOW READ to User:ann from * on PREFIXED TOPIC web.`"""
    resource = f"{acl.pattern_type.name} {acl.resource_type.name} {acl.resource_name}"
    return f"{acl.permission.name} {acl.operation.name} to {acl.principal} from {acl.host} on {resource}"
