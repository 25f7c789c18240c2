"""One segment of a partition's log: a file of batches named after its first offset, with its sparse indexes next to it.

`00000000000000000042.log` holds batches just as producers sent them; `.index` and `.timeindex` are Kafka's; `.indexnote` is
ours and says whether those two can be trusted. Only the last segment of a log is written to. `size` moves only after a write has
succeeded, so bytes beyond it are invisible to every reader.

The loop owns a segment. Another thread may read one (`file`, `index`, `batch_at`): files are opened and indexes loaded on first
use, and two threads doing so at once is harmless, since the later result replaces an equal one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from struct import Struct

from logbus_broker.errors import StorageError
from logbus_broker.filesystem import FileSystem, OpenFile, offset_name
from logbus_broker.log.segment_index import (
    OFFSET_INDEX_BYTES_MAX,
    RELATIVE_OFFSET_MAX,
    IndexNote,
    SegmentIndex,
    StoredSegmentIndex,
)
from logbus_broker.protocol.batch import BATCH_HEADER_BYTES, CRC_START, LENGTH_END, MAGIC, BatchHeader, crc32c, read_header

LOG, INDEX, TIME_INDEX, INDEX_NOTE = ".log", ".index", ".timeindex", ".indexnote"
SUFFIXES = (LOG, INDEX, TIME_INDEX, INDEX_NOTE)
DELETED = ".deleted"

PlacedHeader = tuple[int, BatchHeader]  # with the batch's position

_SCAN_BYTES = 64 * 1024  # holds a few batches of the usual 16 KiB; larger reads were no faster
_CHECKSUM_BYTES_MAX = 1 << 20  # a torn header may claim 2 GiB: never read more than this at once
_HOP_BYTES = 4096  # the batches between two index entries at the default interval, in one read
# Base offset, length, and the one header field that the search needs.
_LAST_OFFSET = Struct(">qi11xi")  # as a delta
_LARGEST_TIMESTAMP = Struct(">qi23xq")


class Segment:
    """A run of batches in one file."""

    __slots__ = (
        "_file",
        "_filesystem",
        "_index",
        "_interval_bytes",
        "_largest_timestamp",
        "_stored",
        "base_offset",
        "directory",
        "end_offset",
        "first_timestamp",
        "index_saved",
        "is_durable",
        "replacement",
        "size",
    )

    def __init__(self, directory: Path, base_offset: int, *, size: int, interval_bytes: int, filesystem: FileSystem) -> None:
        self.directory = directory
        self.base_offset = base_offset
        self.size = size
        self.index_saved = False
        self.is_durable = True  # for a sealed one: its bytes and its name are on disk, so the file may be closed
        self.end_offset: int | None = None  # where the next segment begins; None: this is the active one
        self.first_timestamp: int | None = None  # the first batch's largest timestamp, once it has been read
        self.replacement: Segment | None = None  # what compaction or a truncation has put in its place
        self._interval_bytes = interval_bytes
        self._filesystem = filesystem
        self._file: OpenFile | None = None
        self._index: SegmentIndex | None = None
        self._stored: StoredSegmentIndex | None = None
        self._largest_timestamp: int | None = None

    @classmethod
    def create(
        cls, directory: Path, base_offset: int, *, interval_bytes: int, filesystem: FileSystem, within: Path | None = None
    ) -> Segment:
        """A new, empty segment with its file; OSError if the file exists. `within` is the directory by another path."""
        segment = cls(directory, base_offset, size=0, interval_bytes=interval_bytes, filesystem=filesystem)
        segment._file = filesystem.open(segment.path(LOG, within=within), create=True)
        segment._index = SegmentIndex(base_offset=base_offset, interval_bytes=interval_bytes)
        return segment

    def successor(self, *, size: int, file: OpenFile, index: SegmentIndex) -> Segment:
        """What compaction left of this segment and perhaps of some after it: written to `file`, which does not have its final
        name yet. Or what is left of this one when its log is truncated: then `file` is its own."""
        segment = Segment(
            self.directory, self.base_offset, size=size, interval_bytes=self._interval_bytes, filesystem=self._filesystem
        )
        segment._file, segment._index = file, index
        segment.is_durable = False
        return segment

    def path(self, suffix: str, *, within: Path | None = None) -> Path:
        """`within` is the directory by another path."""
        return (within or self.directory) / offset_name(self.base_offset, suffix)

    @property
    def file(self) -> OpenFile:
        """The log file, opened on first use."""
        file = self._file
        if file is None:
            file = self._file = self._filesystem.open(self.path(LOG))
        return file

    @property
    def index(self) -> SegmentIndex:
        """The indexes, loaded on first use and rebuilt from the log if they cannot be trusted."""
        index = self._index
        if index is None:
            index = self._load_index()
            self.index_saved = index is not None
            self._index = index = index or self._rebuild_index()
        return index

    @property
    def has_index_loaded(self) -> bool:
        return self._index is not None

    @property
    def is_warm(self) -> bool:
        """Whether its file is already open for another reader, so that the next one should not call `forget`."""
        return self._file is not None

    @property
    def largest_timestamp(self) -> int:
        """The largest of all its records, -1 if none has one. Reads only the small note if that suffices."""
        if self._index is not None:
            return self._index.largest_timestamp
        if self._largest_timestamp is None:
            note, was_cold = self._read_note(), not self.is_warm
            self._largest_timestamp = note.largest_timestamp if note else self.index.largest_timestamp
            if was_cold:
                self.forget()
        return self._largest_timestamp

    @property
    def known_largest_timestamp(self) -> int | None:
        """The same, or None if a file would have to be read: for use on the loop."""
        if self._index is not None:
            return self._index.largest_timestamp
        return self._largest_timestamp

    def first_header(self) -> BatchHeader | None:
        """The header of its first batch, None if it is empty; leaves no file open that was not open before."""
        was_cold = not self.is_warm
        try:
            return next((header for _, header in self.headers()), None)
        finally:
            if was_cold:
                self.close_file()

    @property
    def modified_ms(self) -> int:
        return self._filesystem.modified_ms(self.path(LOG))

    def has_room(
        self, size: int, last_offset: int, max_timestamp: int, bytes_max: int, age_ms_max: int, clock_age_ms: int
    ) -> bool:
        """Whether batches of `size` bytes that end with `last_offset` belong in this segment rather than in a new one, by its
        size, its age and what its indexes can hold. As in Kafka, the age is that of the records' own timestamps if they have any,
        so that historical data sent today is split into segments that retention by time can delete one by one; otherwise it is
        `clock_age_ms`. Hot path: positional, and called with values of the settings."""
        first, index = self.first_timestamp, self._index or self.index
        age_ms = max_timestamp - first if first is not None and first >= 0 <= max_timestamp else clock_age_ms
        return (
            self.size + size <= bytes_max
            and age_ms <= age_ms_max
            and last_offset - self.base_offset <= RELATIVE_OFFSET_MAX
            and len(index.offsets.data) < OFFSET_INDEX_BYTES_MAX
        )

    def append(self, views: Sequence[memoryview], headers: Sequence[BatchHeader], size: int) -> None:
        """Write stamped batches, `size` bytes in total, after the last one; on OSError the file may be longer, but the segment
        is not."""
        position = self.size
        # The file first, then memory: if the write fails the segment is as it was, and the next write overwrites whatever the
        # failed one left beyond the end.
        self._filesystem.write_at(self.file, views, position)
        if not position:
            self.first_timestamp = headers[0].max_timestamp
        observe = self.index.observe
        for header in headers:
            observe(position, header)
            position += header.length + LENGTH_END
        self.size = position
        self.index_saved = False

    def write_ahead(self, views: Sequence[memoryview]) -> None:
        """Write stamped batches after the last one. They are not part of the segment until `take_in`, which must follow at once;
        on OSError the file may be longer."""
        self._filesystem.write_at(self.file, views, self.size)

    def take_in(self, batches: Iterable[tuple[int, int, int]]) -> None:
        """Make what was written ahead part of the segment: each batch's size, last offset and largest timestamp."""
        position, observe = self.size, self.index.observe_batch
        for size, last_offset, max_timestamp in batches:
            if not position:
                self.first_timestamp = max_timestamp
            observe(position, size, last_offset, max_timestamp)
            position += size
        self.size = position
        self.index_saved = False

    def cut(self, size: int) -> None:
        """Truncate the file to `size`, which must be the end of a batch."""
        self._filesystem.truncate(self.file, size)
        self.size = size

    def adopt_index(self, index: SegmentIndex) -> None:
        """Take indexes that recovery has just built from the log."""
        self._index = index
        self.index_saved = False

    def save_index(self, *, within: Path | None = None) -> None:
        """Write the indexes and their note; any thread, once the segment is sealed. They are not flushed: after a crash the note
        shows whether they are complete, and if not they are rebuilt."""
        index = self.index
        index.complete()
        self._filesystem.write_bytes(self.path(INDEX, within=within), index.offsets.data, durable=False)
        self._filesystem.write_bytes(self.path(TIME_INDEX, within=within), index.times.data, durable=False)
        note = index.note(self.size).encode()
        self._filesystem.write_bytes(self.path(INDEX_NOTE, within=within), note, durable=False)
        self._largest_timestamp = index.largest_timestamp
        self.index_saved = True

    def forget(self) -> None:
        """Release the indexes' memory and the open file; both are reloaded on the next use. Indexes not saved yet, because they
        were rebuilt or the disk was full, are saved first; they are kept if that fails again, and everything is kept of a
        segment that has not been flushed. Any thread."""
        if self._index is not None and not self.index_saved and self._may_save_index():
            with suppress(OSError):
                self.save_index()
        index, stored = self._index, self._stored
        # Once loaded and saved, the indexes are known to be right: from now on they are searched in their files, which takes no
        # memory and no second check.
        if index is not None and self.index_saved:
            self._stored = StoredSegmentIndex(self._filesystem, self.path(INDEX), self.path(TIME_INDEX), index)
        elif stored is not None:
            stored.forget()
        if index is None or self.index_saved:
            self._index = self._file = None
        elif self._may_save_index():
            self._file = None  # the disk is full: the indexes stay in memory, but a descriptor may be what is needed

    def close_file(self) -> None:
        """Release the open file alone; it is opened again on the next use."""
        self._file = None

    def _may_save_index(self) -> bool:
        """Not while it is active or unflushed, nor once another segment has taken its file names."""
        return self.is_durable and self.end_offset is not None and self.replacement is None

    def position_before(self, relative_offset: int) -> int:
        """Where to start reading for the batch that contains or follows this offset, relative to the segment's base."""
        entry = self._search_index(lambda index: index.offsets.floor(relative_offset))
        return entry[1] if entry else 0

    def position_before_time(self, timestamp_ms: int) -> int:
        """Where to start reading for the first record at or after this time."""
        entry = self._search_index(lambda index: index.times.floor(timestamp_ms))
        return self.position_before(entry[1]) if entry else 0

    def _search_index(
        self, search: Callable[[SegmentIndex | StoredSegmentIndex], tuple[int, int] | None]
    ) -> tuple[int, int] | None:
        index, stored = self._index, self._stored
        if index is None and stored is not None:
            try:
                entry = search(stored)
                # Checked after the search: if it was set meanwhile, the file that was searched may have been the new segment's.
                if self.replacement is None:  # set before compaction gives these file names to the new segment
                    return entry
            except FileNotFoundError:
                self._stored = None
        return search(self.index)

    def batch_at(self, offset: int) -> tuple[int, int] | None:
        """Position and size of the batch that contains `offset`, or of the next one if compaction has left a gap there; None
        if this segment ends before it. StorageError if the bytes cannot be a batch: the file is damaged."""
        start = self.position_before(offset - self.base_offset)
        return self._hop(start, _LAST_OFFSET, lambda base_offset, last_offset_delta: base_offset + last_offset_delta >= offset)

    def batch_reaching(self, timestamp_ms: int) -> tuple[int, int] | None:
        """The same for the first batch whose largest timestamp is this or later."""
        start = self.position_before_time(timestamp_ms)
        return self._hop(start, _LARGEST_TIMESTAMP, lambda base_offset, largest: largest >= timestamp_ms)

    def _hop(self, position: int, fields: Struct, is_it: Callable[[int, int], bool]) -> tuple[int, int] | None:
        """Position and size of the first batch for which `is_it` is true, given its base offset and one field of its header."""
        chunk, chunk_start = b"", position
        # The index is sparse: from its entry on, batches are skipped using the start of their headers, which costs a third of
        # decoding whole headers. One read covers the default interval (4 KiB between two entries).
        while position < self.size:
            in_chunk = position - chunk_start
            if in_chunk + BATCH_HEADER_BYTES > len(chunk):
                chunk, chunk_start, in_chunk = self._filesystem.read_at(self.file, _HOP_BYTES, position), position, 0
                if len(chunk) < BATCH_HEADER_BYTES:
                    raise self._damaged(position)
            base_offset, length, field = fields.unpack_from(chunk, in_chunk)
            # An impossible length is damage, not the end: skipping on would find "no such offset", and a consumer would get
            # OFFSET_OUT_OF_RANGE and reset its position.
            if length < BATCH_HEADER_BYTES - LENGTH_END or position + length + LENGTH_END > self.size:
                raise self._damaged(position)
            if is_it(base_offset, field):
                return position, length + LENGTH_END
            position += length + LENGTH_END
        return None

    def mark_deleted(self, *, within: Path | None = None) -> list[Path]:
        """Rename the files so that a start does not take them for the log's; returns what is left to remove. OSError: some may
        have been renamed; the next call does the rest."""
        renamed = []
        # Listed first, since an earlier call that failed halfway has renamed some: those still have to be removed too.
        names = set(self._filesystem.list_names(within or self.directory))
        for suffix in SUFFIXES:
            path = self.path(suffix, within=within)
            target = path.with_name(path.name + DELETED)
            if path.name in names:
                self._filesystem.rename(path, target)
            if path.name in names or target.name in names:
                renamed.append(target)
        return renamed

    def headers(self, start: int = 0) -> Iterator[PlacedHeader]:
        """Every batch from position `start` to the current end; StorageError if batches do not fill the file."""
        position, end = start, self.size
        for position, header in scan_headers(self._filesystem, self.file, start, end):
            yield position, header
            position += header.size
        if position != end:
            raise self._damaged(position)

    def _damaged(self, position: int) -> StorageError:
        return StorageError(f"{self.path(LOG)}: no batch at position {position} of {self.size}: the file is damaged")

    def read(self, position: int, length: int) -> bytes:
        """Bytes of the log file; any thread."""
        return self._filesystem.read_at(self.file, length, position)

    def _read_note(self) -> IndexNote | None:
        try:
            note = IndexNote.decode(self._filesystem.read_bytes(self.path(INDEX_NOTE)))
        except FileNotFoundError:
            return None
        return note if note and note.log_bytes == self.size else None

    def _load_index(self) -> SegmentIndex | None:
        # The note is written last and says how many bytes of log the indexes describe. If it is missing or has another number,
        # a crash interrupted the writing, and the indexes are rebuilt from the batch headers.
        note = self._read_note()
        if note is None:
            return None
        try:
            offsets = self._filesystem.read_bytes(self.path(INDEX))
            times = self._filesystem.read_bytes(self.path(TIME_INDEX))
        except FileNotFoundError:
            return None
        return SegmentIndex.load(
            base_offset=self.base_offset, interval_bytes=self._interval_bytes, offsets=offsets, times=times, note=note
        )

    def _rebuild_index(self) -> SegmentIndex:
        index = SegmentIndex(base_offset=self.base_offset, interval_bytes=self._interval_bytes)
        for position, header in scan_headers(self._filesystem, self.file, 0, self.size):
            index.observe(position, header)
        return index


def scan_headers(filesystem: FileSystem, file: OpenFile, start: int, end: int) -> Iterator[PlacedHeader]:
    """Position and header of each batch from `start`, which must be a batch boundary, up to `end` or to the first position that
    cannot be a batch: the caller compares the two. Small batches are read many at a time; of batches larger than a read only the
    headers are read."""
    position, chunk_start, chunk = start, start, b""
    while end - position >= BATCH_HEADER_BYTES:
        in_chunk = position - chunk_start
        if in_chunk + BATCH_HEADER_BYTES > len(chunk):
            chunk_start, in_chunk = position, 0
            chunk = filesystem.read_at(file, min(_SCAN_BYTES, end - position), position)
            if len(chunk) < BATCH_HEADER_BYTES:
                return
        header = read_header(chunk, in_chunk)
        if not _is_plausible(header, end - position):
            return
        yield position, header
        position += header.length + LENGTH_END


def _is_plausible(header: BatchHeader, available: int) -> bool:
    """Whether this can be a stored batch within the next `available` bytes, not zeros or garbage."""
    return (
        header.magic == MAGIC
        and BATCH_HEADER_BYTES - LENGTH_END <= header.length <= available - LENGTH_END
        and header.last_offset_delta >= 0
        and header.base_offset >= 0
    )


def checksum_matches(filesystem: FileSystem, file: OpenFile, position: int, header: BatchHeader) -> bool:
    """Whether the stored batch at `position` is undamaged."""
    checksum, position, end = 0, position + CRC_START, position + header.size
    while position < end:
        data = filesystem.read_at(file, min(_CHECKSUM_BYTES_MAX, end - position), position)
        if not data:
            return False
        checksum = crc32c(data, checksum)
        position += len(data)
    return checksum == header.crc
