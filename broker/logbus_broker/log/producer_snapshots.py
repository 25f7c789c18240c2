"""What a partition remembers of its producers (`producer_state.py` has the rules), carried across restarts, and expired.

`<offset>.snapshot` holds their states as of the time when the log ended at that offset, so that a start need not read all of it.
At the start the newest snapshot is loaded and only the batches after it are read; if there is none, everything written within
the last `producer.id.expiration.ms`. Snapshots are written when a segment is created, or soon after, and at a clean stop, and not
flushed: each carries a checksum, and a missing or damaged one only means that more of the log is read. Those beyond the end of a
log that lost its tail in a crash are removed. The newest two are kept: the older one is used if the newer is torn.

A snapshot of a hundred thousand producers takes 0.4 s to encode: it is copied when the log rolls (16 ms) and encoded by a
background task, which writes it (20 ms) only if the log still has all that it describes. If a crash comes first, the next start
reads from the previous snapshot.

A producer that was silent for the expiration time is forgotten. Its silence is measured by the broker's own monotonic clock, not
by the timestamps of its records, which may be arbitrary: every now and then the end of the log is noted, and a producer whose
last batch is before an end noted long enough ago has been silent since then. So expiration costs nothing on the hot path.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from struct import Struct
from struct import error as StructError
from typing import TYPE_CHECKING

from logbus_broker.disk.file_names import offset_name, offsets_in
from logbus_broker.disk.filesystem import FileSystem
from logbus_broker.log.background_tasks import Steps
from logbus_broker.log.producer_state import SEQUENCE_MASK, ProducerState, ProducerStates, SentBatch
from logbus_broker.log.segment_list import SegmentList
from logbus_broker.logs import log_bug
from logbus_broker.protocol.batch import Buffer, crc32c

if TYPE_CHECKING:  # which has a SnapshotFiles
    from logbus_broker.log.partition_log import PartitionLog

logger = logging.getLogger("broker.producers")

SNAPSHOT = ".snapshot"
KEPT = 2
_NOTED_ENDS = 16  # of the log, per expiration time: a producer may be remembered a sixteenth longer
ENCODED_AT_ONCE_MAX = 1_000  # producers: up to 4 ms, which a roll may take longer
_ENCODED_PER_STEP = 100  # 0.4 ms: a slice of a background task ends between two steps
_JOINED_PER_STEP = 1 << 20  # bytes: a hundred thousand producers have 20 MB

BeginTask = Callable[[Steps, Callable[[], None]], None]


class SnapshotFiles:
    """The snapshots in one partition's directory. Every method passes on the system's OSError."""

    __slots__ = ("_directory", "_filesystem", "offsets")

    def __init__(self, filesystem: FileSystem, directory: Path) -> None:
        self._filesystem = filesystem
        self._directory = directory
        self.offsets: list[int] = []  # ascending

    def find(self, end_offset: int) -> None:
        """List them, once, at the start; the log ends at `end_offset`."""
        names = self._filesystem.list_names(self._directory)
        for offset in offsets_in(names, SNAPSHOT):
            if offset > end_offset:
                self._filesystem.remove(self._path(offset))
            else:
                self.offsets.append(offset)

    def read(self, offset: int) -> bytes:
        return self._filesystem.read_bytes(self._path(offset))

    def write(self, offset: int, data: Buffer) -> None:
        """Add one for the log's current end, or where it ended when it was rolled last, and remove the oldest."""
        self._filesystem.write_bytes(self._path(offset), data, durable=False)
        self.offsets.append(offset)
        while len(self.offsets) > KEPT:
            self._filesystem.remove(self._path(self.offsets.pop(0)))

    def remove_beyond(self, end_offset: int, *, within: Path) -> None:
        """The log is truncated to `end_offset`: remove the files beyond it. `within` is the directory by another path. Any
        thread; the loop calls `forget_beyond` afterwards."""
        for offset in self.offsets:
            if offset > end_offset:
                self._filesystem.remove(within / self._path(offset).name)

    def forget_beyond(self, end_offset: int) -> None:
        """The log was truncated there."""
        self.offsets = [offset for offset in self.offsets if offset <= end_offset]

    def _path(self, offset: int) -> Path:
        return self._directory / offset_name(offset, SNAPSHOT)


class ProducerSnapshots:
    """Loads and saves `states` for the log they belong to."""

    __slots__ = ("_cuts", "_expiration_ms", "_has_rolled", "_log", "_noted_ends", "_states", "begin_task", "is_saving")

    def __init__(self, states: ProducerStates, log: PartitionLog, *, expiration_ms: int) -> None:
        self._states = states
        self._log = log
        self._expiration_ms = expiration_ms
        self._noted_ends: deque[tuple[float, int]] = deque()
        self._cuts = 0  # how often the log has been truncated
        self._has_rolled = False  # since the task that saves looked last
        self.is_saving = False  # a task is
        self.begin_task: BeginTask | None = None
        log.before_roll, log.reread = self.save_before_roll, self.reread

    def restore(self) -> None:
        """Rebuild the states from the log; called once, at the start."""
        log = self._log
        recent_offset = log.recent_offset(self._expiration_ms)
        try:
            log.snapshots.find(log.end_offset)
        except OSError as error:
            logger.warning("%s: its snapshots cannot be listed: %s", log.directory, error)
        self._read(self._states, log.segments, recent_offset=recent_offset, end_offset=log.end_offset)

    def reread(self, segments: SegmentList, end_offset: int) -> Callable[[], None]:
        """The log was truncated to these segments: rebuild the states from them. Any thread; the loop calls what it returns."""
        recent_offset = self._log.recent_offset(self._expiration_ms, segments)
        states = self._states.emptied()
        self._read(states, segments, recent_offset=recent_offset, end_offset=end_offset)

        def install() -> None:
            self._cuts += 1
            self._states.restore(states.stored())
            self._noted_ends = deque((noted, min(offset, end_offset)) for noted, offset in self._noted_ends)

        return install

    def _read(self, states: ProducerStates, segments: SegmentList, *, recent_offset: int, end_offset: int) -> None:
        start = self._read_snapshot(states, end_offset)
        start = recent_offset if start is None else start
        if start < end_offset:
            for _, _, header in segments.walk_from(start):
                states.apply(header)
        states.forget_before(recent_offset)

    def _read_snapshot(self, states: ProducerStates, end_offset: int) -> int | None:
        """Load the newest readable snapshot up to `end_offset`; returns its offset, or None if there is none."""
        for offset in reversed([offset for offset in self._log.snapshots.offsets if offset <= end_offset]):
            try:
                producers = decode_producers(self._log.snapshots.read(offset))
            except OSError:
                continue
            if producers is not None:
                states.restore(producers)
                return offset
        return None

    def save(self) -> None:
        """Write a snapshot for the log's end, unless there is one."""
        if self._has_news(self._log.end_offset):
            self._write(self._log.end_offset, encode_producers(self._states.stored()))

    def save_before_roll(self) -> None:
        """The same; if there are many producers, they are copied now and written a moment later."""
        if self.begin_task is None or len(self._states) <= ENCODED_AT_ONCE_MAX:
            self.save()
            return
        self._has_rolled = True
        if not self.is_saving:
            self.is_saving = True
            self.begin_task(self._save_in_steps(), self._saving_failed)

    def _has_news(self, offset: int) -> bool:
        offsets = self._log.snapshots.offsets
        return offset > 0 and not (offsets and offsets[-1] >= offset)

    def _save_in_steps(self) -> Steps:
        """One snapshot after the other, until the log has not rolled during the last one. All on the loop's thread: nothing
        truncates or deletes the log between the check and the write."""
        log = self._log
        while self._has_rolled:
            self._has_rolled = False
            offset, cuts, producers = log.end_offset, self._cuts, dict(self._states.stored())
            data = bytearray()
            yield from _encode_in_steps(producers, data)
            if not log.offline_reason and not log.is_truncating and cuts == self._cuts and self._has_news(offset):
                self._write(offset, data)
        self.is_saving = False

    def _saving_failed(self) -> None:
        self.is_saving = self._has_rolled = False
        log_bug("%s: writing a producer snapshot failed", self._log.directory)

    def _write(self, offset: int, data: bytearray) -> None:
        """If the disk has no room for it, the next start takes longer, nothing else."""
        try:
            self._log.snapshots.write(offset, data)
        except OSError as error:
            logger.warning("%s: no snapshot of its producers: %s", self._log.directory, error)

    def expire(self, now: float) -> int:
        """Forget producers silent for too long at the monotonic time `now`; returns how many."""
        if not len(self._states):
            return 0
        seconds, end_offset = self._expiration_ms / 1000, self._log.end_offset
        if not self._noted_ends or (
            self._noted_ends[-1][1] < end_offset and now - self._noted_ends[-1][0] >= seconds / _NOTED_ENDS
        ):
            self._noted_ends.append((now, end_offset))
        before = 0
        while self._noted_ends and now - self._noted_ends[0][0] >= seconds:
            before = self._noted_ends.popleft()[1]
        return self._states.forget_before(before)


# -- the bytes of a `.snapshot` file ----------------------------------------------------------------------------------------
#
# The first part is Kafka's own format (version 1): checksum, then each producer's id, epoch and last batch. Kafka keeps one batch
# there; we remember five, since five may be in flight and each of them may be resent, so the four before the last are appended
# after that, under the same checksum, where Kafka's tools do not look.

_VERSION = 1
_HEAD = Struct(">hI")  # version, checksum of everything after it
_COUNT = Struct(">i")
_PRODUCER = Struct(">qhiqiqiq")  # id, epoch, last sequence, last offset, offset delta, timestamp, coordinator epoch, transaction
_OLDER = Struct(">qiiqqq")  # producer id, then a batch as it is remembered
_NO_EPOCH = _NO_TRANSACTION = -1


def encode_producers(producers: Mapping[int, ProducerState]) -> bytearray:
    """The bytes of a snapshot; the producer silent for longest comes first."""
    data = bytearray()
    for _ in _encode_in_steps(producers, data):
        pass
    return data


def _encode_in_steps(producers: Mapping[int, ProducerState], data: bytearray) -> Iterator[None]:
    """The same, into the empty `data`, yielding after every hundred producers, and between what takes milliseconds if there are a
    hundred thousand."""
    data += bytes(_HEAD.size) + _COUNT.pack(len(producers))
    older = bytearray()
    for number, (producer_id, state) in enumerate(producers.items(), start=1):
        last = state.batches[-1]
        delta = last.last_offset - last.base_offset
        data += _PRODUCER.pack(
            producer_id, state.epoch, last.last_sequence, last.last_offset, delta, last.max_timestamp, _NO_EPOCH, _NO_TRANSACTION
        )
        for batch in state.batches[:-1]:
            older += _OLDER.pack(producer_id, *batch)
        if not number % _ENCODED_PER_STEP:
            yield
    for start in range(0, len(older), _JOINED_PER_STEP):
        data += older[start : start + _JOINED_PER_STEP]
        yield
    with memoryview(data) as view:
        _HEAD.pack_into(data, 0, _VERSION, crc32c(view[_HEAD.size :]))
    yield


def decode_producers(data: bytes) -> dict[int, ProducerState] | None:
    """Producer id to state, in the order of their last batches; None if the bytes are not a complete snapshot."""
    try:
        version, checksum = _HEAD.unpack_from(data)
        if version != _VERSION or crc32c(memoryview(data)[_HEAD.size :]) != checksum:
            return None
        (count,) = _COUNT.unpack_from(data, _HEAD.size)
        first = _HEAD.size + _COUNT.size
        end = first + count * _PRODUCER.size
        older: dict[int, tuple[SentBatch, ...]] = {}
        for producer_id, *batch in _OLDER.iter_unpack(memoryview(data)[end:]):
            older[producer_id] = (*older.get(producer_id, ()), SentBatch(*batch))
        producers = sorted(_producers(memoryview(data)[first:end]), key=lambda row: row[2].last_offset)
    except (StructError, ValueError):
        return None
    return {producer_id: ProducerState(epoch, (*older.get(producer_id, ()), last)) for producer_id, epoch, last in producers}


def _producers(view: memoryview) -> Iterator[tuple[int, int, SentBatch]]:
    for producer_id, epoch, last_sequence, last_offset, delta, timestamp, _, _ in _PRODUCER.iter_unpack(view):
        base_sequence = (last_sequence - delta) & SEQUENCE_MASK
        yield producer_id, epoch, SentBatch(base_sequence, last_sequence, last_offset - delta, last_offset, timestamp)
