"""One partition as its leader sees it: batches are staged while a turn of the loop reads requests, then written together.

Staging gives a batch its offset and stamps it; nobody sees a difference yet. `write_staged` is one write for all that the turn
brought; end offset, indexes and the memory of producers move only after it succeeded, and on failure the whole turn is as if it
never came. What nobody expected between the write and all of that, a defect or memory that ran out, takes this one partition
offline: its file may hold what its memory does not know. What consumers may see is `visible_offset`: on one node, what is
flushed.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from uuid import UUID

from broker.coordination.local import INTERNAL_TOPICS
from broker.counters import Traffic
from broker.errors import StorageError
from broker.partitions.producer_memory import ProducerMemory
from broker.partitions.producer_state import PRODUCERS_MAX, ProducerStates
from broker.records.batch import NO_PRODUCER_ID, BatchHeader, stamp
from broker.records.validation import NewBatch
from broker.storage.partition_log import PartitionLog

logger = logging.getLogger("broker.partitions")

PRODUCER_EXPIRATION_MS = 86_400_000  # Kafka's default of producer.id.expiration.ms


@dataclass(slots=True)
class Staged:
    """Where a batch will lie once the turn is written, or where it lies already. One per batch, so not frozen: that costs 0.6
    us."""

    base_offset: int
    duplicate: bool
    max_timestamp: int = field(default=-1, compare=False)


class Partition:
    """See the file's theory. Making one reads the log to remember its producers."""

    def __init__(
        self,
        topic: str,
        index: int,
        topic_id: UUID,
        log: PartitionLog,
        *,
        producers_max: int = PRODUCERS_MAX,
        producer_expiration_ms: int = PRODUCER_EXPIRATION_MS,
    ) -> None:
        self.name = f"{topic}-{index}"
        self.topic = topic
        self.index = index
        self.topic_id = topic_id
        self.is_internal = topic in INTERNAL_TOPICS
        self.log = log
        self.leader_epoch = log.epochs.current
        self.producers = ProducerStates(producers_max=producers_max)
        self.producer_memory = ProducerMemory(self.producers, log, expiration_ms=producer_expiration_ms)
        self.traffic = Traffic()
        self._staged_views: list[memoryview] = []
        self._staged_headers: list[BatchHeader] = []
        self._next_offset = log.end_offset
        if not log.offline_reason:
            self.producer_memory.restore()

    @property
    def has_staged(self) -> bool:
        return bool(self._staged_views)

    @property
    def visible_offset(self) -> int:
        """All below it may be seen by consumers."""
        return self.log.flushed_offset

    @property
    def end_offset(self) -> int:
        return self.log.end_offset

    @property
    def log_start_offset(self) -> int:
        return self.log.log_start_offset

    def stage(self, batch: NewBatch) -> Staged:
        """Give the batch its offset and stamp it, where its producer may send it now. Its bytes must stay as they are until
        `write_staged`."""
        header = batch.header
        is_numbered = header.producer_id != NO_PRODUCER_ID  # looked at here: two calls for each batch of any other producer
        if is_numbered and (duplicate := self.producers.check(header)) is not None:
            return Staged(duplicate.base_offset, True, duplicate.max_timestamp)
        base_offset = self._next_offset
        stamp(batch.view, base_offset, self.leader_epoch)
        header = header.stamped(base_offset, self.leader_epoch)
        if is_numbered:
            self.producers.stage(header)
        self._staged_views.append(batch.view)
        self._staged_headers.append(header)
        self._next_offset = base_offset + header.last_offset_delta + 1
        return Staged(base_offset, False, header.max_timestamp)

    def write_staged(self) -> None:
        """Write all that is staged; StorageError: none of it is stored, and nothing is staged any more."""
        views, headers = self._staged_views, self._staged_headers
        if not views:
            return
        self._staged_views, self._staged_headers = [], []
        was_online = not self.log.offline_reason
        try:
            self.log.append(views, headers)
            self.producers.apply_staged()
        except Exception as error:
            if not isinstance(error, StorageError):  # the batches are written and their producers are not remembered
                self.log.go_offline(f"{self.name}: what was written could not be noted: {error!r}")
            self.producers.discard_staged()
            self._next_offset = self.log.end_offset
            if was_online and self.log.offline_reason:
                reason = self.log.offline_reason
                is_disk = isinstance(error.__cause__, OSError)
                logger.critical(
                    "%s is offline until the broker is restarted: %s%s",
                    self.name,
                    reason,
                    "" if is_disk else "; this is a defect of the broker",
                    exc_info=None if is_disk else error,
                )
                raise StorageError(reason) from error
            raise

    def discard_staged(self) -> None:
        """Nothing of what is staged will be written."""
        self._staged_views, self._staged_headers = [], []
        self.producers.discard_staged()
        self._next_offset = self.log.end_offset

    def close(self) -> None:
        """Flush and close the log, and write down what its producers sent. StorageError: the stop is not clean."""
        if not self.log.offline_reason:
            self.producer_memory.save()
        self.log.close()
