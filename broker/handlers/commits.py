"""Changes of committed offsets on their way to the disk: staged like a produce, applied when written.

Commits of consumers, deletions by administrators, and what the sweep lets go, all end as records of `__consumer_offsets`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from itertools import islice

from broker.errors import StorageError
from broker.groups.offset_store import Change
from broker.groups.records import OffsetKey
from broker.groups.retention import expired_offsets
from broker.groups.states import GroupState
from broker.handlers.context import Context
from broker.handlers.errors import code_of
from broker.handlers.turn import StagedRequest
from broker.protocol.produce import ProduceAnswer

logger = logging.getLogger("broker.groups")

_SWEPT_OFFSETS_MAX = 10_000  # in one sweep: about 50 ms; what is left waits for the next


def write_offsets(changes: list[Change], context: Context, finish: Callable[[int], None]) -> None:
    """Write the changes with this turn's batches, make them visible, then call `finish` with 0 or an error code."""
    outcome = ProduceAnswer("", 0)

    def written(_: StagedRequest) -> None:
        if not outcome.error:
            context.offsets.applied(changes)
        finish(outcome.error)

    staged = []
    if changes:
        try:
            partition, byte_count = context.offsets.stage(changes)
            context.produce_turn.touch(partition, byte_count)
            staged.append((outcome, partition))
        except StorageError as error:
            outcome.error = code_of(error)
    context.produce_turn.add(StagedRequest([outcome], staged, written))


def remove_offsets(keys: Iterable[OffsetKey], context: Context, finish: Callable[[int], None] = lambda code: None) -> None:
    """Write tombstones for the keys."""
    write_offsets([(key, None) for key in keys], context, finish)


def remove_offsets_of_topic(topic: str, context: Context) -> None:
    """The topic was deleted: a new one of its name begins at its beginning."""
    keys = [key for key, _ in context.offsets if key.topic == topic]
    if keys:
        remove_offsets(keys, context)


def sweep_groups(context: Context) -> None:
    """Forget offsets that nobody has used for offsets.retention.minutes, and groups of which nothing is left."""
    expired = expired_offsets(
        context.offsets,
        context.groups,
        exists=lambda topic, index: context.partitions.has(topic, index),
        now=context.clock.monotonic(),
        now_ms=context.clock.now_ms(),
        retention_ms=context.config.offsets_retention_minutes * 60_000,
    )
    keys = list(islice(expired, _SWEPT_OFFSETS_MAX))
    if keys:
        logger.info("forgetting %d committed offsets: expired, or of topics that are gone", len(keys))
        remove_offsets(keys, context)
        context.produce_turn.end()
    for group in [one for one in context.groups if one.state is GroupState.EMPTY and not one.members.expected]:
        if not context.offsets.of_group(group.group_id):
            context.groups.remove(group)
