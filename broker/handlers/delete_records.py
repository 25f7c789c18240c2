"""DeleteRecords: the log's start moves forward, up to what has been acknowledged.

What was acknowledged and is not yet visible counts, as for ListOffsets: the answer waits until it is, so a client may delete what
it has just sent. The new starts are written to the checkpoint before the answer, all with one write: a crash brings nothing back.
Other replicas learn the new start with their next fetch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from broker.chores import Until
from broker.errors import BrokerError, InvalidTopic, OffsetOutOfRange
from broker.handlers.context import Context
from broker.handlers.errors import code_of
from broker.handlers.reply import Parts, Pending
from broker.handlers.slices import Answering, encode_in_slices, in_slices
from broker.helpers import Outcome
from broker.partitions.partition import Partition
from broker.protocol.api import ApiKey, ErrorCode
from broker.protocol.control import decode_request, response_class
from broker.protocol.framing import Request

UP_TO_THE_END = -1


@dataclass(slots=True)
class _Row:
    topic: str
    index: int
    offset: int = -1
    partition: Partition | None = None  # None once the row is refused
    low_watermark: int = -1
    error: int = ErrorCode.NONE

    def refuse(self, error: BaseException) -> None:
        self.error, self.low_watermark, self.partition = code_of(error), -1, None


def handle_delete_records(request: Request, context: Context) -> Parts | Pending:
    message = decode_request(request.api_key, request.version, request.body)
    return in_slices(_delete(message, request.version, context), context)


def _delete(message: Any, version: int, context: Context) -> Answering:
    rows: list[_Row] = []
    for topic in message.topics:
        for part in topic.partitions:
            row = _Row(topic.name, part.partition_index)
            rows.append(row)
            try:
                row.partition, row.offset = _checked(topic.name, part, context)
            except BrokerError as error:
                row.refuse(error)
            yield None
    yield Until(partial(_when_all_are_visible, rows, context))
    moved = []
    for row in rows:
        if row.partition is not None:
            try:
                row.partition.require_led()
                row.partition.log.delete_before(row.offset, limit_offset=row.partition.visible_offset)
                if context.leader is not None:
                    context.leader.log_start_moved(row.partition)
                row.low_watermark = row.partition.log_start_offset
                moved.append(row)
            except BrokerError as error:
                row.refuse(error)
            yield None
    if moved:
        try:
            yield Until(context.checkpoints.until_written)
        except BrokerError as error:  # consumers see the new start, and a crash may bring the records back: say that it failed
            for row in moved:
                row.refuse(error)
    return (yield from _encode(rows, version))


def _checked(topic: str, part: Any, context: Context) -> tuple[Partition, int]:
    partition = context.partitions.get(topic, part.partition_index)
    if partition.is_internal:
        raise InvalidTopic(f"{topic} is internal: committed offsets would be lost")
    offset = partition.end_offset if part.offset == UP_TO_THE_END else part.offset
    if not 0 <= offset <= partition.end_offset:
        raise OffsetOutOfRange(f"{partition.name} holds {partition.log_start_offset} to {partition.end_offset}")
    return partition, offset


def _when_all_are_visible(rows: list[_Row], context: Context, go_on: Outcome) -> None:
    waiting = [row for row in rows if row.partition is not None]
    left = len(waiting) + 1  # one for this function: some may be told at once

    def told(row: _Row | None, error: BaseException | None) -> None:
        nonlocal left
        left -= 1
        if error is not None and row is not None:
            row.refuse(error)
        if left == 0:
            go_on(None, None)

    for row in waiting:
        assert row.partition is not None, "chosen so"
        context.exposure.when_visible(row.partition, row.offset, partial(told, row))
    told(None, None)


def _encode(rows: list[_Row], version: int) -> Answering:
    response = response_class(ApiKey.DELETE_RECORDS)
    topic_class = response.DeleteRecordsTopicResult
    by_topic: dict[str, list[Any]] = {}
    for row in rows:
        by_topic.setdefault(row.topic, []).append(
            topic_class.DeleteRecordsPartitionResult(
                partition_index=row.index, low_watermark=row.low_watermark, error_code=row.error
            )
        )
    topics = [topic_class(name=name, partitions=partitions) for name, partitions in by_topic.items()]
    return (yield from encode_in_slices(response(throttle_time_ms=0, topics=topics), version, rows))
