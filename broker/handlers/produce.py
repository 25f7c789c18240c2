"""Produce: check each partition's batch, stage it, and answer when the requested acknowledgement holds.

acks=0 has no answer (a failure closes the connection), acks=1 is answered once the turn's write is done, and acks=all once every
in-sync replica has written it: with a single broker that is the leader itself. logbus.acks.all.waits.for.flush makes acks=all
wait for the disks too. It waits at most the request's timeout_ms: then REQUEST_TIMED_OUT means that the outcome is unknown, as in
Kafka.
"""

from __future__ import annotations

from functools import partial

from broker.counters import Counters
from broker.errors import (
    BrokerError,
    InspectionTooLong,
    InvalidRequest,
    InvalidRequiredAcks,
    InvalidTopic,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeaderOrFollower,
    RequestTimedOut,
    TransactionsNotOffered,
    UnknownTopicOrPartition,
)
from broker.handlers.context import Context
from broker.handlers.deadlines import Deadline
from broker.handlers.error_codes import code_of, text_of
from broker.handlers.leader_hints import leader_hint
from broker.handlers.reply import Parts, Pending
from broker.handlers.turn import StagedRequest
from broker.partitions.partition import Partition
from broker.protocol.api import ApiKey
from broker.protocol.framing import Request
from broker.protocol.produce import ProduceAnswer, ProducePartition, ProduceRequest, encode_produce_response, parse_produce
from broker.records.batch import BATCH_HEADER_BYTES, read_header
from broker.records.validation import Inspection, require_keys, validate_new_batch


class _StagedProduce(StagedRequest):
    """A staged request with what its answer needs."""

    __slots__ = ("context", "listener", "pending", "timeout_ms", "version")
    context: Context
    listener: str
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
    others = _Others() if len(produce.partitions) > 1 else None
    for part in produce.partitions:
        answer = ProduceAnswer(part.topic, part.partition_index)
        answers.append(answer)
        try:
            if refusal is not None:
                raise refusal
            partition = _stage(part, answer, context, now_ms, awaits_all, others)
            staged.append((answer, partition))
            if awaits_all and (partition.log.config.acks_all_waits_for_flush or partition.replicated is not None):
                waits = True
        except BrokerError as error:
            if isinstance(error, _PASSING):
                _note_refused(part, context)
            fail(answer, error, context.counters)
    request_staged = _StagedProduce(answers, staged, _finish_when_safe if waits else _complete)
    request_staged.pending, request_staged.version, request_staged.context = pending, request.version, context
    request_staged.timeout_ms, request_staged.listener = produce.timeout_ms, request.origin.listener
    context.produce_turn.add(request_staged)
    return pending


def _refusal(produce: ProduceRequest) -> BrokerError | None:
    if produce.acks not in (0, 1, -1):
        return InvalidRequiredAcks(f"acks={produce.acks}")
    if produce.transactional_id is not None:
        return TransactionsNotOffered("transactions are not offered")
    return None


class _Others:
    """What the batches of one request have to do with each other."""

    __slots__ = ("inspection", "named")

    def __init__(self) -> None:
        self.inspection = Inspection()
        self.named: set[Partition] = set()


def _stage(
    part: ProducePartition, answer: ProduceAnswer, context: Context, now_ms: int, awaits_all: bool, others: _Others | None
) -> Partition:
    partition = context.partitions.get(part.topic, part.partition_index)
    inspection = None
    if others is not None:
        if partition in others.named:  # Kafka takes the last one and forgets the others; no client sends two
            raise InvalidRequest(f"{partition.name} is named twice in one request: each partition takes one record batch")
        others.named.add(partition)
        inspection = others.inspection
    if partition.is_internal:
        raise InvalidTopic(f"{part.topic} is internal: only the broker itself writes to it")
    if awaits_all and partition.lacks_replicas:
        raise NotEnoughReplicas(f"{partition.name} has fewer replicas in sync than min.insync.replicas")
    config = partition.log.config
    stamps_at_append = config.timestamp_type != "CreateTime"
    batch = validate_new_batch(
        part.records,
        message_bytes_max=config.message_bytes_max,
        now_ms=now_ms,
        timestamp_after_ms_max=config.timestamp_after_ms_max,
        timestamp_before_ms_max=config.timestamp_before_ms_max,
        stamps_at_append=stamps_at_append,
        inspection=inspection,
    )
    if config.cleanup_policy != "delete" and config.is_compacted:
        require_keys(batch, inspection)
    staged = partition.stage(batch)
    answer.base_offset = staged.base_offset
    answer.log_start_offset = partition.log_start_offset
    if stamps_at_append:
        answer.log_append_time = staged.max_timestamp
    if not staged.duplicate:
        context.produce_turn.touch(partition, len(batch.view))
    return partition


# Refusals that may no longer apply when the producer's next request, already on its way, arrives.
_PASSING = (NotLeaderOrFollower, NotEnoughReplicas, UnknownTopicOrPartition, InspectionTooLong)


def _note_refused(part: ProducePartition, context: Context) -> None:
    if part.records is not None and len(part.records) >= BATCH_HEADER_BYTES:
        context.partitions.refused(part.topic, part.partition_index, read_header(part.records))


def fail(answer: ProduceAnswer, error: BrokerError, counters: Counters) -> None:
    """Turn the answer into an error."""
    answer.error = code_of(error)
    counters.errors[ApiKey.PRODUCE, answer.error] += 1
    answer.base_offset = answer.log_start_offset = -1
    answer.message = text_of(error)


def _complete(done: _StagedProduce) -> None:
    pending = done.pending
    try:
        if done.context.cluster is not None:
            _add_hints(done)
        if not pending.silent:
            pending.complete([encode_produce_response(done.answers, done.version)])
        elif any(answer.error for answer in done.answers):
            pending.fail_silently()
        else:
            pending.complete([])
    except Exception:  # not through `complete_with`: a closure per request would cost more than all of this
        pending.fail_as_defect()


def _add_hints(done: _StagedProduce) -> None:
    for answer in done.answers:
        if answer.error:
            answer.leader = leader_hint(answer.error, answer.topic, answer.partition_index, done.listener, done.context)


class _Awaited(Deadline):
    """A produce request whose batches are written and wait for the disk or for replicas."""

    __slots__ = ("_done", "_left")

    def __init__(self, done: _StagedProduce, left: dict[int, tuple[ProduceAnswer, Partition]], now: float) -> None:
        """`left` are the waiting batches, by the identity of their answers."""
        self.deadline = now + max(done.timeout_ms, 0) / 1000
        self.is_over = False
        self._done = done
        self._left = left

    def reached(self, answer: ProduceAnswer, error: BrokerError | None) -> None:
        if self.is_over:
            return
        del self._left[id(answer)]
        if error is not None:
            fail(answer, error, self._done.context.counters)
        if not self._left:
            self._done.context.deadlines.cancel(self)
            _complete(self._done)

    def expire(self) -> None:
        """It took too long. What is written stays nevertheless, and an idempotent producer's retry finds it."""
        text = f"not safe within {self._done.timeout_ms} ms (timeout.ms of the request)"
        for answer, partition in self._left.values():
            error = NotEnoughReplicasAfterAppend(text) if partition.lacks_replicas else RequestTimedOut(text)
            fail(answer, error, self._done.context.counters)
        _complete(self._done)


def _finish_when_safe(done: _StagedProduce) -> None:
    """Answer when every in-sync replica has flushed, or written, all of it. Each batch waits for the current log end offset: so a
    duplicate, whose original may still be unanswered, waits at least for what the original waits for."""
    context = done.context
    left = {}
    for one in done.staged:
        answer, partition = one
        if not answer.error and (partition.log.config.acks_all_waits_for_flush or partition.replicated is not None):
            left[id(answer)] = one
    if not left:
        _complete(done)
        return
    exposure = context.exposure
    awaited = _Awaited(done, left, context.clock.monotonic())
    context.deadlines.add_in_order(awaited, done.timeout_ms)
    for answer, partition in list(left.values()):
        when_safe = exposure.when_visible if partition.log.config.acks_all_waits_for_flush else exposure.when_replicated
        when_safe(partition, partition.end_offset, partial(awaited.reached, answer), awaited)
