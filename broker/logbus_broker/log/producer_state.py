"""What an idempotent producer has sent to one partition: its epoch and its last five batches; and how that is carried across
restarts, and expires.

A producer numbers its records per partition. The next batch must begin where the last one ended; a resend of one of the last
five is a duplicate and gets its old offset; anything else is out of order. A new epoch begins at 0. A producer that is not
remembered may begin anywhere: after retention or a long pause its records are gone, and so is our memory of it. Sequence numbers
wrap from 2^31 - 1 to 0.

There is one exception, a producer whose first batch was refused: clients keep five requests in flight, and if the first is
refused because this broker is not sure of its leadership, or too few replicas are in sync, the second may arrive once that is
over. If it were accepted, the first could never be, though its client keeps resending it until it gives up. So such a producer
has to begin where it was refused.

Staged batches count as sent for the batches after them, and are forgotten if their write fails.

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
from typing import TYPE_CHECKING, NamedTuple

from logbus_broker.errors import InvalidProducerEpoch, OutOfOrderSequence
from logbus_broker.filesystem import FileSystem, offset_name, offsets_in
from logbus_broker.log.background_tasks import Steps
from logbus_broker.log.segment_list import SegmentList
from logbus_broker.logs import log_bug
from logbus_broker.protocol.batch import NO_PRODUCER_ID, BatchHeader, Buffer, crc32c

if TYPE_CHECKING:
    from logbus_broker.log.partition_log import PartitionLog


BATCHES_REMEMBERED = 5  # as in Kafka, and the most that an idempotent client keeps in flight
SEQUENCE_MASK = (1 << 31) - 1
PRODUCERS_MAX = 100_000
REFUSED_MAX = 1_000  # refused first batches that are remembered; a client retries at once, or never


class SentBatch(NamedTuple):
    """One batch of a producer, as stored."""

    base_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    max_timestamp: int


class ProducerState(NamedTuple):
    """One producer: its batches from the oldest remembered to the newest."""

    epoch: int
    batches: tuple[SentBatch, ...]


class ProducerStates:
    """The producers of one partition; the one silent for longest is forgotten first."""

    def __init__(self, *, producers_max: int = PRODUCERS_MAX) -> None:
        self._producers_max = producers_max
        self._stored: dict[int, ProducerState] = {}
        self._staged: dict[int, ProducerState] = {}
        self._beginnings: dict[int, BatchHeader] = {}  # the first staged batch of each producer not remembered yet
        self._refused: dict[int, tuple[int, int]] = {}  # for such producers: epoch, and the sequence that must come first

    def __len__(self) -> int:
        return len(self._stored)

    def emptied(self) -> ProducerStates:
        """An empty one with the same capacity."""
        return ProducerStates(producers_max=self._producers_max)

    def get(self, producer_id: int) -> ProducerState | None:
        """What is remembered, staged batches included."""
        return self._staged.get(producer_id) or self._stored.get(producer_id)

    def stored(self) -> Mapping[int, ProducerState]:
        """What is remembered, staged batches not included, the producer silent for longest first."""
        return self._stored

    def restore(self, producers: Mapping[int, ProducerState]) -> None:
        """Adopt what was remembered before, in the order of the producers' last batches."""
        self._stored = dict(producers)

    def forget_before(self, offset: int) -> int:
        """Forget producers whose last batch ends before `offset`; returns how many."""
        count = 0
        while self._stored:
            producer_id, state = next(iter(self._stored.items()))
            if state.batches[-1].last_offset >= offset:
                break
            del self._stored[producer_id]
            count += 1
        return count

    def last_offsets(self) -> frozenset[int]:
        """Where the last batch of each producer ends: compaction keeps their headers, from which this memory can be rebuilt."""
        return frozenset(state.batches[-1].last_offset for state in self._stored.values())

    def check(self, header: BatchHeader) -> SentBatch | None:
        """None: the batch may be written; if it is a duplicate, what was stored the first time. Raises InvalidProducerEpoch or
        OutOfOrderSequence if it may not."""
        if header.producer_id == NO_PRODUCER_ID:
            return None
        state = self.get(header.producer_id)
        if state is None:
            if self._refused:
                self._check_beginning(header)
            return None
        if header.producer_epoch != state.epoch:
            _check_new_epoch(header, state)
            return None
        expected = (state.batches[-1].last_sequence + 1) & SEQUENCE_MASK
        if header.base_sequence == expected:
            return None
        last_sequence = _last_sequence(header)
        for sent in state.batches:
            # Both ends must match: a client that splits a batch that was too large sends the same first sequence with another
            # last one. That is not a duplicate: some of its records may be new.
            if sent.base_sequence == header.base_sequence and sent.last_sequence == last_sequence:
                return sent
        raise OutOfOrderSequence(
            f"producer {header.producer_id} sent sequence {header.base_sequence}: expected {expected}, "
            "or a retry of one of its last batches"
        )

    def follows(self, producer_id: int, epoch: int, base_sequence: int) -> bool:
        """Whether the batch may obviously be written: its producer is remembered, and this is its next sequence. If not, `check`
        decides, and gives the reason if it may not."""
        state = self._staged.get(producer_id) or self._stored.get(producer_id)
        return (
            state is not None and state.epoch == epoch and base_sequence == (state.batches[-1].last_sequence + 1) & SEQUENCE_MASK
        )

    def stage(self, header: BatchHeader) -> None:
        """Count a checked and stamped batch as sent, until `apply_staged` or `discard_staged`."""
        if header.producer_id != NO_PRODUCER_ID:
            state = self.get(header.producer_id)
            if state is None:
                self._beginnings[header.producer_id] = header
            self._staged[header.producer_id] = _next_state(state, header)

    def apply_staged(self) -> None:
        """The staged batches are stored."""
        for producer_id, state in self._staged.items():
            self._remember(producer_id, state)
        self._staged.clear()
        self._beginnings.clear()

    def discard_staged(self) -> None:
        """The staged batches were not stored."""
        self._staged.clear()
        # To their clients these were refused, like batches that were never staged. The next request, which is already in flight,
        # must not become its producer's first batch.
        for header in self._beginnings.values():
            self.refuse(header)
        self._beginnings.clear()

    def refuse(self, header: BatchHeader) -> None:
        """A batch was refused that may be resent: if its producer is not remembered, this batch has to be its first."""
        producer_id = header.producer_id
        if producer_id == NO_PRODUCER_ID or self.get(producer_id) is not None:
            return
        refused = self._refused.get(producer_id)
        if refused is None or refused[0] < header.producer_epoch:
            self._refused[producer_id] = header.producer_epoch, header.base_sequence
            if len(self._refused) > REFUSED_MAX:
                del self._refused[next(iter(self._refused))]

    def apply(self, header: BatchHeader) -> None:
        """Account for a stored batch: this is how the state is rebuilt from the log."""
        if header.producer_id != NO_PRODUCER_ID:
            self._remember(header.producer_id, _next_state(self._stored.get(header.producer_id), header))

    def _check_beginning(self, header: BatchHeader) -> None:
        epoch, sequence = self._refused.get(header.producer_id, (-1, -1))
        if epoch == header.producer_epoch and sequence != header.base_sequence:
            raise OutOfOrderSequence(
                f"producer {header.producer_id} sent sequence {header.base_sequence} before {sequence}, which was refused"
            )

    def _remember(self, producer_id: int, state: ProducerState) -> None:
        if self._refused:
            self._refused.pop(producer_id, None)
        self._stored.pop(producer_id, None)  # moves it to the end: a dict keeps insertion order
        self._stored[producer_id] = state
        if len(self._stored) > self._producers_max:
            del self._stored[next(iter(self._stored))]


def _check_new_epoch(header: BatchHeader, state: ProducerState) -> None:
    if header.producer_epoch < state.epoch:
        raise InvalidProducerEpoch(
            f"producer {header.producer_id} wrote with epoch {header.producer_epoch} after epoch {state.epoch}"
        )
    if header.base_sequence != 0:
        raise OutOfOrderSequence(
            f"producer {header.producer_id} begins epoch {header.producer_epoch} at sequence {header.base_sequence}, not 0"
        )


def _next_state(state: ProducerState | None, header: BatchHeader) -> ProducerState:
    sent = SentBatch(
        header.base_sequence,
        _last_sequence(header),
        header.base_offset,
        header.base_offset + header.last_offset_delta,
        header.max_timestamp,
    )
    if state is None or state.epoch != header.producer_epoch:
        return ProducerState(header.producer_epoch, (sent,))
    return ProducerState(state.epoch, (*state.batches[1 - BATCHES_REMEMBERED :], sent))


def _last_sequence(header: BatchHeader) -> int:
    return (header.base_sequence + header.last_offset_delta) & SEQUENCE_MASK


# What a partition remembers of its producers, carried across restarts, and expired.


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
