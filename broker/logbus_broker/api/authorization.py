"""What each API needs: a table from API key to the operations that it takes, how a handler asks for them, and the authorizer,
which decides by the ACLs of today and logs what it refused and which changes it allowed.

A decision holds as long as the security state is the same object. So a right that is taken away is gone with the next request,
and a busy producer's right costs a look into a dict. What is remembered is kept for each principal and host by itself.

A user NAME may make users `NAME/...`, change and delete them, and their ACLs: these allow no more than NAME is allowed itself at
that moment, so nobody gains a right by it. Such a user has none of its own.

A handler has a `Caller`, who sent the request. What may not be is refused where it is named, in the row of a topic, a partition
or a group, with the code of its resource (`check`); where everything is asked for, it is left out (`allows`). A name is checked
before it is looked up, so nobody learns whether it exists. Without an authorizer (authorizer.class.name) all is allowed, at the
cost of one comparison.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from types import MappingProxyType

from logbus_broker import errors
from logbus_broker.api.purgatory import Purgatory
from logbus_broker.cluster.security_store import SecurityStore
from logbus_broker.protocol.api import ApiKey
from logbus_broker.protocol.framing import Origin
from logbus_broker.security import acls
from logbus_broker.security.state import (
    ANONYMOUS,
    CLUSTER_NAME,
    Acl,
    AclOperation,
    AclPermission,
    AclResourceType,
    ScramMechanism,
    SecurityState,
)
from logbus_broker.settings import BrokerConfig

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


# What each API needs: a table from API key to the operations that it takes, and how a handler asks for them.


CLUSTER, GROUP, TOPIC = AclResourceType.CLUSTER, AclResourceType.GROUP, AclResourceType.TOPIC

Needs = Mapping[AclResourceType, AclOperation]
NOTHING: Needs = MappingProxyType({})  # for everybody

# By API, the operation on each type of resource that it concerns. Two types are both needed, except where a comment says so.
NEEDS: dict[int, Needs] = {
    ApiKey.PRODUCE: {TOPIC: AclOperation.WRITE},
    ApiKey.FETCH: {TOPIC: AclOperation.READ, CLUSTER: AclOperation.CLUSTER_ACTION},  # the cluster's for other brokers only
    ApiKey.LIST_OFFSETS: {TOPIC: AclOperation.DESCRIBE},
    ApiKey.METADATA: {TOPIC: AclOperation.DESCRIBE},  # to create topics, also what CreateTopics needs
    ApiKey.OFFSET_COMMIT: {GROUP: AclOperation.READ, TOPIC: AclOperation.READ},
    ApiKey.OFFSET_FETCH: {GROUP: AclOperation.DESCRIBE, TOPIC: AclOperation.DESCRIBE},
    ApiKey.FIND_COORDINATOR: {GROUP: AclOperation.DESCRIBE},
    ApiKey.JOIN_GROUP: {GROUP: AclOperation.READ},
    ApiKey.HEARTBEAT: {GROUP: AclOperation.READ},
    ApiKey.LEAVE_GROUP: {GROUP: AclOperation.READ},
    ApiKey.SYNC_GROUP: {GROUP: AclOperation.READ},
    ApiKey.DESCRIBE_GROUPS: {GROUP: AclOperation.DESCRIBE},
    ApiKey.LIST_GROUPS: {CLUSTER: AclOperation.DESCRIBE, GROUP: AclOperation.DESCRIBE},  # one of them
    ApiKey.SASL_HANDSHAKE: NOTHING,
    ApiKey.API_VERSIONS: NOTHING,
    ApiKey.CREATE_TOPICS: {CLUSTER: AclOperation.CREATE, TOPIC: AclOperation.CREATE},  # one of them
    ApiKey.DELETE_TOPICS: {TOPIC: AclOperation.DELETE},
    ApiKey.DELETE_RECORDS: {TOPIC: AclOperation.DELETE},
    ApiKey.INIT_PRODUCER_ID: {CLUSTER: AclOperation.IDEMPOTENT_WRITE, TOPIC: AclOperation.WRITE},  # one of them, on any topic
    ApiKey.OFFSET_FOR_LEADER_EPOCH: {TOPIC: AclOperation.DESCRIBE},
    ApiKey.DESCRIBE_ACLS: {CLUSTER: AclOperation.DESCRIBE},
    ApiKey.CREATE_ACLS: {CLUSTER: AclOperation.ALTER},
    ApiKey.DELETE_ACLS: {CLUSTER: AclOperation.ALTER},
    # By the type of what has settings.
    ApiKey.DESCRIBE_CONFIGS: dict.fromkeys((TOPIC, CLUSTER, GROUP), AclOperation.DESCRIBE_CONFIGS),
    ApiKey.ALTER_CONFIGS: dict.fromkeys((TOPIC, CLUSTER, GROUP), AclOperation.ALTER_CONFIGS),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: dict.fromkeys((TOPIC, CLUSTER, GROUP), AclOperation.ALTER_CONFIGS),
    ApiKey.DESCRIBE_LOG_DIRS: {CLUSTER: AclOperation.DESCRIBE},
    ApiKey.SASL_AUTHENTICATE: NOTHING,
    ApiKey.CREATE_PARTITIONS: {TOPIC: AclOperation.ALTER},
    ApiKey.DELETE_GROUPS: {GROUP: AclOperation.DELETE},
    ApiKey.ELECT_LEADERS: {CLUSTER: AclOperation.ALTER},
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: {CLUSTER: AclOperation.ALTER},
    ApiKey.LIST_PARTITION_REASSIGNMENTS: {CLUSTER: AclOperation.DESCRIBE},
    ApiKey.OFFSET_DELETE: {GROUP: AclOperation.DELETE, TOPIC: AclOperation.READ},
    ApiKey.DESCRIBE_CLIENT_QUOTAS: {CLUSTER: AclOperation.DESCRIBE_CONFIGS},
    ApiKey.ALTER_CLIENT_QUOTAS: {CLUSTER: AclOperation.ALTER_CONFIGS},
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: {CLUSTER: AclOperation.DESCRIBE},
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: {CLUSTER: AclOperation.ALTER},
    ApiKey.DESCRIBE_CLUSTER: NOTHING,
    ApiKey.LIST_CONFIG_RESOURCES: {CLUSTER: AclOperation.DESCRIBE_CONFIGS},
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: {TOPIC: AclOperation.DESCRIBE},
}

# Whoever may do this may do everything, so an ACL has to allow it, also where allow.everyone.if.no.acl.found is set, like what
# brokers do (CLUSTER_ACTION), who read all topics. In Kafka, anybody may do either there until the cluster has an ACL.
NEED_AN_ACL = frozenset(
    {
        ApiKey.DESCRIBE_ACLS,
        ApiKey.CREATE_ACLS,
        ApiKey.DELETE_ACLS,
        ApiKey.DESCRIBE_CLIENT_QUOTAS,
        ApiKey.ALTER_CLIENT_QUOTAS,
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
    }
)

_LOGGED_PER_REQUEST_MAX = 10  # refusals; a request may name thousands, and a line costs as much as the rest of them

# What the audit log keeps also when it is allowed.
ADMINISTRATIVE = frozenset({AclOperation.CREATE, AclOperation.DELETE, AclOperation.ALTER, AclOperation.ALTER_CONFIGS})

ERRORS: Mapping[AclResourceType, type[errors.RequestError]] = {
    CLUSTER: errors.ClusterAuthorizationFailed,
    GROUP: errors.GroupAuthorizationFailed,
    TOPIC: errors.TopicAuthorizationFailed,
}

NOT_SAID = -(1 << 31)  # the default of Kafka's fields for allowed operations

# What there is to be allowed on a resource: Metadata, DescribeCluster and DescribeGroups tell who asks for it.
_OPERATIONS: Mapping[AclResourceType, tuple[AclOperation, ...]] = {
    TOPIC: (
        AclOperation.READ,
        AclOperation.WRITE,
        AclOperation.CREATE,
        AclOperation.DELETE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
    ),
    GROUP: (
        AclOperation.READ,
        AclOperation.DELETE,
        AclOperation.DESCRIBE,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
    ),
    CLUSTER: (
        AclOperation.CREATE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE,
        AclOperation.CLUSTER_ACTION,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
        AclOperation.IDEMPOTENT_WRITE,
    ),
}


class Caller:
    """The sender of one request, and what that API may do for him."""

    __slots__ = ("_authorizer", "_refusals", "api_key", "client_id", "origin")

    def __init__(self, api_key: int, origin: Origin, authorizer: Authorizer | None, client_id: str | None = None) -> None:
        self.api_key = api_key
        self.origin = origin
        self.client_id = client_id
        self._authorizer = authorizer
        self._refusals = 0

    def allows(self, resource_type: AclResourceType, name: str = CLUSTER_NAME) -> bool:
        """Whether the API may do it. A refusal is not logged: it is hidden, or something else may allow it."""
        return self._authorizer is None or self._authorizer.right(self.api_key, resource_type).allows(self.origin, name)

    def check(self, resource_type: AclResourceType, name: str = CLUSTER_NAME, what: str = "") -> None:
        """Raises the AuthorizationError of that type of resource; logs a refusal. `what` is done to the cluster, for the audit
        log."""
        authorizer, origin = self._authorizer, self.origin
        if authorizer is None:
            return
        right = authorizer.right(self.api_key, resource_type)
        is_allowed = right.allows(origin, name)
        if not is_allowed:
            self._refusals += 1
        if right.is_audited if is_allowed else self._refusals <= _LOGGED_PER_REQUEST_MAX:
            authorizer.note(self.api_key, right, name, origin, what)
        if not is_allowed:
            raise ERRORS[resource_type](f"{origin.principal} may not {right.operation.name} {resource_type.name} {name}")

    def check_read(self, topic: str, partition: int, offset: int) -> int | None:
        """Raises TopicAuthorizationFailed if the sender may not read from this offset on; returns before which one it has to
        end, None: it may read on."""
        if self.allows(TOPIC, topic):
            return None
        assert self._authorizer is not None, "without one, everything is allowed"
        index, principal, host = self._authorizer.index, self.origin.principal, self.origin.host
        end = index.range_end(principal, host, topic, partition, offset)
        if end is None:
            # A client that has read its range asks for more by itself: that is not logged.
            if index.is_range_end(principal, host, topic, partition, offset):
                raise ERRORS[TOPIC](f"{principal} may read {topic}-{partition} only before offset {offset}")
            self.check(TOPIC, topic)
        return end

    def may_change(self, principal: str) -> bool:
        """Whether this user, or its ACLs, are the sender's to change, within limits, or it may change any."""
        return self.allows(CLUSTER) or (self._authorizer is not None and self._authorizer.is_own(self.origin, principal))

    def check_user(self, principal: str, what: str, *, gains: bool) -> None:
        """Raises ClusterAuthorizationFailed unless the sender may change the user. `gains`: it gets a password, and with that its
        rights; else it loses something."""
        if self._authorizer is None or not self._authorizer.owns(self.origin, principal, gains=gains):
            self.check(CLUSTER, what=what)
        else:
            self._authorizer.note_own(self.api_key, self.origin, what)

    def check_acl(self, acl: Acl, what: str, *, gains: bool) -> None:
        """The same for an ACL of the user, which is made or deleted."""
        if self._authorizer is None or not self._authorizer.owns_acl(self.origin, acl, gains=gains):
            self.check(CLUSTER, what=what)
        else:
            self._authorizer.note_own(self.api_key, self.origin, what)

    def check_create(self, topic: str) -> None:
        """Raises TopicAuthorizationFailed if the sender may create neither this topic nor any other."""
        if self.allows(CLUSTER):
            self.check(CLUSTER, what=f"create topic {topic}")
        else:
            self.check(TOPIC, topic)

    def allows_on_any(self, resource_type: AclResourceType) -> bool:
        """Whether there may be a resource of this type that the API may do it to."""
        return self._authorizer is None or self._authorizer.right(self.api_key, resource_type).allows(self.origin, None)

    def operations(self, resource_type: AclResourceType, name: str = CLUSTER_NAME) -> int:
        """All that may be done to the resource, by whichever API, as bits by Kafka's numbers; NOT_SAID where nobody is asked
        for rights."""
        authorizer, origin = self._authorizer, self.origin
        if authorizer is None:
            return NOT_SAID
        return sum(
            1 << operation
            for operation in _OPERATIONS[resource_type]
            if authorizer.index.decide(origin.principal, origin.host, operation, resource_type, name).is_allowed
        )

    def cluster_operations(self) -> int:
        """The same for the cluster; none for who may not describe it."""
        bits = self.operations(CLUSTER)
        return bits if bits == NOT_SAID or bits & 1 << AclOperation.DESCRIBE else 0

    def as_api(self, api_key: int) -> Caller:
        """The same sender, if the request also does what another API is for."""
        return Caller(api_key, self.origin, self._authorizer, self.client_id)
