"""CreateTopics and DeleteTopics."""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from typing import Any

from broker.coordination.local import Topic
from broker.errors import BrokerError, InvalidConfig, InvalidReplicationFactor, InvalidRequest, InvalidTopic
from broker.handlers.commits import remove_offsets_of_topic
from broker.handlers.configs import settings_of_topic
from broker.handlers.context import Context
from broker.handlers.errors import code_of
from broker.handlers.reply import Parts
from broker.protocol.api import ApiKey, ErrorCode
from broker.protocol.control import decode_request, encode_response, response_class
from broker.protocol.framing import Request

logger = logging.getLogger("broker.topics")

_NO_ID = uuid.UUID(int=0)


def handle_create_topics(request: Request, context: Context) -> Parts:
    message = decode_request(request.api_key, request.version, request.body)
    names = Counter(asked.name for asked in message.topics)
    rows = []
    for asked in message.topics:
        try:
            if names[asked.name] > 1:
                raise InvalidRequest(f"topic {asked.name!r} is named twice in one request")
            rows.append(_create(asked, message.validate_only, context))
        except BrokerError as error:
            rows.append(_refused(asked.name, error))
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
        return _made(Topic(name=name, topic_id=_NO_ID, partition_count=count, overrides=overrides), context)
    topic = context.partitions.create(asked.name, partition_count, overrides)
    logger.info("created topic %s with %d partitions", topic.name, topic.partition_count)
    return _made(topic, context)


def _assigned_partitions(asked: Any, context: Context) -> int:
    me = [context.config.broker_id]
    indexes = sorted(row.partition_index for row in asked.assignments)
    if indexes != list(range(len(indexes))) or any(list(row.broker_ids) != me for row in asked.assignments):
        raise InvalidReplicationFactor(f"assignments must give every partition from 0 on to broker {me[0]} alone")
    return len(indexes)


def _refused(name: str, error: BrokerError) -> Any:
    return response_class(ApiKey.CREATE_TOPICS).CreatableTopicResult(
        name=name,
        topic_id=_NO_ID,
        error_code=code_of(error),
        error_message=str(error),
        topic_config_error_code=0,
        num_partitions=-1,
        replication_factor=-1,
        configs=None,
    )


def _made(topic: Topic, context: Context) -> Any:
    """What the topic is (or would be), with all its settings (KIP-525)."""
    row = response_class(ApiKey.CREATE_TOPICS).CreatableTopicResult
    configs = [
        row.CreatableTopicConfigs(name=s.name, value=s.value, read_only=False, config_source=s.source, is_sensitive=False)
        for s in settings_of_topic(topic, context)
    ]
    return row(
        name=topic.name,
        topic_id=topic.topic_id,
        error_code=ErrorCode.NONE,
        error_message=None,
        topic_config_error_code=0,
        num_partitions=topic.partition_count,
        replication_factor=1,
        configs=configs,
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
                topic_id=topic.topic_id if topic else topic_id or _NO_ID,
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
    remove_offsets_of_topic(topic.name, context)
    context.remove_files(doomed)
