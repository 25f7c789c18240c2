"""The authorizer: decides by the ACLs of today, remembers what it decided, and logs what it refused and which changes it allowed.

A decision holds as long as the security state is the same object. So a right that is taken away is gone with the next request,
and a busy producer's right costs a look into a dict. What is remembered is kept for each principal and host by itself.

A user NAME may make users `NAME/...`, change and delete them, and their ACLs: these allow no more than NAME is allowed itself at
that moment, so nobody gains a right by it. Such a user has none of its own.
"""

from __future__ import annotations

import logging

from logbus_broker.api.authorization import ADMINISTRATIVE, NEED_AN_ACL, NEEDS
from logbus_broker.api.purgatory import Purgatory
from logbus_broker.cluster.security_store import SecurityStore
from logbus_broker.config.settings import BrokerConfig
from logbus_broker.protocol.api import ApiKey
from logbus_broker.protocol.framing import Origin
from logbus_broker.security import acls
from logbus_broker.security.state import (
    ANONYMOUS,
    Acl,
    AclOperation,
    AclPermission,
    AclResourceType,
    ScramMechanism,
    SecurityState,
)

_REMEMBERED_MAX = 10_000  # verdicts for one right: some clients and their topics, two megabytes
_USER = "User:"
_NAME_LENGTH_MAX = 249  # of topics; longer names of groups are not remembered

logger = logging.getLogger("broker.security")
audit = logging.getLogger("broker.audit")


class Right:
    """One operation on resources of one type: who may do it."""

    __slots__ = ("_authorizer", "_remembered", "_state", "_store", "is_audited", "needs_acl", "operation", "resource_type")

    def __init__(
        self, authorizer: Authorizer, operation: AclOperation, resource_type: AclResourceType, *, needs_acl: bool
    ) -> None:
        self.operation = operation
        self.resource_type = resource_type
        self.needs_acl = needs_acl
        self.is_audited = authorizer.audits and operation in ADMINISTRATIVE  # also when it is allowed
        self._authorizer = authorizer
        self._store = authorizer.store
        self._state: SecurityState | None = None
        self._remembered: dict[tuple[Origin, str | None], bool] = {}

    def allows(self, origin: Origin, name: str | None) -> bool:
        """Whether it is allowed on the resource of that name; None: on some resource, whether or not that exists."""
        # Asked once for each typical Produce and Fetch: 0.13 us while it is remembered.
        state = self._store.state
        if state is self._state:
            allowed = self._remembered.get((origin, name))
            if allowed is not None:
                return allowed
        if state is not self._state or len(self._remembered) >= _REMEMBERED_MAX:
            self._remembered.clear()
            self._state = state
        if name is None:
            index = self._authorizer.index
            allowed = index.allows_on_any(origin.principal, origin.host, self.operation, self.resource_type)
        else:
            allowed = self.decide(origin, name).is_allowed
        if name is None or len(name) <= _NAME_LENGTH_MAX:
            self._remembered[origin, name] = allowed
        return allowed

    def decide(self, origin: Origin, name: str) -> acls.Verdict:
        """Which ACL decides, and why."""
        index = self._authorizer.index
        return index.decide(origin.principal, origin.host, self.operation, self.resource_type, name, needs_acl=self.needs_acl)


class Authorizer:
    """See the module docstring."""

    def __init__(self, store: SecurityStore, config: BrokerConfig) -> None:
        self.store = store
        self._version = 0
        self._super_users = frozenset(filter(None, config.super_users.split(";")))
        self._allows_if_no_acl_found = config.allow_everyone_if_no_acl_found
        self.audits = bool(config.audit_log) or config.audit_topic_enable
        self._rights: dict[tuple[int, int], Right] = {}
        self._state: SecurityState | None = None
        self._index = acls.AclIndex(())
        if not self._super_users and not store.state.acls and not config.is_clustered:
            logger.warning("super.users is empty and there are no ACLs: nobody may create one; set super.users=User:NAME")

    @property
    def index(self) -> acls.AclIndex:
        """Of the ACLs as they are now."""
        self._refresh()
        return self._index

    @property
    def version(self) -> int:
        """Of the ACLs, for caches of answers: another number after each change."""
        self._refresh()
        return self._version

    def _refresh(self) -> None:
        before, state = self._state, self.store.state
        if before is state:
            return
        self._state = state
        self._version += 1
        if before is None or state.acls != before.acls:
            self._index = acls.AclIndex(
                state.acls,
                super_users=self._super_users,
                allows_if_no_acl_found=self._allows_if_no_acl_found,
                has_password=self._has_password,
            )

    def _has_password(self, principal: str) -> bool:
        user = principal.removeprefix(_USER)
        return any((user, mechanism) in self.store.state.credentials for mechanism in ScramMechanism)

    def is_own(self, origin: Origin, principal: str) -> bool:
        """Whether the principal is a user of the sender's own by its name."""
        owner = origin.principal
        return owner != ANONYMOUS and "/" not in owner and principal.startswith(f"{owner}/")

    def owns(self, origin: Origin, principal: str, *, gains: bool) -> bool:
        """Whether the sender may change this user of its own. One that somebody else gave more rights than the sender's gets no
        password from it."""
        if not self.is_own(origin, principal) or principal in self._super_users:
            return False
        given = (acl for acl in self.store.state.acls if acl.principal == principal and acl.permission is AclPermission.ALLOW)
        return not gains or all(self.index.covers(origin.principal, acl) for acl in given)

    def owns_acl(self, origin: Origin, acl: Acl, *, gains: bool) -> bool:
        """Whether the sender may make this ACL of a user of its own, or delete it. It cannot take back what denies."""
        is_its_own = self.is_own(origin, acl.principal) and acl.permission is AclPermission.ALLOW
        return is_its_own and (not gains or self.index.covers(origin.principal, acl))

    def right(self, api_key: int, resource_type: AclResourceType) -> Right:
        """What the API needs on resources of that type."""
        right = self._rights.get((api_key, resource_type))
        if right is None:
            operation = NEEDS[api_key][resource_type]
            needs_acl = api_key in NEED_AN_ACL or operation is AclOperation.CLUSTER_ACTION
            right = Right(self, operation, resource_type, needs_acl=needs_acl)
            self._rights[api_key, resource_type] = right
        return right

    def note(self, api_key: int, right: Right, name: str, origin: Origin, what: str = "") -> None:
        """Log a change that was allowed, or a refusal."""
        operation, resource, verdict = right.operation.name, f"{right.resource_type.name} {name}", right.decide(origin, name)
        reason = self.index.explain(verdict, origin.principal, right.operation, right.resource_type, name)
        if self.audits:
            details = {"principal": origin.principal, "host": origin.host, "listener": origin.listener}
            details |= {"api": ApiKey(api_key).name, "operation": operation, "resource": resource, "reason": reason}
            details |= {"what": what} if what else {}
            if verdict.is_allowed:
                audit.info("allowed", extra=details)
            else:
                audit.warning("denied", extra=details)
        if not verdict.is_allowed:
            logger.warning("%s from %s may not %s %s: %s", origin.principal, origin.host, operation, resource, reason)

    def note_own(self, api_key: int, origin: Origin, what: str) -> None:
        """Log a change that the sender made to a user of its own."""
        if self.audits:
            details = {"principal": origin.principal, "host": origin.host, "listener": origin.listener}
            details |= {
                "api": ApiKey(api_key).name,
                "operation": AclOperation.ALTER.name,
                "resource": f"USER {origin.principal}/*",
            }
            audit.info("allowed", extra={**details, "reason": "a user of its own, with no more rights", "what": what})

    def acls_changed(self, purgatory: Purgatory) -> None:
        """Fetches that wait on a topic whose ACLs have changed are answered now: the right to it may be gone."""
        before = frozenset() if self._state is None else self._state.acls
        changed = acls.AclIndex(before ^ self.store.state.acls)
        purgatory.wake_where(lambda partition: changed.is_about(partition.topic))
