"""The broker's data directory: who may use it, which partitions are in it, and where their recovery begins.

    .lock                               held as long as the broker runs
    meta.properties                     format version, broker id, cluster id
    .kafka_cleanshutdown                there only after a stop in good order; taken away at the start
    recovery-point-offset-checkpoint    per partition, below which everything was flushed
    log-start-offset-checkpoint         per partition, where it begins
    cleaner-offset-checkpoint           per compacted partition, below which no key is there twice
    replication-offset-checkpoint       per partition, below which every replica in sync had everything; in a cluster only
    boot.id                             in which boot of the machine the last start was settled; in a cluster only
    access-0/                           one partition: partition.metadata (the topic's id) and the log's files
    access-0.<id>-delete/               a deleted one whose files are not removed yet

A checkpoint may be old (then recovery checks more than it must) and never ahead of the disk; a log that has been cut since says
so itself (marks.py) until checkpoints that know of it have been written (`note_cut`, `checkpoint_job`). A topic that is
deleted and made again must not inherit entries, so they are taken out before its directory is made.

What was written and not flushed is there after a stop in good order, and after any other end of the process as long as the
machine has not been booted again. In a cluster that decides whether this broker may still be counted among those that have
everything (`kept_writes`). A start that finds that it may not has to say so to the others before it is settled (`note_boot`):
else the next start, were this one killed or stopped in between, would take itself for complete.

While the broker runs, checkpoints are written beside the loop: the loop says what they hold (`checkpoint_job`), a helper thread
writes the files, one job after the other.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any
from uuid import UUID

from broker.errors import StartupError, StorageError
from broker.storage.checkpoint import (
    CLEANED_OFFSETS,
    LOG_START_OFFSETS,
    RECOVERY_POINTS,
    VISIBLE_OFFSETS,
    Offsets,
    TopicPartition,
    read_checkpoint,
    write_checkpoint,
)
from broker.storage.filesystem import FileSystem, OpenFile
from broker.storage.marks import CutMark, remove_cut_mark
from broker.storage.meta_properties import META, Identity, check_meta, encode_id, join_cluster
from broker.storage.partition_log import CLOSED, PartitionLog

LOCK = ".lock"
CLEAN_MARKER = ".kafka_cleanshutdown"
BOOT_ID = "boot.id"
PARTITION_METADATA = "partition.metadata"
DELETE_SUFFIX = "-delete"
STRAY_SUFFIX = "-stray"
NAME_BYTES_MAX = 255

Job = Callable[[], None]

PARTITION_NAME = re.compile(r"(?P<topic>[a-zA-Z0-9._-]{1,249})-(?P<partition>\d{1,10})")


class LogDirectory:
    """An opened and locked data directory. `was_clean` says whether the last stop was in good order, `kept_writes` whether all
    that was written before is there."""

    def __init__(
        self,
        path: Path,
        *,
        filesystem: FileSystem,
        identity: Identity,
        clean: bool,
        kept_writes: bool,
        boot_id: str,
        lock: OpenFile,
        new_id: Callable[[], UUID],
    ) -> None:
        self.path = path
        self.cluster_id = identity.cluster_id
        self.directory_id = identity.directory_id
        self.is_in_cluster = identity.is_in_cluster
        self.was_clean = clean
        self._boot_id = boot_id
        self.kept_writes = kept_writes
        self._recovery_points: Offsets = read_checkpoint(filesystem, path / RECOVERY_POINTS)
        self._log_start_offsets: Offsets = read_checkpoint(filesystem, path / LOG_START_OFFSETS)
        self._cleaned_offsets: Offsets = read_checkpoint(filesystem, path / CLEANED_OFFSETS)
        self._visible_offsets: Offsets = read_checkpoint(filesystem, path / VISIBLE_OFFSETS) if self.is_in_cluster else {}
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
        new_id: Callable[[], UUID],
        in_cluster: bool = False,
        boot_id: str = "",
    ) -> LogDirectory:
        """Make the directory where it is missing, lock it and read what guards it. StartupError says what to do. `boot_id` is
        the machine's; empty where it cannot be told. `in_cluster`: a new directory gets its cluster's id later (`join`)."""
        try:
            _make(filesystem, path)
            lock = _take_lock(filesystem, path)
            identity = check_meta(filesystem, path, broker_id, cluster_id or None, new_id, in_cluster=in_cluster)
            clean = _take_clean_marker(filesystem, path)
            directory = cls(
                path,
                filesystem=filesystem,
                identity=identity,
                clean=clean,
                kept_writes=_take_boot(filesystem, path, boot_id, clean=clean),
                boot_id=boot_id,
                lock=lock,
                new_id=new_id,
            )
            directory._remove_deleted()
        except OSError as error:
            raise StartupError(f"cannot use the data directory {path}: {error}; mend it or set log.dirs to another") from error
        return directory

    def join(self, cluster_id: str) -> None:
        """The cluster that this broker found is `cluster_id`: a new directory becomes one of its, any other has to be already.
        StartupError where it is not."""
        try:
            join_cluster(self._filesystem, self.path, cluster_id)
        except OSError as error:
            raise StartupError(f"cannot write in the data directory {self.path}: {error}; mend it or set log.dirs") from error
        self.cluster_id = cluster_id

    def note_boot(self) -> None:
        """This start is settled: what is missing here is known to the others, so the next one answers only for what is written
        from now on. In a cluster only. Any thread."""
        self.write_atomic(BOOT_ID, self._boot_id.encode() + b"\n")

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

    def make_partition(self, topic: str, partition: int, topic_id: UUID) -> Path:
        """Make the directory of a new partition; one that a crash left half made is completed. Any thread. It is durable after
        `sync`: a power cut before leaves nothing, or an empty partition, and the next start makes what is missing. For the same
        reason the small file in it is not synced: a directory that does not say whose it is, is its name's."""
        path = self.partition_path(topic, partition)
        try:
            self._filesystem.make_directory(path)
            self._filesystem.write_bytes(path / PARTITION_METADATA, _encode_partition_metadata(topic_id), durable=False)
        except OSError as error:
            raise StorageError(f"cannot make {path}: {error}") from error
        return path

    def sync(self) -> None:
        """Return when the names in the directory are on the disk: partitions made, renamed, set aside. Any thread."""
        try:
            self._filesystem.sync_directory(self.path)
        except OSError as error:
            raise StorageError(f"cannot flush {self.path}: {error}") from error

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

    def visible_offset(self, topic: str, partition: int) -> int:
        """Below it every replica in sync had everything on its disk when the checkpoint was written."""
        return self._visible_offsets.get((topic, partition), 0)

    def note_cut(self, topic: str, partition: int, offset: int) -> None:
        """The log has been cut at `offset`, perhaps before this start: what lies behind it now is neither compacted nor known to
        others."""
        for offsets in (self._cleaned_offsets, self._visible_offsets):
            if offsets.get((topic, partition), 0) > offset:
                offsets[topic, partition] = offset

    def cleaned_offset(self, topic: str, partition: int) -> int:
        """Below it the log has been compacted."""
        return self._cleaned_offsets.get((topic, partition), 0)

    def note_cleaned_offset(self, topic: str, partition: int, offset: int) -> None:
        """A compaction pass has ended; `cleaned_offsets_job` writes it down."""
        self._cleaned_offsets[topic, partition] = offset

    def cleaned_offsets_job(self) -> Job:
        """A job for any thread that writes how far each log is compacted."""
        return self._write_job({CLEANED_OFFSETS: dict(self._cleaned_offsets)})

    def forget(self, partitions: Iterable[TopicPartition]) -> Job | None:
        """Drop what the checkpoints say of partitions that are about to be made; a job that brings this to the disk, None where
        they say nothing."""
        checkpoints = {
            RECOVERY_POINTS: self._recovery_points,
            LOG_START_OFFSETS: self._log_start_offsets,
            CLEANED_OFFSETS: self._cleaned_offsets,
            VISIBLE_OFFSETS: self._visible_offsets,
        }
        changed: dict[str, Offsets] = {}
        doomed = set(partitions)
        for name, offsets in checkpoints.items():
            if not doomed.isdisjoint(offsets):
                for key in doomed & offsets.keys():
                    del offsets[key]
                changed[name] = dict(offsets)
        return self._write_job(changed) if changed else None

    def discard_partition(self, topic: str, partition: int) -> Path:
        """Rename the directory so that it is nobody's; returns what is then to be removed (`FileSystem.remove`). Any thread; the
        log is closed or abandoned before. Durable after `sync`."""
        path = self.partition_path(topic, partition)
        target = self._renamed(path, self._new_id().hex, DELETE_SUFFIX)
        try:
            self._filesystem.rename(path, target)
        except OSError as error:
            raise StorageError(f"cannot delete {path}: {error}") from error
        return target

    def _renamed(self, path: Path, unique: str, suffix: str) -> Path:
        suffix = f".{unique}{suffix}"
        return self.path / (path.name[: NAME_BYTES_MAX - len(suffix)] + suffix)

    def set_aside(self, topic: str, partition: int) -> Path:
        """Rename a partition's directory that no topic owns, so that a new topic of its name cannot take its records for its own.
        Nothing is removed; returns where it is now."""
        path = self.partition_path(topic, partition)
        target = self._renamed(path, self._new_id().hex, STRAY_SUFFIX)
        self._filesystem.rename(path, target)
        self._filesystem.sync_directory(self.path)
        return target

    def checkpoint_job(
        self, logs: Mapping[TopicPartition, PartitionLog], visible: Mapping[TopicPartition, int] | None = None
    ) -> Job:
        """A job for any thread that writes where recovery and reading of each of these logs would begin now; also what is
        `visible` of it, in a cluster. Offsets are read here, so what is written is never ahead of the disk."""
        self._recovery_points = {key: log.flushed_offset for key, log in logs.items()}
        self._log_start_offsets = {key: log.log_start_offset for key, log in logs.items() if log.log_start_offset}
        checkpoints = {RECOVERY_POINTS: dict(self._recovery_points), LOG_START_OFFSETS: dict(self._log_start_offsets)}
        if self.is_in_cluster:
            self._visible_offsets = {key: offset for key, offset in (visible or {}).items() if offset}
            checkpoints[VISIBLE_OFFSETS] = dict(self._visible_offsets)
        cut = [(log, log.take_cut_marks()) for log in logs.values() if log.cut_marks]
        if cut:
            checkpoints[CLEANED_OFFSETS] = dict(self._cleaned_offsets)
        write = self._write_job(checkpoints)
        return partial(self._write_and_forget_cuts, write, cut) if cut else write

    def _write_and_forget_cuts(self, write: Job, cut: Sequence[tuple[PartitionLog, Sequence[CutMark]]]) -> None:
        write()
        for log, marks in cut:
            if log.offline_reason and log.offline_reason != CLOSED:
                continue  # deleted, perhaps, and its directory another's
            for mark in marks:
                with suppress(OSError):  # it makes the next start check more than it must
                    remove_cut_mark(self._filesystem, log.directory, mark)

    def _write_job(self, checkpoints: Mapping[str, Offsets]) -> Job:
        def write() -> None:
            for name, offsets in checkpoints.items():
                try:
                    write_checkpoint(self._filesystem, self.path / name, offsets)
                except OSError as error:
                    raise StorageError(f"cannot write {self.path / name}: {error}") from error

        return write

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
        """Replace a JSON file of this directory as a whole; on the disk when this returns. Any thread."""
        self.write_atomic(name, json.dumps(value, indent=1, sort_keys=True).encode() + b"\n")

    def write_atomic(self, name: str, data: bytes) -> None:
        """The same with what the file is to hold."""
        try:
            self._filesystem.replace_bytes(self.path / name, data)
        except OSError as error:
            raise StorageError(f"cannot write {self.path / name}: {error}") from error

    def _remove_deleted(self) -> None:
        for name in self._filesystem.list_names(self.path):
            if name.endswith(DELETE_SUFFIX):
                self._filesystem.remove(self.path / name)


def _make(filesystem: FileSystem, path: Path) -> None:
    """Make the directory, with its parents, where it is missing. Its name is on the disk before anything is in it, or a power cut
    would take all of it, however durable. So it is once more where a start before did not come far enough to leave a file."""
    names = list(takewhile(lambda one: not filesystem.is_directory(one), (path, *path.parents)))
    filesystem.make_directory(path)
    if not names and META not in filesystem.list_names(path):
        names = [path]
    for name in reversed(names):
        with suppress(PermissionError):  # of who may make names there and not read them, nothing more can be asked
            filesystem.sync_directory(name.parent)


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


def _take_boot(filesystem: FileSystem, path: Path, boot_id: str, *, clean: bool) -> bool:
    """Whether all that was written since the last settled start is there. Where it is not, that start's note is gone, durably,
    before this one does anything: neither a kill nor a clean stop makes up for what is missing."""
    try:
        stored = filesystem.read_bytes(path / BOOT_ID).decode(errors="replace").strip()
    except FileNotFoundError:
        return False
    if clean or (boot_id and boot_id == stored):
        return True
    filesystem.remove(path / BOOT_ID)
    filesystem.sync_directory(path)
    return False


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
