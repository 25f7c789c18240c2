"""DeleteRecords: the log start offset moves forward, up to what has been acknowledged.

Records that are acknowledged but not yet visible count, as for ListOffsets: the answer waits until they are visible, so a client
may delete what it has just sent. The new log start offsets are written to the checkpoint before the answer, all with one write: a
crash does not bring records back.

With other replicas, those in sync are notified at once, and the answer waits until their logs start there, too: whichever of them
leads next, no client reads deleted records. Everything together waits at most the request's timeout_ms. Then the partitions that
are not done get REQUEST_TIMED_OUT, which means that their outcome is unknown, as in Kafka.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any

from logbus_broker.api import authorization, error_codes, handler, purgatory
from logbus_broker.errors import BrokerError, InvalidTopic, OffsetOutOfRange, PolicyViolation, RequestTimedOut
from logbus_broker.log import background_tasks, thread_pool
from logbus_broker.log.partition import Partition
from logbus_broker.protocol import api, codec

_HIGH_WATERMARK = -1


@dataclass(slots=True)
class _Row:
    topic: str
    index: int
    offset: int = -1
    partition: Partition | None = None  # None once the row has failed
    is_done: bool = False
    low_watermark: int = -1
    error: int = api.ErrorCode.NONE

    def refuse(self, error: BaseException) -> None:
        self.error, self.low_watermark, self.partition = error_codes.code_of(error), -1, None


@handler.answered_in_slices
def handle_delete_records(
    message: Any, version: int, caller: authorization.Caller, context: handler.Context
) -> handler.Answering:
    rows: list[_Row] = []
    for (topic, index), entries in handler.by_partition(message.topics).items():
        row = _Row(topic, index)
        rows.append(row)
        try:
            caller.check(authorization.TOPIC, topic)
            row.partition, row.offset = _checked(topic, entries[-1], context)  # the last of several, as in Kafka
        except BrokerError as error:
            row.refuse(error)
        yield None
    deletion = _Deletion([row for row in rows if row.partition is not None], message.timeout_ms, context)
    for row in deletion.rows:
        deletion.wait_for_visible(row)
        yield None
    while not deletion.is_over:
        while deletion.visible:
            deletion.delete(deletion.visible.popleft())
            yield None
        if not deletion.is_over:
            yield background_tasks.Until(deletion.when_stirred)
    moved = [row for row in rows if row.partition is not None]
    if moved:
        try:
            yield background_tasks.Until(context.checkpoints.until_written)
        except BrokerError as error:  # consumers see the new start, but a crash may bring records back: report failure
            for row in moved:
                row.refuse(error)
    return (yield from _encode(rows, version))


def _checked(topic: str, part: Any, context: handler.Context) -> tuple[Partition, int]:
    partition = context.partitions.get(topic, part.partition_index)
    if partition.is_internal:
        raise InvalidTopic(f"{topic} is internal: what the broker keeps in it would be lost")
    if not partition.log.config.is_trimmed:
        raise PolicyViolation(f"{topic} is compacted: the last record of each key stays; add delete to its cleanup.policy first")
    offset = partition.end_offset if part.offset == _HIGH_WATERMARK else part.offset
    if not 0 <= offset <= partition.end_offset:
        raise OffsetOutOfRange(f"{partition.name} holds {partition.log_start_offset} to {partition.end_offset}")
    return partition, offset


class _Deletion(purgatory.Deadline):
    """The rows of a request: each waits until its records are visible, and then until other replicas have deleted them."""

    __slots__ = ("_context", "_go_on", "_is_limited", "_left", "_timeout_ms", "rows", "visible")

    def __init__(self, rows: list[_Row], timeout_ms: int, context: handler.Context) -> None:
        super().__init__(context.clock.monotonic() + max(timeout_ms, 0) / 1000)
        self.rows = rows
        self.visible: deque[_Row] = deque()  # rows that can be deleted now
        self.is_over = not rows
        self._left = len(rows)
        # A standalone broker waits for its own disk, however long that takes.
        self._is_limited = any(row.partition is not None and row.partition.replicated is not None for row in rows)
        self._timeout_ms = timeout_ms
        self._context = context
        self._go_on: thread_pool.Outcome | None = None

    def wait_for_visible(self, row: _Row) -> None:
        assert row.partition is not None, "chosen so"
        self._context.high_watermark.when_visible(row.partition, row.offset, partial(self._is_visible, row), self)

    def delete(self, row: _Row) -> None:
        if row.is_done:
            return
        partition, leader = row.partition, self._context.leader
        assert partition is not None, "it is not refused yet"
        try:
            partition.require_led()
            partition.log.delete_before(row.offset, limit_offset=partition.visible_offset)
        except BrokerError as error:
            self._end(row, error)
            return
        if leader is None:
            self._end(row, None)
        else:
            leader.when_deleted(partition, row.offset, partial(self._end, row), self)

    def when_stirred(self, go_on: thread_pool.Outcome) -> None:
        """For a task with nothing to do: call `go_on` when there is something to delete, or everything is done."""
        self._go_on = go_on
        if self._is_limited and not self.is_timed:
            self._context.deadlines.add(self)

    def _is_visible(self, row: _Row, error: BrokerError | None) -> None:
        if error is not None:
            self._end(row, error)
        elif not row.is_done:
            self.visible.append(row)
            self._stir()

    def _end(self, row: _Row, error: BrokerError | None) -> None:
        if row.is_done:
            return
        row.is_done = True
        self._left -= 1
        if error is not None:
            row.refuse(error)
        elif row.partition is not None:
            leader = self._context.leader
            row.low_watermark = row.partition.log_start_offset if leader is None else leader.log_start_of_members(row.partition)
        if self._left == 0:
            self._context.deadlines.cancel(self)
            self._stir()

    def _stir(self) -> None:
        go_on, self._go_on = self._go_on, None
        if go_on is not None:
            go_on(None, None)

    def expire(self) -> None:
        error = RequestTimedOut(f"not deleted by all replicas in sync within {self._timeout_ms} ms (timeout.ms of the request)")
        for row in self.rows:
            self._end(row, error)


def _encode(rows: list[_Row], version: int) -> handler.Answering:
    response = codec.response_class(api.ApiKey.DELETE_RECORDS)
    topic_class = response.DeleteRecordsTopicResult
    part_class = topic_class.DeleteRecordsPartitionResult
    topics = [
        topic_class(
            name=name,
            partitions=[
                part_class(partition_index=row.index, low_watermark=row.low_watermark, error_code=row.error) for row in of_topic
            ],
        )
        for name, of_topic in handler.by_name(rows, attrgetter("topic")).items()
    ]
    return (yield from handler.encode_in_slices(response(topics=topics), version, rows))
