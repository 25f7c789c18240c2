"""One flush of a partition's log: begun and finished by the loop, run on any thread, or by the kernel if it is a single file.

The loop notes what is written but not flushed; the ticket brings it to disk while the loop continues to append; then the loop
moves the flushed offset to where the log ended when the ticket was begun. A file sealed in the meantime waits for the next
ticket, so the flushed offset never passes a gap.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path

from broker.errors import StorageError
from broker.storage.filesystem import FileSystem, OpenFile
from broker.storage.leader_epochs import LogEpochs
from broker.storage.segment import Segment

_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)  # fsync itself never fails with these


class FlushPostponed(StorageError):
    """A file or directory could not be opened for its flush, since no descriptors were left. No write has failed: the flush
    must be requested again."""


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
        self._directory = directory  # set if a file was created since the last flush
        self._epochs = epochs  # set if the records have an epoch that is not saved yet
        self._file: OpenFile = active.file
        self.sealed = tuple(sealed)
        self.active = active
        self.end_offset = end_offset
        self.end_position = active.size
        self.is_void = False  # the log was abandoned: its directory may be another log's now, so nothing is written to it

    def run(self) -> None:
        """May run on any thread. StorageError: nothing may be assumed about what is on disk; pass it to `fail_flush`.
        FlushPostponed: call `postpone_flush`."""
        try:
            for segment in self.sealed:
                if not segment.is_durable:  # else only its indexes are missing
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
        """Whether it syncs the directory."""
        return self._directory is not None

    @property
    def only_file(self) -> OpenFile | None:
        """The file, if syncing it is all that `run` would do."""
        return None if self.sealed or self._directory is not None or self._epochs is not None else self._file

    def failure(self, error: OSError) -> StorageError:
        """What to pass to `fail_flush` if `only_file` could not be synced."""
        return StorageError(f"cannot flush {self.active.directory}: {error}")

    def _save_index(self, segment: Segment) -> None:
        """Indexes can be rebuilt, so a full disk is not a failure here: `index_saved` stays false and the next flush retries."""
        try:
            segment.save_index()
        except OSError:
            segment.index_saved = False
