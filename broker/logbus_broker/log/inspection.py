"""What the files of a data directory hold: `python -m logbus_broker verify` and `dump-log`. Nothing is changed.

`verify` reads every file and reports what is wrong, with file and position. The checksum of every batch is verified, which
startup does only after the recovery point: so this finds a byte that the disk has corrupted in an old segment. Offsets must
ascend, without gaps where nothing was compacted; indexes that claim to belong to their segment must lead to its batches;
checkpoints and snapshots must be readable. The directory may be in use: then the end of each log is still being written, segments
are created and deleted, and neither is a fault.

`dump-log` prints the content of one file, line by line as Apache Kafka's DumpLogSegments does, so that both can be compared: a
segment up to the first position without a batch, with checksums verified, and records only on request.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from logbus_broker.cluster.local_files import belongs_to_cluster
from logbus_broker.errors import CorruptMessage, InvalidRecord, StartupError
from logbus_broker.filesystem import FileSystem, offset_name, offsets_in, parse_partition
from logbus_broker.log.checkpoint import CHECKPOINTS, CLEANED_OFFSETS, RECOVERY_POINTS, Offsets, read_checkpoint, read_cut_marks
from logbus_broker.log.leader_epochs import LEADER_EPOCHS, LeaderEpochs
from logbus_broker.log.log_directory import LOCK
from logbus_broker.log.producer_state import SEQUENCE_MASK, SNAPSHOT, decode_producers
from logbus_broker.log.segment import INDEX, INDEX_NOTE, LOG, TIME_INDEX, checksum_matches, scan_headers
from logbus_broker.log.segment_index import IndexNote, OffsetIndex, TimeIndex
from logbus_broker.protocol.batch import CODEC_NAMES, NO_SEQUENCE, BatchHeader, crc32c
from logbus_broker.protocol.records import Record, read_records


@dataclass(frozen=True, slots=True)
class Fault:
    """A violation of what must hold for the files."""

    path: Path
    position: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}: position {self.position}: {self.text}"


@dataclass(slots=True)
class Verification:
    """One run over a data directory, or over one partition in it. `faults` yields the faults; the counts are what was read."""

    path: Path
    filesystem: FileSystem
    partitions: int = field(default=0, init=False)
    segments: int = field(default=0, init=False)
    batches: int = field(default=0, init=False)
    read_bytes: int = field(default=0, init=False)

    def faults(self) -> Iterator[Fault]:
        """Every fault, in the order of the files. OSError if the directory itself cannot be read."""
        names = self.filesystem.list_names(self.path)
        is_partition = bool(offsets_in(names, LOG))
        root = self.path.parent if is_partition else self.path
        in_use = self.filesystem.is_locked(root / LOCK)
        checkpoints, unreadable = _checkpoints(self.filesystem, root)
        compacted = _compacted_topics(self.filesystem, root)
        is_replica = belongs_to_cluster(self.filesystem, root)
        yield from unreadable
        for name in [self.path.name] if is_partition else names:
            key = parse_partition(name)
            if key is not None and self.filesystem.is_directory(root / name):
                may_have_gaps = is_replica or key[0] in compacted or key in checkpoints[CLEANED_OFFSETS]
                checks = _PartitionCheck(self, root / name, may_have_gaps=may_have_gaps, is_replica=is_replica, in_use=in_use)
                cuts = [mark.offset for mark in read_cut_marks(self.filesystem, root / name)]
                yield from checks.faults(recovery_point=min([checkpoints[RECOVERY_POINTS].get(key, 0), *cuts]))
                self.partitions += 1


class _PartitionCheck:
    """The files of one partition."""

    def __init__(self, run: Verification, directory: Path, *, may_have_gaps: bool, is_replica: bool, in_use: bool) -> None:
        self._run = run
        self._filesystem = run.filesystem
        self._directory = directory
        self._may_have_gaps = may_have_gaps
        self._is_replica = is_replica  # then even the last segment may have gaps, from compaction at the leader
        self._in_use = in_use
        self._expected = -1  # the offset that must come next

    def faults(self, *, recovery_point: int) -> Iterator[Fault]:
        names = self._filesystem.list_names(self._directory)
        bases = offsets_in(names, LOG)
        for base_offset in bases:
            yield from self._segment_faults(base_offset, is_last=base_offset == bases[-1])
        if not self._in_use and self._expected < recovery_point:
            path = self._directory / offset_name(bases[-1] if bases else 0, LOG)
            yield Fault(path, 0, f"the log ends at offset {self._expected}, but was flushed up to {recovery_point}")
        yield from self._side_faults(names)

    def _segment_faults(self, base_offset: int, *, is_last: bool) -> Iterator[Fault]:
        path = self._directory / offset_name(base_offset, LOG)
        try:
            file = self._filesystem.open_for_reading(path)
            index = _IndexCheck(self._filesystem, self._directory, base_offset, self._filesystem.size(file))
        except FileNotFoundError:
            if not self._in_use:
                yield Fault(path, 0, "is missing")
            return
        if self._expected >= 0 and (base_offset < self._expected or (base_offset > self._expected and not self._may_have_gaps)):
            yield Fault(path, 0, f"begins at offset {base_offset}, but the previous segment ends at {self._expected}")
        self._expected = base_offset
        size, end = self._filesystem.size(file), 0
        for position, header in scan_headers(self._filesystem, file, 0, size):
            gap = header.base_offset - self._expected
            if gap < 0 or (gap > 0 and ((is_last and not self._is_replica) or not self._may_have_gaps)):
                yield Fault(path, position, f"offset {header.base_offset} where {self._expected} was expected")
            if not checksum_matches(self._filesystem, file, position, header):
                yield Fault(path, position, f"the checksum of the batch at offset {header.base_offset} does not match")
            index.observe(position, header.last_offset, header.max_timestamp)
            self._expected = max(header.next_offset, self._expected)
            end = position + header.size
            self._run.batches += 1
        if end < size and not (is_last and self._in_use):
            yield Fault(path, end, f"no whole batch in the last {size - end} bytes")
        yield from index.faults()
        self._run.segments += 1
        self._run.read_bytes += end

    def _side_faults(self, names: list[str]) -> Iterator[Fault]:
        for name in names:
            path = self._directory / name
            data = self._filesystem.read_bytes(path) if name == LEADER_EPOCHS or name.endswith(SNAPSHOT) else b""
            if name == LEADER_EPOCHS and LeaderEpochs.decode(data) is None:
                yield Fault(path, 0, "cannot be read; the next start rebuilds it")
            if name.endswith(SNAPSHOT) and decode_producers(data) is None:
                yield Fault(path, 0, "does not match its checksum; the next start reads the log instead")


class _IndexCheck:
    """The indexes of one segment, checked if their note states that they belong to it."""

    def __init__(self, filesystem: FileSystem, directory: Path, base_offset: int, log_bytes: int) -> None:
        self._paths = {suffix: directory / offset_name(base_offset, suffix) for suffix in (INDEX, TIME_INDEX, INDEX_NOTE)}
        self._base_offset = base_offset
        self._faults: list[Fault] = []
        self._largest = -1
        self._positions: dict[int, int] = {}
        self._timestamps: dict[int, int] = {}
        try:
            data = {suffix: filesystem.read_bytes(path) for suffix, path in self._paths.items()}
        except FileNotFoundError:
            return  # rebuilt on first use
        note = IndexNote.decode(data[INDEX_NOTE])
        if note is None:
            self._fault(INDEX_NOTE, 0, "cannot be read")
        elif note.log_bytes == log_bytes:
            self._take(note, data[INDEX], data[TIME_INDEX])

    def _take(self, note: IndexNote, offsets: bytes, times: bytes) -> None:
        if crc32c(offsets) != note.offsets_checksum:
            self._fault(INDEX, 0, "does not match its checksum")
        else:
            self._positions = {position: offset for offset, position in OffsetIndex(offsets)}
        if crc32c(times) != note.times_checksum:
            self._fault(TIME_INDEX, 0, "does not match its checksum")
        else:
            self._timestamps = {offset: timestamp for timestamp, offset in TimeIndex(times)}

    def observe(self, position: int, last_offset: int, max_timestamp: int) -> None:
        """Check the index entries of the next batch."""
        relative_offset = last_offset - self._base_offset
        if self._positions.pop(position, relative_offset) != relative_offset:
            self._fault(INDEX, position, f"does not have offset {last_offset} for position {position}")
        self._largest = max(self._largest, max_timestamp)
        if self._timestamps.pop(relative_offset, self._largest) != self._largest:
            self._fault(TIME_INDEX, 0, f"does not have timestamp {self._largest} for offset {last_offset}")

    def faults(self) -> Iterator[Fault]:
        for position in self._positions:
            self._fault(INDEX, 0, f"points to position {position}, where no batch begins")
        for offset in self._timestamps:
            self._fault(TIME_INDEX, 0, f"points to offset {self._base_offset + offset}, where no batch ends")
        return iter(self._faults)

    def _fault(self, suffix: str, position: int, text: str) -> None:
        self._faults.append(Fault(self._paths[suffix], position, f"{text}; it is rebuilt from the log"))


def _checkpoints(filesystem: FileSystem, root: Path) -> tuple[dict[str, Offsets], list[Fault]]:
    """The checkpoints, empty if they cannot be read; and the faults of those."""
    checkpoints: dict[str, Offsets] = {}
    faults = []
    for name in CHECKPOINTS:
        try:
            checkpoints[name] = read_checkpoint(filesystem, root / name)
        except StartupError as error:
            checkpoints[name] = {}
            faults.append(Fault(root / name, 0, str(error)))
    return checkpoints, faults


def _compacted_topics(filesystem: FileSystem, root: Path) -> set[str]:
    """Topics whose offsets may have gaps."""
    try:
        topics = json.loads(filesystem.read_bytes(root / "topics.json"))["topics"]
        return {row["name"] for row in topics if "compact" in row["configs"].get("cleanup.policy", "")}
    except (OSError, ValueError, KeyError, TypeError):
        return set()


def dump_file(path: Path, filesystem: FileSystem, *, records: bool) -> Iterator[str]:
    """The lines for one file; ValueError if its name is not that of a partition's file."""
    try:
        dump = _DUMPS[path.suffix]
        base_offset = int(path.name.split(".")[0])
    except (KeyError, ValueError):
        raise ValueError(
            f"the name of {path.name} is not an offset with one of the suffixes {', '.join(sorted(_DUMPS))}"
        ) from None
    yield f"Dumping {path}"
    names = filesystem.list_names(path.parent)
    if path.suffix in (INDEX, TIME_INDEX) and path.name not in names and path.with_suffix(LOG).name in names:
        yield f"{path.name} does not exist yet: the broker has it in memory, and writes it when the segment is full or closed"
        return
    yield from dump(path, filesystem, base_offset, records)


def _dump_log(path: Path, filesystem: FileSystem, base_offset: int, records: bool) -> Iterator[str]:
    yield f"Log starting offset: {base_offset}"
    file = filesystem.open_for_reading(path)
    size = filesystem.size(file)
    end = 0
    for position, header in scan_headers(filesystem, file, 0, size):
        is_valid = checksum_matches(filesystem, file, position, header)
        yield _batch_line(header, position, is_valid=is_valid)
        if records:
            yield from _record_lines(filesystem.read_at(file, header.size, position), header)
        end = position + header.size
    if end < size:
        yield f"Found {size - end} invalid bytes at the end of {path.name}"


def _batch_line(header: BatchHeader, position: int, *, is_valid: bool) -> str:
    last_sequence = NO_SEQUENCE
    if header.base_sequence != NO_SEQUENCE:
        last_sequence = (header.base_sequence + header.last_offset_delta) & SEQUENCE_MASK
    horizon = "OptionalLong.empty" if header.delete_horizon_ms is None else f"OptionalLong[{header.delete_horizon_ms}]"
    codec = CODEC_NAMES[header.compression] if header.compression < len(CODEC_NAMES) else header.compression
    return (
        f"baseOffset: {header.base_offset} lastOffset: {header.last_offset} count: {header.record_count}"
        f" baseSequence: {header.base_sequence} lastSequence: {last_sequence}"
        f" producerId: {header.producer_id} producerEpoch: {header.producer_epoch} partitionLeaderEpoch: {header.leader_epoch}"
        f" isTransactional: {_java(header.is_transactional)} isControl: {_java(header.is_control)} deleteHorizonMs: {horizon}"
        f" position: {position} {_timestamp_type(header)}: {header.max_timestamp} size: {header.size} magic: {header.magic}"
        f" compresscodec: {codec} crc: {header.crc} isvalid: {_java(is_valid)}"
    )


def _record_lines(batch: bytes, header: BatchHeader) -> Iterator[str]:
    try:
        for record in read_records(batch):
            yield _record_line(record, header)
    except (InvalidRecord, CorruptMessage) as error:
        yield f"| cannot be read: {error}"


def _record_line(record: Record, header: BatchHeader) -> str:
    sequence = NO_SEQUENCE
    if header.base_sequence != NO_SEQUENCE:
        sequence = (header.base_sequence + record.offset - header.base_offset) & SEQUENCE_MASK
    line = (
        f"| offset: {record.offset} {_timestamp_type(header)}: {record.timestamp}"
        f" keySize: {_size(record.key)} valueSize: {_size(record.value)}"
        f" sequence: {sequence} headerKeys: [{','.join(_shown(name) for name, _ in record.headers)}]"
    )
    key = "" if record.key is None else f" key: {_shown(record.key.decode(errors='replace'))}"
    value = "" if record.value is None else f" payload: {_shown(record.value.decode(errors='replace'))}"
    return line + key + value


def _dump_index(path: Path, filesystem: FileSystem, base_offset: int, records: bool) -> Iterator[str]:
    index = OffsetIndex(filesystem.read_bytes(path))
    if not len(index):
        yield f"{path} is empty."
    for relative_offset, position in index:
        yield f"offset: {base_offset + relative_offset} position: {position}"


def _dump_time_index(path: Path, filesystem: FileSystem, base_offset: int, records: bool) -> Iterator[str]:
    for timestamp, relative_offset in TimeIndex(filesystem.read_bytes(path)):
        yield f"timestamp: {timestamp} offset: {base_offset + relative_offset}"


def _dump_snapshot(path: Path, filesystem: FileSystem, base_offset: int, records: bool) -> Iterator[str]:
    producers = decode_producers(filesystem.read_bytes(path))
    if producers is None:
        yield f"{path.name} is damaged: the next start reads the log instead"
    for producer_id, state in (producers or {}).items():
        batches = ", ".join(f"{b.base_sequence}-{b.last_sequence} at {b.base_offset}" for b in state.batches)
        yield f"producerId: {producer_id} producerEpoch: {state.epoch} batches: {batches}"


_DUMPS: dict[str, Callable[[Path, FileSystem, int, bool], Iterator[str]]] = {
    LOG: _dump_log,
    INDEX: _dump_index,
    TIME_INDEX: _dump_time_index,
    SNAPSHOT: _dump_snapshot,
}


def _java(value: bool) -> str:
    return "true" if value else "false"


def _timestamp_type(header: BatchHeader) -> str:
    return "LogAppendTime" if header.timestamp_type_is_append else "CreateTime"


def _size(value: bytes | None) -> int:
    return -1 if value is None else len(value)


def _shown(text: str) -> str:
    """The text on one line, whatever a producer wrote: without anything that moves a terminal's cursor."""
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)
