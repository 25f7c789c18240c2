"""Which APIs the broker supports, in which versions, and from which version on their encoding is flexible (KIP-482).

Only what is implemented is advertised; a range never has gaps. The lower ends are Kafka 4's minimum (KIP-896), or lower if a
current client still sends an older version.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


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
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    DESCRIBE_LOG_DIRS = 35
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
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
    ApiKey.API_VERSIONS: ApiRange(0, 4, 3),
    ApiKey.CREATE_TOPICS: ApiRange(2, 7, 5),
    ApiKey.DELETE_TOPICS: ApiRange(1, 6, 4),
    ApiKey.DELETE_RECORDS: ApiRange(0, 2, 2),
    ApiKey.INIT_PRODUCER_ID: ApiRange(0, 5, 2),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: ApiRange(2, 4, 4),
    ApiKey.DESCRIBE_CONFIGS: ApiRange(1, 4, 4),
    ApiKey.ALTER_CONFIGS: ApiRange(0, 2, 2),
    ApiKey.DESCRIBE_LOG_DIRS: ApiRange(1, 4, 2),
    ApiKey.CREATE_PARTITIONS: ApiRange(0, 3, 2),
    ApiKey.DELETE_GROUPS: ApiRange(0, 2, 2),
    ApiKey.ELECT_LEADERS: ApiRange(0, 2, 2),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: ApiRange(0, 1, 1),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: ApiRange(0, 1, 0),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: ApiRange(0, 0, 0),
    ApiKey.OFFSET_DELETE: ApiRange(0, 0, 1),  # never flexible
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
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
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
    KAFKA_STORAGE_ERROR = 56
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
    UNKNOWN_TOPIC_ID = 100
    INCONSISTENT_CLUSTER_ID = 104
