"""Changes of committed offsets on their way to the disk: staged like a produce, applied when written.

Commits of consumers, deletions by administrators, and what the sweep lets go, all end as records of `__consumer_offsets`.
Whatever keeps them from being written is COORDINATOR_NOT_AVAILABLE to a client, which tries again: one of the disk's own codes it
would take for the end.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial

from broker.chores import Steps, Until
from broker.errors import BrokerError
from broker.groups.offset_store import OFFSETS_TOPIC, Change
from broker.groups.records import OffsetKey
from broker.groups.retention import expired_offsets
from broker.groups.states import GroupState
from broker.handlers.context import Context
from broker.handlers.turn import StagedRequest
from broker.helpers import Outcome
from broker.partitions.topic_changes import NewTopic
from broker.protocol.api import ErrorCode
from broker.protocol.produce import ProduceAnswer

logger = logging.getLogger("broker.groups")

_CHANGES_PER_TURN = 500  # 5 ms, most of it the records that are made of them

Finish = Callable[[int], None]


def write_offsets(changes: Sequence[Change], context: Context, finish: Finish) -> None:
    """Write the changes with this turn's batches, make them visible, then call `finish` with 0 or an error code."""
    if context.offsets.has_topic or not changes:
        _stage(changes, context, finish)
    else:
        context.chores.enqueue(_make_topic_and_stage(changes, context, finish), lambda: finish(ErrorCode.UNKNOWN_SERVER_ERROR))


def _make_topic_and_stage(changes: Sequence[Change], context: Context, finish: Finish) -> Steps:
    """The first commit of all; others that come meanwhile find the topic made."""
    if not context.offsets.has_topic:
        (outcome,) = yield from context.topic_changes.create([NewTopic(name=OFFSETS_TOPIC, overrides={})])
        if isinstance(outcome, BrokerError):
            logger.error("%s cannot be made: %s", OFFSETS_TOPIC, outcome)
            finish(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            return
    _stage(changes, context, finish)


def _stage(changes: Sequence[Change], context: Context, finish: Finish) -> None:
    outcome = ProduceAnswer("", 0)

    def written(_: StagedRequest) -> None:
        code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        try:
            if not outcome.error:
                context.offsets.applied(changes)
                code = ErrorCode.NONE
        finally:  # whoever waits is answered, whatever happens here
            finish(code)

    staged = []
    if changes:
        try:
            partition, byte_count = context.offsets.stage(changes)
            context.produce_turn.touch(partition, byte_count)
            staged.append((outcome, partition))
        except BrokerError as error:
            logger.error("offsets cannot be committed: %s", error)
            outcome.error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    context.produce_turn.add(StagedRequest([outcome], staged, written))


def write_in_slices(changes: Sequence[Change], context: Context) -> Steps:
    """The same for any number of changes, as a part of a chore: some hundreds in each turn. Returns 0 or an error code: then
    those before are written."""
    for start in range(0, len(changes), _CHANGES_PER_TURN):
        code = yield Until(partial(_write_slice, changes[start : start + _CHANGES_PER_TURN], context))
        if code:
            return code
    return ErrorCode.NONE


def _write_slice(changes: Sequence[Change], context: Context, go_on: Outcome) -> None:
    write_offsets(changes, context, lambda code: go_on(code, None))


def remove_offsets(keys: Iterable[OffsetKey], context: Context) -> Steps:
    """Write tombstones for the keys; returns 0 or an error code."""
    return (yield from write_in_slices([(key, None) for key in keys], context))


def remove_offsets_of_topics(topics: Collection[str], context: Context) -> Steps:
    """The topics were deleted: a new one of such a name begins at its beginning."""
    keys: list[OffsetKey] = []
    for group_id in context.offsets.group_ids():
        committed = context.offsets.of_group(group_id)
        keys += (OffsetKey(group_id, topic, partition) for topic, partition in committed if topic in topics)
        yield None
    yield from remove_offsets(keys, context)


def sweep_groups(context: Context) -> Steps:
    """Forget offsets that nobody has used for offsets.retention.minutes, and groups of which nothing is left: a chore, a group at
    a time."""
    offsets, groups = context.offsets, context.groups
    if offsets.unreadable_reason:
        return
    forgotten = 0
    for group_id in offsets.group_ids():
        expired = expired_offsets(
            group_id,
            offsets,
            groups,
            exists=context.partitions.has,
            now=context.clock.monotonic(),
            now_ms=context.clock.now_ms(),
            retention_ms=context.config.offsets_retention_minutes * 60_000,
        )
        keys = list(expired)
        forgotten += len(keys)
        yield from remove_offsets(keys, context)
        yield None
    if forgotten:
        logger.info("forgot %d committed offsets: expired, or of topics that are gone", forgotten)
    for group in list(groups):
        is_empty = group.state is GroupState.EMPTY and not group.members.expected
        if is_empty and groups.find(group.group_id) is group and not offsets.of_group(group.group_id):
            groups.remove(group)
        yield None
