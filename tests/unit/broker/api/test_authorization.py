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
from logbus_broker.config.parsers import AUTHORIZERS
from logbus_broker.logs import audit, set_up_audit_log
from logbus_broker.protocol.api import APIS, ApiKey, ErrorCode
from logbus_broker.protocol.codec import request_class
from logbus_broker.protocol.framing import NOWHERE
from logbus_broker.security.state import AclOperation, AclPermission, AclResourceType, PatternType

from tests.support.batches import plain_batch
from tests.support.engine import Harness, batch, produced
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
    creation = request_class(ApiKey.CREATE_ACLS).AclCreation
    answer = broker.ask(ApiKey.CREATE_ACLS, 3, creations=[creation(**each) for each in acls])
    assert [row.error_code for row in answer.results] == [0] * len(acls)
    broker.origin = before


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


def test_what_has_no_acls_may_be_left_to_everybody_but_not_the_acls_themselves(tmp_path: Path) -> None:
    broker = Harness(tmp_path, **ON, allow_everyone_if_no_acl_found=True)
    broker.create("clicks")
    broker.origin = ANN
    assert produced_by(broker) == 0
    creation = request_class(ApiKey.CREATE_ACLS).AclCreation(**acl(AclOperation.ALL, "clicks"))
    (row,) = broker.ask(ApiKey.CREATE_ACLS, 3, creations=[creation]).results
    assert row.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    grant(broker, acl(AclOperation.WRITE, "clicks", BOB.principal))
    assert produced_by(broker) == DENIED, "now it has one"


def produced_by(broker: Harness) -> int:
    pending = broker.produce(batch(b"a"))
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
    with caplog.at_level(logging.WARNING):
        for _ in range(20):
            assert broker.delete("clicks").error_code == DENIED
    written = [json.loads(line) for line in audit_log.getvalue().splitlines()]
    assert [(line["message"], line["principal"], line["api"], line["resource"]) for line in written] == [
        ("allowed", "User:ANONYMOUS", "CREATE_TOPICS", "CLUSTER kafka-cluster"),
        ("allowed", "User:ANONYMOUS", "CREATE_ACLS", "CLUSTER kafka-cluster"),
        *[("denied", "User:ann", "DELETE_TOPICS", "TOPIC clicks")] * 5,
    ]
    assert [line["what"] for line in written[:2]] == [
        "create topic clicks",
        "create ALLOW WRITE to User:ann from * on LITERAL TOPIC clicks",
    ]
    assert written[-1]["reason"] == "no ACL allows it; 'ALLOW DELETE to User:ann from * on LITERAL TOPIC clicks' would"
    assert f"User:ann from  may not DELETE TOPIC clicks: {written[-1]['reason']}" in caplog.messages
