"""The internal topics that requests write to: changes to committed offsets and groups on their way to the disk
(`__consumer_offsets`), and the lines of the audit log as records (`__logbus_audit`), for those who collect records anyway.

Commits by consumers, deletions by administrators, offsets expired by the sweep and the members of each stable generation all
become records of `__consumer_offsets`. Any failure to write them is COORDINATOR_NOT_AVAILABLE to a client, which retries: it
would take one of the disk's own error codes as final. If this broker no longer leads the partition, the code is
NOT_COORDINATOR, which makes the client look for the broker that does.

A commit that is not replicated in time is answered with an error, but still applied once it is replicated: it is in the log,
and the next broker that loads the log will find it.

A broker writes to a partition that it leads, standalone to the only one: so a line needs no other broker, and each partition is
the history of one broker at a time. A broker that leads none at the moment, or whose log is offline, keeps its lines, a megabyte
of them, and tries again, at last every second; what is more than that is left out, and a line says how many were. Lines that wait
are lost with the process: logbus.audit.log has them.

Nothing here waits: a line is queued, and a task stages what is queued, some hundreds a turn, as if it had been produced. No ACL
is asked for that, so writing a line causes none.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice

from logbus_broker import errors, logs
from logbus_broker.api import error_codes, handler, produce_turn, purgatory
from logbus_broker.cluster.topic_registry import OFFSETS_TOPIC
from logbus_broker.groups import committed_offsets, members, rebalance, records
from logbus_broker.groups.group import Group
from logbus_broker.log import background_tasks, thread_pool, topic_admin
from logbus_broker.log.partition import Partition
from logbus_broker.protocol import api, produce, validation
from logbus_broker.protocol.records import NewRecord, build_batch
from logbus_broker.security.state import AUDIT_TOPIC

logger = logging.getLogger("broker.groups")

_CHANGES_PER_TURN = 500  # their records take up to 5 ms to build
_REPLICATION_MS_MAX = 5_000  # Kafka's default of offsets.commit.timeout.ms


def write_commit(
    changes: Sequence[committed_offsets.Change], admit: Callable[[], committed_offsets.CommittedOffsets], context: handler.Context
) -> background_tasks.Steps:
    """Write a commit of any size, all of it or nothing, as part of a task; returns 0 or an error code.

    Building the records of thousands of partitions takes several turns, in which the member may lose them to another one, whose
    commits must not be overwritten. So `admit`, which returns the offsets to change or raises the error that rejects the commit,
    is called in the step that stages everything. That step takes 1 ms for 4,000 partitions, and applying them 2 ms."""
    store, batches = context.offsets, []
    if code := (yield from _need_topic(context)):
        return code
    for start in range(0, len(changes), _CHANGES_PER_TURN):
        if start:
            yield None
        batches.append(store.build(changes[start : start + _CHANGES_PER_TURN]))

    def stage(go_on: thread_pool.Outcome) -> None:
        _Write(admit(), changes, context, go_on).stage(batches)

    return (yield background_tasks.Until(stage))


def write_group(
    group_id: str, stored: members.StoredGroup, admit: Callable[[], committed_offsets.CommittedOffsets], context: handler.Context
) -> background_tasks.Steps:
    """Write a group's members; returns 0 or an error code. `admit` as for a commit."""
    if code := (yield from _need_topic(context)):
        return code

    def stage(go_on: thread_pool.Outcome) -> None:
        batch = context.offsets.build_groups({group_id: stored})
        _Write(admit(), (), context, go_on).stage([batch])

    return (yield background_tasks.Until(stage))


def _need_topic(context: handler.Context) -> background_tasks.Steps:
    """Returns 0 once the topic exists, or an error code."""
    if context.offsets.has_topic:
        return api.ErrorCode.NONE
    return (yield background_tasks.Until(partial(queue_topic, context, OFFSETS_TOPIC)))


def queue_topic(context: handler.Context, name: str, go_on: thread_pool.Outcome) -> None:
    """For the very first record; others that arrive in the meantime find the topic created. `go_on` gets 0 or an error code."""

    def create() -> background_tasks.Steps:
        error = yield from create_topic(context, name)
        go_on(api.ErrorCode.NONE if error is None else api.ErrorCode.COORDINATOR_NOT_AVAILABLE, None)

    context.tasks.enqueue(create(), lambda: go_on(api.ErrorCode.UNKNOWN_SERVER_ERROR, None))


def create_topic(context: handler.Context, name: str = OFFSETS_TOPIC) -> background_tasks.Steps:
    """Create an internal topic if it does not exist yet; returns the error, if any. To be run as a queued task."""
    if name not in context.partitions.registry:
        (outcome,) = yield from context.topic_changes.create([topic_admin.NewTopic(name=name, overrides={})])
        if isinstance(outcome, errors.BrokerError):
            if not isinstance(outcome, errors.TopicAlreadyExists):  # created by another broker, and not in our image yet
                logger.error("%s could not be created: %s", name, outcome)
            return outcome
    return None


def request_topic(context: handler.Context) -> None:
    """A client looks for a coordinator, and without the topic there is none: have it created, once however many clients ask."""
    offsets = context.offsets

    def create() -> background_tasks.Steps:
        try:
            yield from create_topic(context)
        finally:
            offsets.is_topic_requested = False

    def failed() -> None:
        logs.log_bug("creating %s failed", OFFSETS_TOPIC)

    if not offsets.has_topic and not offsets.is_topic_requested:
        offsets.is_topic_requested = True
        context.tasks.enqueue(create(), failed)


class _Write(purgatory.Deadline):
    """Changes that are staged, then written, then replicated."""

    __slots__ = ("_changes", "_context", "_go_on", "_offsets", "_partition", "outcome")

    def __init__(
        self,
        offsets: committed_offsets.CommittedOffsets,
        changes: Sequence[committed_offsets.Change],
        context: handler.Context,
        go_on: thread_pool.Outcome,
    ) -> None:
        """`go_on` gets 0 or an error code."""
        super().__init__(context.clock.monotonic() + _REPLICATION_MS_MAX / 1000)
        self.outcome = produce.ProduceAnswer("", 0)
        self._offsets = offsets
        self._changes = changes
        self._context = context
        self._go_on = go_on
        self._partition: Partition | None = None  # where they are staged

    def stage(self, batches: Sequence[validation.NewBatch]) -> None:
        """The changes were built into these batches."""
        context, staged = self._context, []
        try:
            self._partition, byte_count = context.offsets.stage(self._offsets, self._changes, batches)
            context.produce_turn.touch(self._partition, byte_count)
            staged.append((self.outcome, self._partition))
        except errors.BrokerError as error:
            if not isinstance(error, errors.NotCoordinator | errors.NotLeaderOrFollower):
                logger.error("%s cannot be written: %s", OFFSETS_TOPIC, error)
            self.outcome.error = error_codes.code_of(error)
        context.produce_turn.add(produce_turn.StagedRequest([self.outcome], staged, self._written))

    def _written(self, _: produce_turn.StagedRequest) -> None:
        partition, context = self._partition, self._context
        if partition is None or self.outcome.error:
            if partition is not None:
                self._offsets.settle(self._changes)
            self._end(self.outcome.error)
            return
        context.high_watermark.when_replicated(partition, partition.end_offset, self._replicated)
        if not self.is_over:
            context.deadlines.add_in_order(self, _REPLICATION_MS_MAX)

    def _replicated(self, error: errors.BrokerError | None) -> None:
        code = api.ErrorCode.COORDINATOR_NOT_AVAILABLE
        try:
            if error is None:
                self._context.offsets.applied(self._offsets, self._changes)
                code = api.ErrorCode.NONE
            else:
                self._offsets.settle(self._changes)
                code = error_codes.code_of(error)
        finally:  # the waiting client is answered, whatever happens here
            self._end(code)

    def expire(self) -> None:
        self._go_on(api.ErrorCode.COORDINATOR_NOT_AVAILABLE, None)

    def _end(self, code: int) -> None:
        if self.is_over:  # already answered by `expire`
            return
        self._context.deadlines.cancel(self)
        if code == api.ErrorCode.NOT_LEADER_OR_FOLLOWER:
            code = api.ErrorCode.NOT_COORDINATOR
        elif code not in (api.ErrorCode.NONE, api.ErrorCode.NOT_COORDINATOR):
            code = api.ErrorCode.COORDINATOR_NOT_AVAILABLE
        self._go_on(code, None)


def remove_offsets(
    offsets: committed_offsets.CommittedOffsets,
    chosen: Mapping[records.OffsetKey, records.CommittedOffset],
    context: handler.Context,
    may_go: Callable[[records.OffsetKey], bool] = lambda key: True,
) -> background_tasks.Steps:
    """Write tombstones, some hundreds per turn, for keys that were chosen because of these newest offsets; returns 0 or an error
    code.

    Meanwhile others commit, and a commit must not be followed by a tombstone that was decided before it: a key is left alone if
    it has a newer offset in the step that stages its tombstone, or if `may_go` forbids it then."""
    keys = list(chosen)

    def stage(start: int, go_on: thread_pool.Outcome) -> None:
        changes: list[committed_offsets.Change] = [
            (key, None) for key in keys[start : start + _CHANGES_PER_TURN] if offsets.newest(key) is chosen[key] and may_go(key)
        ]
        if changes:
            _Write(offsets, changes, context, go_on).stage([context.offsets.build(changes)])
        else:
            go_on(api.ErrorCode.NONE, None)

    for start in range(0, len(keys), _CHANGES_PER_TURN):
        code = yield background_tasks.Until(partial(stage, start))
        if code:
            return code
    return api.ErrorCode.NONE


def forget_groups(
    offsets: committed_offsets.CommittedOffsets, group_ids: Sequence[str], context: handler.Context
) -> background_tasks.Steps:
    """Write tombstones for groups that were removed from memory, unless they are back; returns 0 or an error code."""

    def stage(go_on: thread_pool.Outcome) -> None:
        gone = {group_id: None for group_id in group_ids if context.groups.find(group_id) is None}
        if gone and context.offsets.has_topic:
            batch = context.offsets.build_groups(gone)
            _Write(offsets, (), context, go_on).stage([batch])
        else:
            go_on(api.ErrorCode.NONE, None)

    return (yield background_tasks.Until(stage))


def remove_offsets_of_topics(is_gone: Callable[[str], bool], context: handler.Context) -> background_tasks.Steps:
    """Topics were deleted: a new topic with the same name must be read from its beginning."""
    chosen: dict[committed_offsets.CommittedOffsets, dict[records.OffsetKey, records.CommittedOffset]] = {}
    for offsets in context.offsets.all_loaded():  # all chosen before the first write: it may wait, and a topic may be recreated
        keys = chosen[offsets] = {}
        for group_id in offsets.group_ids():
            keys |= offsets.newest_of_group(group_id, is_gone)
            yield None
    for offsets, keys in chosen.items():
        yield from remove_offsets(offsets, keys, context)


def sweep_groups(context: handler.Context) -> background_tasks.Steps:
    """Forget offsets that have not been used for offsets.retention.minutes, and groups of which nothing is left: a task, one
    group at a time."""
    forgotten = 0
    for offsets in context.offsets.all_loaded():
        if not offsets.unreadable_reason:
            forgotten += yield from _sweep_offsets(offsets, context)
    if forgotten:
        logger.info("removed %d committed offsets: expired, or of deleted topics", forgotten)
    if context.offsets.unreadable_reason:
        return
    groups = context.groups
    for group in list(groups):
        is_empty = group.state is rebalance.EMPTY and not group.members.expected
        if is_empty and groups.find(group.group_id) is group and not context.offsets.of_group(group.group_id):
            yield from _sweep_group(group, context)
        yield None


def _sweep_group(group: Group, context: handler.Context) -> background_tasks.Steps:
    try:
        offsets = context.offsets.ours(group.group_id)
    except errors.BrokerError:  # perhaps another broker coordinates it
        return
    context.groups.remove(group)
    if group.is_in_log:
        yield from forget_groups(offsets, [group.group_id], context)


def _sweep_offsets(offsets: committed_offsets.CommittedOffsets, context: handler.Context) -> background_tasks.Steps:
    """Looks at each offset once, some hundreds per turn; returns how many were forgotten."""
    forgotten = 0
    for group_id in offsets.group_ids():
        partitions = list(offsets.of_group(group_id))
        for start in range(0, len(partitions), _CHANGES_PER_TURN):
            # Chosen in the step that stages their tombstones.
            expired = _expired(group_id, partitions[start : start + _CHANGES_PER_TURN], offsets, context)
            code = yield from remove_offsets(offsets, expired, context)
            if code:
                return forgotten
            forgotten += len(expired)
            yield None
    return forgotten


def _expired(
    group_id: str, partitions: Sequence[tuple[str, int]], offsets: committed_offsets.CommittedOffsets, context: handler.Context
) -> dict[records.OffsetKey, records.CommittedOffset]:
    return dict(
        committed_offsets.expired_offsets(
            group_id,
            partitions,
            offsets,
            context.groups,
            exists=context.partitions.has,
            now=context.clock.monotonic(),
            now_ms=context.clock.now_ms(),
            retention_ms=context.config.offsets_retention_minutes * 60_000,
        )
    )


# The internal topic `__logbus_audit`: the lines of the audit log as records, for those who collect records anyway.


PARTITIONS = 12  # in a cluster, so that each of that many brokers leads one; CreatePartitions makes more
RETRY_SECONDS, RETRY_SECONDS_MAX = 0.05, 1.0  # doubled each time: a new topic gets its leaders a moment later
_SILENT_TRIES = 4  # less than a second
_BYTES_MAX = 1 << 20  # a few thousand lines
_LINES_PER_TURN = 200  # half a millisecond
_INT32_MAX = (1 << 31) - 1
_WRITING = f"writing to {AUDIT_TOPIC}"


class AuditTopic:
    """A stream of lines, for `logs.set_up_audit_log`; on the loop's thread only."""

    def __init__(self, context: handler.Context) -> None:
        self._context = context
        self._lines: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._left_out = 0
        self._has_task = False

    def write(self, line: str) -> None:
        """Queues the line."""
        value = line.rstrip("\n").encode()
        if self._waiting_bytes + len(value) > _BYTES_MAX:
            self._left_out += 1
            return
        self._lines.append(value)
        self._waiting_bytes += len(value)
        if not self._has_task:
            self._has_task = True
            self._context.tasks.begin(self._write(), self._failed)

    def flush(self) -> None:
        """Nothing: the topic's own flush.messages and flush.ms say when its records are on the disk."""

    def _write(self) -> background_tasks.Steps:
        context = self._context
        yield background_tasks.Until(lambda go_on: go_on(None, None))  # not in the middle of the request that is written about
        tries = 0
        while self._lines:
            try:
                if AUDIT_TOPIC not in context.partitions.registry:
                    yield background_tasks.Until(partial(queue_topic, context, AUDIT_TOPIC))
                partition = self._led()
                values = list(islice(self._lines, _LINES_PER_TURN))
                yield background_tasks.Until(partial(self._stage, partition, values))
            except errors.BrokerError as error:
                if tries >= _SILENT_TRIES:
                    context.health.fails(_WRITING, error)
                pause = min(RETRY_SECONDS * 2.0**tries, RETRY_SECONDS_MAX)
                yield background_tasks.Until(partial(self._pause, pause))
                tries = min(tries + 1, 10)
                continue
            tries = 0
            context.health.succeeds(_WRITING)
            for value in values:
                self._lines.popleft()
                self._waiting_bytes -= len(value)
            if self._left_out:
                left_out, self._left_out = self._left_out, 0
                logs.audit.warning("%d lines were left out of %s while it could not be written", left_out, AUDIT_TOPIC)
        self._has_task = False

    def _failed(self) -> None:
        self._has_task = False
        logs.log_bug("writing to %s failed", AUDIT_TOPIC)

    def _led(self) -> Partition:
        """A partition that this broker may write to; NotLeaderOrFollower or StorageError if there is none."""
        partitions = self._context.partitions
        topic = partitions.registry.get(AUDIT_TOPIC)
        led = [
            partition for index in range(topic.partition_count) if (partition := partitions.led_by_name.get((topic.name, index)))
        ]
        if not led:
            raise errors.NotLeaderOrFollower(f"this broker leads none of its {topic.partition_count} partitions")
        return next((partition for partition in led if not partition.log.offline_reason), led[0])

    def _stage(self, partition: Partition, values: list[bytes], go_on: thread_pool.Outcome) -> None:
        context, answer = self._context, produce.ProduceAnswer(AUDIT_TOPIC, partition.index)
        now_ms = context.clock.now_ms()
        records = [NewRecord(timestamp=now_ms, key=None, value=value) for value in values]
        batch = validation.validate_new_batch(
            memoryview(build_batch(records)),
            message_bytes_max=_INT32_MAX,
            now_ms=now_ms,
            timestamp_after_ms_max=_INT32_MAX,
        )

        def written(_: produce_turn.StagedRequest) -> None:
            failure = None
            if answer.error:
                failure = errors.StorageError(answer.message or f"{partition.name} could not be written ({answer.error})")
            go_on(None, failure)

        partition.stage(batch)
        context.produce_turn.touch(partition, len(batch.view))
        context.produce_turn.add(produce_turn.StagedRequest([answer], [(answer, partition)], written))

    def _pause(self, seconds: float, go_on: thread_pool.Outcome) -> None:
        self._context.deadlines.add(_Pause(self._context.clock.monotonic() + seconds, go_on))


class _Pause(purgatory.Deadline):
    __slots__ = ("_go_on",)

    def __init__(self, deadline: float, go_on: thread_pool.Outcome) -> None:
        super().__init__(deadline)
        self._go_on = go_on

    def expire(self) -> None:
        self._go_on(None, None)
