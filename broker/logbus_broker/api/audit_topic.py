"""The internal topic `__logbus_audit`: the lines of the audit log as records, for those who collect records anyway.

A broker writes to a partition that it leads, standalone to the only one: so a line needs no other broker, and each partition is
the history of one broker at a time. A broker that leads none at the moment, or whose log is offline, keeps its lines, a megabyte
of them, and tries again, at last every second; what is more than that is left out, and a line says how many were. Lines that wait
are lost with the process: logbus.audit.log has them.

Nothing here waits: a line is queued, and a task stages what is queued, some hundreds a turn, as if it had been produced. No ACL
is asked for that, so writing a line causes none.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from itertools import islice

from logbus_broker import errors, logs
from logbus_broker.api import handler, offsets_topic, produce_turn, purgatory
from logbus_broker.log import background_tasks, thread_pool
from logbus_broker.log.partition import Partition
from logbus_broker.protocol import batch_builder, produce, validation
from logbus_broker.security.state import AUDIT_TOPIC

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
                    yield background_tasks.Until(partial(offsets_topic.queue_topic, context, AUDIT_TOPIC))
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
        records = [batch_builder.NewRecord(timestamp=now_ms, key=None, value=value) for value in values]
        batch = validation.validate_new_batch(
            memoryview(batch_builder.build_batch(records)),
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
