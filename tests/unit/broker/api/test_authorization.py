"""Rights as they change: each API has its needs, the fast paths and caches know nobody's rights but their own client's, and who did
what is written down. What each request is answered is compared with a real Kafka's answers in tests/contract/broker/test_acls.py."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from logbus_broker.api.authorization import NEEDS, NOT_SAID
from logbus_broker.api.dispatch import HANDLERS
from logbus_broker.logs import audit, set_up_audit_log
from logbus_broker.protocol.api import APIS, ApiKey, ErrorCode
from logbus_broker.protocol.batch import read_header
from logbus_broker.protocol.codec import request_class
from logbus_broker.protocol.framing import NOWHERE
from logbus_broker.security.state import AUDIT_TOPIC, AclOperation, AclPermission, AclResourceType, PatternType
from logbus_broker.setting_parsers import AUTHORIZERS

from tests.support.batches import plain_batch
from tests.support.engine import Harness, batch, produced
from tests.support.group_client import GroupRequests
from tests.support.logs import read_all
from tests.support.two_fetch_paths import PLENTY, fetch_frame
from tests.support.two_paths import Rivals, produce_frame
from tests.support.wire import Wanted

ANN, BOB = (NOWHERE._replace(principal=name) for name in ("User:ann", "User:bob"))
ON: dict[str, Any] = {"authorizer_class_name": AUTHORIZERS[0], "super_users": "User:ANONYMOUS"}
DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED


def acl(
    operation: AclOperation, name: str, principal: str = "User:ann", kind: AclResourceType = AclResourceType.TOPIC
) -> dict[str, Any]:
    return {
        "resource_type": kind,
        "resource_name": name,
        "resource_pattern_type": PatternType.LITERAL,
        "principal": principal,
        "host": "*",
        "operation": operation,
        "permission_type": AclPermission.ALLOW,
    }


def grant(broker: Harness, *acls: dict[str, Any]) -> None:
    before, broker.origin = broker.origin, NOWHERE
    assert create(broker, *acls) == [0] * len(acls)
    broker.origin = before


def create(broker: Harness, *acls: dict[str, Any]) -> list[int]:
    creation = request_class(ApiKey.CREATE_ACLS).AclCreation
    answer = broker.ask(ApiKey.CREATE_ACLS, 3, creations=[creation(**each) for each in acls])
    return [row.error_code for row in answer.results]


def revoke(broker: Harness, operation: AclOperation) -> int:
    """From everybody, for everything; how many it were."""
    before, broker.origin = broker.origin, NOWHERE
    chosen = request_class(ApiKey.DELETE_ACLS).DeleteAclsFilter(
        resource_type_filter=AclResourceType.ANY,
        resource_name_filter=None,
        pattern_type_filter=PatternType.ANY,
        principal_filter=None,
        host_filter=None,
        operation=operation,
        permission_type=AclPermission.ANY,
    )
    (answer,) = broker.ask(ApiKey.DELETE_ACLS, 3, filters=[chosen]).filter_results
    broker.origin = before
    assert not answer.error_code
    return len(answer.matching_acls)


@pytest.fixture
def broker(tmp_path: Path) -> Harness:
    broker = Harness(tmp_path, **ON)
    broker.create("clicks")
    broker.create("views")
    return broker


def test_each_api_says_what_it_needs() -> None:
    assert NEEDS.keys() == HANDLERS.keys() == APIS.keys()


def test_a_waiting_fetch_is_refused_when_the_right_to_read_is_taken_away(broker: Harness) -> None:
    grant(broker, acl(AclOperation.READ, "clicks"))
    broker.origin = ANN
    waiting = broker.fetch(Wanted(topic="clicks"), wait_ms=30_000)
    broker.settle()
    grant(broker, acl(AclOperation.READ, "views"))
    assert not waiting.done, "that was about another topic"
    assert revoke(broker, AclOperation.READ) == 2
    assert waiting.done
    assert broker.fetched(waiting).error_code == DENIED


@pytest.mark.parametrize("version", [8, 9])
def test_a_right_that_is_given_or_taken_counts_from_the_next_request_on_with_and_without_the_fast_path(
    tmp_path: Path, version: int
) -> None:
    rivals = Rivals(tmp_path, **ON)
    for side in rivals.sides:
        side.principals = {1: ANN.principal, 2: BOB.principal}

    def produce_and_fetch() -> None:
        for number in (1, 2):
            for _ in range(3):
                rivals.feed(number, produce_frame(version, 7, [(b"plain", [(0, bytes(plain_batch(2)))])]))
                rivals.turn()
                topics = [(b"plain", [(0, -1, 0, PLENTY)])]
                rivals.feed(number, fetch_frame(11, 8, topics, lambda name: name, wait_ms=0))
                rivals.turn()
        rivals.compare()

    rivals.do(lambda side: grant(side, acl(AclOperation.WRITE, "plain"), acl(AclOperation.READ, "plain")))
    produce_and_fetch()
    ends, taken = rivals.off.ends()["plain-0"][1], (rivals.on.taken, rivals.on.fetches_taken)
    assert ends == 6, "bob may not"
    assert min(taken) > 0, "ann's typical requests take it"
    rivals.do(lambda side: revoke(side, AclOperation.WRITE))
    produce_and_fetch()
    assert rivals.off.ends()["plain-0"][1] == ends
    assert rivals.on.taken == taken[0]
    assert rivals.on.fetches_taken > taken[1]
    rivals.feed(1, fetch_frame(11, 9, [(b"plain", [(0, -1, ends, PLENTY)])], lambda name: name, wait_ms=30_000))
    rivals.turn()
    before = rivals.on.seen()[1]
    rivals.do(lambda side: revoke(side, AclOperation.READ))
    rivals.turn()
    assert rivals.on.seen()[1] != before, "the fetch that waited is answered"
    rivals.compare()
    rivals.close()


def test_nobody_sees_what_another_user_was_shown(broker: Harness) -> None:
    grant(broker, acl(AclOperation.DESCRIBE, "clicks"), acl(AclOperation.READ, "views", BOB.principal))

    def shown() -> dict[str, set[str]]:
        seen = {}
        for origin in (ANN, BOB, NOWHERE, ANN):
            broker.origin = origin
            topics = broker.ask(ApiKey.METADATA, 9, topics=None).topics
            seen[origin.principal] = {topic.name for topic in topics}
        broker.origin = NOWHERE
        return seen

    assert shown() == {"User:ann": {"clicks"}, "User:bob": {"views"}, "User:ANONYMOUS": {"clicks", "views"}}
    assert len(broker.engine.context.metadata_cache) == 3
    revoke(broker, AclOperation.DESCRIBE)
    assert shown()["User:ann"] == set()


def test_a_member_that_may_no_longer_read_its_group_is_refused_at_the_next_heartbeat(broker: Harness) -> None:
    grant(broker, acl(AclOperation.READ, "g", kind=AclResourceType.GROUP))
    broker.origin = ANN
    heartbeat = {"group_id": "g", "generation_id": 1, "member_id": "m"}
    assert broker.ask(ApiKey.HEARTBEAT, 3, **heartbeat).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    revoke(broker, AclOperation.READ)
    assert broker.ask(ApiKey.HEARTBEAT, 3, **heartbeat).error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED


def test_a_member_whose_join_has_waited_is_answered_by_the_rights_of_then(broker: Harness) -> None:
    grant(broker, acl(AclOperation.READ, "g", kind=AclResourceType.GROUP))
    broker.origin = ANN
    waiting = GroupRequests(broker.begin).join(version=3)
    revoke(broker, AclOperation.READ)
    broker.settle(after_ms=broker.engine.config.group_initial_rebalance_delay_ms)
    answer = broker.read(waiting, ApiKey.JOIN_GROUP, 3)
    assert answer.error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
    assert not answer.members


def test_what_has_no_acls_may_be_left_to_everybody_but_not_the_acls_themselves(tmp_path: Path) -> None:
    broker = Harness(tmp_path, **ON, allow_everyone_if_no_acl_found=True)
    broker.create("clicks")
    broker.origin = ANN
    assert produced_by(broker) == 0
    assert create(broker, acl(AclOperation.ALL, "clicks")) == [ErrorCode.CLUSTER_AUTHORIZATION_FAILED]
    grant(broker, acl(AclOperation.WRITE, "clicks", BOB.principal))
    assert produced_by(broker) == DENIED, "now it has one"


def produced_by(broker: Harness, topic: str = "clicks") -> int:
    pending = broker.produce(batch(b"a"), topic)
    broker.settle()
    return int(produced(pending).error_code)


def test_without_an_authorizer_everything_is_allowed_and_there_are_no_acls(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    broker.create("clicks")
    broker.origin = ANN
    assert produced_by(broker) == 0
    creation = request_class(ApiKey.CREATE_ACLS).AclCreation(**acl(AclOperation.ALL, "clicks"))
    (row,) = broker.ask(ApiKey.CREATE_ACLS, 3, creations=[creation]).results
    assert (row.error_code, "authorizer.class.name" in row.error_message) == (ErrorCode.SECURITY_DISABLED, True)
    (topic,) = broker.ask(ApiKey.METADATA, 9, topics=None, include_topic_authorized_operations=True).topics
    assert topic.topic_authorized_operations == NOT_SAID


OWN = ANN._replace(principal="User:ann/load")
NO, BAD = ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.INVALID_REQUEST
READ, WRITE = AclOperation.READ, AclOperation.WRITE


def set_password(broker: Harness, user: str, *, deletes: bool = False) -> int:
    key = ApiKey.ALTER_USER_SCRAM_CREDENTIALS
    row = request_class(key).ScramCredentialDeletion(name=user, mechanism=1)
    if not deletes:
        secret = {"iterations": 4096, "salt": b"salt", "salted_password": b"x" * 32}
        row = request_class(key).ScramCredentialUpsertion(name=user, mechanism=1, **secret)
    changes = {"deletions": [row], "upsertions": []} if deletes else {"deletions": [], "upsertions": [row]}
    return int(broker.ask(key, 0, **changes).results[0].error_code)


def test_a_user_makes_users_of_its_own_that_may_no_more_than_itself(broker: Harness) -> None:
    allowed = (acl(READ, "clicks"), {**acl(READ, "web."), "resource_pattern_type": PatternType.PREFIXED})
    denied = {**acl(READ, "web.secret"), "permission_type": AclPermission.DENY}
    grant(broker, *allowed, denied, acl(WRITE, "views", "User:ann/chief"), acl(AclOperation.ALL, "clicks", "User:ANONYMOUS"))
    broker.origin = ANN
    own = OWN.principal
    cases: list[tuple[int, dict[str, Any]]] = [
        (0, acl(READ, "clicks", own)),
        (0, acl(READ, "clicks:0:4-8", own)),
        (0, acl(AclOperation.DESCRIBE, "clicks", own)),
        (0, acl(READ, "web.access", own)),
        (NO, acl(READ, "web.secret", own)),
        (NO, acl(READ, "web.secret:0:0-1", own)),
        (NO, {**acl(READ, "web.", own), "resource_pattern_type": PatternType.PREFIXED}),  # with what is denied to ann
        (0, {**acl(READ, "web.a", own), "resource_pattern_type": PatternType.PREFIXED}),
        (NO, acl(WRITE, "clicks", own)),
        (NO, acl(AclOperation.ALL, "clicks", own)),
        (NO, acl(READ, "views", own)),
        (NO, acl(READ, "*", own)),
        (NO, acl(READ, "clicks")),  # ann's own
        (NO, acl(READ, "clicks", "User:anna/load")),
        (NO, acl(READ, "clicks", "User:bob/load")),
        (NO, {**acl(READ, "clicks", own), "permission_type": AclPermission.DENY}),
        (BAD, acl(READ, "clicks:0:8-8", own)),
    ]
    for code, rule in cases:
        assert create(broker, rule) == [code], rule
    users = {"ann/load": 0, "ann": NO, "bob": NO, "anna/load": NO, "ann/chief": NO}  # the chief may write views
    assert {user: set_password(broker, user) for user in users} == users
    broker.origin = NOWHERE._replace(principal="User:ANONYMOUS/x")
    assert set_password(broker, "ANONYMOUS/x/y") == NO
    broker.origin = OWN
    assert set_password(broker, "ann/load/more") == set_password(broker, "ann/load") == NO
    assert create(broker, acl(READ, "clicks", "User:ann/load/more")) == [NO]
    broker.origin = ANN
    before = len(broker.engine.context.security.state.acls)
    chosen = request_class(ApiKey.DELETE_ACLS).DeleteAclsFilter
    anything = {"resource_type_filter": 1, "resource_name_filter": None, "pattern_type_filter": 1, "host_filter": None}
    for principal, code, count in ((None, NO, 0), ("User:ann", NO, 0), (own, 0, 5)):
        filters = [chosen(**anything, principal_filter=principal, operation=1, permission_type=1)]
        (row,) = broker.ask(ApiKey.DELETE_ACLS, 3, filters=filters).filter_results
        assert (row.error_code, len(row.matching_acls)) == (code, count), principal
    assert len(broker.engine.context.security.state.acls) == before - 5
    assert set_password(broker, "ann/load", deletes=True) == 0


def test_an_anonymous_client_has_no_users_of_its_own(tmp_path: Path) -> None:
    broker = Harness(tmp_path, authorizer_class_name=AUTHORIZERS[0], super_users="User:admin")
    assert set_password(broker, "ANONYMOUS/x") == NO


@pytest.mark.parametrize("version", [12, 13])
def test_a_range_is_read_from_its_start_to_the_batch_of_its_end_and_only_while_it_and_its_user_are_there(
    broker: Harness, version: int, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(4):
        broker.produce(batch(b"a", b"b", b"c"))  # offsets 0 to 2, 3 to 5, ...
    broker.flush()
    topic_id = broker.engine.partitions.get("clicks", 0).topic_id
    row = request_class(ApiKey.FETCH).FetchTopic

    def fetched(offset: int, *, min_bytes: int = 1, wait_ms: int = 0) -> tuple[int, list[int]]:
        part = row.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
        topic = row(topic="clicks", topic_id=topic_id, partitions=[part])
        limits = {"max_wait_ms": wait_ms, "min_bytes": min_bytes, "max_bytes": 1 << 20}
        answer = broker.read(broker.begin(ApiKey.FETCH, version, **limits, topics=[topic]), ApiKey.FETCH, version)
        ((found,),) = (topic.partitions for topic in answer.responses)
        offsets, records = list[int](), bytes(found.records or b"")
        while records:
            header = read_header(records)
            offsets += range(header.base_offset, header.next_offset)
            records = records[header.size :]
        return found.error_code, offsets

    rule = acl(READ, "clicks:0:4-8", OWN.principal)
    grant(broker, rule, acl(READ, "clicks:1:0-100", OWN.principal), acl(READ, "views:0:8-9", BOB.principal))
    broker.origin = OWN
    assert fetched(4) == (DENIED, []), "there is no such user yet"
    broker.origin = NOWHERE
    assert set_password(broker, "ann/load") == 0
    broker.origin = OWN
    caplog.clear()
    read = {offset: fetched(offset) for offset in range(13)}
    assert len(caplog.messages) == 8, "a refusal at the range's end is not logged"
    assert set(caplog.messages) == {
        "User:ann/load from  may not READ TOPIC clicks: its ACLs allow only clicks:0:4-8, clicks:1:0-100"
    }
    inside = {4: [*range(3, 9)], 5: [*range(3, 9)], 6: [6, 7, 8], 7: [6, 7, 8]}
    assert read == {offset: (0, inside[offset]) if offset in inside else (DENIED, []) for offset in range(13)}
    assert fetched(7, min_bytes=1 << 20, wait_ms=30_000) == (0, [6, 7, 8]), "nothing follows that is worth waiting for"
    assert {topic.name for topic in broker.ask(ApiKey.METADATA, 9, topics=None).topics} == {"clicks"}
    assert produced_by(broker) == DENIED
    deny = {**acl(READ, "clicks", OWN.principal), "permission_type": AclPermission.DENY}
    grant(broker, deny)
    assert fetched(4) == (DENIED, []), "who is denied reads no range either"
    assert revoke(broker, READ) == 4
    assert fetched(4) == (DENIED, [])
    grant(broker, rule)
    assert fetched(4)[0] == 0
    broker.origin = NOWHERE
    assert set_password(broker, "ann/load", deletes=True) == 0
    broker.origin = OWN
    assert fetched(4) == (DENIED, []), "a deleted user's open connection"
    assert broker.ask(ApiKey.METADATA, 9, topics=None).topics == []
    broker.origin = NOWHERE
    for name, code in {"clicks:0:5-5": BAD, "clicks:0:5-6": 0, "clicks:a:5-6": 0}.items():
        assert create(broker, acl(READ, name, OWN.principal)) == [code]
    assert create(broker, acl(WRITE, "clicks:0:5-6"), acl(READ, "clicks:0:5-6", "User:*")) == [BAD, BAD]


def test_acls_outlive_a_crash(tmp_path: Path, broker: Harness) -> None:
    grant(broker, acl(AclOperation.WRITE, "clicks"))
    broker.crash()
    again = Harness(tmp_path, **ON)
    again.origin = ANN
    assert produced_by(again) == 0
    again.origin = BOB
    assert produced_by(again) == DENIED


@pytest.fixture
def audit_log() -> Iterator[StringIO]:
    stream = StringIO()
    set_up_audit_log(stream)
    yield stream
    leave_audit_log()


def leave_audit_log() -> None:
    for handler in list(audit.handlers):
        audit.removeHandler(handler)
        handler.close()
    audit.propagate = True


def test_who_changed_what_and_who_was_refused_is_written_down(
    tmp_path: Path, audit_log: StringIO, caplog: pytest.LogCaptureFixture
) -> None:
    broker = Harness(tmp_path / "data", **ON, audit_log="audit.log")
    broker.create("clicks")
    grant(broker, acl(AclOperation.WRITE, "clicks"))
    broker.origin = ANN
    assert produced_by(broker) == 0
    assert set_password(broker, "ann/load") == 0
    with caplog.at_level(logging.WARNING):
        for _ in range(20):
            assert broker.delete("clicks").error_code == DENIED
    written = [json.loads(line) for line in audit_log.getvalue().splitlines()]
    assert [(line["message"], line["principal"], line["api"], line["resource"]) for line in written] == [
        ("allowed", "User:ANONYMOUS", "CREATE_TOPICS", "CLUSTER kafka-cluster"),
        ("allowed", "User:ANONYMOUS", "CREATE_ACLS", "CLUSTER kafka-cluster"),
        ("allowed", "User:ann", "ALTER_USER_SCRAM_CREDENTIALS", "USER User:ann/*"),
        *[("denied", "User:ann", "DELETE_TOPICS", "TOPIC clicks")] * 5,
    ]
    assert [line["what"] for line in written[:3]] == [
        "create topic clicks",
        "create ALLOW WRITE to User:ann from * on LITERAL TOPIC clicks",
        "change the credentials of user ann/load",
    ]
    assert written[-1]["reason"] == "no ACL allows it; 'ALLOW DELETE to User:ann from * on LITERAL TOPIC clicks' would"
    assert f"User:ann from  may not DELETE TOPIC clicks: {written[-1]['reason']}" in caplog.messages


def audited(broker: Harness) -> list[dict[str, str]]:
    """What the topic has, for whom the requests come from."""
    broker.flush()
    assert broker.fetched(broker.fetch(Wanted(topic=AUDIT_TOPIC))).error_code == 0
    return [json.loads(record.value or b"") for record in read_all(broker.engine.partitions.get(AUDIT_TOPIC, 0).log)]


def test_the_same_lines_are_records_of_a_topic_that_only_whom_an_acl_names_may_read(tmp_path: Path, audit_log: StringIO) -> None:
    """A refusal to read it is a line like others: one for each, as few as of any kind."""
    broker = Harness(tmp_path, **ON, audit_topic_enable=True, allow_everyone_if_no_acl_found=True)
    broker.create("clicks")
    broker.origin = ANN
    for _ in range(20):
        assert broker.fetched(broker.fetch(Wanted(topic=AUDIT_TOPIC))).error_code == DENIED
        assert produced_by(broker, AUDIT_TOPIC) == DENIED
    broker.origin = NOWHERE
    assert produced_by(broker, AUDIT_TOPIC) == ErrorCode.INVALID_TOPIC_EXCEPTION
    lines = audited(broker)
    assert lines == [json.loads(line) for line in audit_log.getvalue().splitlines()]
    expected = [("allowed", "CREATE_TOPICS", "CLUSTER kafka-cluster"), *[("denied", "FETCH", f"TOPIC {AUDIT_TOPIC}")] * 3]
    assert [(line["message"], line["api"], line["resource"]) for line in lines if line["api"] != "PRODUCE"] == expected
    grant(broker, acl(AclOperation.READ, AUDIT_TOPIC))
    broker.origin = ANN
    assert audited(broker)[-1]["api"] == "CREATE_ACLS"


def test_lines_that_cannot_be_written_are_kept_up_to_a_limit_and_hold_nothing_up(tmp_path: Path, audit_log: StringIO) -> None:
    """As in a cluster while others lead all its partitions."""
    broker = Harness(tmp_path, **ON, audit_topic_enable=True)
    broker.create("clicks")
    before = audited(broker)
    led, place = broker.engine.partitions.led_by_name, (AUDIT_TOPIC, 0)
    partition = led.pop(place)
    for number in range(3_000):
        audit.info("%d %s", number, "x" * 900)
    for _ in range(6):
        assert produced_by(broker) == 0
        broker.settle(after_ms=1_500)
    trouble = "this broker leads none of its 1 partitions"
    assert broker.engine.health.troubles == {f"writing to {AUDIT_TOPIC}": trouble}
    led[place] = partition
    broker.settle(after_ms=1_500)
    *written, left_out = [int(line["message"].partition(" ")[0]) for line in audited(broker)[len(before) :]]
    assert (written, left_out) == (list(range(len(written))), 3_000 - len(written))
    assert 1_000 < len(written) < 1_100, "a megabyte"
    assert not broker.engine.health.troubles


def test_a_log_that_is_offline_keeps_its_lines_to_itself(tmp_path: Path, audit_log: StringIO) -> None:
    broker = Harness(tmp_path, **ON, audit_topic_enable=True)
    broker.create("clicks")
    audited(broker)
    broker.engine.partitions.get(AUDIT_TOPIC, 0).log.go_offline("the disk is gone")
    broker.create("views")
    for _ in range(6):
        broker.settle(after_ms=1_500)
    assert produced_by(broker, "views") == 0
    assert broker.engine.health.troubles == {f"writing to {AUDIT_TOPIC}": "the disk is gone"}
