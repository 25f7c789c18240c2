"""Decisions about committed offsets that take several turns, and what happens in between: a commit to an offset that was going to
be removed, a member that loses its partitions while its own commit is being prepared."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from logbus_broker.api.cluster_metadata import forget_offsets
from logbus_broker.api.handler import Pending
from logbus_broker.api.internal_topics import _CHANGES_PER_TURN, sweep_groups
from logbus_broker.cluster.metadata_image import DeletionRequested, MetadataDelta, MetadataImage
from logbus_broker.errors import NotLeaderOrFollower
from logbus_broker.groups.records import CommittedOffset, OffsetKey
from logbus_broker.protocol.api import ApiKey, ErrorCode
from logbus_broker.protocol.codec import request_class

from tests.support.coordinators import Coordinators, code_of
from tests.support.engine import Harness
from tests.support.group_client import Client

PARTITIONS = 40


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    harness = Harness(tmp_path, group_initial_rebalance_delay_ms=0)
    harness.create("clicks")
    harness.create("wide", PARTITIONS)
    yield Client(harness)
    assert harness.engine.health.defects == 0
    harness.close()


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Coordinators]:
    both = Coordinators(tmp_path)
    both.begin()
    yield both
    assert [one.broker.engine.health.defects for one in both.members] == [0, 0]
    both.close()


def fill(harness: Harness, topic: str = "gone") -> None:
    """So many offsets of the group that their tombstones need more than one turn; the next to be committed comes behind them."""
    (offsets,) = harness.engine.context.offsets.all_loaded()
    clock = harness.clock
    for index in range(1, _CHANGES_PER_TURN + 1):
        offsets.apply(OffsetKey("g", topic, index), CommittedOffset(1, -1, "", clock.now_ms(), clock.monotonic()))


def retention_passes(harness: Harness) -> None:
    harness.clock.advance_ms(harness.engine.config.offsets_retention_minutes * 60_000)


def begin_sweep(harness: Harness) -> None:
    harness.engine.tasks.begin(sweep_groups(harness.engine.context), pytest.fail)


def begin_slowly(client: Client, api_key: ApiKey, version: int, **values: Any) -> Pending:
    """A request that needs more than one turn, because every look at the clock takes a millisecond."""
    client.harness.clock.tick_ms = 1
    pending = client.harness.begin(api_key, version, **values)
    client.harness.clock.tick_ms = 0
    assert isinstance(pending, Pending)
    return pending


def offset_count(harness: Harness) -> int:
    return harness.engine.context.offsets.offset_count


# -- offsets to be removed, and commits ------------------------------------------------------------------------------------------


def test_a_commit_while_the_offsets_before_it_expire_is_not_forgotten(client: Client) -> None:
    fill(client.harness)
    assert client.commit(100) == 0
    retention_passes(client.harness)
    begin_sweep(client.harness)
    assert offset_count(client.harness) == _CHANGES_PER_TURN + 1, "the first tombstones are staged"
    assert client.commit(4711) == 0
    client.harness.settle()
    assert (client.committed(), offset_count(client.harness)) == (4711, 1)


def test_a_sweep_looks_at_each_offset_of_a_large_group_once(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    harness = client.harness
    assert client.commit(100) == 0
    fill(harness, "wide")
    for number in range(3):
        fill(harness, f"gone-{number}")
    looks: list[tuple[str, int]] = []

    def exists(topic: str, partition: int) -> bool:
        looks.append((topic, partition))
        return not topic.startswith("gone")

    monkeypatch.setattr(harness.engine.context.partitions, "has", exists)
    begin_sweep(harness)
    harness.settle()
    assert offset_count(harness) == _CHANGES_PER_TURN + 1, "those of topics that are gone are forgotten"
    assert sorted(looks) == sorted(set(looks))
    assert len(looks) == 4 * _CHANGES_PER_TURN + 1


def test_offsets_do_not_expire_under_a_member_that_joins_in_between(client: Client) -> None:
    fill(client.harness)
    assert client.commit(100) == 0
    retention_passes(client.harness)
    begin_sweep(client.harness)
    client.sync(client.enter())
    client.harness.settle()
    assert (client.committed(), offset_count(client.harness)) == (100, 1)


def test_a_commit_that_waits_for_the_replicas_is_not_forgotten(two: Coordinators) -> None:
    first = two.leader.begin_commit(100)
    two.replicate()
    assert code_of(first) == 0
    retention_passes(two.leader.broker)
    pending = two.leader.begin_commit(4711)
    begin_sweep(two.leader.broker)
    two.leader.broker.settle()
    two.replicate()
    assert code_of(pending) == 0
    two.replicate()
    assert two.leader.fetch() == (0, 4711)
    two.move()
    two.replicate()
    assert two.leader.fetch() == (0, 4711), "nor in the log"


def test_an_old_offset_expires_after_a_commit_that_could_not_be_written(two: Coordinators) -> None:
    assert code_of(_replicated(two, 100)) == 0
    broker = two.leader.broker
    retention_passes(broker)
    broker.engine.context.produce_turn.why_not = lambda partition: NotLeaderOrFollower("nobody has confirmed it")
    assert code_of(two.leader.begin_commit(4711)) == ErrorCode.NOT_COORDINATOR
    broker.engine.context.produce_turn.why_not = None
    begin_sweep(broker)
    broker.settle()
    two.replicate()
    assert two.leader.fetch() == (0, -1)


def _replicated(two: Coordinators, offset: int) -> Pending:
    pending = two.leader.begin_commit(offset)
    two.replicate()
    return pending


def test_a_commit_while_its_group_is_deleted_is_kept(client: Client) -> None:
    fill(client.harness)
    assert client.commit(100) == 0
    pending = client.send(ApiKey.DELETE_GROUPS, 2, groups_names=["g"])
    assert isinstance(pending, Pending)
    assert client.commit(4711) == 0
    assert [row.error_code for row in client.read(pending, ApiKey.DELETE_GROUPS, 2).results] == [0]
    assert (client.committed(), offset_count(client.harness)) == (4711, 1)


def test_a_group_that_a_member_joins_while_it_is_deleted_keeps_the_rest_and_its_deletion_fails(client: Client) -> None:
    former = client.enter()
    client.sync(former)
    client.leave((former.member_id, None))
    fill(client.harness)
    assert client.commit(100) == 0
    pending = client.send(ApiKey.DELETE_GROUPS, 2, groups_names=["g"])
    member = client.enter()
    client.sync(member)
    assert [row.error_code for row in client.read(pending, ApiKey.DELETE_GROUPS, 2).results] == [ErrorCode.NON_EMPTY_GROUP]
    for _ in range(2):
        assert (client.committed(), client.heartbeat(member)) == (100, 0)
        client.restart()


def test_a_deleted_group_takes_along_what_waits_for_the_replicas(two: Coordinators) -> None:
    assert code_of(_replicated(two, 100)) == 0
    commit = two.leader.begin_commit(4711)
    deletion = two.leader.client.send(ApiKey.DELETE_GROUPS, 2, groups_names=["g"])
    two.replicate()
    two.replicate()
    assert code_of(commit) == 0
    assert [row.error_code for row in two.leader.client.read(deletion, ApiKey.DELETE_GROUPS, 2).results] == [0]
    assert two.leader.fetch() == (0, -1)


def test_a_commit_while_offsets_are_deleted_is_kept(client: Client) -> None:
    assert client.commit(100, topic="wide") == 0
    assert client.commit(100) == 0
    pending = begin_slowly(
        client, ApiKey.OFFSET_DELETE, 0, group_id="g", topics=[_deletion("wide", PARTITIONS), _deletion("clicks", 1)]
    )
    assert client.commit(4711, topic="wide") == 0
    answer = client.read(pending, ApiKey.OFFSET_DELETE, 0)
    assert {row.error_code for topic in answer.topics for row in topic.partitions} == {0}
    assert (client.committed("wide"), client.committed()) == (4711, -1)


def _deletion(topic: str, partitions: int) -> Any:
    row = request_class(ApiKey.OFFSET_DELETE).OffsetDeleteRequestTopic
    parts = [row.OffsetDeleteRequestPartition(partition_index=index) for index in range(partitions)]
    return row(name=topic, partitions=parts)


def test_a_commit_to_a_recreated_topic_is_kept_while_the_offsets_of_the_deleted_one_are_removed(two: Coordinators) -> None:
    broker = two.leader.broker
    fill(broker, "clicks")
    assert code_of(_replicated(two, 100)) == 0
    forget_offsets(
        broker.engine.context, MetadataImage(), MetadataDelta(changes=(DeletionRequested(topic="clicks", topic_id=UUID(int=7)),))
    )
    broker.settle()
    pending = two.leader.begin_commit(4711)
    two.replicate()
    two.replicate()
    assert code_of(pending) == 0
    assert (two.leader.fetch(), offset_count(broker)) == ((0, 4711), 1)


# -- large commits ---------------------------------------------------------------------------------------------------------------


def begin_large_commit(client: Client, offset: int, member: Any = None) -> Pending:
    row = request_class(ApiKey.OFFSET_COMMIT).OffsetCommitRequestTopic
    parts = [
        row.OffsetCommitRequestPartition(
            partition_index=index, committed_offset=offset, committed_leader_epoch=-1, committed_metadata=""
        )
        for index in range(PARTITIONS)
    ]
    return begin_slowly(
        client,
        ApiKey.OFFSET_COMMIT,
        9,
        group_id="g",
        generation_id_or_member_epoch=-1 if member is None else member.generation_id,
        member_id="" if member is None else member.member_id,
        group_instance_id=None,
        topics=[row(name="wide", partitions=parts)],
    )


def codes(client: Client, pending: Pending) -> set[int]:
    return {row.error_code for row in client.read(pending, ApiKey.OFFSET_COMMIT, 9).topics[0].partitions}


def test_a_large_commit_of_a_member_that_was_replaced_meanwhile_changes_nothing(client: Client) -> None:
    former = client.enter()
    client.sync(former)
    assert client.commit(5, topic="wide", member=former) == 0
    pending = begin_large_commit(client, 10, former)
    client.leave((former.member_id, None))
    owner = client.enter()
    client.sync(owner)
    assert client.commit(20, topic="wide", member=owner) == 0
    assert codes(client, pending) == {ErrorCode.UNKNOWN_MEMBER_ID}
    assert (client.committed("wide"), offset_count(client.harness)) == (20, 1)


def test_a_large_commit_of_a_member_whose_group_is_deleted_meanwhile_does_not_bring_it_back(client: Client) -> None:
    former = client.enter()
    client.sync(former)
    pending = begin_large_commit(client, 10, former)
    client.leave((former.member_id, None))
    assert client.delete("g") == [0]
    assert codes(client, pending) == {ErrorCode.GROUP_ID_NOT_FOUND}
    assert client.listed() == {}


def test_large_commits_at_the_same_time_are_not_mixed(client: Client) -> None:
    """Whichever takes effect last, it does for all partitions."""
    first, second = begin_large_commit(client, 1), begin_large_commit(client, 2)
    assert (codes(client, first), codes(client, second)) == ({0}, {0})
    assert len({committed.offset for committed in client.harness.engine.context.offsets.of_group("g").values()}) == 1
