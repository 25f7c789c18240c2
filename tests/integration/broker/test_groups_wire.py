"""Group requests that no well-behaved client sends: this broker and Apache Kafka return the same codes.

`LOGBUS_TEST_BROKER=kafka` runs the tests against Apache Kafka.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from logbus.waiting import wait_until

from broker.protocol.api import ApiKey
from broker.protocol.control import request_class
from tests.support.broker import AnyBroker, any_broker
from tests.support.consumers import GROUP_SETTINGS
from tests.support.group_client import WireClient, subscription
from tests.support.raw_client import RawClient
from tests.support.topics import create_topic


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AnyBroker]:
    with any_broker(tmp_path_factory.mktemp("broker"), GROUP_SETTINGS) as running:
        create_topic(running.bootstrap, "clicks")
        create_topic(running.bootstrap, "views")
        wait_until(lambda: is_coordinating(running.bootstrap), what="the group coordinator")
        yield running


def is_coordinating(bootstrap: str) -> bool:
    """Apache Kafka creates its offsets topic on the first FindCoordinator, which takes a while."""
    with RawClient(bootstrap) as connection:
        client = WireClient(connection)
        (found,) = client.ask(ApiKey.FIND_COORDINATOR, key_type=0, coordinator_keys=["g"]).coordinators
        return found.error_code == 0 and client.commit() == 0


@pytest.fixture
def client(broker: AnyBroker, topic: str) -> Iterator[WireClient]:
    """Its group is named after the test's topic, which is never created."""
    with RawClient(broker.bootstrap) as connection:
        yield WireClient(connection, group=f"group-of-{topic}")


def test_joins_are_refused(client: WireClient) -> None:
    assert client.join(group_id="").error_code == 24
    assert client.join(session_timeout_ms=1).error_code == 26
    assert client.join("somebody").error_code == 25
    assert client.join().error_code == 79
    assert client.join(version=3, protocols=[]).error_code == 23
    client.sync(client.enter())
    row = request_class(ApiKey.JOIN_GROUP).JoinGroupRequestProtocol
    assert client.join(protocols=[row(name="sticky", metadata=b"")]).error_code == 23
    assert client.join(protocol_type="connect").error_code == 23
    assert client.join("somebody").error_code == 25


def test_members_of_the_past_are_refused(client: WireClient) -> None:
    joined = client.enter()
    client.sync(joined)
    assert (client.heartbeat(joined), client.commit(member=joined)) == (0, 0)
    joined.generation_id += 1
    assert (client.heartbeat(joined), client.commit(member=joined), client.sync(joined).error_code) == (22, 22, 22)
    joined.generation_id, joined.member_id = joined.generation_id - 1, "somebody"
    assert (client.heartbeat(joined), client.commit(member=joined), client.sync(joined).error_code) == (25, 25, 25)
    assert client.sync(joined, protocol_name="sticky").error_code == 25
    assert client.commit() == 25


def test_groups_that_nobody_knows(client: WireClient) -> None:
    joined = client.enter()
    client.group = "nobody's"
    assert (client.heartbeat(joined), client.sync(joined).error_code) == (25, 25)
    assert (client.commit(member=joined, version=8), client.commit(member=joined, version=9)) == (22, 69)
    assert [row.error_code for row in client.leave(("somebody", None)).members] == [25]
    assert (client.describe(client.group, 5).group_state, client.describe(client.group, 5).error_code) == ("Dead", 0)
    assert (client.describe(client.group, 6).group_state, client.describe(client.group, 6).error_code) == ("Dead", 69)
    assert client.delete(client.group) == [69]
    assert client.delete_offset("clicks", client.group)[0] == 69


def test_a_sync_for_another_protocol_is_refused(client: WireClient) -> None:
    joined = client.enter()
    assert client.sync(joined, protocol_name="sticky").error_code == 23
    assert client.sync(joined, protocol_type="connect").error_code == 23
    assert client.commit(member=joined) == 27
    assert client.heartbeat(joined) == 0


def test_a_group_with_members_is_not_deleted_nor_what_they_read(client: WireClient) -> None:
    joined = client.enter()
    client.sync(joined)
    assert (client.commit(member=joined), client.commit(topic="views", member=joined)) == (0, 0)
    assert client.delete(client.group) == [68]
    assert client.delete_offset("clicks", client.group) == (0, [86])
    assert client.delete_offset("views", client.group) == (0, [0])
    assert (client.committed("clicks", client.group), client.committed("views", client.group)) == (1, -1)
    client.leave((joined.member_id, None))
    assert client.delete(client.group) == [0]


@pytest.mark.parametrize("version", [5, 9])
def test_a_static_leader_comes_back(client: WireClient, version: int) -> None:
    first = client.join(instance_id="one", version=version)
    assert client.sync(first, group_instance_id="one").error_code == 0
    back = client.join(instance_id="one", version=version)
    assert (back.error_code, back.generation_id) == (0, first.generation_id)
    assert back.member_id != first.member_id
    assert (back.leader == back.member_id, len(back.members)) == ((True, 1) if version == 9 else (False, 0))
    assert back.leader == (back.member_id if version == 9 else first.member_id)
    assert client.sync(first, group_instance_id="one").error_code == 82
    assert client.join(first.member_id, instance_id="one").error_code == 82
    assert client.sync(back, group_instance_id="one", assignments=[]).assignment == b"0,1"
    assert [row.error_code for row in client.leave((first.member_id, "one"), ("", "two"), ("", "one")).members] == [82, 25, 0]


def test_a_member_is_described_while_its_group_is_stable(client: WireClient) -> None:
    def shown() -> tuple[Any, ...]:
        found = client.describe(client.group)
        (member,) = found.members
        return found.group_state, found.protocol_data, member.client_host, member.member_metadata, member.member_assignment

    joined = client.enter()
    assert shown() == ("CompletingRebalance", "", "/127.0.0.1", b"", b"")
    client.sync(joined)
    assert shown() == ("Stable", "range", "/127.0.0.1", subscription("clicks"), b"0,1")


def test_a_join_that_changes_nothing_is_answered_with_what_was(client: WireClient) -> None:
    joined = client.enter()
    assert client.join(joined.member_id).generation_id == joined.generation_id  # as if the response was lost: it is sent again
    client.sync(joined)
    assert client.join(joined.member_id).generation_id == joined.generation_id + 1  # leader rejoins: rebalance
