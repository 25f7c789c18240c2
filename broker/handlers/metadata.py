"""ApiVersions, Metadata and DescribeCluster: what the broker supports, and where everything is.

The bytes of a Metadata answer are kept until a topic changes: encoding a large one takes some milliseconds, and every client asks
again and again. A topic that is auto-created by a request is in its answer, which waits for the disk as CreateTopics does.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from itertools import islice
from types import MappingProxyType
from typing import Any

from broker.coordination.image import NO_LEADER
from broker.coordination.local import NO_TOPIC_ID, Topic, check_topic_name
from broker.errors import BrokerError, InvalidRequest, UnknownTopicOrPartition
from broker.handlers.answer_cache import Key
from broker.handlers.context import Context
from broker.handlers.error_codes import code_of
from broker.handlers.reply import Parts, Pending
from broker.handlers.slices import Answering, encode_in_slices, in_slices, in_turn
from broker.partitions.topic_admin import NewTopic
from broker.protocol.api import APIS, ApiKey, ErrorCode
from broker.protocol.control import decode_request, encode_response, response_class
from broker.protocol.framing import Request

_IDS_SINCE = 12  # version of the request: the two before have the field, but Kafka refuses it there
_CREATED_PER_REQUEST_MAX = 10  # a request that names thousands by mistake should not create them all; clients retry


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


def handle_metadata(request: Request, context: Context) -> Parts | Pending:
    key = (request.version, bytes(request.body), request.origin.listener)
    known = context.metadata_cache.get(key)
    if known is not None:
        return [known]
    message = decode_request(request.api_key, request.version, request.body)
    new = _topics_to_make(message, request.version, context)
    if new:
        return in_turn(_make_and_answer(message, new, request.version, key, context), context)
    return in_slices(_answer_metadata(message, request.version, key, context), context)


def _topics_to_make(message: Any, version: int, context: Context) -> list[NewTopic]:
    """The topics that the request auto-creates, a few at a time; clients retry for the others."""
    if not (context.config.auto_create_topics_enable and (version < 4 or message.allow_auto_topic_creation)):
        return []
    names = dict.fromkeys(asked.name for asked in message.topics or () if asked.name is not None and asked.topic_id is None)
    unknown = (name for name in names if name not in context.partitions.registry)
    return [NewTopic(name=name, overrides={}) for name in islice(unknown, _CREATED_PER_REQUEST_MAX)]


def _make_and_answer(message: Any, new: list[NewTopic], version: int, key: Key, context: Context) -> Answering:
    outcomes = yield from context.topic_changes.create(new)
    refused = {one.name: outcome for one, outcome in zip(new, outcomes, strict=True) if isinstance(outcome, BrokerError)}
    return (yield from _answer_metadata(message, version, key, context, refused=refused, may_ask_again=True))


def _answer_metadata(
    message: Any,
    version: int,
    key: Key,
    context: Context,
    *,
    refused: Mapping[str, BrokerError] = MappingProxyType({}),
    may_ask_again: bool = False,
) -> Answering:
    """`refused` holds why topics could not be created; `may_ask_again`: the remaining unknown ones may be, on a retry."""
    change = context.metadata_cache.change
    rows: list[Any] = []
    is_final = True
    if message.topics is None or (version == 0 and not message.topics):
        for topic in list(context.partitions.registry):
            with suppress(UnknownTopicOrPartition):  # deleted since the answer was begun
                rows.append(_topic_row(topic, context))
            yield None
    else:
        described: set[str] = set()
        for asked in {asked.topic_id or asked.name: asked for asked in message.topics}.values():  # each once
            try:
                if asked.topic_id is None and asked.name in refused:
                    raise refused[asked.name]
                topic = _find(asked, version, context)
                if topic.name not in described:  # by its name, and by its id
                    described.add(topic.name)
                    rows.append(_topic_row(topic, context))
            except BrokerError as error:
                is_final = False
                later = may_ask_again and isinstance(error, UnknownTopicOrPartition)
                code = ErrorCode.LEADER_NOT_AVAILABLE if later else code_of(error)
                rows.append(_missing_row(asked, code, version))
            yield None
    response = _metadata_response(rows, key[2], context)
    parts = yield from encode_in_slices(response, version, rows, *(row.partitions for row in rows))
    if is_final and context.metadata_cache.change == change:
        context.metadata_cache.put(key, b"".join(part for part in parts if isinstance(part, bytes)))
    return parts


def _metadata_response(topics: list[Any], listener: str, context: Context) -> Any:
    response = response_class(ApiKey.METADATA)
    return response(
        throttle_time_ms=0,
        brokers=[
            response.MetadataResponseBroker(node_id=broker_id, host=host, port=port, rack=rack)
            for broker_id, host, port, rack in context.view.brokers(listener)
        ],
        cluster_id=context.view.cluster_id,
        controller_id=context.view.controller_id,
        topics=topics,
        error_code=0,
    )


def _find(asked: Any, version: int, context: Context) -> Topic:
    """The id decides: a client that has both may have the name of a topic that was deleted and created again."""
    registry = context.partitions.registry
    if asked.topic_id is not None or asked.name is None:
        if version < _IDS_SINCE:
            raise InvalidRequest(f"Metadata takes topic ids from version {_IDS_SINCE} on: name the topic")
        return registry.get_by_id(asked.topic_id or NO_TOPIC_ID)
    if asked.name not in registry:
        check_topic_name(asked.name)
    return registry.get(asked.name)


def _topic_row(topic: Topic, context: Context) -> Any:
    response = response_class(ApiKey.METADATA)
    partitions = [
        response.MetadataResponseTopic.MetadataResponsePartition(
            error_code=0 if one.leader != NO_LEADER else ErrorCode.LEADER_NOT_AVAILABLE,
            partition_index=index,
            leader_id=one.leader,
            leader_epoch=one.leader_epoch,
            replica_nodes=one.replicas,
            isr_nodes=one.isr,
            offline_replicas=one.offline,
        )
        for index, one in enumerate(context.view.partitions(topic, range(topic.partition_count)))
    ]
    return response.MetadataResponseTopic(
        error_code=0,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=partitions,
    )


def _missing_row(asked: Any, error: int, version: int) -> Any:
    response = response_class(ApiKey.METADATA)
    return response.MetadataResponseTopic(
        error_code=error,
        name=(None if asked.topic_id is not None else asked.name) if version >= _IDS_SINCE else asked.name or "",
        topic_id=asked.topic_id or NO_TOPIC_ID,
        is_internal=False,
        partitions=[],
    )


def handle_describe_cluster(request: Request, context: Context) -> Parts:
    decode_request(request.api_key, request.version, request.body)
    response = response_class(ApiKey.DESCRIBE_CLUSTER)
    answer = response(
        throttle_time_ms=0,
        error_code=0,
        error_message=None,
        endpoint_type=1,
        cluster_id=context.view.cluster_id,
        controller_id=context.view.controller_id,
        brokers=[
            response.DescribeClusterBroker(broker_id=broker_id, host=host, port=port, rack=rack)
            for broker_id, host, port, rack in context.view.brokers(request.origin.listener)
        ],
    )
    return [encode_response(answer, request.version)]
