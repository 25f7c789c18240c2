"""Groups through the engine, in every supported version; what is written is also read by another implementation (kio).

FindCoordinator on a broker in a cluster.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from logbus_broker.api.handler import Pending
from logbus_broker.cluster.cluster_view import BrokerAddress, LocalView
from logbus_broker.errors import CoordinatorNotAvailable, InvalidReplicationFactor
from logbus_broker.log.background_tasks import SLICE_SECONDS
from logbus_broker.protocol.api import ApiKey, ErrorCode
from logbus_broker.protocol.codec import request_class
from logbus_broker.setting_parsers import Listener

from tests.support.engine import Harness
from tests.support.group_client import SESSION_MS, Client, subscription
from tests.support.replicas import ScriptedWatermarks

RETENTION_MS = 10_080 * 60_000


@pytest.fixture
def client(tmp_path: Path) -> Client:
    harness = Harness(tmp_path, group_initial_rebalance_delay_ms=0)
    harness.create("clicks")
    harness.create("views")
    return Client(harness)


@pytest.mark.parametrize("version", range(10))
def test_a_member_joins_syncs_and_stays_in_every_version(client: Client, version: int) -> None:
    joined = client.enter(version=version)
    assert (joined.error_code, joined.generation_id, joined.leader, joined.protocol_name) == (0, 1, joined.member_id, "range")
    assert [(row.member_id, row.metadata) for row in joined.members] == [(joined.member_id, subscription("clicks"))]
    assert client.sync(joined, version=min(version, 5)).assignment == b"0,1"
    assert client.heartbeat(joined, min(version, 4)) == 0
    assert client.commit(7, member=joined) == 0
    assert client.committed() == 7


@pytest.mark.parametrize("version", range(3))
def test_old_clients_leave_one_by_one(client: Client, version: int) -> None:
    joined = client.enter()
    assert client.ask(ApiKey.LEAVE_GROUP, version, group_id="g", member_id=joined.member_id).error_code == 0
    assert client.ask(ApiKey.LEAVE_GROUP, version, group_id="g", member_id=joined.member_id).error_code == 25
    assert client.describe().group_state == "Empty"


def test_members_leave_together_each_with_a_result(client: Client) -> None:
    static = client.join(instance_id="one")
    assert static.error_code == 0
    answer = client.leave(("", "one"), ("somebody", None), ("", "two"))
    assert answer.error_code == 0
    assert [row.error_code for row in answer.members] == [0, 25, 25]
    nameless = client.ask(ApiKey.LEAVE_GROUP, group_id="", members=[])
    assert (nameless.error_code, nameless.members) == (24, [])


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"group_id": ""}, 24),
        ({"session_timeout_ms": 1}, 26),
        ({"session_timeout_ms": 3_600_000}, 26),
        ({"member_id": "somebody"}, 25),
        ({"protocols": []}, 23),
        ({"protocol_type": ""}, 23),
    ],
)
@pytest.mark.parametrize("version", [5, 9])
def test_a_join_that_cannot_be_says_why(client: Client, version: int, changes: dict[str, Any], code: int) -> None:
    answer = client.join(version=version, **changes)
    assert (answer.error_code, answer.generation_id, answer.members) == (code, -1, [])


def test_a_join_waits_for_the_others_and_both_are_answered_in_one_turn(client: Client) -> None:
    first = client.enter()
    client.sync(first)
    second = client.enter()
    assert isinstance(second, Pending)
    assert client.heartbeat(first) == 27
    again = client.join(first.member_id)
    assert second.done
    second = client.read(second, ApiKey.JOIN_GROUP)
    assert (again.generation_id, second.generation_id, second.leader) == (2, 2, first.member_id)
    waits = client.sync(second, assignments=[])
    assert isinstance(waits, Pending)
    client.sync(again, assignment=b"all")
    assert client.read(waits, ApiKey.SYNC_GROUP).assignment == b""


def test_time_puts_out_the_silent_and_answers_those_who_wait(client: Client) -> None:
    first = client.enter()
    client.sync(first)
    second = client.enter()
    client.harness.clock.advance_ms(SESSION_MS)
    assert client.harness.engine.next_deadline() <= client.harness.clock.monotonic()
    client.harness.turn()
    second = client.read(second, ApiKey.JOIN_GROUP)
    assert (second.generation_id, second.leader) == (2, second.member_id)
    assert client.heartbeat(first) == 25


def test_a_pending_that_a_lost_connection_left_behind_harms_nobody(client: Client) -> None:
    first = client.enter()
    client.sync(first)
    lost = client.enter()
    lost.cancel()
    assert client.join(first.member_id).generation_id == 2
    client.harness.turn(after_ms=SESSION_MS)
    assert len(client.describe().members) == 0


def test_commits_of_members_and_strangers_have_their_codes(client: Client) -> None:
    assert client.commit(1) == 0
    joined = client.enter()
    assert client.commit(2, member=joined) == 27  # the leader is computing the assignments
    client.sync(joined)
    assert client.commit(2) == 25
    assert client.commit(3, member=joined) == 0
    joined.generation_id += 1
    assert client.commit(4, member=joined) == 22
    joined.member_id = "somebody"
    assert client.commit(4, member=joined) == 25
    assert client.commit(4, member=joined, group="nobody's", version=8) == 22
    assert client.commit(4, member=joined, group="nobody's") == 69
    assert client.commit(4, group="") == 24
    assert client.committed() == 3


@pytest.mark.parametrize("version", range(2, 10))
def test_offsets_are_committed_in_every_version(client: Client, version: int) -> None:
    assert client.committed() == -1
    assert client.commit(version, version=version, metadata="m") == 0
    assert (client.committed_row().committed_offset, client.committed_row().metadata) == (version, "m")


def test_members_go_on_in_their_generation_after_a_restart_and_keep_their_ids(client: Client) -> None:
    row = request_class(ApiKey.SYNC_GROUP).SyncGroupRequestAssignment
    static = client.join(instance_id="one")
    waits = client.enter()
    static = client.join(static.member_id, instance_id="one")
    other = client.read(waits, ApiKey.JOIN_GROUP)
    waits = client.sync(other, assignments=[])
    plan = [row(member_id=one.member_id, assignment=one.member_id.encode()) for one in (static, other)]
    client.sync(static, group_instance_id="one", assignments=plan)
    assert client.read(waits, ApiKey.SYNC_GROUP).assignment == other.member_id.encode()
    described = client.describe()
    client.restart()
    assert client.describe() == described
    assert client.heartbeat(static, instance_id="one") == client.heartbeat(other) == 0
    assert client.commit(5, member=other) == 0
    assert client.sync(other, assignments=[]).assignment == other.member_id.encode()
    back = client.join(instance_id="one")
    assert (back.generation_id, back.leader) == (static.generation_id, back.member_id)
    client.restart()
    assert client.heartbeat(static, instance_id="one") == 82
    assert client.heartbeat(back, instance_id="one") == client.heartbeat(other) == 0
    client.leave((other.member_id, None))
    client.restart()
    assert client.heartbeat(other) == 0, "it left a generation that the log has, and whose successor is not there yet"


@pytest.mark.parametrize("version", range(7))
def test_a_group_is_described_in_every_version(client: Client, version: int) -> None:
    client.sync(client.enter())
    found = client.describe(version=version)
    assert (found.error_code, found.group_state, found.protocol_type, found.protocol_data) == (0, "Stable", "consumer", "range")
    (member,) = found.members
    assert (member.client_id, member.member_assignment, member.member_metadata) == ("test", b"0,1", subscription("clicks"))
    absent = client.describe("absent", version)
    assert (absent.group_state, absent.error_code) == ("Dead", 69 if version >= 6 else 0)


@pytest.mark.parametrize("version", range(6))
def test_groups_are_listed_in_every_version(client: Client, version: int) -> None:
    client.sync(client.enter())
    client.commit(group="simple")
    rows = client.ask(ApiKey.LIST_GROUPS, version, states_filter=[], types_filter=[]).groups
    assert [(row.group_id, row.protocol_type) for row in rows] == [("g", "consumer"), ("simple", "")]


def test_groups_are_listed_by_state_and_type(client: Client) -> None:
    client.sync(client.enter())
    client.commit(group="simple")
    assert client.listed() == {"g": "Stable", "simple": "Empty"}
    assert client.listed(states=("stable",)) == {"g": "Stable"}
    assert client.listed(states=("Empty", "Dead")) == {"simple": "Empty"}
    assert client.listed(types=("Classic",)) == {"g": "Stable", "simple": "Empty"}
    assert client.listed(types=("consumer",)) == {}


def test_an_empty_group_is_deleted_with_its_offsets_and_stays_deleted(client: Client) -> None:
    joined = client.enter()
    client.sync(joined)
    client.commit(5, member=joined)
    assert client.delete("g", "absent", "") == [68, 69, 24]
    client.leave((joined.member_id, None))
    assert client.delete("g") == [0]
    assert client.committed() == -1
    for _ in range(2):
        assert (client.committed(), client.listed()) == (-1, {})
        client.restart()


@pytest.mark.parametrize("version", range(3))
def test_groups_are_deleted_in_every_version(client: Client, version: int) -> None:
    client.commit()
    assert client.delete("g", version=version) == [0]


def test_offsets_are_deleted_unless_a_member_reads_the_topic(client: Client) -> None:
    client.commit(1, topic="clicks")
    client.commit(2, topic="views")
    client.sync(client.enter())
    assert client.delete_offset("clicks") == (0, [86])
    assert client.delete_offset("views") == (0, [0])
    assert client.delete_offset("absent") == (0, [3])
    assert client.delete_offset("clicks", group="absent") == (69, [])
    assert (client.committed("clicks"), client.committed("views")) == (1, -1)


def test_offsets_of_another_kind_of_group_are_not_deleted_under_it(client: Client) -> None:
    client.commit(1)
    told = client.join(protocol_type="connect")
    client.join(told.member_id, protocol_type="connect")
    assert client.delete_offset("clicks") == (68, [])


def test_the_offsets_of_a_deleted_topic_are_forgotten(client: Client) -> None:
    client.commit(9)
    client.harness.ask(ApiKey.DELETE_TOPICS, 5, topic_names=["clicks"], topics=[], timeout_ms=1000)
    client.harness.turn()
    client.harness.create("clicks")
    assert client.committed() == -1


@pytest.mark.parametrize("version", range(7))
def test_this_broker_coordinates_every_group_and_no_transaction(client: Client, version: int) -> None:
    def find(key_type: int) -> tuple[int, int]:
        values = {"key": "k", "key_type": key_type, "coordinator_keys": ["k"]}
        answer = client.ask(ApiKey.FIND_COORDINATOR, version, **values)
        row = answer.coordinators[0] if version >= 4 else answer
        return row.error_code, row.node_id

    assert find(0) == (0, 0)
    if version >= 1:
        assert find(1) == (53, -1)
        assert find(2) == (42, -1)


def test_a_broker_full_of_groups_takes_no_other(tmp_path: Path) -> None:
    harness = Harness(tmp_path, groups_max=1)
    client = Client(harness)
    harness.create("clicks")
    assert client.join().error_code == 79
    assert client.join(group_id="other").error_code == 15
    assert client.commit(group="one") == 0
    assert client.commit(group="two") == 15


def test_members_who_hold_too_much_memory_are_refused_until_others_leave(tmp_path: Path) -> None:
    harness = Harness(tmp_path, groups_bytes_max=50_000, group_initial_rebalance_delay_ms=0)
    client = Client(harness)
    row = request_class(ApiKey.JOIN_GROUP).JoinGroupRequestProtocol
    large = [row(name="range", metadata=bytes(30_000))]
    first = client.join(version=3, protocols=large)
    assert first.error_code == 0
    assert client.join(version=3, protocols=large, group_id="other").error_code == 15
    assert client.sync(first, assignment=bytes(30_000)).error_code == 15
    assert client.sync(first).error_code == 0
    client.leave((first.member_id, None))
    assert harness.engine.context.groups.held_bytes == 0
    assert client.join(version=3, protocols=large, group_id="other").error_code == 0


def test_a_member_with_a_thousand_protocols_is_refused(client: Client) -> None:
    row = request_class(ApiKey.JOIN_GROUP).JoinGroupRequestProtocol
    assert client.join(protocols=[row(name=f"p{number}", metadata=b"") for number in range(1000)]).error_code == 42


def test_a_group_named_a_thousand_times_is_answered_once(client: Client) -> None:
    client.commit()
    described = client.ask(ApiKey.DESCRIBE_GROUPS, groups=["g"] * 1000, include_authorized_operations=False)
    assert len(described.groups) == 1
    row = request_class(ApiKey.OFFSET_FETCH).OffsetFetchRequestGroup
    asked = [row(group_id="g", member_id=None, member_epoch=-1, topics=None)] * 1000
    assert len(client.ask(ApiKey.OFFSET_FETCH, groups=asked, require_stable=False).groups) == 1
    assert client.delete(*["g"] * 1000) == [0]


def sweep(client: Client) -> None:
    client.harness.settle(after_ms=client.harness.engine.config.offsets_retention_check_ms)


def test_offsets_expire_when_nobody_has_used_them_for_the_retention_time(client: Client) -> None:
    client.commit()
    client.harness.clock.advance_ms(RETENTION_MS - client.harness.engine.config.offsets_retention_check_ms - 1)
    sweep(client)
    assert client.committed() == 1
    sweep(client)
    assert client.committed() == -1
    assert client.listed() == {}


def test_offsets_of_what_members_read_do_not_expire_and_the_time_counts_from_their_leaving(client: Client) -> None:
    client.commit(1, topic="clicks")
    client.commit(2, topic="views")
    joined = client.enter()
    client.sync(joined)
    for _ in range(RETENTION_MS // 5_000_000 + 1):
        client.harness.clock.advance_ms(5_000_000)
        assert client.commit(3, topic="absent", member=joined) == 3  # counts as a heartbeat, and changes nothing
        client.harness.settle()
    assert (client.committed("clicks"), client.committed("views")) == (1, -1)
    client.leave((joined.member_id, None))
    sweep(client)
    assert client.committed("clicks") == 1
    client.harness.clock.advance_ms(RETENTION_MS)
    sweep(client)
    assert client.committed("clicks") == -1


def test_a_wall_clock_that_jumps_forgets_nothing(client: Client) -> None:
    """Of groups that never had members here, and whose coordinator has been up for longer than the retention time."""
    client.commit(topic="views")
    client.harness.clock.advance_ms(RETENTION_MS)
    client.commit()
    client.harness.clock.jump_ms(10 * RETENTION_MS)
    sweep(client)
    assert (client.committed(), client.committed("views")) == (1, -1)


def test_a_group_of_which_nothing_is_left_is_forgotten(client: Client) -> None:
    joined = client.enter()
    client.sync(joined)
    client.leave((joined.member_id, None))
    client.restart()
    assert client.listed() == {"g": "Empty"}
    assert client.describe().protocol_type == "consumer"
    sweep(client)
    for _ in range(2):
        assert client.listed() == {}
        client.restart()


def test_the_counts_for_metrics_follow(client: Client) -> None:
    groups = client.harness.engine.context.groups
    joined = client.enter()
    assert (groups.groups_by_state, groups.member_count, groups.rebalance_count) == ({"CompletingRebalance": 1}, 1, 1)
    client.sync(joined)
    client.commit(1, member=joined)
    assert client.harness.engine.context.offsets.offset_count == 1
    client.leave((joined.member_id, None))
    assert client.delete("g") == [0]
    assert (groups.groups_by_state, groups.member_count, groups.rebalance_count) == ({}, 0, 2)


def test_commits_are_compacted_and_the_newest_survive_a_restart_after_it(tmp_path: Path) -> None:
    harness = Harness(tmp_path, offsets_segment_bytes=2_000)
    client = Client(harness)
    harness.create("clicks")
    harness.create("views")
    joined = client.join(group_id="members", version=3, session_timeout_ms=60_000)
    harness.clock.advance_ms(harness.engine.config.group_initial_rebalance_delay_ms)
    joined = client.read(joined, ApiKey.JOIN_GROUP, 3)
    client.sync(joined, group_id="members")
    for number in range(1, 101):
        client.commit(number, topic="clicks")
        client.commit(number, topic="views", group=f"group-{number % 3}")
    client.delete("group-0")
    harness.flush()
    log = harness.engine.partitions.get("__consumer_offsets", 0).log
    before = log.segments.size_bytes
    harness.settle(after_ms=harness.engine.config.cleaner_backoff_ms)
    assert log.segments.size_bytes < before / 2
    client.restart()
    assert client.describe("members").group_state == "Stable"
    assert [client.committed("views", f"group-{number}") for number in range(3)] == [-1, 100, 98]
    assert client.committed() == 100
    client.harness.close()


SLICE_MS = int(SLICE_SECONDS * 1000)


class ViewOfAnother(LocalView):
    """Broker 2 leads every partition of the offsets topic, once that exists."""

    def __init__(self) -> None:
        listener = Listener(host="one", port=1)
        super().__init__(broker_id=1, cluster_id="c", advertised={"PLAINTEXT": listener}, leader_epoch=lambda topic, index: 0)
        self.has_topic: Any = lambda: False

    def coordinator(self, group_id: str, listener: str) -> BrokerAddress:
        if not self.has_topic():
            raise CoordinatorNotAvailable("not made yet")
        return BrokerAddress(2, "two", 2)


@pytest.fixture
def broker(tmp_path: Path) -> Harness:
    view = ViewOfAnother()
    harness = Harness(tmp_path, watermarks=ScriptedWatermarks(), view=view)
    view.has_topic = lambda: harness.engine.context.offsets.has_topic
    return harness


def find(broker: Harness) -> tuple[int, int]:
    (row,) = broker.ask(ApiKey.FIND_COORDINATOR, 4, key_type=0, coordinator_keys=["g"]).coordinators
    return row.error_code, row.node_id


def test_it_is_made_once_however_many_ask_and_again_if_it_could_not_be(broker: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    context = broker.engine.context
    created: list[str] = []

    def refuse(wanted: Any) -> Any:
        created.append("refused")
        broker.clock.advance_ms(SLICE_MS)
        yield None
        return [InvalidReplicationFactor("nobody lives")]

    monkeypatch.setattr(context.topic_changes, "create", refuse)
    for _ in range(3):
        broker.dispatch(ApiKey.FIND_COORDINATOR, 3, b"\2g\0\0")
    broker.settle()
    assert created == ["refused"]
    monkeypatch.undo()
    assert find(broker) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1)
    broker.settle()
    assert find(broker) == (0, 2)
