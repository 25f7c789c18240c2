"""CreateTopics, DeleteTopics and DeleteRecords."""

from __future__ import annotations

import logging
import uuid
from typing import Any

from broker.coordination.local import Topic
from broker.errors import BrokerError, InvalidConfig, InvalidReplicationFactor, InvalidRequest, InvalidTopic, OffsetOutOfRange
from broker.handlers.context import Context
from broker.handlers.errors import code_of
from broker.handlers.reply import Parts
from broker.protocol.api import ApiKey, ErrorCode
from broker.protocol.control import decode_request, encode_response, response_class
from broker.protocol.framing import Request

logger = logging.getLogger("broker.topics")

_DYNAMIC_TOPIC_CONFIG = 1  # Kafka's config source number for a topic's own setting


def handle_create_topics(request: Request, context: Context) -> Parts:
    message = decode_request(request.api_key, request.version, request.body)
    names = [asked.name for asked in message.topics]
    rows = []
    for asked in message.topics:
        try:
            if names.count(asked.name) > 1:
                raise InvalidRequest(f"topic {asked.name!r} is named twice in one request")
            rows.append(_create(asked, message.validate_only, context))
        except BrokerError as error:
            rows.append(_result(asked.name, error=error))
    return [encode_response(response_class(ApiKey.CREATE_TOPICS)(throttle_time_ms=0, topics=rows), request.version)]


def _create(asked: Any, validate_only: bool, context: Context) -> Any:
    overrides = {item.name: item.value for item in asked.configs or ()}
    if any(value is None for value in overrides.values()):
        raise InvalidConfig("a topic configuration without a value")
    partition_count = asked.num_partitions
    if asked.assignments:
        partition_count = _assigned_partitions(asked, context)
    elif asked.replication_factor not in (-1, 1):
        raise InvalidReplicationFactor(f"replication factor {asked.replication_factor} with one broker: use 1 (or -1)")
    if validate_only:
        name, count = context.partitions.check_new(asked.name, partition_count, overrides)
        if name in context.partitions.registry:
            return _result(name, code=ErrorCode.TOPIC_ALREADY_EXISTS, text=f"topic {name!r} exists")
        return _result(name, count=count, overrides=overrides)
    topic = context.partitions.create(asked.name, partition_count, overrides)
    logger.info("created topic %s with %d partitions", topic.name, topic.partition_count)
    return _result(topic.name, count=topic.partition_count, overrides=overrides, topic_id=topic.topic_id)


def _assigned_partitions(asked: Any, context: Context) -> int:
    me = [context.config.broker_id]
    indexes = sorted(row.partition_index for row in asked.assignments)
    if indexes != list(range(len(indexes))) or any(list(row.broker_ids) != me for row in asked.assignments):
        raise InvalidReplicationFactor(f"assignments must give every partition from 0 on to broker {me[0]} alone")
    return len(indexes)


def _result(
    name: str,
    *,
    error: BrokerError | None = None,
    code: int = 0,
    text: str | None = None,
    count: int = -1,
    overrides: dict[str, str] | None = None,
    topic_id: uuid.UUID | None = None,
) -> Any:
    response = response_class(ApiKey.CREATE_TOPICS)
    row = response.CreatableTopicResult
    failed = error is not None or code != 0
    configs = [
        row.CreatableTopicConfigs(name=key, value=value, read_only=False, config_source=_DYNAMIC_TOPIC_CONFIG, is_sensitive=False)
        for key, value in (overrides or {}).items()
    ]
    return row(
        name=name,
        topic_id=topic_id or uuid.UUID(int=0),
        error_code=code_of(error) if error is not None else code,
        error_message=str(error) if error is not None else text,
        topic_config_error_code=0,
        num_partitions=count,
        replication_factor=-1 if failed else 1,
        configs=None if failed else configs,
    )


def handle_delete_topics(request: Request, context: Context) -> Parts:
    message = decode_request(request.api_key, request.version, request.body)
    if request.version >= 6:
        asked = [(state.name, state.topic_id) for state in message.topics]
    else:
        asked = [(name, None) for name in message.topic_names]
    response = response_class(ApiKey.DELETE_TOPICS)
    rows = []
    for name, topic_id in asked:
        code, text, topic = ErrorCode.NONE, None, None
        try:
            topic = context.partitions.topic_of(name, topic_id)
            _delete(topic, context)
        except BrokerError as error:
            code, text = code_of(error), str(error)
        rows.append(
            response.DeletableTopicResult(
                name=topic.name if topic else name,
                topic_id=topic.topic_id if topic else topic_id or uuid.UUID(int=0),
                error_code=code,
                error_message=text,
            )
        )
    return [encode_response(response(throttle_time_ms=0, responses=rows), request.version)]


def _delete(topic: Topic, context: Context) -> None:
    if topic.is_internal:
        raise InvalidTopic(f"{topic.name} is internal and cannot be deleted")
    if not context.config.delete_topic_enable:
        raise InvalidRequest("delete.topic.enable=false")
    doomed = context.partitions.delete(topic)
    logger.info("deleted topic %s (%d partitions)", topic.name, topic.partition_count)
    context.remove_files(doomed)


def handle_delete_records(request: Request, context: Context) -> Parts:
    message = decode_request(request.api_key, request.version, request.body)
    response = response_class(ApiKey.DELETE_RECORDS)
    topic_class = response.DeleteRecordsTopicResult
    topics = []
    for topic in message.topics:
        parts = []
        for asked in topic.partitions:
            low_watermark, code = -1, ErrorCode.NONE
            try:
                low_watermark = _delete_before(topic.name, asked.partition_index, asked.offset, context)
            except BrokerError as error:
                code = code_of(error)
            parts.append(
                topic_class.DeleteRecordsPartitionResult(
                    partition_index=asked.partition_index, low_watermark=low_watermark, error_code=code
                )
            )
        topics.append(topic_class(name=topic.name, partitions=parts))
    return [encode_response(response(throttle_time_ms=0, topics=topics), request.version)]


def _delete_before(topic: str, index: int, offset: int, context: Context) -> int:
    partition = context.partitions.get(topic, index)
    if offset == -1:  # "up to the high watermark"
        offset = partition.visible_offset
    if not 0 <= offset <= partition.visible_offset:
        raise OffsetOutOfRange(f"{partition.name} holds {partition.log_start_offset} to {partition.visible_offset}")
    partition.log.delete_before(offset)
    context.partitions.checkpoint()
    return partition.log_start_offset
