"""Which logs a broker opens, creates and gives up according to the image; manager, disk and replication are scripted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from logbus_broker.cluster.dynamic_config import ImageSettings
from logbus_broker.cluster.metadata_image import ClusterTopic, MetadataDelta, MetadataImage, PartitionState
from logbus_broker.errors import BrokerError, NotLeaderOrFollower, StorageError
from logbus_broker.replication.replica_manager import REOPEN_SECONDS, ReplicaManager
from logbus_broker.replication.replicas import AssignedReplica, OpenedReplica
from logbus_broker.settings import LogConfig

from tests.support.manual_clock import ManualClock

ME, OTHER = 1, 2


class ScriptedLogs:
    """Implements what roles use of `ReplicaLogs`; the test completes each opening."""

    def __init__(self) -> None:
        self.openings: list[tuple[AssignedReplica, Callable[[OpenedReplica], None], bool]] = []
        self.removed: list[tuple[str, int]] = []
        self.set_aside: list[tuple[str, int]] = []

    def open(self, replicas: Sequence[AssignedReplica], then: Callable[[OpenedReplica], None], *, may_make: bool) -> None:
        self.openings.extend((replica, then, may_make) for replica in replicas)

    def remove(self, name: str, index: int) -> None:
        self.removed.append((name, index))

    def set_damaged_aside(self, name: str, index: int) -> None:
        self.set_aside.append((name, index))


class ScriptedManager:
    """Implements what roles use of `PartitionManager`."""

    def __init__(self) -> None:
        self.partitions: dict[tuple[str, int], Any] = {}
        self.did: list[tuple[Any, ...]] = []
        self.errors: list[BrokerError] = []  # what requests that wait for partitions taken out get

    def held(self, name: str, index: int) -> Any:
        return self.partitions.get((name, index))

    def install(self, topic: Any, partition: Any) -> None:
        self.partitions[topic.name, partition.index] = partition

    def take_out(self, topic: Any, index: int, error: BrokerError) -> None:
        del self.partitions[topic.name, index]
        self.errors.append(error)

    def lead(self, partition: Any, epoch: int) -> None:
        partition.is_led, partition.leader, partition.leader_epoch = True, ME, epoch
        self.did.append(("lead", epoch))

    def follow(self, partition: Any, leader: int, epoch: int) -> None:
        partition.is_led, partition.leader, partition.leader_epoch = False, leader, epoch
        self.did.append(("follow", leader, epoch))

    def resign(self, partition: Any) -> None:
        partition.is_led = False
        self.did.append(("resign",))


def nothing(*_: Any) -> None: ...


class Scene:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.logs = ScriptedLogs()
        self.manager = ScriptedManager()
        self.commits: list[Any] = []
        self.fetched: list[tuple[Any, ...]] = []
        fetchers = SimpleNamespace(
            follow=lambda replica, leader: self.fetched.append(("follow", leader)),
            forget=lambda key: self.fetched.append(("forget",)),
            flushed=nothing,
        )
        self.replica_manager = ReplicaManager(
            ME,
            partitions=cast(Any, self.manager),
            logs=cast(Any, self.logs),
            settings=ImageSettings(LogConfig(), ME),
            leader=cast(Any, SimpleNamespace(led={}, lead=nothing, learn=nothing, end=nothing)),
            fetchers=cast(Any, fetchers),
            followed=lambda partition: cast(Any, SimpleNamespace(is_changing=False, is_recovering=False)),
            moving=lambda image: {},
            store=cast(Any, SimpleNamespace(commit=lambda operations, then: self.commits.append(operations))),
            clock=self.clock,
        )

    def see(self, *topics: ClusterTopic) -> None:
        self.replica_manager.image_changed(
            MetadataImage(topics={topic.name: topic for topic in topics}), MetadataDelta(is_everything=True)
        )
        self.work()

    def start(self, *topics: ClusterTopic) -> None:
        """What this process cannot vouch for is settled, and these are the topics."""
        self.replica_manager.open()
        self.replica_manager.begin()
        self.see(*topics)

    def serve(self, topic: ClusterTopic) -> Any:
        """The same, and the topic's log is opened: its partition."""
        self.start(topic)
        partition = self.open_next()
        self.work()
        return partition

    def work(self) -> None:
        self.replica_manager.work(self.clock.monotonic())

    def open_next(self, *, was_on_disk: bool = True, error: BaseException | None = None, is_missing: bool = False) -> Any:
        replica, then, _ = self.logs.openings.pop(0)
        log = SimpleNamespace(config=None, offline_reason="", reconfigure=lambda config: None)
        partition = SimpleNamespace(
            name="clicks-0",
            topic="clicks",
            topic_id=replica.topic.topic_id,
            index=replica.index,
            log=log,
            is_led=False,
            is_damaged=False,
            leader=-1,
            leader_epoch=-1,
        )
        opened = None if error is not None or is_missing else partition
        then(OpenedReplica(replica=replica, partition=cast(Any, opened), was_on_disk=was_on_disk and not is_missing, error=error))
        return partition


@pytest.fixture
def scene() -> Scene:
    return Scene()


def topic(
    number: int = 1, *, leader: int = ME, epoch: int = 0, isr: tuple[int, ...] = (ME, OTHER), **others: Any
) -> ClusterTopic:
    state = PartitionState(
        leader=leader,
        leader_epoch=epoch,
        isr=isr,
        version=others.pop("version", 0),
        is_lost=others.pop("is_lost", False),
        eligible=others.pop("eligible", ()),
    )
    replicas = others.pop("replicas", (ME, OTHER))
    return ClusterTopic(name="clicks", topic_id=UUID(int=number), replicas=(replicas,), states=(state,), version=0)


def test_a_log_that_is_missing_is_made_only_when_it_has_been_said_that_it_was(scene: Scene) -> None:
    """A process that created it and then died would leave an empty log, for which the next process would vouch."""
    scene.replica_manager.open()
    scene.see(topic())
    assert [may_make for _, _, may_make in scene.logs.openings] == [False]
    scene.open_next(is_missing=True)
    scene.work()
    assert not scene.replica_manager.is_opening, "the start does not wait for it"
    assert scene.logs.openings == []
    here = scene.replica_manager.local_replica(topic(), 0)
    assert here is not None
    assert (here.partition, here.was_on_disk) == (None, False), "what the start has to say"
    scene.replica_manager.begin()
    scene.work()
    assert [may_make for _, _, may_make in scene.logs.openings] == [True]
    scene.open_next(was_on_disk=False)
    scene.work()
    assert scene.manager.did == [("lead", 0)]


def test_a_start_compares_its_logs_with_the_image_once_all_are_open_and_not_after_each(scene: Scene) -> None:
    scene.replica_manager.open()
    wide = replace(topic(), replicas=((ME, OTHER),) * 3, states=topic().states * 3)
    scene.see(wide)
    for remaining in (2, 1):
        scene.open_next()
        assert len(scene.logs.openings) == remaining
        assert scene.replica_manager.due == inf, "nothing to look at yet"
        assert scene.replica_manager.is_opening
    scene.open_next()
    assert scene.replica_manager.due == -inf
    scene.work()
    assert not scene.replica_manager.is_opening


def test_a_log_that_is_lost_is_not_made_before_somebody_is_elected(scene: Scene) -> None:
    """The next start would find the empty log, report that the log is back, and lead."""
    lost = {"leader": -1, "epoch": 1, "isr": (ME,), "is_lost": True}
    scene.replica_manager.open()
    scene.see(topic(**lost))
    scene.open_next(is_missing=True)
    scene.replica_manager.begin()
    scene.work()
    scene.see(topic(**lost))
    assert scene.logs.openings == []
    scene.see(topic(epoch=2, isr=(ME,), version=1))
    assert [may_make for _, _, may_make in scene.logs.openings] == [True], "elected all the same"


def test_a_topic_made_again_while_the_one_before_is_opened_keeps_its_directory(scene: Scene) -> None:
    scene.start(topic(1))
    scene.see(topic(2))
    assert len(scene.logs.openings) == 1, "the directory is still the other's"
    scene.open_next()
    scene.work()
    scene.work()
    assert scene.logs.removed == [("clicks", 0)]
    assert [replica.topic.topic_id for replica, _, _ in scene.logs.openings] == [UUID(int=2)]
    scene.open_next()
    scene.work()
    assert scene.logs.removed == [("clicks", 0)], "what is removed now would be the new one's"
    held = scene.manager.held("clicks", 0)
    assert held.topic_id == UUID(int=2)
    assert held.is_led


def test_a_topic_that_goes_while_its_log_is_opened_is_given_up_when_it_is_open(scene: Scene) -> None:
    scene.start(topic())
    scene.see()
    assert scene.logs.removed == []
    scene.open_next()
    scene.work()
    assert scene.logs.removed == [("clicks", 0)]
    assert scene.manager.partitions == {}
    assert scene.manager.did == []


@pytest.mark.parametrize(
    ("now", "kind", "text"),
    [
        ((), StorageError, "clicks-0 was deleted"),
        ((topic(2),), StorageError, "clicks-0 was deleted"),
        ((topic(replicas=(OTHER, 3), leader=OTHER),), NotLeaderOrFollower, "this broker no longer has a replica of clicks-0"),
    ],
    ids=["the topic is gone", "another has its name", "the replica moved away"],
)
def test_who_waits_for_a_partition_is_told_why_it_is_no_longer_here(
    scene: Scene, now: tuple[ClusterTopic, ...], kind: type[BrokerError], text: str
) -> None:
    scene.serve(topic())
    scene.see(*now)
    assert [(type(error), str(error)) for error in scene.manager.errors] == [(kind, text)]
    assert scene.logs.removed == [("clicks", 0)]


def test_a_log_that_the_disk_refused_is_tried_again_later(scene: Scene) -> None:
    scene.start(topic())
    scene.open_next(error=OSError("no"))
    scene.work()
    assert (scene.logs.openings, scene.replica_manager.is_opening) == ([], False)
    scene.clock.advance_ms(int(REOPEN_SECONDS * 1000))
    scene.work()
    assert len(scene.logs.openings) == 1


def test_a_lead_ends_before_it_begins_anew_or_another_is_followed(scene: Scene) -> None:
    scene.serve(topic())
    scene.see(topic(epoch=2, version=1))
    scene.see(topic(leader=OTHER, epoch=3, version=2))
    assert scene.manager.did == [("lead", 0), ("resign",), ("lead", 2), ("resign",), ("follow", OTHER, 3)]
    assert scene.fetched == [("follow", OTHER)]
    scene.see(topic(leader=OTHER, epoch=4, version=3))
    assert scene.fetched == [("follow", OTHER), ("forget",), ("follow", OTHER)], "an epoch is followed anew"
    scene.see(topic(leader=-1, epoch=5, version=4))
    assert scene.fetched[-1] == ("forget",)


def test_a_broker_that_is_being_stopped_fetches_nothing_more_and_leads_what_it_led(scene: Scene) -> None:
    scene.serve(topic(leader=OTHER))
    scene.replica_manager.stop_following()
    scene.see(topic(leader=OTHER, epoch=1, version=1))
    assert scene.fetched == [("follow", OTHER), ("forget",)]


def test_a_log_that_has_failed_leaves_the_in_sync_set_until_the_image_shows_it(scene: Scene) -> None:
    partition = scene.serve(topic())
    partition.log.offline_reason = "the disk"
    scene.replica_manager.went_offline(partition)
    scene.work()
    assert len(scene.commits) == 1
    assert scene.manager.did == [("lead", 0), ("resign",)]
    scene.clock.advance_ms(1000)
    scene.work()
    assert len(scene.commits) == 2, "said again: nobody knows what became of the first"
    scene.see(topic(leader=-1, epoch=1, isr=(OTHER,), version=1))
    scene.clock.advance_ms(1000)
    scene.work()
    assert len(scene.commits) == 2


def test_a_log_that_knows_more_than_zookeeper_is_not_led(scene: Scene) -> None:
    scene.start(topic(epoch=3))
    partition = scene.open_next()
    partition.leader_epoch = 5
    partition.log.go_offline = lambda why: setattr(partition.log, "offline_reason", why)
    scene.work()
    assert "the newest in ZooKeeper is 3" in partition.log.offline_reason
    assert scene.manager.did == []


def test_a_damaged_log_is_set_aside_and_fetched_anew_once_nobody_counts_on_it(scene: Scene) -> None:
    partition = scene.serve(topic())
    partition.is_damaged = True
    scene.see(topic(leader=OTHER, epoch=1))
    assert scene.fetched == [("follow", OTHER)], "it is a member, and its leader has yet to learn that it should not be"
    scene.see(topic(leader=OTHER, epoch=1, isr=(OTHER,), eligible=(ME,)))
    assert len(scene.commits) == 1, "it gives up being eligible"
    assert (scene.logs.set_aside, scene.logs.openings) == ([], [])
    scene.see(topic(leader=OTHER, epoch=1, isr=(OTHER,)))
    scene.work()
    assert scene.logs.set_aside == [("clicks", 0)]
    assert isinstance(scene.manager.errors.pop(), StorageError)
    assert [may_make for _, _, may_make in scene.logs.openings] == [True]
    scene.open_next(was_on_disk=False)
    scene.work()
    assert scene.fetched[-1] == ("follow", OTHER)
    assert scene.logs.removed == []
