"""Which APIs the broker supports, in which versions, and from which version on their encoding is flexible (KIP-482); and Kafka's
public description of a message, as a tree of fields.

The descriptions are Kafka's own JSON files, which kafka-python ships as package data. Only `_DESCRIPTIONS` knows where they are;
no code of that package runs (importing it would take half of the broker's startup time). A release that moves or changes them
fails tests/unit/broker/protocol/test_codec.py with a clear message.

Only what is implemented is advertised; a range never has gaps. The lower ends are Kafka 4's minimum (KIP-896), or lower if a
current client still sends an older version.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from enum import IntEnum
from importlib.util import find_spec
from typing import Any

_PACKAGE, _DESCRIPTIONS = "kafka", "protocol/schemas/resources"
_COMMENT = re.compile(r"^\s*//.*$", re.MULTILINE)
_WORD = re.compile(r"(?<!^)(?=[A-Z])")  # before each capital but the first


@dataclass(frozen=True, slots=True)
class Versions:
    """An inclusive range of versions; empty if last < first."""

    first: int
    last: int

    def __contains__(self, version: int) -> bool:
        return self.first <= version <= self.last


NO_VERSIONS = Versions(0, -1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One field. `kind` is its type, or that of its elements; a struct has `fields`. It is a tag in the `tagged` versions."""

    name: str
    kind: str
    is_array: bool
    versions: Versions
    nullable: Versions
    tagged: Versions
    tag: int
    default: Any  # a list's default is (), or None
    fields: tuple[Field, ...]


def describe(name: str) -> tuple[tuple[Field, ...], Versions]:
    """The fields of a message, and in which versions it is flexible (KIP-482), by its name in Kafka: "MetadataRequest"."""
    message = json.loads(_COMMENT.sub("", read_description(name)))
    common = {struct["name"]: struct["fields"] for struct in message.get("commonStructs", ())}
    return _fields(message["fields"], common), _versions(message["flexibleVersions"])


def read_description(name: str) -> str:
    """The JSON of a message, with its comments; FileNotFoundError if the installed release has it elsewhere."""
    spec = find_spec(_PACKAGE)
    places = spec.submodule_search_locations if spec else None
    try:
        if spec and places:
            return str(spec.loader.get_data(f"{places[0]}/{_DESCRIPTIONS}/{name}.json"), "utf-8")  # type: ignore[union-attr]
    except OSError:
        pass
    raise FileNotFoundError(
        f"no {_DESCRIPTIONS}/{name}.json in package {_PACKAGE!r}: Kafka's message descriptions are read there"
    )


def _fields(listed: list[dict[str, Any]], common: dict[str, Any]) -> tuple[Field, ...]:
    return tuple(_field(each, common) for each in listed)


def _field(each: dict[str, Any], common: dict[str, Any]) -> Field:
    kind = each["type"].removeprefix("[]")
    is_array = kind != each["type"]
    inside = each.get("fields") or common.get(kind, ())
    return Field(
        name=_WORD.sub("_", each["name"]).lower(),
        kind=kind,
        is_array=is_array,
        versions=_versions(each["versions"]),
        nullable=_versions(each.get("nullableVersions", "none")),
        tagged=_versions(each.get("taggedVersions", "none")),
        tag=each.get("tag", -1),
        default=_default(kind, is_array, each.get("default"), is_struct=bool(inside)),
        fields=_fields(inside, common),
    )


def _versions(text: str) -> Versions:
    if text == "none":
        return NO_VERSIONS
    if text.endswith("+"):
        return Versions(int(text[:-1]), 0x7FFF)
    first, _, last = text.partition("-")
    return Versions(int(first), int(last or first))


def _default(kind: str, is_array: bool, given: Any, *, is_struct: bool) -> Any:
    if given == "null":
        return None
    if is_array:
        return ()
    if is_struct or kind == "uuid":
        return None
    if kind == "string":
        return given or ""
    if kind in ("bytes", "records"):
        return b""
    if kind == "bool":
        return str(given).lower() == "true"
    return float(given or 0) if kind == "float64" else int(str(given or 0), 0)


# Which APIs the broker supports, in which versions, and from which version on their encoding is flexible (KIP-482).


class ApiKey(IntEnum):
    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    DESCRIBE_CLUSTER = 60
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75


@dataclass(frozen=True, slots=True)
class ApiRange:
    """Supported versions, both ends included, and the first whose encoding is flexible."""

    first: int
    last: int
    flexible_from: int

    def __contains__(self, version: int) -> bool:
        return self.first <= version <= self.last


APIS: dict[int, ApiRange] = {
    ApiKey.PRODUCE: ApiRange(3, 12, 9),
    ApiKey.FETCH: ApiRange(4, 17, 12),
    ApiKey.LIST_OFFSETS: ApiRange(1, 10, 6),
    ApiKey.METADATA: ApiRange(0, 13, 9),
    ApiKey.OFFSET_COMMIT: ApiRange(2, 9, 8),
    ApiKey.OFFSET_FETCH: ApiRange(1, 9, 6),
    ApiKey.FIND_COORDINATOR: ApiRange(0, 6, 3),
    ApiKey.JOIN_GROUP: ApiRange(0, 9, 6),
    ApiKey.HEARTBEAT: ApiRange(0, 4, 4),
    ApiKey.LEAVE_GROUP: ApiRange(0, 5, 4),
    ApiKey.SYNC_GROUP: ApiRange(0, 5, 4),
    ApiKey.DESCRIBE_GROUPS: ApiRange(0, 6, 5),
    ApiKey.LIST_GROUPS: ApiRange(0, 5, 3),
    ApiKey.SASL_HANDSHAKE: ApiRange(0, 1, 2),  # never flexible
    ApiKey.API_VERSIONS: ApiRange(0, 4, 3),
    ApiKey.CREATE_TOPICS: ApiRange(2, 7, 5),
    ApiKey.DELETE_TOPICS: ApiRange(1, 6, 4),
    ApiKey.DELETE_RECORDS: ApiRange(0, 2, 2),
    ApiKey.INIT_PRODUCER_ID: ApiRange(0, 5, 2),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: ApiRange(2, 4, 4),
    ApiKey.DESCRIBE_ACLS: ApiRange(1, 3, 2),
    ApiKey.CREATE_ACLS: ApiRange(1, 3, 2),
    ApiKey.DELETE_ACLS: ApiRange(1, 3, 2),
    ApiKey.DESCRIBE_CONFIGS: ApiRange(1, 4, 4),
    ApiKey.ALTER_CONFIGS: ApiRange(0, 2, 2),
    ApiKey.DESCRIBE_LOG_DIRS: ApiRange(1, 4, 2),
    ApiKey.SASL_AUTHENTICATE: ApiRange(0, 2, 2),
    ApiKey.CREATE_PARTITIONS: ApiRange(0, 3, 2),
    ApiKey.DELETE_GROUPS: ApiRange(0, 2, 2),
    ApiKey.ELECT_LEADERS: ApiRange(0, 2, 2),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: ApiRange(0, 1, 1),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: ApiRange(0, 1, 0),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: ApiRange(0, 0, 0),
    ApiKey.OFFSET_DELETE: ApiRange(0, 0, 1),  # never flexible
    ApiKey.DESCRIBE_CLIENT_QUOTAS: ApiRange(0, 1, 1),
    ApiKey.ALTER_CLIENT_QUOTAS: ApiRange(0, 1, 1),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: ApiRange(0, 0, 0),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: ApiRange(0, 0, 0),
    ApiKey.DESCRIBE_CLUSTER: ApiRange(0, 2, 0),
    ApiKey.LIST_CONFIG_RESOURCES: ApiRange(0, 1, 0),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: ApiRange(0, 0, 0),
}


class ErrorCode(IntEnum):
    """Kafka's own numbers."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    MESSAGE_TOO_LARGE = 10
    OFFSET_METADATA_TOO_LARGE = 12
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    INVALID_PRODUCER_EPOCH = 47
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    KAFKA_STORAGE_ERROR = 56
    SASL_AUTHENTICATION_FAILED = 58
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    STALE_BROKER_EPOCH = 77
    OFFSET_NOT_AVAILABLE = 78
    MEMBER_ID_REQUIRED = 79
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    THROTTLING_QUOTA_EXCEEDED = 89
    RESOURCE_NOT_FOUND = 91
    DUPLICATE_RESOURCE = 92
    UNACCEPTABLE_CREDENTIAL = 93
    UNKNOWN_TOPIC_ID = 100
    INCONSISTENT_CLUSTER_ID = 104
