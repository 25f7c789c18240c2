"""Kafka's protocol as the simulation's clients speak it, without I/O: requests to bytes, answers to values, in the broker's own
codec, which golden frames, another implementation and stock clients check. Covers only what these clients send.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from logbus_broker.protocol.api import ApiKey
from logbus_broker.protocol.codec import request_class, response_class
from logbus_broker.protocol.framing import read_response, request_frame

PRODUCE, FETCH, LIST_OFFSETS, METADATA = ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.LIST_OFFSETS, ApiKey.METADATA
CREATE_TOPICS, DELETE_TOPICS, INIT_PRODUCER_ID = ApiKey.CREATE_TOPICS, ApiKey.DELETE_TOPICS, ApiKey.INIT_PRODUCER_ID
VERSIONS = {PRODUCE: 9, FETCH: 12, LIST_OFFSETS: 1, METADATA: 7, CREATE_TOPICS: 2, DELETE_TOPICS: 1, INIT_PRODUCER_ID: 0}

NONE, OFFSET_OUT_OF_RANGE, REQUEST_TIMED_OUT, OUT_OF_ORDER_SEQUENCE, INVALID_PRODUCER_EPOCH = 0, 1, 7, 45, 47
# After these the records are in no log. Any other error leaves it open: it may answer a retry of an attempt that was stored.
REFUSED = {
    2: "CORRUPT_MESSAGE",
    10: "MESSAGE_TOO_LARGE",
    17: "INVALID_TOPIC",
    19: "NOT_ENOUGH_REPLICAS",
    21: "INVALID_REQUIRED_ACKS",
}


class ProduceResult(NamedTuple):
    error: int
    base_offset: int


class FetchResult(NamedTuple):
    error: int
    records: bytes


class Metadata(NamedTuple):
    """Hosts by broker id, and for each partition (error, leader, leader epoch)."""

    hosts: dict[int, str]
    partitions: dict[tuple[str, int], tuple[int, int, int]]


def frame(api_key: ApiKey, correlation_id: int, body: bytes) -> bytes:
    return request_frame(api_key, VERSIONS[api_key], correlation_id, b"sim", body)


def body_of(api_key: ApiKey, answer: bytes) -> bytes:
    """An answer without its header."""
    return bytes(read_response(memoryview(answer), api_key, VERSIONS[api_key])[1])


def _request(api_key: ApiKey, **fields: Any) -> bytes:
    return request_class(api_key)(**fields).encode(version=VERSIONS[api_key])


def _answer(api_key: ApiKey, body: bytes) -> Any:
    return response_class(api_key).decode(body, version=VERSIONS[api_key])


def produce(topic: str, partition: int, records: bytes, *, acks: int, timeout_ms: int) -> bytes:
    row = request_class(PRODUCE).TopicProduceData
    data = row(name=topic, partition_data=[row.PartitionProduceData(index=partition, records=records)])
    return _request(PRODUCE, acks=acks, timeout_ms=timeout_ms, topic_data=[data])


def read_produce(body: bytes) -> ProduceResult:
    """The result for the one requested partition."""
    (topic,) = _answer(PRODUCE, body).responses
    (row,) = topic.partition_responses
    return ProduceResult(row.error_code, row.base_offset)


def fetch(topic: str, partition: int, offset: int, *, wait_ms: int, bytes_max: int) -> bytes:
    row = request_class(FETCH).FetchTopic
    part = row.FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=bytes_max)
    topics = [row(topic=topic, partitions=[part])]
    return _request(FETCH, max_wait_ms=wait_ms, min_bytes=1, max_bytes=1 << 20, topics=topics)


def read_fetch(body: bytes) -> FetchResult:
    """The result for the one requested partition."""
    answer = _answer(FETCH, body)
    if not answer.responses:
        return FetchResult(answer.error_code or -1, b"")
    (row,) = answer.responses[0].partitions
    return FetchResult(row.error_code, bytes(row.records or b""))


def list_offsets(topic: str, partition: int, timestamp: int) -> bytes:
    row = request_class(LIST_OFFSETS).ListOffsetsTopic
    part = row.ListOffsetsPartition(partition_index=partition, timestamp=timestamp)
    return _request(LIST_OFFSETS, replica_id=-1, topics=[row(name=topic, partitions=[part])])


def read_list_offsets(body: bytes) -> tuple[int, int]:
    """Error and offset."""
    (topic,) = _answer(LIST_OFFSETS, body).topics
    (row,) = topic.partitions
    return row.error_code, row.offset


def metadata(topics: list[str]) -> bytes:
    row = request_class(METADATA).MetadataRequestTopic
    return _request(METADATA, topics=[row(name=topic) for topic in topics], allow_auto_topic_creation=False)


def read_metadata(body: bytes) -> Metadata:
    answer = _answer(METADATA, body)
    return Metadata(
        {broker.node_id: broker.host for broker in answer.brokers},
        {
            (topic.name, row.partition_index): (row.error_code, row.leader_id, row.leader_epoch)
            for topic in answer.topics
            for row in topic.partitions
        },
    )


def create_topic(topic: str, partitions: int, replicas: int, configs: dict[str, str]) -> bytes:
    row = request_class(CREATE_TOPICS).CreatableTopic
    settings = [row.CreatableTopicConfig(name=name, value=value) for name, value in configs.items()]
    topics = [row(name=topic, num_partitions=partitions, replication_factor=replicas, configs=settings)]
    return _request(CREATE_TOPICS, topics=topics, timeout_ms=5_000)


def read_create_topic(body: bytes) -> int:
    """The error."""
    return int(_answer(CREATE_TOPICS, body).topics[0].error_code)


def delete_topic(topic: str) -> bytes:
    return _request(DELETE_TOPICS, topic_names=[topic], timeout_ms=5_000)


def read_delete_topic(body: bytes) -> int:
    """The error."""
    return int(_answer(DELETE_TOPICS, body).responses[0].error_code)


def init_producer_id() -> bytes:
    return _request(INIT_PRODUCER_ID, transactional_id=None)


def read_init_producer_id(body: bytes) -> tuple[int, int, int]:
    """Error, id and epoch."""
    answer = _answer(INIT_PRODUCER_ID, body)
    return answer.error_code, answer.producer_id, answer.producer_epoch
