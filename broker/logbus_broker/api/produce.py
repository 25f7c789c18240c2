"""Produce: check each partition's batch, stage it, and answer when the requested acknowledgement holds.

acks=0 has no answer (a failure closes the connection), acks=1 is answered once the turn's write is done, and acks=all once every
in-sync replica has written it: with a single broker that is the leader itself. logbus.acks.all.waits.for.flush makes acks=all
wait for the disks too. It waits at most the request's timeout_ms: then REQUEST_TIMED_OUT means that the outcome is unknown, as in
Kafka.

InitProducerId gives idempotent producers an id that was never used before. Transactions are not supported.
"""

from __future__ import annotations

from functools import partial

from logbus_broker import errors
from logbus_broker.api.error_codes import code_of, current_leader, text_of
from logbus_broker.api.handler import Context, Parts, Pending, caller_of
from logbus_broker.api.produce_turn import StagedRequest
from logbus_broker.api.purgatory import Deadline
from logbus_broker.health import Counters
from logbus_broker.log.partition import Partition
from logbus_broker.protocol.api import ApiKey, ErrorCode
from logbus_broker.protocol.batch import BATCH_HEADER_BYTES, read_header
from logbus_broker.protocol.codec import decode_request, encode_response, response_class
from logbus_broker.protocol.framing import Request
from logbus_broker.protocol.produce import ProduceAnswer, ProducePartition, ProduceRequest, encode_produce_response, parse_produce
from logbus_broker.protocol.validation import Inspection, require_keys, validate_new_batch
from logbus_broker.security.state import AclResourceType


class _StagedProduce(StagedRequest):
    """A staged request with what its answer needs."""

    __slots__ = ("context", "listener", "pending", "timeout_ms", "version")

    def __init__(self, pending: Pending, timeout_ms: int, request: Request, context: Context) -> None:
        super().__init__([], [], _complete)
        self.pending = pending
        self.timeout_ms = timeout_ms
        self.version, self.listener = request.version, request.origin.listener  # not the request: its body is the buffer
        self.context = context

    def fail_as_defect(self) -> None:
        if not self.pending.done:
            self.pending.close_instead("defect")


def handle_produce(request: Request, context: Context) -> Parts | Pending:
    produce = parse_produce(request.body, request.version)
    pending = Pending(silent=produce.acks == 0)
    done = _StagedProduce(pending, produce.timeout_ms, request, context)
    refusal, awaits_all, now_ms = _refusal(produce), produce.acks == -1, context.clock.now_ms()
    inspection = Inspection()
    caller = None if context.authorizer is None else caller_of(request, context)
    named: set[Partition] = set()
    for part in produce.partitions:
        answer = ProduceAnswer(part.topic, part.partition_index)
        done.answers.append(answer)
        try:
            if caller is not None:
                caller.check(AclResourceType.TOPIC, part.topic)
            if refusal is not None:
                raise refusal
            partition = context.partitions.get(part.topic, part.partition_index)
            if partition in named:  # Kafka takes the last one and forgets the others; no client sends two
                raise errors.InvalidRequest(f"{partition.name} is named twice in one request: a partition takes one record batch")
            named.add(partition)
            _stage(partition, part, answer, context, now_ms, awaits_all, inspection)
            done.staged.append((answer, partition))
            if awaits_all and (partition.log.config.acks_all_waits_for_flush or partition.replicated is not None):
                done.finish = _finish_when_safe
        except errors.BrokerError as error:
            if isinstance(error, _PASSING) and part.records is not None and len(part.records) >= BATCH_HEADER_BYTES:
                context.partitions.refused(part.topic, part.partition_index, read_header(part.records))
            fail(answer, error, context.counters)
    context.produce_turn.add(done)
    return pending


def _refusal(produce: ProduceRequest) -> errors.BrokerError | None:
    if produce.acks not in (0, 1, -1):
        return errors.InvalidRequiredAcks(f"acks={produce.acks}")
    if produce.transactional_id is not None:
        return errors.TransactionsNotSupported("transactions are not supported")
    return None


def _stage(
    partition: Partition,
    part: ProducePartition,
    answer: ProduceAnswer,
    context: Context,
    now_ms: int,
    awaits_all: bool,
    inspection: Inspection,
) -> None:
    if partition.is_internal:
        raise errors.InvalidTopic(f"{part.topic} is internal: only the broker itself writes to it")
    if awaits_all and partition.lacks_replicas:
        raise errors.NotEnoughReplicas(f"{partition.name} has fewer replicas in sync than min.insync.replicas")
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


# Refusals that may no longer apply when the producer's next request, already on its way, arrives.
_PASSING = (errors.NotLeaderOrFollower, errors.NotEnoughReplicas, errors.UnknownTopicOrPartition, errors.InspectionTooLong)


def fail(answer: ProduceAnswer, error: errors.BrokerError, counters: Counters) -> None:
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
            pending.close_instead("acks_0")  # as Kafka does
        else:
            pending.complete([])
    except Exception:  # not through `complete_with`: a closure per request would cost more than all of this
        pending.fail_as_defect()


def _add_hints(done: _StagedProduce) -> None:
    for answer in done.answers:
        if answer.error:
            answer.leader = current_leader(answer.error, answer.topic, answer.partition_index, done.listener, done.context)


class _DelayedProduce(Deadline):
    """A produce request whose batches are written and wait for the disk or for replicas."""

    __slots__ = ("_done", "_left")

    def __init__(self, done: _StagedProduce, left: dict[int, tuple[ProduceAnswer, Partition]], now: float) -> None:
        """`left` are the waiting batches, by the identity of their answers."""
        super().__init__(now + max(done.timeout_ms, 0) / 1000)
        self._done = done
        self._left = left

    def reached(self, answer: ProduceAnswer, error: errors.BrokerError | None) -> None:
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
        text = f"not replicated or flushed within {self._done.timeout_ms} ms (timeout.ms of the request)"
        for answer, partition in self._left.values():
            error = errors.NotEnoughReplicasAfterAppend(text) if partition.lacks_replicas else errors.RequestTimedOut(text)
            fail(answer, error, self._done.context.counters)
        _complete(self._done)


def _finish_when_safe(done: _StagedProduce) -> None:
    """Answer when every in-sync replica has flushed, or written, all of it. Each batch waits for the current log end offset: so a
    duplicate, whose original may still be unanswered, waits at least for what the original waits for."""
    context = done.context
    left = {}
    for entry in done.staged:
        answer, partition = entry
        if not answer.error and (partition.log.config.acks_all_waits_for_flush or partition.replicated is not None):
            left[id(answer)] = entry
    if not left:
        _complete(done)
        return
    high_watermark = context.high_watermark
    awaited = _DelayedProduce(done, left, context.clock.monotonic())
    context.deadlines.add_in_order(awaited, done.timeout_ms)
    for answer, partition in list(left.values()):
        when_safe = (
            high_watermark.when_visible if partition.log.config.acks_all_waits_for_flush else high_watermark.when_replicated
        )
        when_safe(partition, partition.end_offset, partial(awaited.reached, answer), awaited)


def handle_init_producer_id(request: Request, context: Context) -> Parts | Pending:
    message = decode_request(request.api_key, request.version, request.body)
    if message.transactional_id is not None:
        refusal = errors.TransactionsNotSupported() if message.transactional_id else errors.InvalidRequest()
        return [_encode_producer_id(-1, code_of(refusal), request.version)]
    caller = caller_of(request, context)
    if not caller.allows_on_any(AclResourceType.TOPIC):
        try:
            caller.check(AclResourceType.CLUSTER)
        except errors.AuthorizationError as error:
            return [_encode_producer_id(-1, code_of(error), request.version)]
    pending = Pending(stops_reading=True)

    def taken(producer_id: int, error: BaseException | None) -> None:
        code = ErrorCode.NONE if error is None else code_of(error)
        pending.complete_with(lambda: [_encode_producer_id(producer_id, code, request.version)])

    context.producer_ids.take(taken)
    return pending


def _encode_producer_id(producer_id: int, code: int, version: int) -> bytes:
    answer = response_class(ApiKey.INIT_PRODUCER_ID)(
        error_code=code, producer_id=producer_id, producer_epoch=0 if producer_id >= 0 else -1
    )
    return encode_response(answer, version)
