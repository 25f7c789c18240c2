"""The produce requests of one turn of the loop: staged one by one, written together, answered together.

Hot path. Every partition that got batches this turn is written with one write. Where that write fails, the whole turn of that
partition is taken back and each of its batches is answered with the error; other partitions are not affected. Nothing that one
request or one partition does keeps the others from being written and answered.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from broker.errors import StorageError
from broker.partitions.flusher import Flusher
from broker.partitions.partition import Partition
from broker.protocol.produce import ProduceAnswer

logger = logging.getLogger("broker.handlers")


class StagedRequest:
    """A produce request whose batches are staged: answers by position, with the partition each was staged on. `finish` is called
    with the request itself once the turn is written: a function and a slot cost less than a closure made for each request."""

    __slots__ = ("answers", "finish", "staged")

    def __init__(
        self, answers: list[ProduceAnswer], staged: list[tuple[ProduceAnswer, Partition]], finish: Callable[[Any], None]
    ) -> None:
        self.answers = answers
        self.staged = staged
        self.finish = finish

    def fail_as_defect(self) -> None:
        """`finish` has raised, whatever it is: whoever waits must still learn that there is no answer."""


class ProduceTurn:
    """Collects staged requests until the turn ends."""

    def __init__(
        self, flusher: Flusher, is_awaited: Callable[[Partition], bool], fail: Callable[[ProduceAnswer, StorageError], None]
    ) -> None:
        self._flusher = flusher
        self._is_awaited = is_awaited
        self._fail = fail
        self._requests: list[StagedRequest] = []
        self._touched: dict[Partition, int] = {}

    def add(self, request: StagedRequest) -> None:
        self._requests.append(request)

    def touch(self, partition: Partition, byte_count: int) -> None:
        """`byte_count` bytes were staged on the partition."""
        self._touched[partition] = self._touched.get(partition, 0) + byte_count

    def end(self) -> None:
        """Write what was staged, then answer."""
        if self._touched:
            failed = self._write()
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
        logger.exception("a request could not be finished; this is a defect of the broker")
        try:
            request.fail_as_defect()
        except Exception:
            logger.exception("nor could its connection be closed; this is a defect of the broker")

    def abandon(self) -> None:
        """A turn ended with an exception that nobody expected. Partitions that were not written take back what was staged, and
        whoever has no answer yet is told so: nothing is acknowledged that is not in the log."""
        touched, self._touched = self._touched, {}
        for partition in touched:
            partition.discard_staged()
        requests, self._requests = self._requests, []
        for request in requests:
            for answer, partition in request.staged:
                if partition in touched:
                    self._fail(answer, StorageError(f"{partition.name}: the broker could not end a turn; see its log"))
            try:
                request.finish(request)
            except Exception:
                self._fail_as_defect(request)

    def _write(self) -> dict[Partition, StorageError]:
        failed: dict[Partition, StorageError] = {}
        for partition, byte_count in self._touched.items():
            log, traffic = partition.log, partition.traffic
            end_offset = log.end_offset
            try:
                partition.write_staged()
            except StorageError as error:
                failed[partition] = error
                continue
            traffic.messages_in += log.end_offset - end_offset
            traffic.bytes_in += byte_count
            self._flusher.appended(partition, byte_count)
            if self._is_awaited(partition):
                self._flusher.want(partition)
        return failed

    def _mark_failed(self, failed: dict[Partition, StorageError]) -> None:
        for request in self._requests:
            for answer, partition in request.staged:
                if partition in failed:
                    self._fail(answer, failed[partition])
