"""What a broker or a cluster agrees on about its users: SCRAM credentials, ACLs and quotas, as one frozen value.

It is replaced as a whole whenever any of it changes. So whatever is derived from it (an index of the ACLs, what a connection was
allowed before) holds as long as the state is the same object, and never longer.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

ANONYMOUS = "User:ANONYMOUS"  # the principal of a connection that has shown neither a password nor a certificate
CLUSTER_NAME = "kafka-cluster"  # the only resource of type CLUSTER
AUDIT_TOPIC = "__logbus_audit"  # who changed what: never everybody's, whatever has no ACLs


class ScramMechanism(IntEnum):
    """Kafka's numbers."""

    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2


class AclResourceType(IntEnum):
    """Kafka's numbers; ANY occurs in filters only."""

    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """Kafka's numbers; ANY and MATCH occur in filters only."""

    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class AclOperation(IntEnum):
    """Kafka's numbers; ANY occurs in filters only."""

    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14


class AclPermission(IntEnum):
    """Kafka's numbers; ANY occurs in filters only."""

    ANY = 1
    DENY = 2
    ALLOW = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ScramCredential:
    """What is kept of a password (RFC 5802): nothing from which it, or a client's proof, could be made."""

    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes


@dataclass(frozen=True, slots=True, order=True, kw_only=True)
class Acl:
    """One rule: this principal, from this host (`*`: from any), may or may not do this to what the pattern names."""

    resource_type: AclResourceType
    pattern_type: PatternType
    resource_name: str
    principal: str
    host: str
    operation: AclOperation
    permission: AclPermission


# Whose quotas: "user", "client-id" or "ip" to a name; None as the name is everyone who has none of their own.
QuotaEntity = frozenset[tuple[str, str | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SecurityState:
    """See the module docstring. Credentials by user and mechanism; quotas by entity and Kafka's key. `nobody_key` is made with
    the first credential: with it, logins of users that do not exist are answered like the others (sasl.py)."""

    credentials: Mapping[tuple[str, ScramMechanism], ScramCredential] = field(default_factory=dict)
    acls: frozenset[Acl] = frozenset()
    quotas: Mapping[QuotaEntity, Mapping[str, float]] = field(default_factory=dict)
    nobody_key: bytes = b""


def encode_state(state: SecurityState) -> dict[str, Any]:
    """As JSON's values."""
    return {
        "credentials": [
            {
                "user": user,
                "mechanism": mechanism.name,
                "iterations": credential.iterations,
                "salt": base64.b64encode(credential.salt).decode(),
                "stored_key": base64.b64encode(credential.stored_key).decode(),
                "server_key": base64.b64encode(credential.server_key).decode(),
            }
            for (user, mechanism), credential in sorted(state.credentials.items())
        ],
        "acls": [encode_acl(acl) for acl in sorted(state.acls)],
        "quotas": [
            {"entity": dict(entity), "values": dict(values)}
            for entity, values in sorted(state.quotas.items(), key=lambda item: sorted(map(repr, item[0])))
        ],
        "nobody_key": base64.b64encode(state.nobody_key).decode(),
    }


def decode_state(stored: Mapping[str, Any]) -> SecurityState:
    """The reverse; AttributeError, KeyError, TypeError or ValueError if it was not made by `encode_state`."""
    return SecurityState(
        credentials={
            (row["user"], ScramMechanism[row["mechanism"]]): ScramCredential(
                salt=base64.b64decode(row["salt"]),
                iterations=row["iterations"],
                stored_key=base64.b64decode(row["stored_key"]),
                server_key=base64.b64decode(row["server_key"]),
            )
            for row in stored["credentials"]
        },
        acls=frozenset(map(decode_acl, stored["acls"])),
        quotas={frozenset(row["entity"].items()): dict(row["values"]) for row in stored["quotas"]},
        nobody_key=base64.b64decode(stored["nobody_key"]),
    )


def encode_acl(acl: Acl) -> dict[str, str]:
    """As JSON's values."""
    return {
        "resource_type": acl.resource_type.name,
        "pattern_type": acl.pattern_type.name,
        "resource_name": acl.resource_name,
        "principal": acl.principal,
        "host": acl.host,
        "operation": acl.operation.name,
        "permission": acl.permission.name,
    }


def decode_acl(row: Mapping[str, str]) -> Acl:
    """The reverse."""
    return Acl(
        resource_type=AclResourceType[row["resource_type"]],
        pattern_type=PatternType[row["pattern_type"]],
        resource_name=row["resource_name"],
        principal=row["principal"],
        host=row["host"],
        operation=AclOperation[row["operation"]],
        permission=AclPermission[row["permission"]],
    )
