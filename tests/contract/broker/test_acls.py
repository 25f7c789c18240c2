"""What a user may do with few ACLs or none: our answers carry the codes of an Apache Kafka with the same ACLs, request by request.

The user is User:ANONYMOUS, which needs no login; requests are frames that no client library would send. Of an answer, every code is
compared, with the name that it belongs to, and the operations that are said to be allowed. Where ours is better, the row says both.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from logbus.waiting import wait_until
from logbus_broker.api.handler import Pending
from logbus_broker.protocol.api import ApiKey
from logbus_broker.protocol.framing import Origin
from logbus_broker.protocol.records import NewRecord, build_batch
from logbus_broker.security.state import ANONYMOUS, AclOperation, AclPermission, AclResourceType, PatternType
from logbus_broker.setting_parsers import AUTHORIZERS

from tests.support.engine import Harness
from tests.support.message_trees import Tree, decoded, encoded
from tests.support.raw_client import Closed, RawClient
from tests.support.secured_kafka import PASSWORDS, SecuredKafka

ONE, TWO, PRE, PREFIX, NEW, GONE = "acl-1", "acl-2", "acl-pre-a", "acl-pre-", "acl-new", "acl-unknown"
GROUP, OTHER = "acl-group", "acl-other"
RECORDS = bytes(build_batch([NewRecord(timestamp=1_700_000_000_000, value=b"v")]))
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
TOPIC, GROUPS, CLUSTER = AclResourceType.TOPIC, AclResourceType.GROUP, AclResourceType.CLUSTER
READ, WRITE, CREATE, DESCRIBE = AclOperation.READ, AclOperation.WRITE, AclOperation.CREATE, AclOperation.DESCRIBE
NAMES = ("name", "topic", "topic_name", "group_id", "resource_name", "resource")
Ask = tuple[str, int, Tree]


class Better(NamedTuple):
    """What Kafka answers, and what ours does."""

    kafka: set[str]
    ours: set[str]


def outcomes(answer: Any, owner: str = "") -> Iterator[str]:
    """Every code of an answer and what else shows rights, each after the name that it belongs to."""
    owner = next((str(answer[name]) for name in NAMES if isinstance(answer.get(name), str) and answer[name]), owner)
    codes = [answer[name] for name in ("error_code", "topic_config_error_code") if name in answer]
    yield from (f"{owner} {code}".strip() for code in codes if code or code is codes[0])
    if "group_state" in answer and not codes and owner.startswith("acl-"):  # the cluster is shared with other tests
        yield owner
    if "acls" in answer:
        yield f"{owner}: {len(answer['acls'])}"
    for name, bits in answer.items():
        if name.endswith("authorized_operations") and bits >= 0:
            allowed = [operation.name for operation in AclOperation if bits & 1 << operation]
            yield f"{owner} {'|'.join(allowed) or 'nothing'}".strip()
    for value in answer.values():
        for part in value if isinstance(value, list) else ():
            if isinstance(part, dict):
                yield from outcomes(part, owner)


# -- requests --------------------------------------------------------------------------------------------------------------------


def by_topic(*names: str, topic: str = "name", partition: str = "partition_index", **fields: Any) -> list[Tree]:
    """Partition 0 of each; APIs call the two names differently."""
    return [{topic: name, "partitions": [{partition: 0, **fields}]} for name in names]


def produce(*names: str, index: int = 0, **fields: Any) -> Ask:
    rows = [{"name": name, "partition_data": [{"index": index, "records": RECORDS}]} for name in names]
    return "PRODUCE", 9, {"acks": -1, "timeout_ms": 30_000, "topic_data": rows, **fields}


def fetch(*names: str) -> Ask:
    return (
        "FETCH",
        12,
        {
            "max_wait_ms": 0,
            "topics": by_topic(*names, topic="topic", partition="partition", partition_max_bytes=1000),
            "session_epoch": -1,
        },
    )


def metadata(*names: str, creates: bool = False, **fields: Any) -> Ask:
    return "METADATA", 9, {"topics": [{"name": name} for name in names], "allow_auto_topic_creation": creates, **fields}


ALL_TOPICS: Ask = ("METADATA", 9, {"topics": None})


def commit(*names: str) -> Ask:
    return (
        "OFFSET_COMMIT",
        7,
        {"group_id": GROUP, "generation_id_or_member_epoch": -1, "topics": by_topic(*names, committed_offset=1)},
    )


def committed(*names: str) -> Ask:
    topics = [{"name": name, "partition_indexes": [0]} for name in names] or None
    return "OFFSET_FETCH", 8, {"groups": [{"group_id": GROUP, "topics": topics}]}


def create_topics(*names: str) -> Ask:
    return "CREATE_TOPICS", 7, {"topics": [{"name": name, "num_partitions": 1, "replication_factor": 1} for name in names]}


def delete_topics(*names: str) -> Ask:
    return "DELETE_TOPICS", 6, {"topics": [{"name": name} for name in names], "timeout_ms": 30_000}


def describe_configs(kind: int, *names: str) -> Ask:
    rows = [{"resource_type": kind, "resource_name": name, "configuration_keys": ["retention.ms"]} for name in names]
    return "DESCRIBE_CONFIGS", 4, {"resources": rows}


def alter_configs(kind: int, name: str) -> Ask:
    return "INCREMENTAL_ALTER_CONFIGS", 1, {"resources": [{"resource_type": kind, "resource_name": name}]}


def acl(
    operation: int,
    name: str,
    kind: int = TOPIC,
    *,
    pattern: int = LITERAL,
    host: str = "*",
    principal: str = ANONYMOUS,
    permission: int = AclPermission.ALLOW,
) -> Tree:
    return {
        "resource_type": kind,
        "resource_name": name,
        "resource_pattern_type": pattern,
        "principal": principal,
        "host": host,
        "operation": operation,
        "permission_type": permission,
    }


def deny(operation: int, name: str) -> Tree:
    return acl(operation, name, permission=AclPermission.DENY)


def create_acls(*acls: Tree) -> Ask:
    return "CREATE_ACLS", 3, {"creations": list(acls)}


def acl_filter(name: str | None = None, principal: str | None = None, pattern: int = PatternType.ANY) -> Tree:
    anything = {"resource_type_filter": 1, "host_filter": None, "operation": 1, "permission_type": 1}
    return {**anything, "resource_name_filter": name, "principal_filter": principal, "pattern_type_filter": pattern}


GROUP_REQUESTS = {
    "join": (
        "JOIN_GROUP",
        2,
        {"group_id": GROUP, "protocol_type": "consumer", "session_timeout_ms": 10_000, "rebalance_timeout_ms": 1},
    ),
    "sync": ("SYNC_GROUP", 3, {"group_id": GROUP}),
    "heartbeat": ("HEARTBEAT", 3, {"group_id": GROUP}),
    "leave": ("LEAVE_GROUP", 2, {"group_id": GROUP}),
}
DESCRIBE_GROUP: Ask = ("DESCRIBE_GROUPS", 4, {"groups": [GROUP], "include_authorized_operations": True})
DELETE_GROUP: Ask = ("DELETE_GROUPS", 2, {"groups_names": [GROUP]})
LIST_GROUPS: Ask = ("LIST_GROUPS", 4, {})
FIND_GROUP: Ask = ("FIND_COORDINATOR", 3, {"key": GROUP, "key_type": 0})
FIND_TRANSACTION: Ask = ("FIND_COORDINATOR", 3, {"key": "t", "key_type": 1})
PRODUCER_ID: Ask = (
    "INIT_PRODUCER_ID",
    4,
    {"transactional_id": None, "transaction_timeout_ms": 1000, "producer_id": -1, "producer_epoch": -1},
)
DESCRIBE_CLUSTER: Ask = ("DESCRIBE_CLUSTER", 0, {"include_cluster_authorized_operations": True})
LOG_DIRS: Ask = ("DESCRIBE_LOG_DIRS", 4, {"topics": None})
DESCRIBE_ACLS: Ask = ("DESCRIBE_ACLS", 3, acl_filter("acl-", pattern=PREFIXED))
LIST_OFFSETS_1: Ask = ("LIST_OFFSETS", 6, {"replica_id": -1, "topics": by_topic(ONE, timestamp=-1, current_leader_epoch=-1)})


Row = tuple[Ask, set[str]]

# By stage: the ACLs, and what requests of anonymous clients are answered as long as these are all.
STAGES: dict[str, tuple[list[Tree], dict[str, Row]]] = {
    "no ACL": (
        [],
        {
            "all topics": (ALL_TOPICS, set()),
            "partitions of all topics": (("DESCRIBE_TOPIC_PARTITIONS", 0, {"response_partition_limit": 9}), set()),
            "a topic and none": (metadata(ONE, GONE), {f"{ONE} 29", f"{GONE} 29"}),
            "a topic to be created": (metadata(GONE, creates=True), {f"{GONE} 29"}),
            "ids": (("METADATA", 12, {"topics": [{"topic_id": ONE}, {"topic_id": GONE}]}), {"29", "100"}),
            "partitions of a topic": (
                ("DESCRIBE_TOPIC_PARTITIONS", 0, {"topics": [{"name": ONE}], "response_partition_limit": 9}),
                {f"{ONE} 29"},
            ),
            "produce": (produce(ONE, GONE), {f"{ONE} 29", f"{GONE} 29"}),
            "produce to an unknown partition": (produce(ONE, index=9), {f"{ONE} 29"}),
            "produce without acknowledgement": (produce(ONE, acks=0), {"closed"}),
            "produce with a transactional id": (produce(ONE, transactional_id="t"), {f"{ONE} 29"}),
            "fetch": (fetch(ONE, GONE), {"0", f"{ONE} 29", f"{GONE} 29"}),
            "list offsets": (LIST_OFFSETS_1, {f"{ONE} 29"}),
            "end of an epoch": (
                (
                    "OFFSET_FOR_LEADER_EPOCH",
                    3,
                    {"replica_id": -1, "topics": by_topic(ONE, topic="topic", partition="partition", leader_epoch=0)},
                ),
                {f"{ONE} 29"},
            ),
            "delete records": (("DELETE_RECORDS", 2, {"topics": by_topic(ONE, offset=0)}), {f"{ONE} 29"}),
            "producer id": (PRODUCER_ID, {"31"}),
            "producer id of a transaction": (
                (*PRODUCER_ID[:2], {**PRODUCER_ID[2], "transactional_id": "t"}),
                {"53"},
            ),
            "find a group": (FIND_GROUP, {"30"}),
            "find a transaction": (FIND_TRANSACTION, {"53"}),
            **{what: (ask, {"30"}) for what, ask in GROUP_REQUESTS.items()},
            "commit": (commit(ONE, TWO), {f"{ONE} 30", f"{TWO} 30"}),
            "committed": (committed(ONE), {f"{GROUP} 30"}),
            "describe a group": (DESCRIBE_GROUP, {f"{GROUP} 30"}),
            "delete a group": (DELETE_GROUP, {f"{GROUP} 30"}),
            "delete offsets": (("OFFSET_DELETE", 0, {"group_id": GROUP, "topics": by_topic(ONE)}), {"30"}),
            "list groups": (LIST_GROUPS, {"0"}),
            "create topics": (create_topics(NEW, ONE), {f"{NEW} 29", f"{ONE} 29"}),
            "delete topics": (delete_topics(ONE, GONE), {f"{ONE} 29", f"{GONE} 29"}),
            "delete by id": (
                ("DELETE_TOPICS", 6, {"topics": [{"name": None, "topic_id": ONE}], "timeout_ms": 30_000}),
                {"29"},
            ),
            "create partitions": (
                ("CREATE_PARTITIONS", 3, {"topics": [{"name": ONE, "count": 3, "assignments": None}], "timeout_ms": 30_000}),
                {f"{ONE} 29"},
            ),
            "describe topics' settings": (describe_configs(2, ONE, GONE), {f"{ONE} 29", f"{GONE} 29"}),
            "describe a broker's settings": (describe_configs(4, ""), {"31"}),
            "change a topic's settings": (alter_configs(2, ONE), {f"{ONE} 29"}),
            "change a broker's settings": (alter_configs(4, ""), {"31"}),
            "list resources": (("LIST_CONFIG_RESOURCES", 1, {}), {"31"}),
            "the cluster": (DESCRIBE_CLUSTER, {"0", "nothing"}),
            "log directories": (LOG_DIRS, {"31"}),
            "elect": (("ELECT_LEADERS", 2, {"election_type": 0, "topic_partitions": None, "timeout_ms": 1}), {"31"}),
            "move": (("ALTER_PARTITION_REASSIGNMENTS", 0, {"timeout_ms": 1, "topics": []}), {"31"}),
            "moves": (("LIST_PARTITION_REASSIGNMENTS", 0, {"timeout_ms": 1, "topics": None}), {"31"}),
            "ACLs": (DESCRIBE_ACLS, {"31"}),
            "create ACLs": (create_acls(acl(READ, ONE), acl(READ, TWO)), {"31"}),
            "delete ACLs": (("DELETE_ACLS", 3, {"filters": [acl_filter(ONE)]}), {"31"}),
        },
    ),
    "WRITE": (
        [acl(WRITE, ONE)],
        {
            "produce": (produce(ONE, TWO), {f"{ONE} 0", f"{TWO} 29"}),
            "fetch": (fetch(ONE), {"0", f"{ONE} 29"}),
            "list offsets": (LIST_OFFSETS_1, {f"{ONE} 0"}),
            "all topics": (ALL_TOPICS, {f"{ONE} 0"}),
            "operations": (metadata(ONE, include_topic_authorized_operations=True), {f"{ONE} 0", f"{ONE} WRITE|DESCRIBE"}),
            "settings": (describe_configs(2, ONE), {f"{ONE} 29"}),
            "producer id": (PRODUCER_ID, {"0"}),
        },
    ),
    "READ by prefix": (
        [acl(READ, PREFIX, pattern=PREFIXED)],
        {"fetch": (fetch(PRE), {"0", f"{PRE} 0"}), "produce": (produce(PRE), {f"{PRE} 29"})},
    ),
    "READ by prefix, denied by name": (
        [acl(READ, PREFIX, pattern=PREFIXED), deny(READ, PRE)],
        {"fetch": (fetch(PRE), {"0", f"{PRE} 29"}), "metadata": (metadata(PRE), {f"{PRE} 0"})},
    ),
    "WRITE everywhere, denied on one": (
        [acl(WRITE, "*"), deny(WRITE, TWO)],
        {"produce": (produce(ONE, TWO), {f"{ONE} 0", f"{TWO} 29"}), "metadata": (metadata(TWO), {f"{TWO} 0"})},
    ),
    "READ of a group": (
        [acl(READ, GROUP, GROUPS), acl(READ, PREFIX, pattern=PREFIXED)],
        {
            "commit": (commit(ONE, PRE, PREFIX + "unknown"), {f"{ONE} 29", f"{PRE} 0", f"{PREFIX}unknown 3"}),
            "committed": (committed(ONE, PRE), {f"{GROUP} 0", f"{ONE} 29", f"{PRE} 0"}),
            "all that is committed": (committed(), {f"{GROUP} 0", f"{PRE} 0"}),
            "list groups": (LIST_GROUPS, {"0", GROUP}),
            "describe": (DESCRIBE_GROUP, {f"{GROUP} 0", f"{GROUP} READ|DESCRIBE"}),
            "delete": (DELETE_GROUP, {f"{GROUP} 30"}),
            "find": (FIND_GROUP, {"0"}),
        },
    ),
    "a group's for everybody": ([acl(READ, GROUP, GROUPS, principal="User:*")], {"find": (FIND_GROUP, {"0"})}),
    "a group's for another host": ([acl(READ, GROUP, GROUPS, host="10.9.9.9")], {"find": (FIND_GROUP, {"30"})}),
    "CREATE of a topic": (
        [acl(CREATE, NEW)],
        {
            "auto-create": (metadata(NEW, creates=True), {f"{NEW} 29"}),
            "create": (create_topics(NEW), {f"{NEW} 0", f"{NEW} 29"}),
            "create again": (create_topics(NEW), {f"{NEW} 36"}),
            "metadata": (metadata(NEW), {f"{NEW} 29"}),
        },
    ),
    "CREATE in the cluster": (
        [acl(CREATE, "kafka-cluster", CLUSTER)],
        {"create": (create_topics("acl-made"), {"acl-made 0", "acl-made 29"})},
    ),
    "DESCRIBE of a topic": (
        [acl(DESCRIBE, GONE)],
        {"auto-create": (metadata(GONE, creates=True), {f"{GONE} 29"}), "metadata": (metadata(GONE), {f"{GONE} 3"})},
    ),
    "DESCRIBE of the cluster": (
        [acl(DESCRIBE, "kafka-cluster", CLUSTER)],
        {
            "ACLs": (DESCRIBE_ACLS, {"0"}),
            "groups": (LIST_GROUPS, {"0", GROUP, OTHER}),
            "log directories": (LOG_DIRS, {"0"}),
            "moves": (("LIST_PARTITION_REASSIGNMENTS", 0, {"timeout_ms": 1, "topics": None}), {"0"}),
            "the cluster": (DESCRIBE_CLUSTER, {"0", "DESCRIBE"}),
            "elect": (("ELECT_LEADERS", 2, {"election_type": 0, "topic_partitions": None, "timeout_ms": 1}), {"31"}),
        },
    ),
}

# What a super user is answered, in this order.
OF_A_SUPER_USER: dict[str, tuple[Ask, set[str] | Better]] = {
    "operations": (
        metadata(ONE, include_topic_authorized_operations=True),
        {f"{ONE} 0", f"{ONE} READ|WRITE|CREATE|DELETE|ALTER|DESCRIBE|DESCRIBE_CONFIGS|ALTER_CONFIGS"},
    ),
    "operations of a group": (
        DESCRIBE_GROUP,
        {f"{GROUP} 0", f"{GROUP} READ|DELETE|DESCRIBE|DESCRIBE_CONFIGS|ALTER_CONFIGS"},
    ),
    "operations of the cluster": (
        DESCRIBE_CLUSTER,
        {"0", "CREATE|ALTER|DESCRIBE|CLUSTER_ACTION|DESCRIBE_CONFIGS|ALTER_CONFIGS|IDEMPOTENT_WRITE"},
    ),
    "three that name a topic": (
        create_acls(acl(READ, PRE), acl(READ, "*"), acl(READ, PREFIX, pattern=PREFIXED), acl(READ, PREFIX)),
        {"0"},
    ),
    "found by match": (
        ("DESCRIBE_ACLS", 3, acl_filter(PRE, ANONYMOUS, PatternType.MATCH)),
        {"0", f"{PRE}: 1", "*: 1", f"{PREFIX}: 1"},
    ),
    "found by name": (("DESCRIBE_ACLS", 3, acl_filter(PREFIX, ANONYMOUS)), {"0", f"{PREFIX}: 1"}),
    "one that is there": (create_acls(acl(READ, PRE)), {"0"}),
    "a principal without a colon": (create_acls(acl(READ, ONE, principal="carol")), {"42"}),
    "another name of the cluster": (create_acls(acl(READ, "cluster", CLUSTER)), {"42"}),
    "no name": (create_acls(acl(READ, "")), {"42"}),
    "any operation": (create_acls(acl(AclOperation.ANY, ONE)), Better({"-1"}, {"42"})),
    "a pattern for filters": (create_acls(acl(READ, ONE, pattern=PatternType.MATCH)), Better({"-1"}, {"42"})),
    "one good and one bad": (create_acls(acl(READ, TWO, principal="Group:x"), acl(READ, "")), {"0", "42"}),
    "an operation of other resources": (create_acls(acl(AclOperation.CREATE_TOKENS, ONE)), {"0"}),
    "delete what is not there": (("DELETE_ACLS", 3, {"filters": [acl_filter(GONE)]}), {"0"}),
    "delete": (("DELETE_ACLS", 3, {"filters": [acl_filter(PRE, ANONYMOUS, PatternType.LITERAL)]}), {"0", f"{PRE} 0"}),
    "and they are gone": (("DESCRIBE_ACLS", 3, acl_filter(PRE, ANONYMOUS, PatternType.LITERAL)), {"0"}),
}


# -- the two sides ---------------------------------------------------------------------------------------------------------------


class Side:
    """A broker with topics, a record, and the offsets of two groups; `exchange` sends a body as admin, or as nobody in particular."""

    def __init__(self, exchange: Callable[[bool, ApiKey, int, bytes, bool], bytes]) -> None:
        self._exchange = exchange
        self._ids: dict[str, UUID] = {GONE: UUID(int=7, version=4)}
        self.ask(create_topics(ONE, TWO, PRE), as_admin=True)
        for topic in self._send(("METADATA", 12, {"topics": [{"name": ONE}]}), as_admin=True)["topics"]:
            self._ids[ONE] = topic["topic_id"]
        wait_until(lambda: self.ask(PRODUCER_ID, as_admin=True) == {"0"}, what="producer ids")
        for group in (GROUP, OTHER):
            api, version, tree = commit(ONE, PRE)
            committing = (api, version, {**tree, "group_id": group})
            self.ask(("FIND_COORDINATOR", 3, {"key": group}), as_admin=True)
            wait_until(
                lambda committing=committing: self.ask(committing, as_admin=True) == {f"{ONE} 0", f"{PRE} 0"},
                what="a coordinator",
            )

    def ask(self, ask: Ask, *, as_admin: bool = False) -> set[str]:
        """The outcomes in the answer."""
        try:
            return set(outcomes(self._send(ask, as_admin=as_admin)))
        except Closed:
            return {"closed"}

    def enter(self, acls: list[Tree]) -> None:
        """Give anonymous clients these ACLs and no others."""
        filters = [acl_filter(None, name) for name in (ANONYMOUS, "User:*")]
        self.ask(("DELETE_ACLS", 3, {"filters": filters}), as_admin=True)
        self.ask(create_acls(*acls), as_admin=True)

        def shown() -> int:
            answers = [self._send(("DESCRIBE_ACLS", 3, each), as_admin=True) for each in filters]
            return sum(len(resource["acls"]) for answer in answers for resource in answer["resources"])

        wait_until(lambda: shown() == len(acls), what="the ACLs to take effect")

    def _send(self, ask: Ask, *, as_admin: bool) -> Tree:
        api, version, tree = ask
        body, flexible = encoded(ApiKey[api], version, self._filled(tree))
        return decoded(ApiKey[api], version, self._exchange(as_admin, ApiKey[api], version, body, flexible))

    def _filled(self, value: Any) -> Any:
        """With the ids of the topics that stand for them."""
        if isinstance(value, list):
            return [self._filled(part) for part in value]
        if isinstance(value, dict):
            return {name: self._ids[part] if name == "topic_id" else self._filled(part) for name, part in value.items()}
        return value


def admin_of(kafka: SecuredKafka) -> RawClient:
    """A connection that has logged in."""
    client = RawClient(kafka.address("SASL_PLAINTEXT"))
    client.request(17, 1, struct.pack(">h", 5) + b"PLAIN", flexible=False)
    token = f"\0admin\0{PASSWORDS['admin']}".encode()
    client.request(36, 0, struct.pack(">i", len(token)) + token, flexible=False)
    return client


@pytest.fixture(scope="module")
def logbus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Side]:
    harness = Harness(
        tmp_path_factory.mktemp("broker"), authorizer_class_name=AUTHORIZERS[0], super_users="User:admin", num_partitions=1
    )

    def exchange(as_admin: bool, api: ApiKey, version: int, body: bytes, _: bool) -> bytes:
        harness.origin = Origin("127.0.0.1", "PLAINTEXT", "User:admin" if as_admin else ANONYMOUS)
        answer = harness.dispatch(api, version, bytearray(body))
        if isinstance(answer, Pending) and answer.silent:
            harness.settle()
            assert answer.closes
            raise Closed
        return harness.bytes_of(answer)

    yield Side(exchange)
    assert harness.engine.health.defects == 0
    harness.close()


@pytest.fixture(scope="module")
def kafka(request: pytest.FixtureRequest) -> Iterator[Side]:
    peer: SecuredKafka = request.getfixturevalue("secured_kafka")

    def exchange(as_admin: bool, api: ApiKey, version: int, body: bytes, flexible: bool) -> bytes:
        with admin_of(peer) if as_admin else RawClient(peer.address("PLAINTEXT")) as client:
            return client.request(int(api), version, body, flexible=flexible)

    side = Side(exchange)
    yield side
    side.enter([])  # other tests rely on what nobody may do


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("name", ["logbus", "kafka"])
def test_with_few_acls_or_none_the_codes_are_kafkas(request: pytest.FixtureRequest, name: str, stage: str) -> None:
    side: Side = request.getfixturevalue(name)
    acls, rows = STAGES[stage]
    side.enter(acls)
    for what, (ask, expected) in rows.items():
        if name == "kafka":  # it shows its ACLs some time before it decides by them
            wait_until(lambda ask=ask, expected=expected: side.ask(ask) == expected, what=what, timeout_seconds=20)
        else:
            assert side.ask(ask) == expected, what


@pytest.mark.parametrize("name", ["logbus", "kafka"])
def test_a_super_user_may_everything_and_bad_acls_are_refused_with_kafkas_codes(
    request: pytest.FixtureRequest, name: str
) -> None:
    side: Side = request.getfixturevalue(name)
    side.enter([])
    for what, (ask, expected) in OF_A_SUPER_USER.items():
        wanted = getattr(expected, "ours" if name == "logbus" else "kafka") if isinstance(expected, Better) else expected
        wait_until(lambda ask=ask, wanted=wanted: side.ask(ask, as_admin=True) == wanted, what=what, timeout_seconds=20)
