"""Logs are opened and created outside the loop; the directory is scripted.

What a starting broker changes in the state of partitions for which it is listed as in sync or eligible.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from logbus_broker.cluster.metadata_image import NO_LEADER, LogEnd, PartitionState
from logbus_broker.cluster.topic_registry import Topic
from logbus_broker.errors import StorageError
from logbus_broker.replication.replicas import AssignedReplica, LogIntegrity, OpenedReplica, ReplicaLogs, state_at_start
from logbus_broker.settings import LogConfig

from tests.support.engine import ManualThreadPool

TOPIC = Topic(name="clicks", topic_id=UUID(int=7), partition_count=3)


class Disk:
    """A data directory in memory: directories with their topic ids."""

    def __init__(self) -> None:
        self.there: dict[Path, UUID | None] = {}
        self.did: list[str] = []
        self.fails_to_sync = False
        self.unreadable: set[int] = set()

    @property
    def checkpoints(self) -> Disk:
        return self

    def is_directory(self, path: Path) -> bool:
        return path in self.there

    def remove(self, path: Path) -> None:
        self.did.append(f"remove {path}")

    def note_seen(self) -> None:
        pass

    def partition_path(self, name: str, index: int) -> Path:
        return Path(f"{name}-{index}")

    def topic_id(self, name: str, index: int) -> UUID | None:
        return self.there[self.partition_path(name, index)]

    def set_aside(self, name: str, index: int) -> None:
        del self.there[self.partition_path(name, index)]
        self.did.append(f"set aside {name}-{index}")

    def discard_partition(self, name: str, index: int) -> Path:
        del self.there[self.partition_path(name, index)]
        return Path(f"{name}-{index}.gone")

    def make_partition(self, name: str, index: int, topic_id: UUID) -> None:
        self.there[self.partition_path(name, index)] = topic_id
        self.did.append(f"make {name}-{index}")

    def sync(self) -> None:
        if self.fails_to_sync:
            raise StorageError("the disk refuses")
        self.did.append("sync")

    def forget(self, keys: Any) -> None:
        return None

    def build(self, topic: Topic, index: int, path: Path, config: LogConfig) -> Any:
        if index in self.unreadable:
            raise StorageError("unreadable")
        self.did.append(f"build {path}")
        return SimpleNamespace(index=index)


class Scene:
    def __init__(self) -> None:
        self.disk = Disk()
        self.thread_pool = ManualThreadPool()
        self.logs = ReplicaLogs(cast(Any, self.disk), cast(Any, self.disk), cast(Any, self.disk), cast(Any, self.thread_pool))

    def open(self, *indexes: int, may_make: bool = True) -> list[OpenedReplica]:
        opened: list[OpenedReplica] = []
        places = [AssignedReplica(topic=TOPIC, index=index, config=LogConfig()) for index in indexes]
        self.logs.open(places, opened.append, may_make=may_make)
        self.thread_pool.run()
        self.thread_pool.drain()
        return opened


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_what_is_missing_is_made_only_where_it_may_be(scene: Scene) -> None:
    scene.disk.there[Path("clicks-0")] = TOPIC.topic_id
    there, missing = scene.open(0, 1, may_make=False)
    assert (there.partition is None, there.was_on_disk) == (False, True)
    assert (missing.partition, missing.was_on_disk, missing.error) == (None, False, None)
    assert "make clicks-1" not in scene.disk.did
    (created,) = scene.open(1)
    assert (created.partition is None, created.was_on_disk) == (False, False)


def test_the_directory_of_another_topic_of_that_name_is_not_taken(scene: Scene) -> None:
    scene.disk.there[Path("clicks-0")] = UUID(int=1)
    (missing,) = scene.open(0, may_make=False)
    assert (missing.partition, missing.was_on_disk) == (None, False)
    (created,) = scene.open(0)
    assert not created.was_on_disk
    assert scene.disk.there[Path("clicks-0")] == TOPIC.topic_id
    assert scene.disk.did == ["set aside clicks-0", "sync", "make clicks-0", "sync", "build clicks-0"]


def test_a_directory_that_names_no_topic_is_taken_and_completed(scene: Scene) -> None:
    scene.disk.there[Path("clicks-0")] = None
    (taken,) = scene.open(0, may_make=False)
    assert taken.was_on_disk
    assert scene.disk.there[Path("clicks-0")] == TOPIC.topic_id


def test_no_log_is_open_that_nobody_knows_of_where_the_disk_does_not_keep_its_directory(scene: Scene) -> None:
    scene.disk.fails_to_sync = True
    assert [isinstance(one.error, StorageError) for one in scene.open(0, 1)] == [True, True]
    assert [did for did in scene.disk.did if did.startswith("build")] == []


def test_one_log_that_cannot_be_read_does_not_keep_others_from_being_opened(scene: Scene) -> None:
    scene.disk.unreadable = {1}
    assert [one.partition is not None for one in scene.open(0, 1, 2)] == [True, False, True]


def test_a_log_is_renamed_and_kept_so_before_its_files_go(scene: Scene) -> None:
    scene.disk.there[Path("clicks-0")] = TOPIC.topic_id
    scene.logs.remove("clicks", 0)
    scene.logs.remove("clicks", 1)  # it was never created
    scene.thread_pool.run()
    scene.thread_pool.drain()
    scene.thread_pool.run()
    assert scene.disk.did == ["sync", "remove clicks-0.gone"]


ME = 1
LED = PartitionState(leader=ME, leader_epoch=4, isr=(1, 2, 3), version=9)
FOLLOWED = replace(LED, leader=2)
LAST = replace(LED, isr=(ME,))


# How far the logs go: as far as this one, one record further, and into a later epoch.
MINE, EQUAL, LONGER, LATER = LogEnd(ME, 4, 100), LogEnd(2, 4, 100), LogEnd(2, 4, 101), LogEnd(3, 5, 50)


def at_start(state: PartitionState, kept: LogIntegrity, minimum: int = 1) -> PartitionState:
    return state_at_start(ME, state, kept, minimum, None if kept is LogIntegrity.GONE else MINE)


@pytest.mark.parametrize("kept", [LogIntegrity.WHOLE, LogIntegrity.PERHAPS_LESS])
def test_no_process_leads_in_an_epoch_that_an_earlier_one_led_in(kept: LogIntegrity) -> None:
    assert at_start(LAST, kept) == replace(LAST, leader_epoch=5)
    assert at_start(LED, LogIntegrity.WHOLE) == replace(LED, leader_epoch=5)


def test_a_member_that_kept_everything_changes_nothing() -> None:
    assert at_start(FOLLOWED, LogIntegrity.WHOLE) == FOLLOWED


@pytest.mark.parametrize(("kept", "withdrawn"), [(LogIntegrity.PERHAPS_LESS, (MINE,)), (LogIntegrity.GONE, ())])
def test_a_member_that_cannot_vouch_leaves_while_others_are_there(kept: LogIntegrity, withdrawn: tuple[LogEnd, ...]) -> None:
    assert at_start(FOLLOWED, kept) == replace(FOLLOWED, isr=(2, 3), withdrawn=withdrawn)
    assert at_start(LED, kept) == replace(LED, leader=NO_LEADER, leader_epoch=5, isr=(2, 3), withdrawn=withdrawn)


@pytest.mark.parametrize(("kept", "withdrawn"), [(LogIntegrity.PERHAPS_LESS, (MINE,)), (LogIntegrity.GONE, ())])
def test_who_cannot_vouch_is_not_eligible_either(kept: LogIntegrity, withdrawn: tuple[LogEnd, ...]) -> None:
    two = replace(FOLLOWED, isr=(1, 2), eligible=(3,))
    assert at_start(two, kept, minimum=3) == replace(two, isr=(2,), withdrawn=withdrawn)
    outside = replace(FOLLOWED, isr=(2,), eligible=(1, 3))
    assert at_start(outside, kept) == replace(outside, eligible=(3,), withdrawn=withdrawn)
    assert at_start(outside, LogIntegrity.WHOLE) == outside


@pytest.mark.parametrize(("kept", "withdrawn"), [(LogIntegrity.PERHAPS_LESS, (MINE,)), (LogIntegrity.GONE, ())])
def test_eligible_replicas_take_the_place_of_the_last_member(kept: LogIntegrity, withdrawn: tuple[LogEnd, ...]) -> None:
    last = replace(LAST, eligible=(2, 3))
    left = replace(LAST, leader=NO_LEADER, leader_epoch=5, isr=(2, 3), withdrawn=withdrawn)
    assert at_start(last, kept, minimum=2) == left


@pytest.mark.parametrize(
    ("withdrawn", "isr", "left"),
    [((), (ME,), ()), ((EQUAL,), (ME,), (EQUAL,)), ((LONGER,), (2,), (MINE,)), ((LONGER, LATER), (3,), (LONGER, MINE))],
)
def test_where_nobody_can_vouch_the_longest_log_is_the_set(
    withdrawn: tuple[LogEnd, ...], isr: tuple[int, ...], left: tuple[LogEnd, ...]
) -> None:
    new = at_start(replace(LAST, withdrawn=withdrawn), LogIntegrity.PERHAPS_LESS)
    assert (new.isr, set(new.withdrawn), new.leader_epoch) == (isr, set(left), 5)
    assert new.leader == (ME if isr == (ME,) else NO_LEADER)


def test_a_replica_that_left_earlier_says_again_how_far_its_log_goes() -> None:
    outside = replace(FOLLOWED, isr=(2,), withdrawn=(LogEnd(ME, 4, 120), LATER))
    assert at_start(outside, LogIntegrity.PERHAPS_LESS).withdrawn == (LATER, MINE)
    assert at_start(outside, LogIntegrity.GONE).withdrawn == (LATER,)


def test_nobody_leads_what_the_last_member_has_lost() -> None:
    assert at_start(LAST, LogIntegrity.GONE) == replace(LAST, leader=NO_LEADER, leader_epoch=5, is_lost=True)
    nobody = replace(LAST, leader=NO_LEADER)
    assert at_start(nobody, LogIntegrity.GONE) == replace(nobody, is_lost=True)


def test_a_log_that_is_found_again_is_not_lost() -> None:
    lost = replace(LAST, leader=NO_LEADER, is_lost=True)
    assert at_start(lost, LogIntegrity.PERHAPS_LESS) == replace(lost, is_lost=False)


def test_a_hand_over_to_an_earlier_process_is_withdrawn() -> None:
    handing_over = replace(FOLLOWED, handover_to=ME)
    assert at_start(handing_over, LogIntegrity.PERHAPS_LESS).handover_to is None
    assert at_start(replace(LED, handover_to=2), LogIntegrity.WHOLE).handover_to is None


@pytest.mark.parametrize("kept", list(LogIntegrity))
@pytest.mark.parametrize("state", [LED, FOLLOWED, LAST, replace(FOLLOWED, isr=(2,), eligible=(1,)), replace(LAST, eligible=(2,))])
def test_the_set_is_never_empty_and_epochs_never_fall(state: PartitionState, kept: LogIntegrity) -> None:
    new = at_start(state, kept, minimum=2)
    assert new.isr
    assert set(new.isr) <= {*state.isr, *state.eligible}
    assert new.leader_epoch >= state.leader_epoch
    assert new.version == state.version
