"""The broker's data directory: its lock and identity, which partitions are in it, and where their recovery begins.

    .lock                               held while the broker runs
    meta.properties                     format version, broker id, cluster id
    .kafka_cleanshutdown                exists only after a clean stop; removed at the start
    recovery-point-offset-checkpoint    per partition, below which everything was flushed
    log-start-offset-checkpoint         per partition, where it begins
    cleaner-offset-checkpoint           per compacted partition, below which every key is unique
    replication-offset-checkpoint       per partition, below which every in-sync replica had everything; in a cluster only
    boot.id                             the boot of the machine in which the last start was settled; in a cluster only
    access-0/                           one partition: partition.metadata (the topic's id) and the log's files
    access-0.<id>-delete/               a deleted one whose files are not removed yet
    access-0.<id>-stray/                one that no topic owned, set aside

What has another name is left as it is (file_names.py).

A checkpoint may be old (then recovery checks more than it must) but is never ahead of the disk; a log truncated since then has a
mark (marks.py) until checkpoints that include the truncation have been written (`note_cut`, `checkpoint_job`). A topic that is
deleted and recreated must not inherit entries, so they are removed before its directory is created.

Unflushed writes survive a clean stop, and any other end of the process unless the machine has been rebooted since. In a cluster
that decides whether this broker may still count as having everything (`kept_writes`). A start that finds that it may not has to
announce that to the other brokers before it is settled (`note_boot`): otherwise, if it were killed or stopped in between, the
next start would consider itself complete.

While the broker runs, checkpoints are written off the loop: the loop decides what they hold (`checkpoint_job`), a helper thread
writes the files, one job after the other.
"""

from __future__ import annotations

import base64
import json
import logging
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
from broker.storage.file_names import (
    DELETE_SUFFIX,
    PARTITION_METADATA,
    STRAY_SUFFIX,
    is_retired,
    parse_partition,
    partition_name,
    retired_name,
)
from broker.storage.filesystem import FileSystem, OpenFile
from broker.storage.marks import CutMark, remove_cut_mark
from broker.storage.meta_properties import META, Identity, check_meta, encode_id, join_cluster
from broker.storage.partition_log import CLOSED, PartitionLog

logger = logging.getLogger("broker.storage")

LOCK = ".lock"
CLEAN_MARKER = ".kafka_cleanshutdown"
BOOT_ID = "boot.id"

Job = Callable[[], None]


class LogDirectory:
    """An opened and locked data directory. `was_clean` says whether the last stop was clean, `kept_writes` whether everything
    written before it is still there."""

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
        """Create the directory if it is missing, lock it and read its metadata. StartupError says what to do. `boot_id` is the
        machine's; empty if unknown. `in_cluster`: a new directory gets its cluster's id later (`join`)."""
        try:
            _make(filesystem, path)
            # Locked before anything is read: what another broker is just writing would be read half-written.
            lock = _take_lock(filesystem, path)
            identity = check_meta(filesystem, path, broker_id, cluster_id or None, new_id, in_cluster=in_cluster)
            # The marker is removed, durably, before a log is opened: from here on any end of this process is unclean until
            # `close` says otherwise.
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
        """The cluster that this broker found is `cluster_id`: a new directory joins it, any other must already belong to it.
        StartupError if it does not."""
        try:
            join_cluster(self._filesystem, self.path, cluster_id)
        except OSError as error:
            raise StartupError(f"cannot write in the data directory {self.path}: {error}; mend it or set log.dirs") from error
        self.cluster_id = cluster_id

    def note_boot(self) -> None:
        """This start is settled: the other brokers know what is missing here, so the next start only answers for what is written
        from now on. In a cluster only. Any thread."""
        self.write_atomic(BOOT_ID, self._boot_id.encode() + b"\n")

    def partitions(self) -> list[tuple[str, int, Path]]:
        """Topic, partition and directory of everything stored here."""
        # A file, or a link to one, may have such a name too: it holds no segments, and creating the partition will refuse it.
        return [
            (*key, self.path / name)
            for name in self._filesystem.list_names(self.path)
            if (key := parse_partition(name)) is not None and self._filesystem.is_directory(self.path / name)
        ]

    def space(self) -> tuple[int, int]:
        """Bytes of the underlying disk: total and free."""
        try:
            return self._filesystem.space(self.path)
        except OSError as error:
            raise StorageError(f"cannot ask for the space on {self.path}: {error}") from error

    def partition_path(self, topic: str, partition: int) -> Path:
        return self.path / partition_name(topic, partition)

    def make_partition(self, topic: str, partition: int, topic_id: UUID) -> Path:
        """Create the directory of a new partition; one that a crash left half created is completed. Any thread. It is durable
        after `sync`: a power failure before that leaves nothing, or an empty partition, and the next start creates what is
        missing. For the same reason the small file in it is not synced: a directory without a topic id belongs to its name."""
        path = self.partition_path(topic, partition)
        try:
            self._filesystem.make_directory(path)
            # A thousand partitions are created with one sync of the directory instead of two thousand of their files.
            self._filesystem.write_bytes(path / PARTITION_METADATA, _encode_partition_metadata(topic_id), durable=False)
        except OSError as error:
            raise StorageError(f"cannot make {path}: {error}") from error
        return path

    def sync(self) -> None:
        """Sync the names in the directory to disk: partitions created, renamed, set aside. Any thread."""
        try:
            self._filesystem.sync_directory(self.path)
        except OSError as error:
            raise StorageError(f"cannot flush {self.path}: {error}") from error

    def topic_id(self, topic: str, partition: int) -> UUID | None:
        """The id of the topic that the stored partition belongs to, or None if it is not recorded."""
        path = self.partition_path(topic, partition) / PARTITION_METADATA
        try:
            topic_id = _decode_partition_metadata(self._filesystem.read_bytes(path))
        except FileNotFoundError:
            return None
        if topic_id is None:
            logger.warning("%s names no topic: the partition is taken for that of topic %s", path, topic)
        return topic_id

    def recovery_point(self, topic: str, partition: int) -> int:
        """Below it everything had been flushed when the checkpoint was written."""
        return self._recovery_points.get((topic, partition), 0)

    def log_start_offset(self, topic: str, partition: int) -> int:
        """Where the log began when the checkpoint was written."""
        return self._log_start_offsets.get((topic, partition), 0)

    def visible_offset(self, topic: str, partition: int) -> int:
        """Below it every in-sync replica had everything on its disk when the checkpoint was written."""
        return self._visible_offsets.get((topic, partition), 0)

    def note_cut(self, topic: str, partition: int, offset: int) -> None:
        """The log has been truncated to `offset`, perhaps before this start: what now follows it is neither compacted nor known
        to other replicas."""
        for offsets in (self._cleaned_offsets, self._visible_offsets):
            if offsets.get((topic, partition), 0) > offset:
                offsets[topic, partition] = offset

    def cleaned_offset(self, topic: str, partition: int) -> int:
        """Below it the log has been compacted."""
        return self._cleaned_offsets.get((topic, partition), 0)

    def note_cleaned_offset(self, topic: str, partition: int, offset: int) -> None:
        """A compaction pass has ended; `cleaned_offsets_job` writes this to disk."""
        self._cleaned_offsets[topic, partition] = offset

    def cleaned_offsets_job(self) -> Job:
        """A job for any thread that writes how far each log is compacted."""
        return self._write_job({CLEANED_OFFSETS: dict(self._cleaned_offsets)})

    def forget(self, partitions: Iterable[TopicPartition]) -> Job | None:
        """Drop the checkpoint entries of partitions that are about to be created; returns a job that writes this to disk, None
        if there are none."""
        # All four files, whichever the new topic needs: an entry of a former topic left in any of them would be trusted.
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
        """Rename the directory so that no partition owns it; returns what must then be removed (`FileSystem.remove`). Any thread;
        the log must have been closed or abandoned. Durable after `sync`."""
        path = self.partition_path(topic, partition)
        target = self.path / retired_name(path.name, self._new_id().hex, DELETE_SUFFIX)
        try:
            self._filesystem.rename(path, target)
        except OSError as error:
            raise StorageError(f"cannot delete {path}: {error}") from error
        return target

    def set_aside(self, topic: str, partition: int) -> Path:
        """Rename a partition's directory that no topic owns, so that a new topic of that name cannot adopt its records. Nothing
        is removed; returns the new path. OSError: it may have its old name still. Any thread."""
        path = self.partition_path(topic, partition)
        target = self.path / retired_name(path.name, self._new_id().hex, STRAY_SUFFIX)
        self._filesystem.rename(path, target)
        self._filesystem.sync_directory(self.path)
        logger.warning("%s belongs to no topic that exists: set aside as %s; remove it if you do not miss it", path.name, target)
        return target

    def checkpoint_job(
        self, logs: Mapping[TopicPartition, PartitionLog], visible: Mapping[TopicPartition, int] | None = None
    ) -> Job:
        """A job for any thread that writes where recovery and reading of each of these logs would begin now, and in a cluster
        each log's `visible` offset. Offsets are read here, so what is written is never ahead of the disk."""
        # Read on the loop, written by a thread: by then logs may have grown, but an older checkpoint is still true. Reading on
        # the thread instead could see a log that the loop is truncating.
        self._recovery_points = {key: log.flushed_offset for key, log in logs.items()}
        self._log_start_offsets = {key: log.log_start_offset for key, log in logs.items() if log.log_start_offset}
        checkpoints = {RECOVERY_POINTS: dict(self._recovery_points), LOG_START_OFFSETS: dict(self._log_start_offsets)}
        if self.is_in_cluster:
            self._visible_offsets = {key: offset for key, offset in (visible or {}).items() if offset}
            checkpoints[VISIBLE_OFFSETS] = dict(self._visible_offsets)
        cut = [(log, log.take_cut_marks()) for log in logs.values() if log.cut_marks]
        if cut:
            # A mark in the partition's directory says that the checkpoints are older than its truncation. It may be removed once
            # every checkpoint that could hold a higher offset has been written, this one included.
            checkpoints[CLEANED_OFFSETS] = dict(self._cleaned_offsets)
        write = self._write_job(checkpoints)
        return partial(self._write_and_forget_cuts, write, cut) if cut else write

    def _write_and_forget_cuts(self, write: Job, cut: Sequence[tuple[PartitionLog, Sequence[CutMark]]]) -> None:
        write()
        for log, marks in cut:
            if log.offline_reason and log.offline_reason != CLOSED:
                continue  # perhaps deleted, and its directory now another log's
            for mark in marks:
                with suppress(OSError):  # a leftover mark only makes the next start check more than it must
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
        """Release the directory; `clean` says that every log has been closed and the checkpoints written."""
        try:
            if clean:
                self._filesystem.replace_bytes(self.path / CLEAN_MARKER, b'{"version":0,"brokerEpoch":-1}')
        except OSError as error:
            raise StorageError(f"cannot mark {self.path} as cleanly stopped: {error}") from error
        finally:
            self._lock = None

    def read_json(self, name: str) -> Any:
        """The value in a JSON file of this directory, or None if there is no file. StartupError if it is not JSON."""
        path = self.path / name
        try:
            # Decoded here: `json` takes zeros, which a power failure may leave, for UTF-32.
            value = json.loads(self._filesystem.read_bytes(path).decode())
            if value is None:  # never written, and the callers would take it for a missing file
                raise ValueError("Expected a value, not null")
            return value
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise StartupError(f"{path} cannot be read: {error}; restore it from a copy of this directory") from error

    def write_json_atomic(self, name: str, value: Any) -> None:
        """Replace a JSON file of this directory atomically; it is on disk when this returns. Any thread."""
        self.write_atomic(name, json.dumps(value, indent=1, sort_keys=True).encode() + b"\n")

    def write_atomic(self, name: str, data: bytes) -> None:
        """The same for raw bytes."""
        try:
            self._filesystem.replace_bytes(self.path / name, data)
        except OSError as error:
            raise StorageError(f"cannot write {self.path / name}: {error}") from error

    def _remove_deleted(self) -> None:
        # Whoever may write here may have put a backup next to our partitions. Nothing is removed whose name we would not have
        # given, and a name that only looks like a partition's is mentioned, since its records are not served.
        foreign = []
        for name in self._filesystem.list_names(self.path):
            if not self._filesystem.is_directory(self.path / name):
                continue
            if is_retired(name, (DELETE_SUFFIX,)):
                self._filesystem.remove(self.path / name)
            elif not (parse_partition(name) or is_retired(name)):
                foreign.append(name)
        if foreign:
            logger.warning("%s: not the broker's, and left as they are: %s", self.path, ", ".join(foreign))


def _make(filesystem: FileSystem, path: Path) -> None:
    """Create the directory, with its parents, if it is missing. Its name is synced before anything is put in it, or a power
    failure would lose all of it, however durable. It is synced again if an earlier start did not get as far as leaving a file."""
    names = list(takewhile(lambda one: not filesystem.is_directory(one), (path, *path.parents)))
    filesystem.make_directory(path)
    if not names and META not in filesystem.list_names(path):
        names = [path]
    for name in reversed(names):
        with suppress(PermissionError):  # may create entries in the parent but not open it: nothing more can be done
            filesystem.sync_directory(name.parent)


def _take_lock(filesystem: FileSystem, path: Path) -> OpenFile:
    lock = filesystem.lock(path / LOCK)
    if lock is None:
        owner = filesystem.read_bytes(path / LOCK).decode(errors="replace").strip() or "unknown"
        raise StartupError(f"another broker (pid {owner}) uses the data directory {path}: stop it, or set log.dirs to another")
    return lock


def _take_clean_marker(filesystem: FileSystem, path: Path) -> bool:
    """Whether it existed. It is removed, durably, before anything is written, so that a later crash is recognized as one."""
    if CLEAN_MARKER not in filesystem.list_names(path):
        return False
    filesystem.remove(path / CLEAN_MARKER)
    filesystem.sync_directory(path)
    return True


def _take_boot(filesystem: FileSystem, path: Path, boot_id: str, *, clean: bool) -> bool:
    """Whether everything written since the last settled start is still there. If it is not, that start's note is removed,
    durably, before this start does anything: neither a kill nor a clean stop makes up for what is missing."""
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
