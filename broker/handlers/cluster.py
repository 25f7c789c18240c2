"""ApiVersions, Metadata and DescribeCluster: what the broker can do, and where everything is.

A Metadata answer's bytes are kept until a topic changes: encoding a large one costs a millisecond, and every client asks
again and again.
"""

from __future__ import annotations

import uuid
from functools import cache
from typing import Any

from broker.coordination.local import Topic
from broker.errors import BrokerError, UnknownTopicOrPartition
from broker.handlers.context import Context
from broker.handlers.errors import code_of
from broker.handlers.reply import Parts
from broker.protocol.api import APIS, ApiKey, ErrorCode
from broker.protocol.control import decode_request, encode_response, response_class
from broker.protocol.framing import Request

_NOT_ASKED = None  # authorized operations, where the client did not ask for them: the codec writes the smallest integer
_NO_ID = uuid.UUID(int=0)
_CREATED_PER_REQUEST_MAX = 10  # each topic waits for the disk some milliseconds, and everybody else with it; clients ask again


def handle_api_versions(request: Request, context: Context) -> Parts:
    if not request.supported:
        return [_api_versions(0, ErrorCode.UNSUPPORTED_VERSION)]
    decode_request(request.api_key, request.version, request.body)
    return [_api_versions(request.version, ErrorCode.NONE)]


@cache
def _api_versions(version: int, error: int) -> bytes:
    response = response_class(ApiKey.API_VERSIONS)
    keys = [
        response.ApiVersion(api_key=int(key), min_version=api.first, max_version=api.last) for key, api in sorted(APIS.items())
    ]
    return encode_response(response(error_code=error, api_keys=keys, throttle_time_ms=0), version)


def handle_metadata(request: Request, context: Context) -> Parts:
    key = (request.version, bytes(request.body))
    known = context.metadata_cache.get(key)
    if known is not None:
        return [known]
    message = decode_request(request.api_key, request.version, request.body)
    topics, is_final = _metadata_topics(message, request.version, context)
    answer = encode_response(_metadata_response(topics, context), request.version)
    if is_final:
        context.metadata_cache.put(key, answer)
    return [answer]


def _metadata_response(topics: list[Any], context: Context) -> Any:
    response = response_class(ApiKey.METADATA)
    node = response.MetadataResponseBroker(
        node_id=context.config.broker_id, host=context.advertised_host, port=context.advertised_port, rack=None
    )
    return response(
        throttle_time_ms=0,
        brokers=[node],
        cluster_id=context.cluster_id,
        controller_id=context.config.broker_id,
        topics=topics,
        authorized_operations=_NOT_ASKED,
        error_code=0,
    )


def _metadata_topics(message: Any, version: int, context: Context) -> tuple[list[Any], bool]:
    """The rows asked for, and whether the same question has the same answer until a topic changes."""
    asks_all = message.topics is None or (version == 0 and not message.topics)
    if asks_all:
        return [_topic_row(topic, context) for topic in context.partitions.registry], True
    may_create = context.config.auto_create_topics_enable and (version < 4 or message.allow_auto_topic_creation)
    rows, is_final = [], True
    creatable = _CREATED_PER_REQUEST_MAX if may_create else 0
    for asked in {(asked.name, asked.topic_id): asked for asked in message.topics}.values():  # each once, as in Kafka
        try:
            if creatable and asked.name is not None and asked.name not in context.partitions.registry:
                creatable -= 1
                context.partitions.create(asked.name)
            rows.append(_topic_row(_find(asked, context), context))
        except BrokerError as error:
            is_final = False
            later = may_create and not creatable and isinstance(error, UnknownTopicOrPartition)
            rows.append(_missing_row(asked, ErrorCode.LEADER_NOT_AVAILABLE if later else code_of(error)))
    return rows, is_final


def _find(asked: Any, context: Context) -> Topic:
    if asked.name is None:
        return context.partitions.registry.get_by_id(asked.topic_id or _NO_ID)
    return context.partitions.registry.get(asked.name)


def _topic_row(topic: Topic, context: Context) -> Any:
    response = response_class(ApiKey.METADATA)
    me = context.config.broker_id
    partitions = [
        response.MetadataResponseTopic.MetadataResponsePartition(
            error_code=0,
            partition_index=index,
            leader_id=me,
            leader_epoch=context.partitions.get(topic.name, index).leader_epoch,
            replica_nodes=[me],
            isr_nodes=[me],
            offline_replicas=[],
        )
        for index in range(topic.partition_count)
    ]
    return response.MetadataResponseTopic(
        error_code=0,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=partitions,
        authorized_operations=_NOT_ASKED,
    )


def _missing_row(asked: Any, error: int) -> Any:
    response = response_class(ApiKey.METADATA)
    return response.MetadataResponseTopic(
        error_code=error,
        name=asked.name if asked.name is not None else "",
        topic_id=asked.topic_id or _NO_ID,
        is_internal=False,
        partitions=[],
        authorized_operations=_NOT_ASKED,
    )


def handle_describe_cluster(request: Request, context: Context) -> Parts:
    decode_request(request.api_key, request.version, request.body)
    response = response_class(ApiKey.DESCRIBE_CLUSTER)
    node = response.DescribeClusterBroker(
        broker_id=context.config.broker_id, host=context.advertised_host, port=context.advertised_port, rack=None
    )
    answer = response(
        throttle_time_ms=0,
        error_code=0,
        error_message=None,
        endpoint_type=1,
        cluster_id=context.cluster_id,
        controller_id=context.config.broker_id,
        brokers=[node],
        authorized_operations=_NOT_ASKED,
    )
    return [encode_response(answer, request.version)]
