"""FindCoordinator, OffsetCommit and OffsetFetch: simple commits of consumers that assign their own partitions.

Generation -1 with an empty member id is a simple commit. Anything else claims membership of a group, of which there is none:
the answer is UNKNOWN_MEMBER_ID, as from a coordinator that has forgotten the member.
"""

from __future__ import annotations

from typing import Any

from broker.errors import BrokerError, OffsetMetadataTooLarge, StorageError, UnknownMember
from broker.groups.offset_store import check_group_id
from broker.groups.records import CommittedOffset, OffsetKey
from broker.handlers.context import Context
from broker.handlers.errors import code_of
from broker.handlers.reply import Parts, Pending
from broker.handlers.turn import StagedRequest
from broker.protocol.api import ApiKey, ErrorCode
from broker.protocol.control import decode_request, encode_response, response_class
from broker.protocol.framing import Request
from broker.protocol.produce import ProduceAnswer

_GROUP = 0  # FindCoordinator's key type; 1 is a transaction
_Change = tuple[OffsetKey, CommittedOffset]


def handle_find_coordinator(request: Request, context: Context) -> Parts:
    message = decode_request(request.api_key, request.version, request.body)
    response = response_class(ApiKey.FIND_COORDINATOR)
    key_type = message.key_type if request.version >= 1 else _GROUP
    error = 0 if key_type == _GROUP else ErrorCode.COORDINATOR_NOT_AVAILABLE
    where: dict[str, Any] = {"node_id": -1, "host": "", "port": -1}
    if not error:
        where = {"node_id": context.config.broker_id, "host": context.advertised_host, "port": context.advertised_port}
    text = "transactions are not offered" if error else None
    if request.version >= 4:
        rows = [response.Coordinator(key=key, error_code=error, error_message=text, **where) for key in message.coordinator_keys]
        answer = response(throttle_time_ms=0, coordinators=rows)
    else:
        answer = response(throttle_time_ms=0, error_code=error, error_message=text, **where)
    return [encode_response(answer, request.version)]


def handle_offset_commit(request: Request, context: Context) -> Parts | Pending:
    message = decode_request(request.api_key, request.version, request.body)
    codes: dict[tuple[str, int], int] = {}
    changes: list[_Change] = []
    now_ms = context.clock.now_ms()
    for topic in message.topics:
        for part in topic.partitions:
            try:
                changes.append(_change(message, topic.name, part, now_ms, context))
                codes[topic.name, part.partition_index] = 0
            except BrokerError as error:
                codes[topic.name, part.partition_index] = code_of(error)
    if not changes:
        return [_encode_commit(message, codes, request.version)]
    return _write(changes, message, codes, request.version, context)


def _change(message: Any, topic: str, part: Any, now_ms: int, context: Context) -> _Change:
    group = check_group_id(message.group_id)
    if message.generation_id_or_member_epoch >= 0 or message.member_id:
        raise UnknownMember(f"group {group} has no members here")
    context.partitions.get(topic, part.partition_index)
    metadata = part.committed_metadata or ""
    if len(metadata.encode()) > context.config.offset_metadata_bytes_max:
        raise OffsetMetadataTooLarge(f"{len(metadata)} characters of metadata")
    value = CommittedOffset(part.committed_offset, getattr(part, "committed_leader_epoch", -1), metadata, now_ms)
    return OffsetKey(group, topic, part.partition_index), value


def _write(changes: list[_Change], message: Any, codes: dict[tuple[str, int], int], version: int, context: Context) -> Pending:
    pending = Pending()
    outcome = ProduceAnswer("", 0)

    def finish(_: StagedRequest) -> None:
        if outcome.error:
            for key, _value in changes:
                codes[key.topic, key.partition] = outcome.error
        else:
            context.offsets.applied(changes)
        pending.complete([_encode_commit(message, codes, version)])

    staged = []
    try:
        partition, byte_count = context.offsets.stage(changes)
        context.produce_turn.touch(partition, byte_count)
        staged.append((outcome, partition))
    except StorageError as error:
        outcome.error = code_of(error)
    context.produce_turn.add(StagedRequest([outcome], staged, finish))
    return pending


def _encode_commit(message: Any, codes: dict[tuple[str, int], int], version: int) -> bytes:
    response = response_class(ApiKey.OFFSET_COMMIT)
    topic_class = response.OffsetCommitResponseTopic
    part_class = topic_class.OffsetCommitResponsePartition
    topics = [
        topic_class(
            name=topic.name,
            partitions=[
                part_class(partition_index=part.partition_index, error_code=codes[topic.name, part.partition_index])
                for part in topic.partitions
            ],
        )
        for topic in message.topics
    ]
    return encode_response(response(throttle_time_ms=0, topics=topics), version)


def handle_offset_fetch(request: Request, context: Context) -> Parts:
    message = decode_request(request.api_key, request.version, request.body)
    response = response_class(ApiKey.OFFSET_FETCH)
    if request.version >= 8:
        groups = []
        for asked in message.groups:
            topic_class = response.OffsetFetchResponseGroup.OffsetFetchResponseTopics
            topics, error = _committed(
                asked.group_id, asked.topics, topic_class, topic_class.OffsetFetchResponsePartitions, context
            )
            groups.append(response.OffsetFetchResponseGroup(group_id=asked.group_id, topics=topics, error_code=error))
        return [encode_response(response(throttle_time_ms=0, groups=groups), request.version)]
    topic_class = response.OffsetFetchResponseTopic
    topics, error = _committed(message.group_id, message.topics, topic_class, topic_class.OffsetFetchResponsePartition, context)
    return [encode_response(response(throttle_time_ms=0, topics=topics, error_code=error), request.version)]


def _committed(group: str, asked: Any, topic_class: Any, part_class: Any, context: Context) -> tuple[list[Any], int]:
    """Rows for the partitions asked for, or for all that the group ever committed where none are named."""
    try:
        check_group_id(group)
    except BrokerError as error:
        return [], code_of(error)
    wanted: dict[str, list[int]] = {}
    if asked is None:
        for topic, index in sorted(context.offsets.of_group(group)):
            wanted.setdefault(topic, []).append(index)
    else:
        wanted = {topic.name: list(topic.partition_indexes) for topic in asked}
    topics = []
    for topic, indexes in wanted.items():
        rows = []
        for index in indexes:
            found = context.offsets.get(group, topic, index) or CommittedOffset(-1, -1, "", 0)
            rows.append(
                part_class(
                    partition_index=index,
                    committed_offset=found.offset,
                    committed_leader_epoch=found.leader_epoch,
                    metadata=found.metadata,
                    error_code=0,
                )
            )
        topics.append(topic_class(name=topic, partitions=rows))
    return topics, 0
