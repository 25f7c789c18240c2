"""OffsetCommit and OffsetFetch: by group members, and by consumers that assign their own partitions.

Generation -1 with an empty member id is a simple commit; it is accepted while the group has no members.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from operator import attrgetter, itemgetter
from typing import Any

from logbus_broker.api import authorization, error_codes, handler, internal_topics
from logbus_broker.errors import (
    BrokerError,
    GroupIdNotFound,
    IllegalGeneration,
    NotCoordinator,
    OffsetMetadataTooLarge,
    UnknownMember,
)
from logbus_broker.groups import committed_offsets, coordinator, members, records
from logbus_broker.log.background_tasks import Steps
from logbus_broker.protocol import api, codec

_NOTHING = records.CommittedOffset(-1, -1, "", 0, 0.0)


@handler.answered_in_slices
def handle_offset_commit(message: Any, version: int, caller: authorization.Caller, context: handler.Context) -> handler.Answering:
    response = codec.response_class(api.ApiKey.OFFSET_COMMIT)
    topic_class = response.OffsetCommitResponseTopic
    rows: dict[str, list[Any]] = {}  # by topic; a partition in several entries has a row for each, as in Kafka
    accepted: list[Any] = []  # the rows of `changes`
    changes: list[committed_offsets.Change] = []
    refusal = None
    try:
        caller.check(authorization.GROUP, message.group_id)
        _admitted(message, version, context)
    except BrokerError as error:
        refusal = error
    for topic in message.topics:
        of_topic = rows.setdefault(topic.name, [])
        for part in topic.partitions:
            row = topic_class.OffsetCommitResponsePartition(partition_index=part.partition_index, error_code=api.ErrorCode.NONE)
            of_topic.append(row)
            try:
                if refusal is not None:
                    raise refusal
                caller.check(authorization.TOPIC, topic.name)
                changes.append(_change(message, topic.name, part, context))
                accepted.append(row)
            except BrokerError as error:
                row.error_code = error_codes.code_of(error)
            yield None
    if changes:
        try:
            code = yield from internal_topics.write_commit(changes, partial(_admitted, message, version, context), context)
        except BrokerError as error:  # the member is no longer what it was when the request arrived
            code = error_codes.code_of(error)
        for row in accepted if code else ():
            row.error_code = code
    topics = [topic_class(name=name, partitions=partitions) for name, partitions in rows.items()]
    return (yield from handler.encode_in_slices(response(topics=topics), version, *rows.values()))


def _admitted(message: Any, version: int, context: handler.Context) -> committed_offsets.CommittedOffsets:
    """Where the commit goes; raises the error that rejects all of it.

    Clients know GROUP_ID_NOT_FOUND only from version 9 on (KIP-848). A group with committed offsets exists, though it may have no
    members. In a cluster, the last coordinator of a group that is not found was another broker, and Java consumers, which
    expect the new coordinator to know the group, would fail permanently. Both get an error that makes them rejoin."""
    name = members.MemberName(member_id=message.member_id, instance_id=message.group_instance_id)
    generation = message.generation_id_or_member_epoch
    try:
        context.groups.check_commit(message.group_id, name, generation, context.clock.monotonic())
    except GroupIdNotFound as error:
        if not context.offsets.is_alone or message.group_id in context.offsets.ours(message.group_id):
            raise UnknownMember(str(error)) from error
        raise error if version >= 9 else IllegalGeneration(str(error)) from error
    offsets = context.offsets.readable(message.group_id)
    context.offsets.check_room(message.group_id)
    return offsets


def _change(message: Any, topic: str, part: Any, context: handler.Context) -> committed_offsets.Change:
    context.partitions.check_exists(topic, part.partition_index)
    metadata = part.committed_metadata or ""
    if len(metadata) > context.config.offset_metadata_length_max:
        raise OffsetMetadataTooLarge(f"{len(metadata)} characters of metadata")
    clock = context.clock
    value = records.CommittedOffset(
        part.committed_offset, part.committed_leader_epoch, metadata, clock.now_ms(), clock.monotonic()
    )
    return records.OffsetKey(message.group_id, topic, part.partition_index), value


@handler.answered_in_slices
def handle_offset_fetch(message: Any, version: int, caller: authorization.Caller, context: handler.Context) -> handler.Answering:
    return (_fetch_groups if version >= 8 else _fetch_group)(message, version, caller, context)


def _fetch_groups(message: Any, version: int, caller: authorization.Caller, context: handler.Context) -> handler.Answering:
    response = codec.response_class(api.ApiKey.OFFSET_FETCH)
    topic_class = response.OffsetFetchResponseGroup.OffsetFetchResponseTopics
    groups = []
    for group_id, entries in handler.by_name(message.groups, attrgetter("group_id")).items():
        is_all = any(entry.topics is None for entry in entries)
        named = None if is_all else [topic for entry in entries for topic in entry.topics]
        outcome = yield from _committed(group_id, named, topic_class, topic_class.OffsetFetchResponsePartitions, caller, context)
        error, topics = (error_codes.code_of(outcome), []) if isinstance(outcome, BrokerError) else (0, outcome)
        groups.append(response.OffsetFetchResponseGroup(group_id=group_id, topics=topics, error_code=error))
        yield None  # also after a group of which nothing is asked, or nothing committed
    answer = response(groups=groups)
    rows = (topic.partitions for group in groups for topic in group.topics)
    return (yield from handler.encode_in_slices(answer, version, groups, *rows))


def _fetch_group(message: Any, version: int, caller: authorization.Caller, context: handler.Context) -> handler.Answering:
    response = codec.response_class(api.ApiKey.OFFSET_FETCH)
    topic_class = response.OffsetFetchResponseTopic
    part_class = topic_class.OffsetFetchResponsePartition
    outcome = yield from _committed(message.group_id, message.topics, topic_class, part_class, caller, context)
    error, topics = (error_codes.code_of(outcome), []) if isinstance(outcome, BrokerError) else (0, outcome)
    if error and version < 2:  # version 1 has an error field only per partition
        for topic, indexes in _named(message.topics).items():
            rows = []
            for index in indexes:
                rows.append(_row(part_class, index, _NOTHING, error))
                yield None
            topics.append(topic_class(name=topic, partitions=rows))
    answer = response(topics=topics, error_code=error)
    return (yield from handler.encode_in_slices(answer, version, *(topic.partitions for topic in topics)))


def _named(topics: Iterable[Any]) -> dict[str, Iterable[int]]:
    """The partitions of each topic, each once."""
    named = handler.by_name(topics, attrgetter("name"))
    return {
        name: dict.fromkeys(index for entry in entries for index in entry.partition_indexes) for name, entries in named.items()
    }


def _committed(
    group_id: str,
    named: Iterable[Any] | None,
    topic_class: Any,
    part_class: Any,
    caller: authorization.Caller,
    context: handler.Context,
) -> Steps:
    """Rows for the requested partitions, or for all that the group has committed if none are named; or the error. All rows come
    from a single leadership of this broker: a row that is missing because leadership was lost would send a consumer back to the
    beginning. Topics that the sender may not describe are refused, or left out if none are named."""
    try:
        caller.check(authorization.GROUP, group_id)
        group = coordinator.check_group_id(group_id)
        offsets = context.offsets.readable(group)
    except BrokerError as error:
        return error
    indexes_by_topic: dict[str, Iterable[int]]
    if named is None:
        of_group = handler.by_name(sorted(offsets.of_group(group)), itemgetter(0))
        indexes_by_topic = {topic: [index for _, index in keys] for topic, keys in of_group.items()}
    else:
        indexes_by_topic = _named(named)
    topics = []
    for topic, indexes in indexes_by_topic.items():
        refusal = api.ErrorCode.NONE
        if not caller.allows(authorization.TOPIC, topic):
            if named is None:
                yield None
                continue
            refusal = api.ErrorCode.TOPIC_AUTHORIZATION_FAILED
        rows = []
        for index in indexes:
            committed = None if refusal else offsets.get(group, topic, index)
            rows.append(_row(part_class, index, committed or _NOTHING, refusal))
            yield None
        topics.append(topic_class(name=topic, partitions=rows))
    return NotCoordinator(f"another broker coordinates group {group!r} now") if offsets.is_dropped else topics


def _row(part_class: Any, index: int, committed: records.CommittedOffset, error: int = 0) -> Any:
    return part_class(
        partition_index=index,
        committed_offset=committed.offset,
        committed_leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        error_code=error,
    )
