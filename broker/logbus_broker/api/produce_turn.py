"""The produce requests of one turn of the loop: staged one by one, written together, answered together.

Hot path. Every partition that received batches in this turn is written with one write. If that write fails, the whole turn of
that partition is taken back and each of its batches is answered with the error; if it took the log offline, requests that wait
for earlier records of it are failed, too. Other partitions are not affected: nothing that one request or one partition does keeps
the others from being written and answered. The same holds if this broker loses leadership of a partition during the turn, or
cannot be sure of it when the turn ends: staged batches are not written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from logbus_broker.errors import BrokerError, StorageError
from logbus_broker.log.high_watermark import HighWatermark
from logbus_broker.log.partition import Partition
from logbus_broker.logs import log_bug
from logbus_broker.protocol.produce import ProduceAnswer


class StagedRequest:
    """A produce request whose batches are staged: answers by position, and the partition each was staged on. `finish` is called
    with the request itself once the turn is written: a function and a slot cost less than a closure per request."""

    __slots__ = ("answers", "finish", "staged")

    def __init__(
        self, answers: list[ProduceAnswer], staged: list[tuple[ProduceAnswer, Partition]], finish: Callable[[Any], None]
    ) -> None:
        self.answers = answers
        self.staged = staged
        self.finish = finish

    def fail_as_defect(self) -> None:
        """`finish` raised an exception: the waiting client must still learn that there is no answer."""


class ProduceTurn:
    """Collects staged requests until the turn ends."""

    def __init__(
        self,
        high_watermark: HighWatermark,
        is_awaited: Callable[[Partition], bool],
        fail: Callable[[ProduceAnswer, BrokerError], None],
    ) -> None:
        self._written, self._request_flush, self._went_offline = (
            high_watermark.written,
            high_watermark.request_flush,
            high_watermark.failed,
        )
        self._is_awaited = is_awaited
        self._fail = fail
        self.why_not: Callable[[Partition], BrokerError | None] | None = (
            None  # returns why a partition may not be written to, or None
        )
        # Nothing was stored, and the log is as it was: the disk is full, most often.
        self.on_refused: Callable[[Partition, StorageError], None] = lambda partition, error: None
        self._requests: list[StagedRequest] = []
        self._touched: dict[Partition, int] = {}

    def add(self, request: StagedRequest) -> None:
        self._requests.append(request)

    def touch(self, partition: Partition, byte_count: int) -> None:
        """`byte_count` bytes were staged on the partition."""
        self._touched[partition] = self._touched.get(partition, 0) + byte_count

    def lose(self, partition: Partition, error: BrokerError) -> None:
        """This broker no longer leads the partition: nothing more may be written to it or acknowledged."""
        if self._touched.pop(partition, None) is not None:
            partition.discard_staged()
        if self._requests:
            self._mark_failed({partition: error})

    def end(self) -> None:
        """Write what was staged, then answer."""
        if self.why_not is not None and self._requests:
            self._refuse(self.why_not)
        if self._touched:
            failed = self._write()
            if self.why_not is not None:
                failed = {**self._no_longer_led(self.why_not), **failed}
            self._touched = {}
            if failed:
                self._mark_failed(failed)
        if self._requests:
            requests, self._requests = self._requests, []
            for request in requests:
                try:
                    request.finish(request)
                except Exception:
                    self._fail_as_defect(request)

    def _fail_as_defect(self, request: StagedRequest) -> None:
        log_bug("completing a request failed")
        try:
            request.fail_as_defect()
        except Exception:
            log_bug("closing the connection of a failed request failed")

    def abandon(self) -> None:
        """A turn ended with an unexpected exception. Partitions that were not written discard what was staged, and unanswered
        requests get an error: nothing is acknowledged that is not in the log."""
        touched, self._touched = self._touched, {}
        for partition in touched:
            partition.discard_staged()
        requests, self._requests = self._requests, []
        for request in requests:
            for answer, partition in request.staged:
                if partition in touched:
                    self._fail(
                        answer,
                        StorageError(
                            f"{partition.name}: an internal error kept the batch from being written; see the broker's log"
                        ),
                    )
            try:
                request.finish(request)
            except Exception:
                self._fail_as_defect(request)

    def _write(self) -> dict[Partition, BrokerError]:
        failed: dict[Partition, BrokerError] = {}
        for partition, byte_count in self._touched.items():
            log = partition.log
            end_offset, was_online = log.end_offset, not log.offline_reason
            try:
                partition.write_staged()
            except StorageError as error:
                failed[partition] = error
                if not log.offline_reason:
                    self.on_refused(partition, error)
                elif was_online:
                    self._went_offline(partition, error)
                continue
            self.written(partition, log.end_offset - end_offset, byte_count)
        return failed

    def written(self, partition: Partition, record_count: int, byte_count: int) -> None:
        """`record_count` records were written to the partition's log."""
        traffic = partition.traffic
        traffic.messages_in += record_count
        traffic.bytes_in += byte_count
        self._written(partition, byte_count)
        if self._is_awaited(partition):
            self._request_flush(partition)

    def take_back(self, partition: Partition, error: Exception) -> None:
        """A write by the fast path has failed, or must be undone."""
        try:
            partition.take_back(error)
        except StorageError as refused:
            if partition.log.offline_reason:
                self._went_offline(partition, refused)

    def settle(self, partition: Partition, batches: Sequence[tuple[int, int, int]], end_offset: int, byte_count: int) -> None:
        """The fast path has written these batches to an online log. StorageError: an unexpected failure took the partition
        offline."""
        record_count = end_offset - partition.log.end_offset
        try:
            partition.settle(batches, end_offset)
        except StorageError as error:
            self._went_offline(partition, error)
            raise
        self.written(partition, record_count, byte_count)

    def _refuse(self, why_not: Callable[[Partition], BrokerError | None]) -> None:
        """Write and acknowledge nothing on partitions that this broker cannot be sure to lead. That includes duplicates: the
        answer to the original may no longer hold."""
        partitions = dict.fromkeys(self._touched)
        for request in self._requests:
            partitions.update((partition, None) for _, partition in request.staged)
        rejected = {partition: error for partition in partitions if (error := why_not(partition)) is not None}
        for partition in rejected:
            if self._touched.pop(partition, None) is not None:
                partition.discard_staged()
        if rejected:
            self._mark_failed(rejected)

    def _no_longer_led(self, why_not: Callable[[Partition], BrokerError | None]) -> dict[Partition, BrokerError]:
        """A write that a disk held up may end when another broker leads: what was written is not acknowledged."""
        return {partition: error for partition in self._touched if (error := why_not(partition)) is not None}

    def _mark_failed(self, failed: Mapping[Partition, BrokerError]) -> None:
        for request in self._requests:
            for answer, partition in request.staged:
                if partition in failed and not answer.error:
                    self._fail(answer, failed[partition])
