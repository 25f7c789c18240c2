"""Produce: check each partition's batch, stage it, and answer when the acknowledgement asked for holds.

acks=0 has no answer (a failure closes the connection), acks=1 and acks=all answer once the turn's write is done; on one
broker the in-sync replicas are the leader itself. logbus.acks.all.waits.for.flush makes acks=all wait for the disk too.
"""

from __future__ import annotations

from broker.counters import Counters
from broker.errors import BrokerError, InvalidRequiredAcks, StorageError, TransactionsNotOffered
from broker.handlers.context import Context
from broker.handlers.errors import code_of
from broker.handlers.reply import Parts, Pending
from broker.handlers.turn import StagedRequest
from broker.partitions.partition import Partition
from broker.protocol.api import ApiKey
from broker.protocol.framing import Request
from broker.protocol.produce import ProduceAnswer, ProducePartition, ProduceRequest, encode_produce_response, parse_produce
from broker.records.validation import require_keys, validate_new_batch


class _StagedProduce(StagedRequest):
    """With what its answer needs."""

    __slots__ = ("context", "pending", "version")
    context: Context
    pending: Pending
    version: int


def handle_produce(request: Request, context: Context) -> Parts | Pending:
    produce = parse_produce(request.body, request.version)
    pending = Pending(silent=produce.acks == 0)
    answers: list[ProduceAnswer] = []
    staged: list[tuple[ProduceAnswer, Partition]] = []
    refusal = _refusal(produce)
    now_ms = context.clock.now_ms()
    for part in produce.partitions:
        answer = ProduceAnswer(part.topic, part.partition_index)
        answers.append(answer)
        try:
            if refusal is not None:
                raise refusal
            staged.append((answer, _stage(part, answer, context, now_ms)))
        except BrokerError as error:
            fail(answer, error, context.counters)
    waits = produce.acks == -1 and context.config.acks_all_waits_for_flush
    request_staged = _StagedProduce(answers, staged, _finish_when_flushed if waits else _complete)
    request_staged.pending, request_staged.version, request_staged.context = pending, request.version, context
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
    answer.message = str(error)


def _complete(done: _StagedProduce) -> None:
    pending = done.pending
    if not pending.silent:
        pending.complete([encode_produce_response(done.answers, done.version)])
    elif any(answer.error for answer in done.answers):
        pending.fail_silently()
    else:
        pending.complete([])


def _finish_when_flushed(done: _StagedProduce) -> None:
    waiting = [(answer, partition) for answer, partition in done.staged if not answer.error]
    left = len(waiting)

    def flushed(answer: ProduceAnswer, error: StorageError | None) -> None:
        nonlocal left
        left -= 1
        if error is not None:
            fail(answer, error, done.context.counters)
        if left == 0:
            _complete(done)

    if not waiting:
        _complete(done)
    for answer, partition in waiting:
        done.context.flusher.when_visible(partition, partition.end_offset, lambda error, answer=answer: flushed(answer, error))  # type: ignore[misc]
