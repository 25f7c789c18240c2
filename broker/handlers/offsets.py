"""OffsetCommit and OffsetFetch: of group members, and of consumers that assign their own partitions.

Generation -1 with an empty member id is a simple commit; it is taken while the group has no members.
"""

from __future__ import annotations

from typing import Any

from broker.chores import Steps
from broker.errors import BrokerError, GroupIdNotFound, IllegalGeneration, OffsetMetadataTooLarge
from broker.groups.coordinator import check_group_id
from broker.groups.messages import MemberName
from broker.groups.offset_store import Change
from broker.groups.records import CommittedOffset, OffsetKey
from broker.handlers.commits import write_in_slices
from broker.handlers.context import Context
from broker.handlers.errors import code_of
from broker.handlers.reply import Parts, Pending
from broker.handlers.slices import Answering, encode_in_slices, in_slices
from broker.protocol.api import ApiKey
from broker.protocol.control import decode_request, response_class
from broker.protocol.framing import Request


def handle_offset_commit(request: Request, context: Context) -> Parts | Pending:
    message = decode_request(request.api_key, request.version, request.body)
    return in_slices(_commit(message, request.version, context), context)


def _commit(message: Any, version: int, context: Context) -> Answering:
    codes: dict[tuple[str, int], int] = {}
    changes: list[Change] = []
    refusal = _refusal(message, version, context)
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
            yield None
    code = yield from write_in_slices(changes, context)
    if code:
        codes |= {(key.topic, key.partition): code for key, _ in changes}
    return (yield from _encode_commit(message, codes, version))


def _refusal(message: Any, version: int, context: Context) -> BrokerError | None:
    """What the whole commit is refused with; only from version 9 on do clients know a group that is not found (KIP-848)."""
    name = MemberName(member_id=message.member_id, instance_id=message.group_instance_id)
    generation = message.generation_id_or_member_epoch
    try:
        context.groups.check_commit(message.group_id, name, generation, context.clock.monotonic())
        context.offsets.check_available()
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


def _encode_commit(message: Any, codes: dict[tuple[str, int], int], version: int) -> Answering:
    response = response_class(ApiKey.OFFSET_COMMIT)
    topic_class = response.OffsetCommitResponseTopic
    part_class = topic_class.OffsetCommitResponsePartition
    topics = []
    for topic in message.topics:
        rows = []
        for part in topic.partitions:
            rows.append(part_class(partition_index=part.partition_index, error_code=codes[topic.name, part.partition_index]))
            yield None
        topics.append(topic_class(name=topic.name, partitions=rows))
    answer = response(throttle_time_ms=0, topics=topics)
    return (yield from encode_in_slices(answer, version, *(topic.partitions for topic in topics)))


def handle_offset_fetch(request: Request, context: Context) -> Parts | Pending:
    message = decode_request(request.api_key, request.version, request.body)
    steps = _fetch_groups if request.version >= 8 else _fetch_group
    return in_slices(steps(message, request.version, context), context)


def _fetch_groups(message: Any, version: int, context: Context) -> Answering:
    response = response_class(ApiKey.OFFSET_FETCH)
    topic_class = response.OffsetFetchResponseGroup.OffsetFetchResponseTopics
    groups = []
    for asked in {asked.group_id: asked for asked in message.groups}.values():  # each once
        error = _fetch_refusal(asked.group_id, context)
        topics = []
        if not error:
            rows = _committed(asked.group_id, asked.topics, topic_class, topic_class.OffsetFetchResponsePartitions, context)
            topics = yield from rows
        groups.append(response.OffsetFetchResponseGroup(group_id=asked.group_id, topics=topics, error_code=error))
    answer = response(throttle_time_ms=0, groups=groups)
    return (yield from encode_in_slices(answer, version, *(topic.partitions for group in groups for topic in group.topics)))


def _fetch_group(message: Any, version: int, context: Context) -> Answering:
    response = response_class(ApiKey.OFFSET_FETCH)
    topic_class = response.OffsetFetchResponseTopic
    error = _fetch_refusal(message.group_id, context)
    topics = []
    if not error or version < 2:  # version 1 has room for an error beside each partition alone
        part_class = topic_class.OffsetFetchResponsePartition
        topics = yield from _committed(message.group_id, message.topics, topic_class, part_class, context, error=error)
    answer = response(throttle_time_ms=0, topics=topics, error_code=error)
    return (yield from encode_in_slices(answer, version, *(topic.partitions for topic in topics)))


def _fetch_refusal(group: str, context: Context) -> int:
    try:
        check_group_id(group)
        context.offsets.check_available()
    except BrokerError as error:
        return code_of(error)
    return 0


def _committed(group: str, asked: Any, topic_class: Any, part_class: Any, context: Context, *, error: int = 0) -> Steps:
    """Rows for the partitions asked for, or for all that the group ever committed where none are named."""
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
            found = (None if error else context.offsets.get(group, topic, index)) or CommittedOffset(-1, -1, "", 0)
            rows.append(
                part_class(
                    partition_index=index,
                    committed_offset=found.offset,
                    committed_leader_epoch=found.leader_epoch,
                    metadata=found.metadata,
                    error_code=error,
                )
            )
            yield None
        topics.append(topic_class(name=topic, partitions=rows))
    return topics
