"""Logs are opened and created outside the loop; the directory is scripted."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from broker.config.settings import LogConfig
from broker.coordination.local import Topic
from broker.errors import StorageError
from broker.replication.local_logs import LocalLogs, Opened, Place
from tests.support.engine import ManualHelpers

TOPIC = Topic(name="clicks", topic_id=UUID(int=7), partition_count=3)


class Disk:
    """A data directory in memory: directories with their topic ids."""

    def __init__(self) -> None:
        self.there: dict[Path, UUID | None] = {}
        self.did: list[str] = []
        self.fails_to_sync = False
        self.unreadable: set[int] = set()

    def is_directory(self, path: Path) -> bool:
        return path in self.there

    def remove(self, path: Path) -> None:
        self.did.append(f"remove {path}")

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
        self.helpers = ManualHelpers()
        self.logs = LocalLogs(cast(Any, self.disk), cast(Any, self.disk), cast(Any, self.disk), cast(Any, self.helpers))

    def open(self, *indexes: int, may_make: bool = True) -> list[Opened]:
        opened: list[Opened] = []
        places = [Place(topic=TOPIC, index=index, config=LogConfig()) for index in indexes]
        self.logs.open(places, opened.append, may_make=may_make)
        self.helpers.run()
        self.helpers.drain()
        return opened


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_what_is_missing_is_made_only_where_it_may_be(scene: Scene) -> None:
    scene.disk.there[Path("clicks-0")] = TOPIC.topic_id
    there, missing = scene.open(0, 1, may_make=False)
    assert (there.partition is None, there.was_there) == (False, True)
    assert (missing.partition, missing.was_there, missing.error) == (None, False, None)
    assert "make clicks-1" not in scene.disk.did
    (made,) = scene.open(1)
    assert (made.partition is None, made.was_there) == (False, False)


def test_the_directory_of_another_topic_of_that_name_is_not_taken(scene: Scene) -> None:
    scene.disk.there[Path("clicks-0")] = UUID(int=1)
    (missing,) = scene.open(0, may_make=False)
    assert (missing.partition, missing.was_there) == (None, False)
    (made,) = scene.open(0)
    assert not made.was_there
    assert scene.disk.there[Path("clicks-0")] == TOPIC.topic_id
    assert scene.disk.did == ["set aside clicks-0", "sync", "make clicks-0", "sync", "build clicks-0"]


def test_a_directory_that_names_no_topic_is_taken_and_completed(scene: Scene) -> None:
    scene.disk.there[Path("clicks-0")] = None
    (taken,) = scene.open(0, may_make=False)
    assert taken.was_there
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
    scene.helpers.run()
    scene.helpers.drain()
    scene.helpers.run()
    assert scene.disk.did == ["sync", "remove clicks-0.gone"]
