"""Groups move from one coordinator to another with the leadership of their partition of `__consumer_offsets`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from logbus_broker.api.cluster_metadata import forget_offsets
from logbus_broker.api.handler import Pending
from logbus_broker.api.internal_topics import sweep_groups
from logbus_broker.cluster.metadata_image import ClusterTopic, DeletionRequested, MetadataDelta, MetadataImage
from logbus_broker.cluster.topic_registry import partition_of_group
from logbus_broker.errors import BrokerError, NotLeaderOrFollower
from logbus_broker.log.background_tasks import SLICE_SECONDS
from logbus_broker.log.partition import Partition
from logbus_broker.protocol.api import ApiKey, ErrorCode
from logbus_broker.protocol.codec import request_class

from tests.support.coordinators import Coordinators, code_of
from tests.support.group_client import SESSION_MS, Client
from tests.support.logs import headers_from

SLICE_MS = int(SLICE_SECONDS * 1000)
LOADING, UNAVAILABLE, NOT_MINE = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)


@pytest.fixture
def two(tmp_path: Path) -> Coordinators:
    return Coordinators(tmp_path)


@pytest.fixture
def wide(tmp_path: Path) -> Coordinators:
    both = Coordinators(tmp_path, partitions=4)
    both.begin()
    return both


def commit(both: Coordinators, offset: int, **who: Any) -> int | None:
    """The code of a commit after it has been replicated."""
    pending = both.leader.begin_commit(offset, **who)
    both.replicate()
    return code_of(pending)


def enter(both: Coordinators) -> Any:
    """The only member of a stable group, which is replicated."""
    client = both.leader.client
    joined = client.enter()
    waits = client.sync(joined)
    both.replicate()
    assert client.read(waits, ApiKey.SYNC_GROUP).assignment == b"0,1"
    return joined


def codes_of_every_request(client: Client) -> dict[str, int]:
    """The error code of each request about a group, in the newest version."""
    joined = type("Joined", (), {"generation_id": 1, "member_id": "m"})
    partition = request_class(ApiKey.OFFSET_FETCH).OffsetFetchRequestGroup
    fetched = client.ask(
        ApiKey.OFFSET_FETCH,
        groups=[partition(group_id="g", member_id=None, member_epoch=-1, topics=None)],
        require_stable=False,
    )
    return {
        "join": client.join().error_code,
        "sync": client.sync(joined).error_code,
        "heartbeat": client.heartbeat(joined),
        "leave": client.leave(("m", None)).error_code,
        "commit": client.commit(1),
        "fetch": fetched.groups[0].error_code,
        "describe": client.describe().error_code,
        "delete": client.delete("g")[0],
        "delete offsets": client.delete_offset("clicks")[0],
    }


# -- which coordinator has a group -----------------------------------------------------------------------------------------------


def test_who_does_not_lead_the_partition_says_so_to_every_request(two: Coordinators) -> None:
    assert set(codes_of_every_request(two.leader.client).values()) == {NOT_MINE}
    assert two.leader.client.listed() == {}


def test_old_versions_are_told_beside_each_partition(two: Coordinators) -> None:
    topic = request_class(ApiKey.OFFSET_FETCH).OffsetFetchRequestTopic
    asked = [topic(name="clicks", partition_indexes=[0, 1])]
    answer = two.leader.client.ask(ApiKey.OFFSET_FETCH, 1, group_id="g", topics=asked)
    assert [(row.committed_offset, row.error_code) for row in answer.topics[0].partitions] == [(-1, NOT_MINE)] * 2
    answer = two.leader.client.ask(ApiKey.OFFSET_FETCH, 7, group_id="g", topics=asked, require_stable=False)
    assert (answer.error_code, answer.topics) == (NOT_MINE, [])
    assert two.leader.client.ask(ApiKey.LEAVE_GROUP, 2, group_id="g", member_id="m").error_code == NOT_MINE


def test_each_group_belongs_to_the_leader_of_its_partition(wide: Coordinators) -> None:
    groups = [f"group-{number}" for number in range(8)]
    indexes = {group: partition_of_group(group, 4) for group in groups}
    assert set(indexes.values()) == {0, 1, 2, 3}
    for number, group in enumerate(groups):
        assert commit(wide, number, group=group) == 0
    first = wide.leader
    first.broker.engine.partitions.resign(first.partition(2))
    for number, group in enumerate(groups):
        gone = indexes[group] == 2
        assert first.fetch(group) == ((NOT_MINE, -1) if gone else (0, number))
    assert set(first.client.listed()) == {group for group in groups if indexes[group] != 2}
    counts = [sum(1 for _ in headers_from(first.partition(index).log, 0)) for index in range(4)]
    assert counts == [list(indexes.values()).count(index) for index in range(4)]


def test_a_deletion_of_groups_of_many_partitions_is_refused_where_they_are_led_elsewhere(wide: Coordinators) -> None:
    groups = [f"group-{number}" for number in range(8)]
    for group in groups:
        assert commit(wide, 1, group=group) == 0
    first = wide.leader
    first.broker.engine.partitions.resign(first.partition(2))
    pending = first.client.send(ApiKey.DELETE_GROUPS, 2, groups_names=groups)
    replicate_all_but(wide, 2)
    rows = {row.group_id: row.error_code for row in first.client.read(pending, ApiKey.DELETE_GROUPS, 2).results}
    assert rows == {group: NOT_MINE if partition_of_group(group, 4) == 2 else 0 for group in groups}
    assert first.client.listed() == {}


# -- taking groups over ----------------------------------------------------------------------------------------------------------


def test_while_it_loads_it_asks_for_patience(two: Coordinators) -> None:
    """No client gets an offset that could still be lost: the coordinator waits until other replicas have what it has read."""
    two.begin()
    assert commit(two, 1) == 0
    two.move()
    assert set(codes_of_every_request(two.leader.client).values()) == {LOADING}
    assert two.leader.client.ask(ApiKey.LIST_GROUPS, states_filter=[], types_filter=[]).error_code == LOADING
    two.replicate()
    assert two.leader.fetch() == (0, 1)
    assert two.leader.client.ask(ApiKey.LIST_GROUPS, states_filter=[], types_filter=[]).error_code == 0


def test_a_replica_that_stays_away_does_not_keep_groups_from_their_coordinator(two: Coordinators) -> None:
    two.begin()
    assert commit(two, 1) == 0
    two.move()
    two.leader.broker.settle(after_ms=4_999)
    assert two.leader.fetch() == (LOADING, -1)
    two.leader.broker.settle(after_ms=1)
    assert two.leader.fetch() == (0, 1)


def test_a_load_is_a_task_and_ends_where_the_lead_is_lost(two: Coordinators) -> None:
    two.begin()
    for offset in range(200):
        two.leader.begin_commit(offset)
    two.replicate()
    two.move()
    new = two.leader
    new.broker.engine.partitions.resign(new.partition())
    new.broker.clock.tick_ms = SLICE_MS  # one slice per turn
    new.broker.engine.partitions.lead(new.partition(), 10)
    assert new.broker.engine.tasks.due < new.broker.clock.monotonic()
    assert new.fetch()[0] == LOADING
    new.broker.engine.partitions.resign(new.partition())
    new.broker.settle()
    assert new.broker.engine.context.offsets.offset_count == 0
    assert new.fetch() == (NOT_MINE, -1)


def test_a_log_that_cannot_be_read_costs_its_own_groups(wide: Coordinators) -> None:
    groups = [f"group-{number}" for number in range(8)]
    for number, group in enumerate(groups):
        assert commit(wide, number, group=group) == 0
    wide.other.partition(1).log.go_offline("its disk failed")
    wide.move()
    new = wide.leader
    for index in (0, 2, 3):
        partition = new.partition(index)
        new.broker.engine.context.high_watermark.moved(partition, partition.end_offset, 0)  # type: ignore[attr-defined]
    new.broker.settle(after_ms=5_000)
    for number, group in enumerate(groups):
        assert new.fetch(group) == ((UNAVAILABLE, -1) if partition_of_group(group, 4) == 1 else (0, number))


def test_members_go_on_with_the_next_coordinator_and_their_sessions_begin_anew(two: Coordinators) -> None:
    two.begin()
    joined = enter(two)
    for member in two.members:
        member.broker.clock.advance_ms(SESSION_MS - 1)
    two.move()
    assert two.leader.client.heartbeat(joined) == LOADING
    two.leader.broker.clock.advance_ms(4_999)
    two.replicate()
    client, broker = two.leader.client, two.leader.broker
    broker.turn(after_ms=SESSION_MS - 1)
    assert client.heartbeat(joined) == 0
    assert commit(two, 7, member=joined) == 0
    assert [row.member_assignment for row in client.describe().members] == [b"0,1"]
    assert broker.engine.context.groups.rebalance_count == 0, "here"
    broker.settle(after_ms=SESSION_MS)
    assert client.describe().group_state == "Empty"
    two.replicate()
    two.move()
    two.replicate()
    assert two.leader.client.describe().group_state == "Empty"
    assert two.leader.client.heartbeat(joined) == ErrorCode.UNKNOWN_MEMBER_ID


def test_groups_are_restored_in_slices_until_the_lead_is_lost(two: Coordinators) -> None:
    two.begin()
    for number in range(20):
        two.leader.client.group = f"group-{number}"
        enter(two)
    two.move()
    new = two.leader
    new.broker.clock.tick_ms = SLICE_MS  # one slice per turn
    partition = new.partition()
    new.broker.engine.context.high_watermark.moved(partition, partition.end_offset, partition.visible_offset)  # type: ignore[attr-defined]
    groups = new.broker.engine.context.groups
    for turn in range(5):
        assert len(groups) == turn + 1
        new.broker.turn()
    assert new.fetch()[0] == LOADING
    new.broker.engine.partitions.resign(partition)
    new.broker.settle()
    assert len(groups) == 0


# -- writing groups --------------------------------------------------------------------------------------------------------------


def test_assignments_are_handed_out_when_the_replicas_have_them_or_the_group_begins_again(two: Coordinators) -> None:
    two.begin()
    client, broker = two.leader.client, two.leader.broker
    joined = client.enter()
    waits = client.sync(joined)
    broker.turn(after_ms=4_999)
    assert not waits.done
    assert client.describe().group_state == "CompletingRebalance"
    broker.turn(after_ms=1)
    broker.turn()
    assert client.read(waits, ApiKey.SYNC_GROUP).error_code == UNAVAILABLE
    assert client.describe().group_state == "PreparingRebalance"
    again = client.join(joined.member_id)
    assert (again.error_code, again.generation_id) == (0, 2)
    waits = client.sync(again)
    two.replicate()
    assert client.read(waits, ApiKey.SYNC_GROUP).assignment == b"0,1"


def test_members_are_not_written_with_too_few_replicas_in_sync(two: Coordinators) -> None:
    two.begin()
    two.leader.partition().lacks_replicas = True
    assert two.leader.client.sync(two.leader.client.enter()).error_code == UNAVAILABLE
    assert two.leader.partition().end_offset == 0


# -- giving groups up ------------------------------------------------------------------------------------------------------------


def test_whoever_waits_for_a_group_is_told_at_once_when_it_moves(two: Coordinators) -> None:
    two.begin()
    client = two.leader.client
    first = client.enter()
    client.sync(first)
    second = client.enter()
    assert isinstance(second, Pending)
    two.move()
    assert second.done
    assert client.read(second, ApiKey.JOIN_GROUP).error_code == NOT_MINE
    assert client.heartbeat(first) == NOT_MINE
    two.replicate()
    assert two.leader.client.heartbeat(first) == ErrorCode.UNKNOWN_MEMBER_ID
    joined = enter(two)
    assert commit(two, 7, member=joined) == 0
    assert code_of(two.leader.begin_commit(6, member=first)) == ErrorCode.UNKNOWN_MEMBER_ID
    assert two.leader.fetch() == (0, 7)


def test_who_waits_for_an_assignment_is_told_too(two: Coordinators) -> None:
    two.begin()
    client = two.leader.client
    first = client.enter()
    client.sync(first)
    second = client.enter()
    client.join(first.member_id)
    second = client.read(second, ApiKey.JOIN_GROUP)
    waits = client.sync(second, assignments=[])
    assert isinstance(waits, Pending)
    two.move()
    assert client.read(waits, ApiKey.SYNC_GROUP).error_code == NOT_MINE
    groups = two.other.broker.engine.context.groups
    assert (len(groups), groups.held_bytes, groups.member_count) == (0, 0, 0)
    assert groups.rebalance_count == 2  # a counter never decreases


def test_a_commit_of_a_generation_that_another_coordinator_never_had_is_refused(two: Coordinators) -> None:
    two.begin()
    old = two.leader.client.enter()
    two.leader.client.sync(old)
    two.move()
    two.replicate()
    for version in (8, 9):
        assert two.leader.client.commit(1, member=old, version=version) == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_commit_is_refused_in_time_and_holds_where_it_is_replicated_after_all(two: Coordinators) -> None:
    """It is in the log: otherwise a coordinator that loads the log would answer differently from this one."""
    two.begin()
    pending = two.leader.begin_commit(5)
    two.leader.broker.turn(after_ms=4_999)
    assert code_of(pending) is None
    two.leader.broker.turn(after_ms=1)
    assert code_of(pending) == UNAVAILABLE
    assert two.leader.fetch() == (0, -1)
    two.replicate()
    assert two.leader.fetch() == (0, 5)
    assert two.leader.broker.engine.health.defects == 0


def test_a_commit_with_too_few_replicas_in_sync_is_not_written(two: Coordinators) -> None:
    two.begin()
    two.leader.partition().lacks_replicas = True
    end = two.leader.partition().end_offset
    assert code_of(two.leader.begin_commit(5)) == UNAVAILABLE
    assert two.leader.partition().end_offset == end
    two.leader.partition().lacks_replicas = False
    assert commit(two, 5) == 0


# -- confirmed leadership --------------------------------------------------------------------------------------------------------


def doubt(both: Coordinators) -> dict[str, bool]:
    """The leader cannot be sure that it still leads while `doubts["it"]`."""
    doubts = {"it": True}

    def why_not(partition: Partition) -> BrokerError | None:
        return NotLeaderOrFollower("nobody has confirmed it") if doubts["it"] else None

    both.leader.broker.engine.context.offsets.why_not = why_not
    return doubts


def test_who_cannot_be_sure_of_the_lead_answers_nothing_else(two: Coordinators) -> None:
    two.begin()
    doubts = doubt(two)
    assert set(codes_of_every_request(two.leader.client).values()) == {NOT_MINE}
    doubts["it"] = False
    assert commit(two, 1) == 0


def test_who_cannot_be_sure_of_the_lead_puts_out_no_members(two: Coordinators) -> None:
    """When a broker resumes after a minute's suspension, its members have long moved to another coordinator."""
    two.begin()
    broker = two.leader.broker
    enter(two)
    doubts = doubt(two)
    broker.turn(after_ms=SESSION_MS)
    assert broker.engine.next_deadline() > broker.clock.monotonic(), "it is not looked at in every turn"
    groups = broker.engine.context.groups
    assert groups.member_count == 1
    doubts["it"] = False
    broker.turn(after_ms=100)
    assert groups.member_count == 0


def test_an_answer_that_takes_turns_is_not_made_of_two_leads(two: Coordinators) -> None:
    """A row missing because the group has moved in between would send a consumer back to the beginning."""
    two.begin()
    assert commit(two, 1) == 0
    leader = two.leader
    row = request_class(ApiKey.OFFSET_FETCH).OffsetFetchRequestGroup
    topic = row.OffsetFetchRequestTopics(name="clicks", partition_indexes=[0] * 10)
    asked = row(group_id="g", member_id=None, member_epoch=-1, topics=[topic])
    leader.broker.clock.tick_ms = SLICE_MS
    pending = leader.client.send(ApiKey.OFFSET_FETCH, groups=[asked], require_stable=False)
    assert isinstance(pending, Pending)
    leader.broker.engine.partitions.resign(leader.partition())
    answer = leader.client.read(pending, ApiKey.OFFSET_FETCH)
    assert [(group.error_code, group.topics) for group in answer.groups] == [(NOT_MINE, [])]


# -- deleting offsets ------------------------------------------------------------------------------------------------------------


def image_with(*topics: str) -> MetadataImage:
    return MetadataImage(
        topics={name: ClusterTopic(name=name, topic_id=UUID(int=7), replicas=(), states=(), version=0) for name in topics}
    )


def test_offsets_of_a_topic_that_is_deleted_go_at_the_coordinator_of_each_group(wide: Coordinators) -> None:
    groups = [f"group-{number}" for number in range(8)]
    for group in groups:
        assert commit(wide, 1, group=group) == 0
    first = wide.leader
    first.broker.engine.partitions.resign(first.partition(2))
    other_news = MetadataDelta(changes=(DeletionRequested(topic="views", topic_id=UUID(int=8)),))
    forget_offsets(first.broker.engine.context, image_with("clicks"), other_news)
    forget_offsets(first.broker.engine.context, image_with("clicks"), MetadataDelta(is_everything=True))
    first.broker.settle()
    assert first.broker.engine.context.offsets.offset_count == sum(partition_of_group(group, 4) != 2 for group in groups)
    news = MetadataDelta(changes=(DeletionRequested(topic="clicks", topic_id=UUID(int=7)),))
    forget_offsets(first.broker.engine.context, image_with("clicks"), news)
    replicate_all_but(wide, 2)
    assert first.broker.engine.context.offsets.offset_count == 0


@pytest.mark.parametrize("image", [image_with("views"), replace(image_with("clicks"), deleting=frozenset({"clicks"}))])
def test_after_a_full_read_offsets_of_all_topics_that_are_gone_go(two: Coordinators, image: MetadataImage) -> None:
    two.begin()
    assert commit(two, 1) == 0
    forget_offsets(two.leader.broker.engine.context, image, MetadataDelta(is_everything=True))
    two.leader.broker.settle()
    two.replicate()
    assert two.leader.fetch() == (0, -1)


def test_time_that_a_group_was_with_another_coordinator_does_not_count_against_it(two: Coordinators) -> None:
    """Its members may have left the other coordinator a moment ago."""
    retention = two.leader.broker.engine.config.offsets_retention_minutes * 60_000
    two.begin()
    assert commit(two, 1) == 0
    for member in two.members:
        member.broker.clock.advance_ms(retention)
    two.move()
    two.replicate()
    sweep(two)
    assert two.leader.fetch() == (0, 1)
    two.leader.broker.clock.advance_ms(retention)
    sweep(two)
    assert two.leader.fetch() == (0, -1)


def sweep(both: Coordinators) -> None:
    both.leader.broker.engine.tasks.begin(sweep_groups(both.leader.broker.engine.context), pytest.fail)
    both.leader.broker.settle()
    both.replicate()


def replicate_all_but(both: Coordinators, absent: int) -> None:
    """Replicate what the leader has written in its partitions, repeatedly, since it may write more once that is replicated."""
    leader = both.leader
    for _ in range(4):
        leader.broker.settle()
        for partition in (leader.partition(index) for index in range(4) if index != absent):
            leader.broker.engine.context.high_watermark.moved(partition, partition.end_offset, partition.visible_offset)  # type: ignore[attr-defined]
    leader.broker.settle()
