"""OffsetForLeaderEpoch: where a leader epoch ended, so that a client that read in it can tell whether its position still exists
(KIP-320).
"""

from __future__ import annotations

from typing import Any

from broker.errors import BrokerError, StorageError
from broker.handlers.context import Context
from broker.handlers.error_codes import code_of
from broker.handlers.fetch import check_leader_epoch
from broker.handlers.slices import Answering, answered_in_slices, encode_in_slices
from broker.protocol.api import ApiKey
from broker.protocol.control import response_class


@answered_in_slices
def handle_offset_for_leader_epoch(message: Any, version: int, context: Context) -> Answering:
    response = response_class(ApiKey.OFFSET_FOR_LEADER_EPOCH)
    topic_class = response.OffsetForLeaderTopicResult
    topics = []
    for topic in message.topics:
        rows = []
        for part in topic.partitions:
            rows.append(_row(topic.topic, part, context, topic_class.EpochEndOffset))
            yield None
        topics.append(topic_class(topic=topic.topic, partitions=rows))
    response = response(throttle_time_ms=0, topics=topics)
    return (yield from encode_in_slices(response, version, *(topic.partitions for topic in topics)))


def _row(topic: str, part: Any, context: Context, row_class: Any) -> Any:
    code, epoch, end_offset = 0, -1, -1
    try:
        partition = context.partitions.get(topic, part.partition)
        check_leader_epoch(part.current_leader_epoch, partition)
        if partition.log.offline_reason:
            raise StorageError(partition.log.offline_reason)
        epoch, end_offset = partition.log.epochs.end_offset_of(part.leader_epoch, partition.end_offset)
    except BrokerError as error:
        code = code_of(error)
    return row_class(error_code=code, partition=part.partition, leader_epoch=epoch, end_offset=end_offset)
