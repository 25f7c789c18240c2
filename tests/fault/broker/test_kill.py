"""kill -9 of the broker under a stock idempotent producer: what was acknowledged is stored once, in order.

The producer gets no notice: it retries through every restart, as an application's would. The seed decides when the broker dies.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from logbus.waiting import PATIENCE_SECONDS, wait_until
from logbus_broker.setting_parsers import AUTHORIZERS

from tests.support.broker import LogbusBroker
from tests.support.killing import PARTITIONS, Sender, kill_under_load
from tests.support.topics import create_topic, read_topic

ROUNDS = 10  # `make soak` has a hundred


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LogbusBroker]:
    with LogbusBroker(tmp_path / "broker", settings={"log.segment.bytes": "300000"}) as running:  # so that kills hit rolls too
        yield running


def test_what_was_acknowledged_is_there_once_and_in_order_after_many_kills(broker: LogbusBroker) -> None:
    acknowledged = kill_under_load(broker, "killed", ROUNDS, seed=2011)
    assert acknowledged > ROUNDS, "there was something to lose"


def test_compressed_batches_survive_kills_as_well(broker: LogbusBroker) -> None:
    create_topic(broker.bootstrap, "packed", partitions=PARTITIONS)
    with Sender(broker.bootstrap, "packed", **{"compression.type": "zstd"}) as sender:
        for target in (500, 3_000):
            wait_until(lambda: len(sender.acknowledged) >= target, what="the next acknowledged records")  # noqa: B023
            broker.kill9()
            broker.start()
    for partition, messages in read_topic(broker.bootstrap, "packed").items():
        assert [message.value() for message in messages] == sender.sent[partition]


def test_acls_that_were_acknowledged_survive_a_kill(tmp_path: Path) -> None:
    """And so does what the audit log says of them."""
    audit_log = tmp_path / "audit.log"
    settings = {"authorizer.class.name": AUTHORIZERS[0], "super.users": "User:ANONYMOUS", "logbus.audit.log": str(audit_log)}
    literal, allow = ResourcePatternType.LITERAL, AclPermissionType.ALLOW
    with LogbusBroker(tmp_path, settings=settings) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        for number in range(2):
            acl = AclBinding(ResourceType.TOPIC, f"web-{number}", literal, "User:ann", "*", AclOperation.READ, allow)
            for future in admin.create_acls([acl]).values():
                future.result()
            broker.kill9()
            broker.start()
        anything = AclBindingFilter(
            ResourceType.TOPIC, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
        )
        kept = admin.describe_acls(anything).result()
        assert sorted(acl.name for acl in kept) == [f"web-{number}" for number in range(2)]
    assert [json.loads(line)["api"] for line in audit_log.read_text().splitlines()] == ["CREATE_ACLS"] * 2
    assert audit_log.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("damage", ["cut", "zeros", "garbage", "flipped"])
def test_a_torn_tail_is_removed_and_everything_before_it_kept(broker: LogbusBroker, damage: str) -> None:
    """The last batch as a power cut may leave it. What was stored before it stays, and the broker accepts records again."""
    create_topic(broker.bootstrap, "torn")
    producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True, "linger.ms": 0})
    for number in range(20):
        producer.produce("torn", b"%d" % number, partition=0)
        assert producer.flush(PATIENCE_SECONDS) == 0
    broker.kill9()
    expected = [b"%d" % number for number in range(_damage(broker.data / "torn-0", damage))]
    broker.start()
    assert [message.value() for message in read_topic(broker.bootstrap, "torn")[0]] == expected
    plain = Producer({"bootstrap.servers": broker.bootstrap})
    plain.produce("torn", b"after", partition=0)
    assert plain.flush(PATIENCE_SECONDS) == 0
    assert [message.value() for message in read_topic(broker.bootstrap, "torn")[0]] == [*expected, b"after"]


def _damage(directory: Path, damage: str) -> int:
    """Damage the end of the partition's last segment; returns how many of the 20 records are still intact."""
    segment = max(directory.glob("*.log"))
    content = segment.read_bytes()
    if damage in ("zeros", "garbage"):
        segment.write_bytes(content + (b"\0" if damage == "zeros" else b"\xa5\x5a\x00\x01") * 100)
        return 20
    segment.write_bytes(content[:-3] if damage == "cut" else content[:-3] + bytes([content[-3] ^ 0xFF]) + content[-2:])
    return 19
