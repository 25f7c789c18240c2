"""Produce: check each partition's batch, stage it, and answer when the acknowledgement asked for holds.

acks=0 has no answer (a failure closes the connection), acks=1 and acks=all answer once the turn's write is done; on one
broker the in-sync replicas are the leader itself. logbus.acks.all.waits.for.flush makes acks=all wait for the disk too, for as
long as the request's timeout_ms allows: then REQUEST_TIMED_OUT says that nobody knows, as in Kafka.
"""

from __future__ import annotations

from broker.counters import Counters
from broker.errors import BrokerError, InvalidRequiredAcks, InvalidTopic, RequestTimedOut, StorageError, TransactionsNotOffered
from broker.handlers.context import Context
from broker.handlers.deadlines import Deadline
from broker.handlers.errors import code_of, text_of
from broker.handlers.reply import Parts, Pending
from broker.handlers.turn import StagedRequest
from broker.partitions.partition import Partition
from broker.protocol.api import ApiKey
from broker.protocol.framing import Request
from broker.protocol.produce import (
    ProduceAnswer,
    ProducePartition,
    ProduceRequest,
    encode_produce_response,
    parse_produce,
)
from broker.records.validation import require_keys, validate_new_batch


class _StagedProduce(StagedRequest):
    """With what its answer needs."""

    __slots__ = ("context", "pending", "timeout_ms", "version")
    context: Context
    pending: Pending
    timeout_ms: int
    version: int

    def fail_as_defect(self) -> None:
        if not self.pending.done:
            self.pending.close_as_defect()


def handle_produce(request: Request, context: Context) -> Parts | Pending:
    produce = parse_produce(request.body, request.version)
    pending = Pending(silent=produce.acks == 0)
    answers: list[ProduceAnswer] = []
    staged: list[tuple[ProduceAnswer, Partition]] = []
    refusal = _refusal(produce)
    awaits_all, waits = produce.acks == -1, False
    now_ms = context.clock.now_ms()
    for part in produce.partitions:
        answer = ProduceAnswer(part.topic, part.partition_index)
        answers.append(answer)
        try:
            if refusal is not None:
                raise refusal
            partition = _stage(part, answer, context, now_ms)
            staged.append((answer, partition))
            if awaits_all and partition.log.config.acks_all_waits_for_flush:
                waits = True
        except BrokerError as error:
            fail(answer, error, context.counters)
    request_staged = _StagedProduce(answers, staged, _finish_when_flushed if waits else _complete)
    request_staged.pending, request_staged.version, request_staged.context = pending, request.version, context
    request_staged.timeout_ms = produce.timeout_ms
    context.produce_turn.add(request_staged)
    return pending


def _refusal(produce: ProduceRequest) -> BrokerError | None:
    if produce.acks not in (0, 1, -1):
        return InvalidRequiredAcks(f"acks={produce.acks}")
    if produce.transactional_id is not None:
        return TransactionsNotOffered("transactions are not offered")
    return None


def _stage(part: ProducePartition, answer: ProduceAnswer, context: Context, now_ms: int) -> Partition:
    partition = context.partitions.get(part.topic, part.partition_index)
    if partition.is_internal:
        raise InvalidTopic(f"{part.topic} is internal: only the broker itself writes to it")
    config = partition.log.config
    stamps_at_append = config.timestamp_type != "CreateTime"
    batch = validate_new_batch(
        part.records,
        message_bytes_max=config.message_bytes_max,
        now_ms=now_ms,
        timestamp_after_ms_max=config.timestamp_after_ms_max,
        timestamp_before_ms_max=config.timestamp_before_ms_max,
        stamps_at_append=stamps_at_append,
    )
    if config.cleanup_policy != "delete" and config.is_compacted:
        require_keys(batch)
    staged = partition.stage(batch)
    answer.base_offset = staged.base_offset
    answer.log_start_offset = partition.log_start_offset
    if stamps_at_append:
        answer.log_append_time = staged.max_timestamp
    if not staged.duplicate:
        context.produce_turn.touch(partition, len(batch.view))
    return partition


def fail(answer: ProduceAnswer, error: BrokerError, counters: Counters) -> None:
    """Turn an answer into the error's."""
    answer.error = code_of(error)
    counters.errors[ApiKey.PRODUCE, answer.error] += 1
    answer.base_offset = answer.log_start_offset = -1
    answer.message = text_of(error)


def _complete(done: _StagedProduce) -> None:
    pending = done.pending
    try:
        if not pending.silent:
            pending.complete([encode_produce_response(done.answers, done.version)])
        elif any(answer.error for answer in done.answers):
            pending.fail_silently()
        else:
            pending.complete([])
    except Exception:  # here and not by `complete_with`: a closure for each request would cost more than all of this
        pending.fail_as_defect()


class _AwaitedFlushes(Deadline):
    """A produce request whose batches are written, and wait for the disk."""

    __slots__ = ("_done", "_left")

    def __init__(self, done: _StagedProduce, waiting: list[tuple[ProduceAnswer, Partition]], now: float) -> None:
        super().__init__(now + max(done.timeout_ms, 0) / 1000)
        self._done = done
        self._left = {id(answer): answer for answer, _ in waiting}

    def flushed(self, answer: ProduceAnswer, error: StorageError | None) -> None:
        if self.is_over:
            return
        del self._left[id(answer)]
        if error is not None:
            fail(answer, error, self._done.context.counters)
        if not self._left:
            self._done.context.deadlines.cancel(self)
            _complete(self._done)

    def expire(self) -> None:
        """The disk took too long; what it brings later is stored all the same, and an idempotent producer's retry finds it."""
        error = RequestTimedOut(f"not on the disk within {self._done.timeout_ms} ms (timeout.ms of the request)")
        for answer in self._left.values():
            fail(answer, error, self._done.context.counters)
        _complete(self._done)


def _finish_when_flushed(done: _StagedProduce) -> None:
    context = done.context
    waiting = [(answer, part) for answer, part in done.staged if not answer.error and part.log.config.acks_all_waits_for_flush]
    if not waiting:
        _complete(done)
        return
    awaited = _AwaitedFlushes(done, waiting, context.clock.monotonic())
    context.deadlines.add(awaited)
    for answer, partition in waiting:
        context.flusher.when_visible(
            partition,
            partition.end_offset,
            lambda error, answer=answer: awaited.flushed(answer, error),  # type: ignore[misc]
        )
