"""The broker's data directory: its lock and identity, which partitions are in it, and where their recovery begins.

    .lock                               held while the broker runs
    meta.properties                     format version, broker id, cluster id
    .kafka_cleanshutdown                exists only after a clean stop; removed at the start
    recovery-point-offset-checkpoint    per partition, below which everything was flushed
    log-start-offset-checkpoint         per partition, where it begins
    cleaner-offset-checkpoint           per compacted partition, below which every key is unique
    replication-offset-checkpoint       per partition, below which every in-sync replica had everything; in a cluster only
    metadata.seen                       the newest entry of the metadata log that was acted on; in a cluster only
    last.start                          the last start that was settled: its number, the boot of the machine; in a cluster only
    joining                             a standalone broker's directory on its way into a cluster (join.py)
    access-0/                           one partition: partition.metadata (the topic's id) and the log's files
    access-0.<id>-delete/               a deleted one whose files are not removed yet
    access-0.<id>-stray/                one that no topic owned, or that was damaged, set aside

What has another name is left as it is (filesystem.py).

A checkpoint may be old (then recovery checks more than it must) but is never ahead of the disk; a log truncated since then has a
mark (`CutMark`) until checkpoints that include the truncation have been written (`checkpoint_job`). A topic that is
deleted and recreated must not inherit entries, so they are removed before its directory is created.

Unflushed writes survive a clean stop, and any other end of the process unless the machine has been rebooted since. In a cluster
that decides whether this broker may still count as having everything (`kept_writes`). A start that finds that it may not has to
announce that to the other brokers before it is settled (`note_start`): otherwise, if it were killed or stopped in between, the
next start would consider itself complete. The same holds for a directory that is not the one that ran last (`last_start`): one
restored from a backup has an older number than ZooKeeper, and a copy has files of its own.

While the broker runs, checkpoints are written off the loop: the loop decides what they hold (`checkpoint_job`), a pool thread
writes the files, one job after the other.
"""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from logbus_broker.cluster.local_files import META, Identity, check_meta, encode_id, join_cluster
from logbus_broker.errors import StartupError, StorageError, storage_errors
from logbus_broker.filesystem import (
    DELETE_SUFFIX,
    PARTITION_METADATA,
    STRAY_SUFFIX,
    FileSystem,
    OpenFile,
    is_retired,
    parse_partition,
    partition_name,
    retired_name,
)
from logbus_broker.log import checkpoint
from logbus_broker.log.partition_log import CLOSED, PartitionLog

logger = logging.getLogger("broker.log")

LOCK = ".lock"
CLEAN_MARKER = ".kafka_cleanshutdown"
LAST_START = "last.start"
NO_START = -1
METADATA_SEEN = "metadata.seen"
JOINING = "joining"


class LogDirectory:
    """An opened and locked data directory. `was_clean` says whether the last stop was clean, `kept_writes` whether everything
    written before it is still there. `last_start` is the number of the last settled start in this directory, NO_START if there
    was none, or if this is a copy of its files."""

    def __init__(
        self,
        path: Path,
        *,
        filesystem: FileSystem,
        identity: Identity,
        clean: bool,
        last_start: int,
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
        self.last_start = last_start
        self.kept_writes = kept_writes
        self.checkpoints = checkpoint.Checkpoints(filesystem, path)
        self._filesystem = filesystem
        # In a cluster: the newest entry of the metadata log that this broker has seen, as JSON; kept up to date by the broker.
        self.metadata_seen: Mapping[str, Any] | None = self.read_json(METADATA_SEEN) if self.is_in_cluster else None
        self._noted_seen = self.metadata_seen
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
            if in_cluster and JOINING in filesystem.list_names(path):
                raise StartupError(f"{path} is on its way into the cluster: run `python -m logbus_broker join --accept` again")
            # The marker is removed, durably, before a log is opened: from here on any end of this process is unclean until
            # `close` says otherwise.
            clean = _take_clean_marker(filesystem, path)
            last_start, kept_writes = _take_start(filesystem, path, boot_id, clean=clean)
            directory = cls(
                path,
                filesystem=filesystem,
                identity=identity,
                clean=clean,
                last_start=last_start,
                kept_writes=kept_writes,
                boot_id=boot_id,
                lock=lock,
                new_id=new_id,
            )
            directory._remove_deleted()
        except OSError as error:
            raise StartupError(f"cannot use the data directory {path}: {error}; fix it or set log.dirs to another") from error
        return directory

    @classmethod
    def inspect(cls, path: Path, *, broker_id: int, filesystem: FileSystem, in_cluster: bool = True) -> LogDirectory:
        """The directory of a stopped broker, to look at: nothing in it is changed."""
        try:
            if META not in filesystem.list_names(path):
                raise StartupError(f"{path} is no broker's data directory: set log.dirs")
            lock = _take_lock(filesystem, path)
            identity = check_meta(filesystem, path, broker_id, None, uuid4, in_cluster=in_cluster)
            return cls(
                path,
                filesystem=filesystem,
                identity=identity,
                clean=False,
                last_start=NO_START,
                kept_writes=False,
                boot_id="",
                lock=lock,
                new_id=uuid4,
            )
        except OSError as error:
            raise StartupError(f"cannot read the data directory {path}: {error}") from error

    def join(self, cluster_id: str) -> None:
        """The cluster that this broker found is `cluster_id`: a new directory joins it, any other must already belong to it.
        StartupError if it does not."""
        try:
            join_cluster(self._filesystem, self.path, cluster_id)
        except OSError as error:
            raise StartupError(
                f"cannot write in the data directory {self.path}: {error}; fix it or set log.dirs to another"
            ) from error
        self.cluster_id = cluster_id

    def note_start(self, number: int) -> None:
        """This start is settled: the other brokers know what is missing here, so the next start only answers for what is written
        from now on. In a cluster only. Any thread."""
        self.note_seen()
        self.vouch(number, self._boot_id)

    def vouch(self, number: int, boot_id: str) -> None:
        """Note that start `number`, in this boot of the machine, left everything that had been written."""
        self.write_atomic(LAST_START, _start_text(number, self._filesystem.identity(self.path / META), boot_id))

    @property
    def is_seen_to_be_noted(self) -> bool:
        return self.metadata_seen is not None and self.metadata_seen != self._noted_seen

    def note_seen(self) -> None:
        """Before anything is stored here because of the metadata: that it has been seen. Any thread."""
        newest = self.metadata_seen
        if newest is not None and newest != self._noted_seen:
            self.write_json_atomic(METADATA_SEEN, newest)
            self._noted_seen = newest

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
        with storage_errors(f"read the free space of {self.path}"):
            space = self._filesystem.space(self.path)
        return space

    def partition_path(self, topic: str, partition: int) -> Path:
        return self.path / partition_name(topic, partition)

    def make_partition(self, topic: str, partition: int, topic_id: UUID) -> Path:
        """Create the directory of a new partition; one that a crash left half created is completed. Any thread. It is durable
        after `sync`: a power failure before that leaves nothing, or an empty partition, and the next start creates what is
        missing. For the same reason the small file in it is not synced: a directory without a topic id belongs to its name."""
        path = self.partition_path(topic, partition)
        metadata = f"version: 0\ntopic_id: {encode_id(topic_id)}\n".encode()
        with storage_errors(f"create {path}"):
            self._filesystem.make_directory(path)
            # A thousand partitions are created with one sync of the directory instead of two thousand of their files.
            self._filesystem.write_bytes(path / PARTITION_METADATA, metadata, durable=False)
        return path

    def sync(self) -> None:
        """Sync the names in the directory to disk: partitions created, renamed, set aside. Any thread."""
        with storage_errors(f"flush {self.path}"):
            self._filesystem.sync_directory(self.path)

    def topic_id(self, topic: str, partition: int) -> UUID | None:
        """The id of the topic that the stored partition belongs to, or None if it is not recorded."""
        path = self.partition_path(topic, partition) / PARTITION_METADATA
        try:
            topic_id = _decode_partition_metadata(self._filesystem.read_bytes(path))
        except FileNotFoundError:
            return None
        if topic_id is None:
            logger.warning("%s has no topic id: assuming topic %s", path, topic)
        return topic_id

    def discard_partition(self, topic: str, partition: int) -> Path:
        """Rename the directory so that no partition owns it; returns what must then be removed (`FileSystem.remove`). Any thread;
        the log must have been closed or abandoned. Durable after `sync`."""
        path = self.partition_path(topic, partition)
        target = self.path / retired_name(path.name, self._new_id().hex, DELETE_SUFFIX)
        with storage_errors(f"delete {path}"):
            self._filesystem.rename(path, target)
        return target

    def set_aside(self, topic: str, partition: int, why: str = "belongs to no existing topic") -> Path:
        """Rename a partition's directory, so that a new log of that name cannot adopt its records. Nothing is removed; returns
        the new path. OSError: it may have its old name still. Any thread."""
        path = self.partition_path(topic, partition)
        target = self.path / retired_name(path.name, self._new_id().hex, STRAY_SUFFIX)
        self._filesystem.rename(path, target)
        self._filesystem.sync_directory(self.path)
        logger.warning("%s %s: moved to %s; remove it if you do not need it", path.name, why, target)
        return target

    def checkpoint_job(
        self,
        logs: Mapping[checkpoint.TopicPartition, PartitionLog],
        visible: Mapping[checkpoint.TopicPartition, int] | None = None,
    ) -> checkpoint.Job:
        """A job for any thread that writes where recovery and reading of each of these logs would begin now, and in a cluster
        each log's `visible` offset. Offsets are read here, so what is written is never ahead of the disk."""
        # Read on the loop, written by a thread: by then logs may have grown, but an older checkpoint is still true. Reading on
        # the thread instead could see a log that the loop is truncating.
        starts = {key: log.log_start_offset for key, log in logs.items() if log.log_start_offset}
        self.checkpoints.replace(checkpoint.RECOVERY_POINTS, {key: log.flushed_offset for key, log in logs.items()})
        self.checkpoints.replace(checkpoint.LOG_START_OFFSETS, starts)
        names = [checkpoint.RECOVERY_POINTS, checkpoint.LOG_START_OFFSETS]
        if self.is_in_cluster:
            visible_offsets = {key: offset for key, offset in (visible or {}).items() if offset}
            self.checkpoints.replace(checkpoint.VISIBLE_OFFSETS, visible_offsets)
            names.append(checkpoint.VISIBLE_OFFSETS)
        truncated = [(log, log.cut_marks) for log in logs.values() if log.cut_marks]
        if truncated:
            for log, _ in truncated:
                log.cut_marks = ()
            # A mark in the partition's directory says that the checkpoints are older than its truncation. It may be removed once
            # every checkpoint that could hold a higher offset has been written, this one included.
            names.append(checkpoint.CLEANED_OFFSETS)
        write = self.checkpoints.write_job(names)
        return partial(self._write_and_remove_marks, write, truncated) if truncated else write

    def _write_and_remove_marks(
        self, write: checkpoint.Job, truncated: Sequence[tuple[PartitionLog, Sequence[checkpoint.CutMark]]]
    ) -> None:
        write()
        for log, marks in truncated:
            if log.offline_reason and log.offline_reason != CLOSED:
                continue  # perhaps deleted, and its directory now another log's
            for mark in marks:
                with suppress(OSError):  # a leftover mark only makes the next start check more than it must
                    checkpoint.remove_cut_mark(self._filesystem, log.directory, mark)

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
                raise ValueError("expected a value, not null")
            return value
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise StartupError(f"{path} cannot be read: {error}; restore it from a backup of this directory") from error

    def write_json_atomic(self, name: str, value: Any) -> None:
        """Replace a JSON file of this directory atomically; it is on disk when this returns. Any thread."""
        self.write_atomic(name, json.dumps(value, indent=1, sort_keys=True).encode() + b"\n")

    def write_atomic(self, name: str, data: bytes) -> None:
        """The same for raw bytes."""
        with storage_errors(f"write {self.path / name}"):
            self._filesystem.replace_bytes(self.path / name, data)

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
            logger.warning("%s: ignoring what is not the broker's: %s", self.path, ", ".join(foreign))


def _make(filesystem: FileSystem, path: Path) -> None:
    """Create the directory, with its parents, if it is missing. Its name is synced before anything is put in it, or a power
    failure would lose all of it, however durable. It is synced again if an earlier start did not get as far as leaving a file."""
    missing = list(takewhile(lambda parent: not filesystem.is_directory(parent), (path, *path.parents)))
    filesystem.make_directory(path)
    if not missing and META not in filesystem.list_names(path):
        missing = [path]
    for name in reversed(missing):
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


def _start_text(number: int, identity: str, *boot_id: str) -> bytes:
    """Without the boot: what that start had left is not all there any more."""
    return "".join(f"{line}\n" for line in (number, identity, *boot_id)).encode()


def _take_start(filesystem: FileSystem, path: Path, boot_id: str, *, clean: bool) -> tuple[int, bool]:
    """The number of the last settled start, and whether everything written since is still there. If it is not, that start's note
    says so, durably, before this start does anything: neither a kill nor a clean stop makes up for what is missing."""
    try:
        lines = filesystem.read_bytes(path / LAST_START).decode(errors="replace").splitlines()
    except FileNotFoundError:
        return NO_START, False
    identity = filesystem.identity(path / META)
    if len(lines) < 2 or lines[1] != identity or not lines[0].isdecimal():
        logger.warning(
            "%s is a copy, or was restored from a backup: records may be missing in it, so its replicas leave their in-sync sets "
            "until they have caught up",
            path,
        )
        filesystem.remove(path / LAST_START)
        filesystem.sync_directory(path)
        return NO_START, False
    number, settled = int(lines[0]), lines[2:]
    if settled and (clean or (boot_id and settled == [boot_id])):
        return number, True
    filesystem.replace_bytes(path / LAST_START, _start_text(number, identity))
    return number, False


def _decode_partition_metadata(data: bytes) -> UUID | None:
    try:
        for line in data.decode().splitlines():
            name, _, value = line.partition(":")
            if name == "topic_id":
                return UUID(bytes=base64.urlsafe_b64decode(value.strip() + "=="))
    except ValueError:
        return None
    return None
