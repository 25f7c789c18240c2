"""DeleteRecords: the log's start moves forward, up to what has been acknowledged.

What was acknowledged and is not yet flushed counts, as for ListOffsets: the answer waits for its flush, so a client may delete
what it has just sent. The new start is written to the checkpoint before the answer: a crash brings nothing back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from broker.errors import BrokerError, OffsetOutOfRange
from broker.handlers.context import Context
from broker.handlers.errors import code_of
from broker.handlers.reply import Pending
from broker.partitions.partition import Partition
from broker.protocol.api import ApiKey, ErrorCode
from broker.protocol.control import decode_request, encode_response, response_class
from broker.protocol.framing import Request

UP_TO_THE_END = -1


@dataclass(slots=True)
class _Row:
    topic: str
    index: int
    low_watermark: int = -1
    error: int = ErrorCode.NONE


def handle_delete_records(request: Request, context: Context) -> Pending:
    message = decode_request(request.api_key, request.version, request.body)
    asked = [(topic.name, part) for topic in message.topics for part in topic.partitions]
    rows = [_Row(name, part.partition_index) for name, part in asked]
    pending, left = Pending(), len(rows)

    def done() -> None:
        nonlocal left
        left -= 1
        if left <= 0:
            pending.complete([_encode(rows, request.version)])

    for row, (_, part) in zip(rows, asked, strict=True):
        _begin(row, part.offset, context, done)
    if not rows:
        done()
    return pending


def _begin(row: _Row, offset: int, context: Context, done: Callable[[], None]) -> None:
    def when_visible(error: BaseException | None) -> None:
        try:
            if error is not None:
                raise error
            partition.log.delete_before(offset)
            context.partitions.checkpoint()
            row.low_watermark = partition.log_start_offset
        except BrokerError as failure:
            row.error = code_of(failure)
        done()

    try:
        partition = context.partitions.get(row.topic, row.index)
        offset = _checked(partition, offset)
    except BrokerError as failure:
        row.error = code_of(failure)
        done()
        return
    context.flusher.when_visible(partition, offset, when_visible)


def _checked(partition: Partition, offset: int) -> int:
    offset = partition.end_offset if offset == UP_TO_THE_END else offset
    if not 0 <= offset <= partition.end_offset:
        raise OffsetOutOfRange(f"{partition.name} holds {partition.log_start_offset} to {partition.end_offset}")
    return offset


def _encode(rows: list[_Row], version: int) -> bytes:
    response = response_class(ApiKey.DELETE_RECORDS)
    topic_class = response.DeleteRecordsTopicResult
    by_topic: dict[str, list[_Row]] = {}
    for row in rows:
        by_topic.setdefault(row.topic, []).append(row)
    topics = [
        topic_class(
            name=name,
            partitions=[
                topic_class.DeleteRecordsPartitionResult(
                    partition_index=row.index, low_watermark=row.low_watermark, error_code=row.error
                )
                for row in of_topic
            ],
        )
        for name, of_topic in by_topic.items()
    ]
    return encode_response(response(throttle_time_ms=0, topics=topics), version)
