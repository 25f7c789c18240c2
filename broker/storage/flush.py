"""One flush of a partition's log: begun and finished by the loop, run by any thread, or by the kernel where one file is all.

The loop notes what is written but not flushed; the ticket brings it to the disk while the loop goes on appending; then the loop
moves the flushed offset to where the log ended when the ticket was begun. A file that was sealed meanwhile waits for the next
ticket, so the flushed offset never passes a hole.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path

from broker.errors import StorageError
from broker.storage.filesystem import FileSystem, OpenFile
from broker.storage.leader_epochs import LogEpochs
from broker.storage.segment import Segment

_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)  # fsync itself never says so


class FlushPostponed(StorageError):
    """A file or directory could not be opened for its flush, since no descriptors were left. Nothing has failed to reach the
    disk: the flush is to be asked for again."""


class FlushTicket:
    """What one flush has to do."""

    __slots__ = ("_directory", "_epochs", "_file", "_filesystem", "active", "end_offset", "end_position", "is_void", "sealed")

    def __init__(
        self,
        filesystem: FileSystem,
        *,
        sealed: Sequence[Segment],
        active: Segment,
        end_offset: int,
        directory: Path | None,
        epochs: LogEpochs | None = None,
    ) -> None:
        self._filesystem = filesystem
        self._directory = directory  # set where a file was made since the last flush
        self._epochs = epochs  # set where the records are of an epoch that is not written down
        self._file: OpenFile = active.file
        self.sealed = tuple(sealed)
        self.active = active
        self.end_offset = end_offset
        self.end_position = active.size
        self.is_void = False  # the log was abandoned: its directory may be another's by now, so nothing is written into it

    def run(self) -> None:
        """Any thread. StorageError: nothing may be believed about what is on the disk; hand it to `fail_flush`. FlushPostponed:
        hand it to `postpone_flush`."""
        try:
            for segment in self.sealed:
                self._filesystem.sync_data(segment.file)
            self._filesystem.sync_data(self._file)
            if self._directory is not None:
                self._filesystem.sync_directory(self._directory)
        except OSError as error:
            if error.errno in _NO_DESCRIPTORS:
                raise FlushPostponed(f"cannot flush {self.active.directory} yet: {error}") from error
            raise self.failure(error) from error
        if self.is_void:
            return
        for segment in self.sealed:
            self._save_index(segment)
        if self._epochs is not None:
            self._epochs.save()

    @property
    def has_new_names(self) -> bool:
        """Whether it brings the directory to the disk."""
        return self._directory is not None

    @property
    def only_file(self) -> OpenFile | None:
        """The file, where bringing it to the disk is all that `run` would do."""
        return None if self.sealed or self._directory is not None or self._epochs is not None else self._file

    def failure(self, error: OSError) -> StorageError:
        """What to hand to `fail_flush` where `only_file` could not be brought to the disk."""
        return StorageError(f"cannot flush {self.active.directory}: {error}")

    def _save_index(self, segment: Segment) -> None:
        """Indexes can be rebuilt, so a full disk here fails nothing: `index_saved` stays false and the next flush tries again."""
        try:
            segment.save_index()
        except OSError:
            segment.index_saved = False
