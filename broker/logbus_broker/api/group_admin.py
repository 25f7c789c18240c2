"""DescribeGroups, ListGroups, DeleteGroups and OffsetDelete: groups as administrators see and clean them up.

Committed offsets of consumers that assign their own partitions are a group too: it is Empty, without a protocol.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from logbus_broker import errors
from logbus_broker.api import authorization, error_codes, handler, internal_topics
from logbus_broker.groups import committed_offsets, coordinator, rebalance, records
from logbus_broker.groups.members import CONSUMER_PROTOCOL, GroupDescription
from logbus_broker.protocol import api, codec

_TYPE = "classic"  # Kafka's other types (consumer, share, streams) belong to protocols that are not supported


def _describe(group_id: str, context: handler.Context) -> GroupDescription:
    """Raises InvalidGroupId, GroupIdNotFound; NotCoordinator, CoordinatorLoadInProgress."""
    offsets = context.offsets.ours(coordinator.check_group_id(group_id))
    group = context.groups.find(group_id)
    if group is not None:
        return group.describe()
    if group_id not in offsets:
        raise errors.GroupIdNotFound(f"no group {group_id!r}")
    return GroupDescription(group_id=group_id, state=rebalance.EMPTY.value)


# -- looking ---------------------------------------------------------------------------------------------------------------------


@handler.answered_in_slices
def handle_describe_groups(
    message: Any, version: int, caller: authorization.Caller, context: handler.Context
) -> handler.Answering:
    response = codec.response_class(api.ApiKey.DESCRIBE_GROUPS)
    rows = []
    for group_id in dict.fromkeys(message.groups):  # each once: a short name may have a long answer
        rows.append(_described(group_id, version, caller, context))
        if version >= 3 and message.include_authorized_operations and not rows[-1].error_code:
            rows[-1].authorized_operations = caller.operations(authorization.GROUP, group_id)
        yield None
    return (yield from handler.encode_in_slices(response(groups=rows), version, rows, *(row.members for row in rows)))


def _described(group_id: str, version: int, caller: authorization.Caller, context: handler.Context) -> Any:
    row = codec.response_class(api.ApiKey.DESCRIBE_GROUPS).DescribedGroup
    code, text = 0, None
    try:
        caller.check(authorization.GROUP, group_id)
        description = _describe(group_id, context)
    except errors.BrokerError as error:
        description = GroupDescription(group_id=group_id, state=rebalance.DEAD.value)
        if version >= 6 or not isinstance(error, errors.GroupIdNotFound):  # before version 6, an unknown group was Dead
            code, text = error_codes.code_of(error), error_codes.text_of(error)
    members = [
        row.DescribedGroupMember(
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            member_metadata=member.metadata,
            member_assignment=member.assignment,
        )
        for member in description.members
    ]
    return row(
        error_code=code,
        error_message=text,
        group_id=group_id,
        group_state=description.state,
        protocol_type=description.protocol_type,
        protocol_data=description.protocol_name,
        members=members,
    )


@handler.answered_in_slices
def handle_list_groups(message: Any, version: int, caller: authorization.Caller, context: handler.Context) -> handler.Answering:
    response = codec.response_class(api.ApiKey.LIST_GROUPS)
    states = {state.lower() for state in message.states_filter}
    types = {kind.lower() for kind in message.types_filter}
    error = (
        api.ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if context.offsets.is_loading else api.ErrorCode.NONE
    )  # then there may be more
    group_ids = sorted({*context.offsets.group_ids(), *(group.group_id for group in context.groups)})
    rows, sees_all = [], caller.allows(authorization.CLUSTER)
    for group_id in group_ids if not types or _TYPE in types else ():
        if not sees_all and not caller.allows(authorization.GROUP, group_id):
            yield None
            continue
        with suppress(errors.GroupIdNotFound, errors.NotCoordinator, errors.CoordinatorLoadInProgress):  # deleted or moved since
            description = _describe(group_id, context)
            if not states or description.state.lower() in states:
                rows.append(
                    response.ListedGroup(
                        group_id=description.group_id,
                        protocol_type=description.protocol_type,
                        group_state=description.state,
                        group_type=_TYPE,
                    )
                )
        yield None
    return (yield from handler.encode_in_slices(response(error_code=error, groups=rows), version, rows))


# -- cleaning --------------------------------------------------------------------------------------------------------------------


@handler.answered_in_slices
def handle_delete_groups(message: Any, version: int, caller: authorization.Caller, context: handler.Context) -> handler.Answering:
    codes: dict[str, int] = {}
    # By partition: each is written, or fails, separately.
    chosen: dict[committed_offsets.CommittedOffsets, dict[records.OffsetKey, records.CommittedOffset]] = {}
    stored: dict[committed_offsets.CommittedOffsets, list[str]] = {}  # the groups that the log has
    for group_id in dict.fromkeys(message.groups_names):
        codes[group_id] = 0
        try:
            caller.check(authorization.GROUP, group_id)
            is_in_log = _delete(group_id, context)
            offsets = context.offsets.ours(group_id)
            stored.setdefault(offsets, []).extend([group_id] if is_in_log else [])
            chosen.setdefault(offsets, {}).update(offsets.newest_of_group(group_id))
        except errors.BrokerError as error:
            codes[group_id] = error_codes.code_of(error)
        yield None
    for offsets, keys in chosen.items():
        refusal = yield from internal_topics.remove_offsets(
            offsets, keys, context, lambda key: not context.groups.is_active(key.group)
        )
        for key, value in keys.items():
            if refusal:
                codes[key.group] = refusal
            elif offsets.newest(key) is value:
                codes[key.group] = error_codes.code_of(errors.NonEmptyGroup(f"a member has joined group {key.group!r}"))
            yield None
        refusal = refusal or (yield from internal_topics.forget_groups(offsets, stored[offsets], context))
        codes.update((group_id, refusal) for group_id in stored[offsets] if refusal)
    response = codec.response_class(api.ApiKey.DELETE_GROUPS)
    rows = [response.DeletableGroupResult(group_id=group_id, error_code=code) for group_id, code in codes.items()]
    return (yield from handler.encode_in_slices(response(results=rows), version, rows))


def _delete(group_id: str, context: handler.Context) -> bool:
    """Remove the group from memory; its offsets must be removed, too, and its record if the log has one, which is returned."""
    _describe(group_id, context)
    group = context.groups.find(group_id)
    if group is None:
        return False
    if group.state is not rebalance.EMPTY:
        raise errors.NonEmptyGroup(f"group {group_id!r} is {group.state.value}")
    context.groups.remove(group)
    return group.is_in_log


@handler.answered_in_slices
def handle_offset_delete(message: Any, version: int, caller: authorization.Caller, context: handler.Context) -> handler.Answering:
    try:
        caller.check(authorization.GROUP, message.group_id)
        offsets = _of_which_some_may_go(message.group_id, context)
    except errors.BrokerError as error:
        return [_encode_offset_delete(error_codes.code_of(error), version, {})]
    codes: dict[tuple[str, int], int] = {}
    chosen: dict[records.OffsetKey, records.CommittedOffset] = {}
    for topic in message.topics:
        for part in topic.partitions:
            key = records.OffsetKey(message.group_id, topic.name, part.partition_index)
            code = codes[key.topic, key.partition] = _offset_delete_code(key, caller, context)
            if not code and (newest := offsets.newest(key)) is not None:
                chosen[key] = newest
            yield None
    refusal = yield from internal_topics.remove_offsets(offsets, chosen, context)
    return [_encode_offset_delete(0, version, {partition: code or refusal for partition, code in codes.items()})]


def _of_which_some_may_go(group_id: str, context: handler.Context) -> committed_offsets.CommittedOffsets:
    """A group with members is checked topic by topic, provided that its members declare what they read."""
    _describe(group_id, context)
    group = context.groups.find(group_id)
    if group is not None and group.state is not rebalance.EMPTY and group.protocol_type != CONSUMER_PROTOCOL:
        raise errors.NonEmptyGroup(f"group {group_id!r} is {group.state.value}")
    return context.offsets.readable(group_id)


def _offset_delete_code(key: records.OffsetKey, caller: authorization.Caller, context: handler.Context) -> int:
    try:
        caller.check(authorization.TOPIC, key.topic)
        context.partitions.check_exists(key.topic, key.partition)
        if context.groups.reads(key.group, key.topic):
            raise errors.GroupSubscribedToTopic(f"members of {key.group!r} read {key.topic!r}")
    except errors.BrokerError as error:
        return error_codes.code_of(error)
    return 0


def _encode_offset_delete(error: int, version: int, codes: dict[tuple[str, int], int]) -> bytes:
    response = codec.response_class(api.ApiKey.OFFSET_DELETE)
    row = response.OffsetDeleteResponseTopic
    part = row.OffsetDeleteResponsePartition
    topics = [
        row(name=topic, partitions=[part(partition_index=index, error_code=code) for (_, index), code in of_topic])
        for topic, of_topic in handler.by_name(codes.items(), lambda item: item[0][0]).items()
    ]
    return codec.encode_response(response(error_code=error, topics=topics), version)
