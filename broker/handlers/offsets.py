"""OffsetCommit and OffsetFetch: of group members, and of consumers that assign their own partitions.

Generation -1 with an empty member id is a simple commit; it is taken while the group has no members.
"""

from __future__ import annotations

from typing import Any

from broker.errors import BrokerError, GroupIdNotFound, IllegalGeneration, OffsetMetadataTooLarge
from broker.groups.coordinator import check_group_id
from broker.groups.messages import MemberName
from broker.groups.offset_store import Change
from broker.groups.records import CommittedOffset, OffsetKey
from broker.handlers.commits import write_offsets
from broker.handlers.context import Context
from broker.handlers.errors import code_of
from broker.handlers.reply import Parts, Pending
from broker.protocol.api import ApiKey
from broker.protocol.control import decode_request, encode_response, response_class
from broker.protocol.framing import Request


def handle_offset_commit(request: Request, context: Context) -> Parts | Pending:
    message = decode_request(request.api_key, request.version, request.body)
    codes: dict[tuple[str, int], int] = {}
    changes: list[Change] = []
    refusal = _refusal(message, request.version, context)
    now_ms = context.clock.now_ms()
    for topic in message.topics:
        for part in topic.partitions:
            try:
                if refusal is not None:
                    raise refusal
                changes.append(_change(message, topic.name, part, now_ms, context))
                codes[topic.name, part.partition_index] = 0
            except BrokerError as error:
                codes[topic.name, part.partition_index] = code_of(error)
    if not changes:
        return [_encode_commit(message, codes, request.version)]
    pending = Pending()

    def finish(error: int) -> None:
        failed = {(key.topic, key.partition): error for key, _ in changes} if error else {}
        pending.complete([_encode_commit(message, codes | failed, request.version)])

    write_offsets(changes, context, finish)
    return pending


def _refusal(message: Any, version: int, context: Context) -> BrokerError | None:
    """What the whole commit is refused with; only from version 9 on do clients know a group that is not found (KIP-848)."""
    name = MemberName(member_id=message.member_id, instance_id=message.group_instance_id)
    generation = message.generation_id_or_member_epoch
    try:
        context.groups.check_commit(message.group_id, name, generation, context.clock.monotonic())
        context.offsets.check_room(message.group_id)
    except GroupIdNotFound as error:
        return error if version >= 9 else IllegalGeneration(str(error))
    except BrokerError as error:
        return error
    return None


def _change(message: Any, topic: str, part: Any, now_ms: int, context: Context) -> Change:
    context.partitions.get(topic, part.partition_index)
    metadata = part.committed_metadata or ""
    if len(metadata.encode()) > context.config.offset_metadata_bytes_max:
        raise OffsetMetadataTooLarge(f"{len(metadata)} characters of metadata")
    value = CommittedOffset(part.committed_offset, part.committed_leader_epoch, metadata, now_ms)
    return OffsetKey(message.group_id, topic, part.partition_index), value


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
        for asked in {asked.group_id: asked for asked in message.groups}.values():  # each once
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
