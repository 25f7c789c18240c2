"""The broker's data directory: who may use it, which partitions are in it, and where their recovery begins.

    .lock                               held as long as the broker runs
    meta.properties                     format version, broker id, cluster id
    .kafka_cleanshutdown                there only after a stop in good order; taken away at the start
    recovery-point-offset-checkpoint    per partition, below which everything was flushed
    log-start-offset-checkpoint         per partition, where it begins
    cleaner-offset-checkpoint           per compacted partition, below which no key is there twice
    access-0/                           one partition: partition.metadata (the topic's id) and the log's files
    access-0.<id>-delete/               a deleted one whose files are not removed yet

A checkpoint may be old (then recovery checks more than it must) and never ahead of the disk. A topic that is deleted and made
again must not inherit entries, so they are taken out before its directory is made.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from broker.errors import StartupError, StorageError
from broker.storage.checkpoint import (
    CLEANED_OFFSETS,
    LOG_START_OFFSETS,
    RECOVERY_POINTS,
    Offsets,
    TopicPartition,
    read_checkpoint,
    write_checkpoint,
)
from broker.storage.filesystem import FileSystem, OpenFile
from broker.storage.meta_properties import check_meta, encode_id
from broker.storage.partition_log import PartitionLog

LOCK = ".lock"
CLEAN_MARKER = ".kafka_cleanshutdown"
PARTITION_METADATA = "partition.metadata"
DELETE_SUFFIX = "-delete"
STRAY_SUFFIX = "-stray"
NAME_BYTES_MAX = 255

PARTITION_NAME = re.compile(r"(?P<topic>[a-zA-Z0-9._-]{1,249})-(?P<partition>\d{1,10})")


class LogDirectory:
    """An opened and locked data directory. `was_clean` says whether the last stop was in good order."""

    def __init__(
        self, path: Path, *, filesystem: FileSystem, cluster_id: str, clean: bool, lock: OpenFile, new_id: Callable[[], UUID]
    ) -> None:
        self.path = path
        self.cluster_id = cluster_id
        self.was_clean = clean
        self._recovery_points: Offsets = read_checkpoint(filesystem, path / RECOVERY_POINTS)
        self._log_start_offsets: Offsets = read_checkpoint(filesystem, path / LOG_START_OFFSETS)
        self._cleaned_offsets: Offsets = read_checkpoint(filesystem, path / CLEANED_OFFSETS)
        self._filesystem = filesystem
        self._new_id = new_id
        self._lock: OpenFile | None = lock

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        broker_id: int,
        cluster_id: str | None = None,
        filesystem: FileSystem,
        new_id: Callable[[], UUID] = uuid4,
    ) -> LogDirectory:
        """Make the directory where it is missing, lock it and read what guards it. StartupError says what to do."""
        try:
            filesystem.make_directory(path)
            lock = _take_lock(filesystem, path)
            cluster_id = check_meta(filesystem, path, broker_id, cluster_id or None, new_id)
            clean = _take_clean_marker(filesystem, path)
            directory = cls(path, filesystem=filesystem, cluster_id=cluster_id, clean=clean, lock=lock, new_id=new_id)
            directory._remove_deleted()
        except OSError as error:
            raise StartupError(f"cannot use the data directory {path}: {error}; mend it or set log.dirs to another") from error
        return directory

    def partitions(self) -> list[tuple[str, int, Path]]:
        """Topic, partition and directory of everything stored here."""
        found = []
        for name in self._filesystem.list_names(self.path):
            match = PARTITION_NAME.fullmatch(name)
            if match and self._filesystem.is_directory(self.path / name):
                found.append((match["topic"], int(match["partition"]), self.path / name))
        return found

    def space(self) -> tuple[int, int]:
        """Bytes of the disk below: all, and those that are left."""
        try:
            return self._filesystem.space(self.path)
        except OSError as error:
            raise StorageError(f"cannot ask for the space on {self.path}: {error}") from error

    def partition_path(self, topic: str, partition: int) -> Path:
        return self.path / f"{topic}-{partition}"

    def create_partition(self, topic: str, partition: int, topic_id: UUID) -> Path:
        """Make the directory of a new partition, durably. One that a crash left half made is completed."""
        path = self.partition_path(topic, partition)
        try:
            self._forget(topic, partition)
            self._filesystem.make_directory(path)
            self._filesystem.write_bytes(path / PARTITION_METADATA, _encode_partition_metadata(topic_id))
            self._filesystem.sync_directory(path)
            self._filesystem.sync_directory(self.path)
        except OSError as error:
            raise StorageError(f"cannot make {path}: {error}") from error
        return path

    def topic_id(self, topic: str, partition: int) -> UUID | None:
        """The id of the topic that the stored partition belongs to, or None where it does not say."""
        try:
            data = self._filesystem.read_bytes(self.partition_path(topic, partition) / PARTITION_METADATA)
        except FileNotFoundError:
            return None
        return _decode_partition_metadata(data)

    def recovery_point(self, topic: str, partition: int) -> int:
        """Below it everything had been flushed when the checkpoint was written."""
        return self._recovery_points.get((topic, partition), 0)

    def log_start_offset(self, topic: str, partition: int) -> int:
        """Where the log began when the checkpoint was written."""
        return self._log_start_offsets.get((topic, partition), 0)

    def cleaned_offset(self, topic: str, partition: int) -> int:
        """Below it the log has been compacted."""
        return self._cleaned_offsets.get((topic, partition), 0)

    def write_cleaned_offset(self, topic: str, partition: int, offset: int) -> None:
        """A compaction pass has ended."""
        self._write_cleaned({**self._cleaned_offsets, (topic, partition): offset})

    def delete_partition(self, topic: str, partition: int) -> Path:
        """Rename the directory so that it is nobody's; returns what a helper thread then removes (`FileSystem.remove`). Close
        or abandon the log first."""
        path = self.partition_path(topic, partition)
        suffix = f".{self._new_id().hex}{DELETE_SUFFIX}"
        target = self.path / (path.name[: NAME_BYTES_MAX - len(suffix)] + suffix)
        try:
            self._filesystem.rename(path, target)
            self._filesystem.sync_directory(self.path)
        except OSError as error:
            raise StorageError(f"cannot delete {path}: {error}") from error
        return target

    def set_aside(self, topic: str, partition: int) -> Path:
        """Rename a partition's directory that no topic owns, so that a new topic of its name cannot take its records for its own.
        Nothing is removed; returns where it is now."""
        path = self.partition_path(topic, partition)
        suffix = f".{uuid4().hex}{STRAY_SUFFIX}"
        target = self.path / (path.name[: NAME_BYTES_MAX - len(suffix)] + suffix)
        self._filesystem.rename(path, target)
        self._filesystem.sync_directory(self.path)
        return target

    def write_checkpoints(self, logs: Mapping[TopicPartition, PartitionLog]) -> None:
        """Write where recovery and reading of each of these logs would begin. Any thread, given a mapping that does not
        change."""
        # Offsets are read before anything is written, so what is written is never ahead of the disk.
        points = {key: log.flushed_offset for key, log in logs.items()}
        starts = {key: log.log_start_offset for key, log in logs.items() if log.log_start_offset}
        self._write(points, starts)

    def close(self, *, clean: bool = True) -> None:
        """Let go of the directory; `clean` says that every log has been closed and the checkpoints written."""
        try:
            if clean:
                self._filesystem.replace_bytes(self.path / CLEAN_MARKER, b'{"version":0,"brokerEpoch":-1}')
        except OSError as error:
            raise StorageError(f"cannot mark {self.path} as cleanly stopped: {error}") from error
        finally:
            self._lock = None

    def read_json(self, name: str) -> Any:
        """The value in a JSON file of this directory, or None where there is none. StartupError where it is not JSON."""
        path = self.path / name
        try:
            return json.loads(self._filesystem.read_bytes(path))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise StartupError(f"{path} cannot be read: {error}; restore it from a copy of this directory") from error

    def write_json_atomic(self, name: str, value: Any) -> None:
        """Replace a JSON file of this directory as a whole; on the disk when this returns."""
        data = json.dumps(value, indent=1, sort_keys=True).encode() + b"\n"
        try:
            self._filesystem.replace_bytes(self.path / name, data)
        except OSError as error:
            raise StorageError(f"cannot write {self.path / name}: {error}") from error

    def _forget(self, topic: str, partition: int) -> None:
        key = (topic, partition)
        if key in self._recovery_points or key in self._log_start_offsets:
            self._write(_without(self._recovery_points, key), _without(self._log_start_offsets, key))
        if key in self._cleaned_offsets:
            self._write_cleaned(_without(self._cleaned_offsets, key))

    def _write_cleaned(self, offsets: Offsets) -> None:
        try:
            write_checkpoint(self._filesystem, self.path / CLEANED_OFFSETS, offsets)
        except OSError as error:
            raise StorageError(f"cannot write {self.path / CLEANED_OFFSETS}: {error}") from error
        self._cleaned_offsets = offsets

    def _write(self, points: Offsets, starts: Offsets) -> None:
        try:
            write_checkpoint(self._filesystem, self.path / RECOVERY_POINTS, points)
            write_checkpoint(self._filesystem, self.path / LOG_START_OFFSETS, starts)
        except OSError as error:
            raise StorageError(f"cannot write the checkpoints of {self.path}: {error}") from error
        self._recovery_points, self._log_start_offsets = points, starts

    def _remove_deleted(self) -> None:
        for name in self._filesystem.list_names(self.path):
            if name.endswith(DELETE_SUFFIX):
                self._filesystem.remove(self.path / name)


def _take_lock(filesystem: FileSystem, path: Path) -> OpenFile:
    lock = filesystem.lock(path / LOCK)
    if lock is None:
        owner = filesystem.read_bytes(path / LOCK).decode(errors="replace").strip() or "unknown"
        raise StartupError(f"another broker (pid {owner}) uses the data directory {path}: stop it, or set log.dirs to another")
    return lock


def _take_clean_marker(filesystem: FileSystem, path: Path) -> bool:
    """Whether it was there. It is gone, durably, before anything is written, so a crash from now on is seen as one."""
    if CLEAN_MARKER not in filesystem.list_names(path):
        return False
    filesystem.remove(path / CLEAN_MARKER)
    filesystem.sync_directory(path)
    return True


def _without(offsets: Offsets, key: TopicPartition) -> Offsets:
    return {other: offset for other, offset in offsets.items() if other != key}


def _encode_partition_metadata(topic_id: UUID) -> bytes:
    return f"version: 0\ntopic_id: {encode_id(topic_id)}\n".encode()


def _decode_partition_metadata(data: bytes) -> UUID | None:
    try:
        for line in data.decode().splitlines():
            name, _, value = line.partition(":")
            if name == "topic_id":
                return UUID(bytes=base64.urlsafe_b64decode(value.strip() + "=="))
    except ValueError:
        return None
    return None
