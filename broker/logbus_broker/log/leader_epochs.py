"""Which leader epoch wrote which offsets of a partition (KIP-101): Kafka's `leader-epoch-checkpoint`, in text.

0                   version
2                   entries
0 0                 epoch, and the first offset that was written in it
3 1500

On a single broker an epoch begins with a start that may have lost unflushed records: a consumer that had read beyond the log's
new end learns where the epochs diverge, and never takes new records for old ones. In a cluster epochs are assigned: a leader
begins the one in which it was elected (`begin`), a follower those it finds in its leader's batches.

An epoch is first noted in memory only; the next flush that includes its records writes the file, off the loop: a broker that
restarts after a crash begins an epoch in a thousand partitions at once. If the file is missing or damaged, or does not end with
the epoch of the log's last batch, it is rebuilt from the batches, which carry their epoch: only a segment within which the epoch
changes is read completely. An epoch in which nothing was written is then lost, but it is not needed: it ended where the previous
one did.

No crash assigns one epoch to two different sets of visible records:

    before the flush has ended      no record of the epoch was visible. Those that survive carry it, so it still counts; if none
                                    survives, the next start may begin the same epoch, for the first time as far as any reader
                                    can tell.
    after it                        the records are on disk, and so is the file. If writing the file failed, the flush is valid
                                    all the same, since the last batch of the log holds what the file would: a start takes the
                                    later of the two, and looks for that batch in earlier segments if the last is empty.
    all of them were deleted        by retention, and writing the file failed: the epoch is reused for records that follow the
                                    deleted ones; none was lost, so there is no second set for the same offsets.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from logbus_broker.config.parsers import INT32_MAX, INT64_MAX, between
from logbus_broker.disk.filesystem import FileSystem
from logbus_broker.log.segment import Segment
from logbus_broker.protocol.batch import NO_EPOCH

logger = logging.getLogger("broker.log")

LEADER_EPOCHS = "leader-epoch-checkpoint"
_VERSION = "0"
_parse_epoch, _parse_offset = between(0, INT32_MAX), between(0, INT64_MAX)  # what a batch has room for

Entry = tuple[int, int]


class LeaderEpochs:
    """(epoch, first offset) pairs, ascending in both."""

    __slots__ = ("entries",)

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self.entries: list[Entry] = []
        for epoch, start_offset in entries:
            self.assign(epoch, start_offset)

    @property
    def latest(self) -> int:
        """The epoch of the last entry, or NO_EPOCH."""
        return self.entries[-1][0] if self.entries else NO_EPOCH

    def starts(self) -> frozenset[int]:
        """Where each epoch except the oldest began, which is where the previous one ended."""
        return frozenset(start_offset for _, start_offset in self.entries[1:])

    def assign(self, epoch: int, start_offset: int) -> None:
        """Batches from `start_offset` on have `epoch`. Entries for offsets that were never written are removed."""
        if epoch <= self.latest:
            return
        self.cut(start_offset)
        self.entries.append((epoch, start_offset))

    def cut(self, end_offset: int) -> None:
        """The log ends at `end_offset`: forget epochs in which nothing before it was written."""
        while self.entries and self.entries[-1][1] >= end_offset:
            self.entries.pop()

    def end_offset_of(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """The largest epoch not above `epoch`, and where it ends. An epoch older than all entries ended where the first one
        began; for one newer than all of them nothing is known: (-1, -1)."""
        if epoch == self.latest:
            return epoch, log_end_offset
        if epoch < 0 or epoch > self.latest:
            return NO_EPOCH, -1
        following = bisect_right(self.entries, epoch, key=lambda entry: entry[0])
        return (self.entries[following - 1][0] if following else epoch), self.entries[following][1]

    def epoch_of(self, offset: int) -> int:
        """The epoch in which the record at `offset`, which is in the log, was written; NO_EPOCH if that is not known."""
        following = bisect_right(self.entries, offset, key=lambda entry: entry[1])
        return self.entries[following - 1][0] if following else NO_EPOCH

    def encode(self) -> bytes:
        lines = [_VERSION, str(len(self.entries)), *(f"{epoch} {offset}" for epoch, offset in self.entries)]
        return "\n".join(lines).encode() + b"\n"

    @classmethod
    def decode(cls, data: bytes) -> LeaderEpochs | None:
        """The entries, or None if the bytes are not such a file."""
        try:
            version, count, *rows = data.decode("ascii").splitlines()
            entries = [(_parse_epoch(epoch), _parse_offset(offset)) for epoch, offset in (row.split(" ") for row in rows)]
        except ValueError:
            return None
        ascends = all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(entries))
        is_whole = data.endswith(b"\n") and count == str(len(entries))  # "1 50" must not be read as "1 5"
        return cls(entries) if version == _VERSION and is_whole and ascends else None


class LogEpochs:
    """The epochs of one log: those noted so far, and `current`, in which this broker writes."""

    __slots__ = ("_filesystem", "_is_told", "_path", "_saved", "current", "is_noted", "written")

    def __init__(
        self, filesystem: FileSystem, directory: Path, written: LeaderEpochs | None = None, *, rises: bool = False
    ) -> None:
        self._filesystem = filesystem
        self._path = directory / LEADER_EPOCHS
        self.written = written or LeaderEpochs()
        self.current = max(self.written.latest, 0) + rises
        self.is_noted = self.current == self.written.latest  # checked by each append
        self._saved: LeaderEpochs | None = self.written  # what the file holds; like `written`, replaced and never modified
        self._is_told = False

    @property
    def is_saved(self) -> bool:
        """Whether everything noted is in the file."""
        return self._saved is self.written

    def note(self, start_offset: int) -> None:
        """`current` begins at `start_offset`; the next flush writes it to the file."""
        epochs = LeaderEpochs(self.written.entries)
        epochs.assign(self.current, start_offset)
        self.written, self.is_noted = epochs, True

    def begin(self, epoch: int) -> None:
        """This broker writes in `epoch`, assigned from outside, from now on. It is noted with the first record: an epoch in which
        nothing is written ends where the previous one did, and carries no information."""
        assert epoch >= self.current, "epochs never fall"
        self.current = epoch
        self.is_noted = epoch == self.written.latest

    def note_batch(self, epoch: int, start_offset: int) -> None:
        """A leader's batch of `epoch`, newer than all before, was stored at `start_offset`."""
        self.current = epoch
        self.note(start_offset)

    def adopt_cut(self, epochs: LeaderEpochs, *, is_saved: bool) -> None:
        """The log was truncated: `epochs` are left, and the file holds them (`is_saved`) or may hold anything."""
        self.written, self._saved = epochs, epochs if is_saved else None
        self.current = max(epochs.latest, 0)
        self.is_noted = self.current == epochs.latest

    def save(self) -> None:
        """Write what was noted to disk; any thread. A failure is logged once, and the next flush tries again. The very first
        epoch may be lost: no file means that the epoch never changed."""
        written = self.written
        try:
            if len(written.entries) == 1:
                self._filesystem.write_bytes(self._path, written.encode(), durable=False)
            else:
                self._filesystem.replace_bytes(self._path, written.encode())
        except OSError as error:
            if not self._is_told:
                logger.warning("cannot write %s: %s; the next flush tries again", self._path, error)
            self._is_told = True
        else:
            self._saved = written

    def end_offset_of(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """The largest epoch not above `epoch`, and the offset after its last record; (-1, -1) if `epoch` is newer than any of
        ours."""
        if epoch == self.current:
            return epoch, log_end_offset
        if self.written.latest < epoch < self.current:
            return self.written.latest, log_end_offset
        return self.written.end_offset_of(epoch, log_end_offset)


def load_leader_epochs(
    filesystem: FileSystem, directory: Path, segments: Sequence[Segment], *, end_offset: int, last_epoch: int
) -> LeaderEpochs:
    """What the directory's file holds, or what the log says if the two differ. `last_epoch` is that of the log's last batch, or
    NO_EPOCH if none was found."""
    path, is_damaged = directory / LEADER_EPOCHS, False
    try:
        epochs = LeaderEpochs.decode(filesystem.read_bytes(path))
        is_damaged = epochs is None
    except FileNotFoundError:
        epochs = None
    if epochs is not None:
        epochs.cut(end_offset)
    if epochs is None or epochs.latest != last_epoch != NO_EPOCH:
        epochs = _rebuild_leader_epochs(segments)
    if is_damaged:
        logger.warning("%s is damaged: rebuilt from the log's batches", path)
        with suppress(OSError):  # the next start rebuilds it again
            filesystem.replace_bytes(path, epochs.encode())
    return epochs


def _rebuild_leader_epochs(segments: Sequence[Segment]) -> LeaderEpochs:
    """Read the epochs from the batches."""
    epochs = LeaderEpochs()
    headers = [segment.first_header() for segment in segments]
    for number, segment in enumerate(segments):
        first, following = headers[number], headers[number + 1] if number + 1 < len(headers) else None
        if first is not None and following is not None and first.leader_epoch == following.leader_epoch:
            epochs.assign(first.leader_epoch, first.base_offset)  # the same at both ends: the same throughout
        else:
            for _, header in segment.headers():
                epochs.assign(header.leader_epoch, header.base_offset)
            if segment is not segments[-1]:
                segment.close_file()
    return epochs
