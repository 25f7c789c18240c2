"""Produce v9 and Fetch v12 bodies, written by another implementation (kio) than the broker's own."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from kio.schema.fetch.v12 import request as fetch_request
from kio.schema.produce.v9 import request as produce_request
from kio.static.primitive import i32Timedelta
from logbus_broker.protocol.api import ApiKey

from tests.support.kio_messages import read_response, written


def produce_body(
    batches: dict[tuple[str, int], bytes | None], *, acks: int = -1, transactional_id: str | None = None, timeout_ms: int = 1000
) -> bytearray:
    """A Produce v9 body, from batches by (topic, partition)."""
    topics = tuple(
        produce_request.TopicProduceData(
            name=topic,
            partition_data=(produce_request.PartitionProduceData(index=index, records=None if raw is None else bytes(raw)),),
        )
        for (topic, index), raw in batches.items()
    )
    timeout = i32Timedelta.parse(timedelta(milliseconds=timeout_ms))
    return bytearray(
        written(produce_request.ProduceRequest(transactional_id=transactional_id, acks=acks, timeout=timeout, topic_data=topics))
    )


def produce_answer(raw: bytes) -> dict[tuple[str, int], Any]:
    response = read_response(ApiKey.PRODUCE, 9, raw)
    return {(topic.name, row.index): row for topic in response.responses for row in topic.partition_responses}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """One partition of a fetch."""

    topic: str
    index: int = 0
    offset: int = 0
    bytes_max: int = 1 << 20
    leader_epoch: int = -1


def fetch_body(*wanted: Wanted, wait_ms: int = 0, bytes_min: int = 1, bytes_max: int = 1 << 20, session_id: int = 0) -> bytearray:
    """A Fetch v12 body."""
    topics = tuple(
        fetch_request.FetchTopic(
            topic=part.topic,
            partitions=(
                fetch_request.FetchPartition(
                    partition=part.index,
                    current_leader_epoch=part.leader_epoch,
                    fetch_offset=part.offset,
                    last_fetched_epoch=-1,
                    log_start_offset=-1,
                    partition_max_bytes=part.bytes_max,
                ),
            ),
        )
        for part in wanted
    )
    request = fetch_request.FetchRequest(
        replica_id=-1,
        max_wait=i32Timedelta.parse(timedelta(milliseconds=wait_ms)),
        min_bytes=bytes_min,
        max_bytes=bytes_max,
        isolation_level=0,
        session_id=session_id,
        session_epoch=-1,
        topics=topics,
        forgotten_topics_data=(),
    )
    return bytearray(written(request))


def fetch_answer(raw: bytes) -> Any:
    return read_response(ApiKey.FETCH, 12, raw)
