"""ApiVersions, Metadata, DescribeCluster and DescribeLogDirs: what the broker supports, where everything is, and how much space
it takes.

The bytes of a Metadata answer are kept until a topic changes: encoding a large one takes some milliseconds, and every client asks
again and again. A topic that is auto-created by a request is in its answer, which waits for the disk as CreateTopics does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache
from types import MappingProxyType
from typing import Any

from logbus_broker.api import authorization, error_codes, handler
from logbus_broker.cluster import metadata_image, topic_registry
from logbus_broker.errors import BrokerError, InvalidRequest, StorageError, UnknownTopicOrPartition
from logbus_broker.log.partition import Partition
from logbus_broker.log.topic_admin import NewTopic
from logbus_broker.protocol import codec, framing
from logbus_broker.protocol.api import APIS, ApiKey, ErrorCode

ENTRIES_MAX = 256  # distinct Metadata requests of one cluster's clients
BYTES_MAX = 16 << 20  # ten encodings of the largest cluster that one broker holds

Key = tuple[int, bytes, str | tuple[framing.Origin, int]]


class MetadataCache:
    """Maps a request's version, body and listener to the bytes of its answer; with ACLs, which show everybody something else, its
    sender and the version of the ACLs take the listener's place."""

    def __init__(self) -> None:
        self._answers: dict[Key, bytes] = {}
        self.size_bytes = 0
        self.change = 0  # incremented whenever cached answers become invalid

    def __len__(self) -> int:
        return len(self._answers)

    def get(self, key: Key) -> bytes | None:
        return self._answers.get(key)

    def put(self, key: Key, answer: bytes) -> None:
        """Keep the answer, unless it is too large."""
        size = len(key[1]) + len(answer)
        if size > BYTES_MAX:
            return
        if len(self._answers) >= ENTRIES_MAX or self.size_bytes + size > BYTES_MAX:
            self.clear()
        self._answers[key] = answer
        self.size_bytes += size

    def clear(self) -> None:
        """Drop everything: something has changed, or there is no room."""
        self._answers.clear()
        self.size_bytes = 0
        self.change += 1


_IDS_SINCE = 12  # version of the request: the two before have the field, but Kafka refuses it there
_CREATED_PER_REQUEST_MAX = 10  # a request that names thousands by mistake should not create them all; clients retry


def handle_api_versions(request: framing.Request, context: handler.Context) -> handler.Parts:
    if not request.supported:
        return [_api_versions(0, ErrorCode.UNSUPPORTED_VERSION)]
    codec.decode_request(request.api_key, request.version, request.body)
    return [_api_versions(request.version, ErrorCode.NONE)]


@cache
def _api_versions(version: int, error: int) -> bytes:
    response = codec.response_class(ApiKey.API_VERSIONS)
    keys = [
        response.ApiVersion(api_key=int(key), min_version=api.first, max_version=api.last) for key, api in sorted(APIS.items())
    ]
    return codec.encode_response(response(error_code=error, api_keys=keys), version)


def handle_metadata(request: framing.Request, context: handler.Context) -> handler.Parts | handler.Pending:
    authorizer, origin = context.authorizer, request.origin
    audience = origin.listener if authorizer is None else (origin, authorizer.version)
    key: Key = (request.version, bytes(request.body), audience)
    cached = context.metadata_cache.get(key)
    if cached is not None:
        return [cached]
    message = codec.decode_request(request.api_key, request.version, request.body)
    caller = handler.caller_of(request, context)
    unknown = _topics_to_create(message, request.version, context)
    if unknown:
        return handler.in_turn(_create_and_answer(message, unknown, request.version, key, caller, context), context)
    return handler.in_slices(_answer_metadata(message, request.version, key, caller, context), context)


def _topics_to_create(message: Any, version: int, context: handler.Context) -> list[str]:
    """The topics that the request would have created."""
    if not (context.config.auto_create_topics_enable and (version < 4 or message.allow_auto_topic_creation)):
        return []
    names = dict.fromkeys(
        requested.name for requested in message.topics or () if requested.name is not None and requested.topic_id is None
    )
    return [name for name in names if name not in context.partitions.registry]


def _create_and_answer(
    message: Any, unknown: list[str], version: int, key: Key, caller: authorization.Caller, context: handler.Context
) -> handler.Answering:
    """A few are created at a time; clients retry for the others."""
    new: list[NewTopic] = []
    rejected: dict[str, BrokerError] = {}
    creator = caller.as_api(ApiKey.CREATE_TOPICS)
    for name in unknown:
        yield None
        if not caller.allows(authorization.TOPIC, name):
            continue  # refused for that reason already
        try:
            creator.check_create(name)
            new.append(NewTopic(name=name, overrides={}))
            if len(new) == _CREATED_PER_REQUEST_MAX:
                break
        except BrokerError as error:
            rejected[name] = error
    if new:
        outcomes = yield from context.topic_changes.create(new)
        rejected |= {
            topic.name: outcome for topic, outcome in zip(new, outcomes, strict=True) if isinstance(outcome, BrokerError)
        }
    return (yield from _answer_metadata(message, version, key, caller, context, rejected=rejected, may_retry=True))


def _answer_metadata(
    message: Any,
    version: int,
    key: Key,
    caller: authorization.Caller,
    context: handler.Context,
    *,
    rejected: Mapping[str, BrokerError] = MappingProxyType({}),
    may_retry: bool = False,
) -> handler.Answering:
    """`rejected` holds why topics could not be created; `may_retry`: the remaining unknown ones may be, on a retry."""
    change = context.metadata_cache.change
    rows: list[Any] = []
    is_final = True
    if message.topics is None or (version == 0 and not message.topics):
        for topic in list(context.partitions.registry):
            if caller.allows(authorization.TOPIC, topic.name):
                with suppress(UnknownTopicOrPartition):  # deleted since the answer was begun
                    rows.append(_topic_row(topic, context))
            yield None
    else:
        described: set[str] = set()
        for requested in {requested.topic_id or requested.name: requested for requested in message.topics}.values():  # each once
            try:
                if requested.topic_id is None and requested.name in rejected:
                    raise rejected[requested.name]
                topic = _find(requested, version, caller, context)
                if topic.name not in described:  # by its name, and by its id
                    described.add(topic.name)
                    rows.append(_topic_row(topic, context))
            except BrokerError as error:
                is_final = False
                later = may_retry and isinstance(error, UnknownTopicOrPartition)
                code = ErrorCode.LEADER_NOT_AVAILABLE if later else error_codes.code_of(error)
                rows.append(_missing_row(requested, code, version))
            yield None
    if version >= 8 and message.include_topic_authorized_operations:
        for row in rows:
            if not row.error_code:
                row.topic_authorized_operations = caller.operations(authorization.TOPIC, row.name)
            yield None
    response = _metadata_response(rows, caller.origin.listener, context)
    if 8 <= version <= 10 and message.include_cluster_authorized_operations:
        response.cluster_authorized_operations = caller.cluster_operations()
    parts = yield from handler.encode_in_slices(response, version, rows, *(row.partitions for row in rows))
    if is_final and context.metadata_cache.change == change:
        context.metadata_cache.put(key, b"".join(part for part in parts if isinstance(part, bytes)))
    return parts


def _metadata_response(topics: list[Any], listener: str, context: handler.Context) -> Any:
    response = codec.response_class(ApiKey.METADATA)
    return response(
        brokers=[
            response.MetadataResponseBroker(node_id=broker_id, host=host, port=port, rack=rack)
            for broker_id, host, port, rack in context.view.brokers(listener)
        ],
        cluster_id=context.view.cluster_id,
        controller_id=context.view.controller_id,
        topics=topics,
    )


def _find(requested: Any, version: int, caller: authorization.Caller, context: handler.Context) -> topic_registry.Topic:
    """The id decides: a client that has both may have the name of a topic that was deleted and created again."""
    registry = context.partitions.registry
    if requested.topic_id is not None or requested.name is None:
        if version < _IDS_SINCE:
            raise InvalidRequest(f"Metadata takes topic ids from version {_IDS_SINCE} on: name the topic")
        topic = registry.get_by_id(requested.topic_id or topic_registry.NO_TOPIC_ID)
        caller.check(authorization.TOPIC, topic.name)  # that an id exists is no secret, in Kafka neither
        return topic
    caller.check(authorization.TOPIC, requested.name)
    if requested.name not in registry:
        topic_registry.check_topic_name(requested.name)
    return registry.get(requested.name)


def _topic_row(topic: topic_registry.Topic, context: handler.Context) -> Any:
    response = codec.response_class(ApiKey.METADATA)
    partitions = [
        response.MetadataResponseTopic.MetadataResponsePartition(
            error_code=0 if partition.leader != metadata_image.NO_LEADER else ErrorCode.LEADER_NOT_AVAILABLE,
            partition_index=index,
            leader_id=partition.leader,
            leader_epoch=partition.leader_epoch,
            replica_nodes=partition.replicas,
            isr_nodes=partition.isr,
            offline_replicas=partition.offline,
        )
        for index, partition in enumerate(context.view.partitions(topic, range(topic.partition_count)))
    ]
    return response.MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=partitions,
    )


def _missing_row(requested: Any, error: int, version: int) -> Any:
    response = codec.response_class(ApiKey.METADATA)
    return response.MetadataResponseTopic(
        error_code=error,
        name=(None if requested.topic_id is not None else requested.name) if version >= _IDS_SINCE else requested.name or "",
        topic_id=requested.topic_id,
    )


def handle_describe_cluster(request: framing.Request, context: handler.Context) -> handler.Parts:
    message = codec.decode_request(request.api_key, request.version, request.body)
    response = codec.response_class(ApiKey.DESCRIBE_CLUSTER)
    answer = response(
        cluster_id=context.view.cluster_id,
        controller_id=-1 if _is_cut_off(context) else context.view.controller_id,
        brokers=[
            response.DescribeClusterBroker(broker_id=broker_id, host=host, port=port, rack=rack)
            for broker_id, host, port, rack in context.view.brokers(request.origin.listener)
        ],
    )
    if message.include_cluster_authorized_operations:
        answer.cluster_authorized_operations = handler.caller_of(request, context).cluster_operations()
    return [codec.encode_response(answer, request.version)]


def _is_cut_off(context: handler.Context) -> bool:
    """Whether ZooKeeper has been away for longer than a session lasts: who is the controller now, if any broker is, is unknown
    here. Metadata still names the last one, since clients would wait for another instead of being told why nothing changes."""
    away_since = None if context.cluster is None else context.cluster.away_since
    return away_since is not None and context.clock.monotonic() - away_since > context.config.zookeeper_session_ms / 1000


@handler.answered_in_slices
def handle_describe_log_dirs(
    message: Any, version: int, caller: authorization.Caller, context: handler.Context
) -> handler.Answering:
    """There is one directory, whatever is requested; unknown partitions are left out, as in Kafka."""
    response = codec.response_class(ApiKey.DESCRIBE_LOG_DIRS)
    row = response.DescribeLogDirsResult
    try:
        caller.check(authorization.CLUSTER)
    except BrokerError as refusal:
        return [codec.encode_response(response(error_code=error_codes.code_of(refusal), results=[]), version)]
    by_topic: dict[str, list[Any]] = {}
    for partition in _requested_partitions(message, context):
        by_topic.setdefault(partition.topic, []).append(
            row.DescribeLogDirsTopic.DescribeLogDirsPartition(
                partition_index=partition.index, partition_size=partition.log.segments.size_bytes
            )
        )
        yield None
    error = ErrorCode.NONE
    try:
        total_bytes, usable_bytes = context.partitions.disk_space()
    except StorageError as failure:
        error, total_bytes, usable_bytes = error_codes.code_of(failure), -1, -1
    result = row(
        error_code=error,
        log_dir=str(context.config.log_dirs.absolute()),
        topics=[row.DescribeLogDirsTopic(name=name, partitions=partitions) for name, partitions in by_topic.items()],
        total_bytes=total_bytes,
        usable_bytes=usable_bytes,
    )
    answer = response(results=[result])
    return (yield from handler.encode_in_slices(answer, version, *by_topic.values()))


def _requested_partitions(message: Any, context: handler.Context) -> Iterable[Partition]:
    partitions = list(context.partitions)  # topics may be created and deleted between two slices
    if message.topics is None:
        return partitions
    keys = {(topic.topic, index) for topic in message.topics for index in topic.partitions}
    return (partition for partition in partitions if (partition.topic, partition.index) in keys)
