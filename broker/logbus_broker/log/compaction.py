"""Compacts the sealed segments of a log: the last record of each key is kept, and no offset changes.

A pass reads the dirty part into a map from key to last offset, then rewrites each group of segments without the records for
which the map has a later one. A group is installed the way Kafka does it, so a crash at any point leaves either the old segments
or the new one:

    00000000000000000000.log.cleaned    being written; removed at the next start
    00000000000000000000.log.swap       complete, flushed, and authoritative: the next start completes the exchange
    00000000000000000000.log.deleted    an old segment, out of the way

A pass ends where the map is full, possibly in the middle of a segment. Batches at or above `clean_offset` pass through unchanged,
and no tombstone there is given its delete horizon: its key is not in the map, so an older value may still exist, and a
tombstone's retention time begins only in the pass that removes what it deletes.

The last batch of a group is always kept, if necessary without records, so the new file itself shows how far it reaches, and a log
never ends earlier than it did. So is the first batch of each leader epoch: replicas learn from the batches they receive where an
epoch ends; if they had to guess, a record that its leader had lost could stay for good. A pass is a generator: it yields between
batches, so its driver decides how long it computes at a time and on which thread; and it yields an Exchange when the loop has to
put the new segment into the log's list. The old segments stay readable until then, and afterwards for readers that still have
them open.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

from logbus_broker.errors import RequestError, StorageError
from logbus_broker.filesystem import FileSystem, OpenFile, PinnedDirectory
from logbus_broker.log.segment import LOG, Segment
from logbus_broker.log.segment_index import RELATIVE_OFFSET_MAX, SegmentIndex
from logbus_broker.protocol.batch import BatchHeader, read_header
from logbus_broker.protocol.records import compact_batch, read_keys, record_bytes
from logbus_broker.settings import LogConfig

CLEANED, SWAP = ".cleaned", ".swap"
# A key is kept as a digest, so a long key costs no more than a short one: about 150 bytes of memory each, measured, and the limit
# assumes 200, since a growing dict exists twice for an instant.
OFFSET_MAP_ENTRY_BYTES = 200
_DIGEST_BYTES = 16  # of a cryptographic digest, since one of two keys with the same digest would be lost
_WRITE_BYTES = 1 << 20  # per write


class OffsetMap:
    """The last offset of each key in the dirty part of a log, within a fixed amount of memory. A full map ends the dirty part
    early: the rest is left for the next pass."""

    __slots__ = ("_entries_max", "_newest")

    def __init__(self, bytes_max: int) -> None:
        self._entries_max = max(bytes_max // OFFSET_MAP_ENTRY_BYTES, 1)
        self._newest: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._newest)

    @property
    def is_full(self) -> bool:
        return len(self._newest) >= self._entries_max

    def put(self, key: bytes, offset: int) -> None:
        """The record at `offset` has this key; offsets come in order."""
        self._newest[blake2b(key, digest_size=_DIGEST_BYTES).digest()] = offset

    def is_newest(self, key: bytes | None, offset: int) -> bool:
        """Whether no later record with this key was put. A record without a key is never the newest, and is removed."""
        return key is not None and self._newest.get(blake2b(key, digest_size=_DIGEST_BYTES).digest(), -1) <= offset


@dataclass(frozen=True, slots=True)
class Exchange:
    """`new` holds what is left of `old`; the loop puts it in their place before the pass continues."""

    old: tuple[Segment, ...]
    new: Segment


@dataclass(slots=True, kw_only=True)
class CompactionPass:
    """One pass over `segments`: all sealed and flushed, starting with the log's first."""

    filesystem: FileSystem
    directory: PinnedDirectory  # pinned: a pool thread works in it while the topic may be deleted and recreated
    segments: Sequence[Segment]
    first_dirty_offset: int
    producer_offsets: frozenset[int]  # last offset of each live producer's last batch
    epoch_starts: frozenset[int]  # first offset of each leader epoch except the oldest
    config: LogConfig
    now_ms: int
    offset_map: OffsetMap
    unfinished: Exchange | None = None  # left by an earlier pass that a disk error stopped
    clean_offset: int = field(default=0, init=False)  # below it every key is unique, once the pass has ended
    written_bytes: int = field(default=0, init=False)
    _batch_offset: int = field(default=-1, init=False)  # of the batch being processed

    def steps(self) -> Generator[Exchange | None, None, None]:
        """Run the pass, yielding as the module docstring says. StorageError: the log is as it was, except for the exchanges made;
        an unreadable batch is met before the first of them."""
        try:
            if self.unfinished is not None:
                finish_exchange(self.filesystem, self.unfinished.old, self.unfinished.new, self.directory.path)
                yield None
            yield from self._read_keys()
            for group in self._groups():
                yield from self._rewrite(group)
        except OSError as error:
            raise StorageError(f"cannot compact {self.segments[0].directory}: {error}") from error
        except RequestError as error:
            raise StorageError(
                f"cannot compact {self.segments[0].directory}: the batch at offset {self._batch_offset}: {error}"
            ) from error

    def withdraw(self, exchange: Exchange) -> None:
        """The exchange did not happen and will not: the next start must not complete it either, once the log has changed."""
        with suppress(OSError):
            self.filesystem.remove(exchange.new.path(LOG + SWAP, within=self.directory.path))

    def _batches(self, segment: Segment, offset: int) -> Iterator[tuple[BatchHeader, bytes]]:
        was_cold = not segment.is_warm
        try:
            first = segment.batch_at(offset) if offset > segment.base_offset else (0, 0)
            for position, header in segment.headers(first[0]) if first else ():
                self._batch_offset = header.base_offset
                yield header, segment.read(position, header.size)
        finally:  # also if the map is full or a batch cannot be read
            if was_cold:
                segment.forget()

    def _read_keys(self) -> Iterator[None]:
        self.clean_offset = self.first_dirty_offset
        for segment in self.segments:
            if segment.end_offset is not None and segment.end_offset <= self.first_dirty_offset:
                continue
            for header, batch in self._batches(segment, self.first_dirty_offset):
                if self.offset_map.is_full:
                    return
                for record in () if header.is_control else read_keys(record_bytes(header, batch), header):
                    if record.key is not None:
                        self.offset_map.put(record.key, record.offset)
                self.clean_offset = header.next_offset
                yield
            self.clean_offset = max(self.clean_offset, segment.end_offset or 0)

    def _groups(self) -> Iterator[list[Segment]]:
        """Neighbouring segments that together fit into one, so that what is left does not end up in ever smaller files."""
        group: list[Segment] = []
        for segment in self.segments:
            if segment.base_offset >= self.clean_offset:
                break
            fits = group and sum(neighbour.size for neighbour in (*group, segment)) <= self.config.segment_bytes
            if fits and (segment.end_offset or 0) - group[0].base_offset <= RELATIVE_OFFSET_MAX:
                group.append(segment)
                continue
            if group:
                yield group
            group = [segment]
        if group:
            yield group

    def _rewrite(self, group: Sequence[Segment]) -> Generator[Exchange | None, None, None]:
        first = group[0]
        directory = self.directory.path
        cleaned = first.path(LOG + CLEANED, within=directory)
        self.filesystem.remove(cleaned)
        file = self.filesystem.open(cleaned, create=True)
        index = SegmentIndex(base_offset=first.base_offset, interval_bytes=self.config.index_interval_bytes)
        size = yield from self._write(group, file, index)
        self.filesystem.sync_data(file)
        self.filesystem.set_modified_ms(cleaned, group[-1].modified_ms)
        self.filesystem.rename(cleaned, first.path(LOG + SWAP, within=directory))
        self.filesystem.sync_directory(directory)
        new = first.successor(size=size, file=file, index=index)
        yield Exchange(tuple(group), new)
        finish_exchange(self.filesystem, group, new, self.directory.path)
        yield None

    def _write(self, group: Sequence[Segment], file: OpenFile, index: SegmentIndex) -> Generator[None, None, int]:
        pending: list[bytes] = []
        pending_bytes = position = 0
        for segment in group:
            for header, batch in self._batches(segment, segment.base_offset):
                kept = self._compact(header, batch, last=header.next_offset == group[-1].end_offset)
                if kept:
                    index.observe(position + pending_bytes, read_header(kept))
                    pending.append(kept)
                    pending_bytes += len(kept)
                if pending_bytes >= _WRITE_BYTES:
                    self.filesystem.write_at(file, pending, position)
                    position, pending, pending_bytes = position + pending_bytes, [], 0
                yield
        if pending:
            self.filesystem.write_at(file, pending, position)
        self.written_bytes += position + pending_bytes
        return position + pending_bytes

    def _compact(self, header: BatchHeader, batch: bytes, *, last: bool) -> bytes:
        if header.base_offset >= self.clean_offset:
            return batch
        return compact_batch(
            batch,
            is_newest=self.offset_map.is_newest,
            now_ms=self.now_ms,
            delete_retention_ms=self.config.delete_retention_ms,
            header_needed=last or header.last_offset in self.producer_offsets or header.base_offset in self.epoch_starts,
        )


def finish_exchange(filesystem: FileSystem, group: Sequence[Segment], new: Segment, directory: Path) -> None:
    """Give the new segment its final name in `directory`, which is the log's. The old ones are first moved out of the way,
    durably: two files for the same offsets are never left. If it raises OSError it must be called again before anything else
    changes these files: it continues where it stopped."""
    doomed: list[Path] = []
    swap = new.path(LOG + SWAP, within=directory)
    if swap.name in filesystem.list_names(directory):  # else the .log file is already the new one
        doomed = [path for segment in group for path in segment.mark_deleted(within=directory)]
        filesystem.sync_directory(directory)
        filesystem.rename(swap, new.path(LOG, within=directory))
    filesystem.sync_directory(directory)
    new.is_durable = True
    with suppress(OSError):  # an index can be rebuilt
        new.save_index(within=directory)
        new.forget()  # no reader has it open, and a log may have a thousand of them
    for path in doomed:
        filesystem.remove(path)
