"""Which leader epoch wrote which offsets of a partition (KIP-101): Kafka's `leader-epoch-checkpoint`, in text.

0                   version
2                   entries
0 0                 epoch, and the first offset that was written in it
3 1500

An epoch begins with a start that may have lost what nobody had flushed: so who read further than the log reaches now is told
where the epochs part, and never takes new records for old ones. The file is written before the first append of an epoch. Where
it is missing or damaged, or older than the log, it is rebuilt from the batches, which carry their epoch: only a segment within
which the epoch changes is read as a whole.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

from broker.errors import StorageError
from broker.storage.filesystem import FileSystem
from broker.storage.segment import Segment

LEADER_EPOCHS = "leader-epoch-checkpoint"
NO_EPOCH = -1

_VERSION = "0"

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

    def assign(self, epoch: int, start_offset: int) -> None:
        """From `start_offset` on batches are of `epoch`. Entries of offsets that were never written go."""
        if epoch <= self.latest:
            return
        self.cut(start_offset)
        self.entries.append((epoch, start_offset))

    def cut(self, end_offset: int) -> None:
        """The log ends at `end_offset`: forget epochs in which nothing before it was written."""
        while self.entries and self.entries[-1][1] >= end_offset:
            self.entries.pop()

    def end_offset_of(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """The largest epoch that is not above `epoch`, and where it ends. An epoch older than all has ended where the first one
        began; of one newer than all nothing is known: (-1, -1)."""
        if epoch == self.latest:
            return epoch, log_end_offset
        if epoch < 0 or epoch > self.latest:
            return NO_EPOCH, -1
        following = bisect_right(self.entries, epoch, key=lambda entry: entry[0])
        return (self.entries[following - 1][0] if following else epoch), self.entries[following][1]

    def encode(self) -> bytes:
        lines = [_VERSION, str(len(self.entries)), *(f"{epoch} {offset}" for epoch, offset in self.entries)]
        return "\n".join(lines).encode() + b"\n"

    @classmethod
    def decode(cls, data: bytes) -> LeaderEpochs | None:
        """The entries, or None where the bytes are no such file."""
        try:
            version, count, *rows = data.decode("ascii").splitlines()
            entries = [(int(epoch), int(offset)) for epoch, offset in (row.split(" ") for row in rows)]
        except ValueError:
            return None
        ascends = all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(entries))
        return cls(entries) if version == _VERSION and count == str(len(entries)) and ascends else None


class LogEpochs:
    """The epochs of one log: those written down, and `current`, in which this broker writes since its start."""

    __slots__ = ("_filesystem", "_path", "current", "is_written", "written")

    def __init__(
        self, filesystem: FileSystem, directory: Path, written: LeaderEpochs | None = None, *, rises: bool = False
    ) -> None:
        self._filesystem = filesystem
        self._path = directory / LEADER_EPOCHS
        self.written = written or LeaderEpochs()
        self.current = max(self.written.latest, 0) + rises
        self.is_written = self.current == self.written.latest  # then batches may be appended in it; asked for by each append

    def write(self, start_offset: int) -> None:
        """Note that `current` begins at `start_offset`; on the disk when this returns. The very first epoch may be lost: no file
        means that it never changed."""
        epochs = LeaderEpochs(self.written.entries)
        epochs.assign(self.current, start_offset)
        try:
            if self.written.entries:
                self._filesystem.replace_bytes(self._path, epochs.encode())
            else:
                self._filesystem.write_bytes(self._path, epochs.encode(), durable=False)
        except OSError as error:
            raise StorageError(f"cannot write {self._path}: {error}") from error
        self.written, self.is_written = epochs, True

    def end_offset_of(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """The largest epoch that is not above `epoch`, and the offset after its last record; (-1, -1) where it is newer than
        ours."""
        if epoch == self.current:
            return epoch, log_end_offset
        if self.written.latest < epoch < self.current:
            return self.written.latest, log_end_offset
        return self.written.end_offset_of(epoch, log_end_offset)


def load_leader_epochs(
    filesystem: FileSystem, directory: Path, segments: Sequence[Segment], *, end_offset: int, last_epoch: int
) -> LeaderEpochs:
    """The directory's file, or what the log says where the two differ. `last_epoch` is that of the log's last batch, NO_EPOCH
    where it was not looked at."""
    try:
        epochs = LeaderEpochs.decode(filesystem.read_bytes(directory / LEADER_EPOCHS))
    except FileNotFoundError:
        epochs = None
    if epochs is not None:
        epochs.cut(end_offset)
    if epochs is None or epochs.latest < last_epoch:
        epochs = rebuild_leader_epochs(segments)
    return epochs


def rebuild_leader_epochs(segments: Sequence[Segment]) -> LeaderEpochs:
    """Read from the batches what epochs there are."""
    epochs = LeaderEpochs()
    firsts = [next((header.leader_epoch for _, header in segment.headers()), None) for segment in segments]
    for number, segment in enumerate(segments):
        first, following = firsts[number], firsts[number + 1] if number + 1 < len(firsts) else None
        if first is not None and first == following:
            epochs.assign(first, segment.base_offset)  # the same at both ends: the same throughout
            continue
        for _, header in segment.headers():
            epochs.assign(header.leader_epoch, header.base_offset)
    return epochs
