"""Fetch: small headers followed by slices of log files, at once or when enough has become visible.

Hot path. Records are visible once every in-sync replica has flushed them; a fetch that finds written but unflushed records
requests a flush. The response is built just before it is sent, so a waiting fetch holds no file. At least one whole batch is
returned even if it exceeds the limits (KIP-74). From version 13 on, partitions are requested by topic id: one dictionary instead
of another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from broker.errors import BrokerError, FencedLeaderEpoch, NotLeaderOrFollower, UnknownLeaderEpoch
from broker.handlers.context import Context
from broker.handlers.error_codes import code_of
from broker.handlers.leader_hints import leader_hint
from broker.handlers.purgatory import WaitingFetch
from broker.handlers.replica_fetch import handle_replica_fetch, replica_fetch_of
from broker.handlers.reply import Part, Parts, Pending
from broker.partitions.partition import Partition
from broker.protocol.api import ApiKey, ErrorCode
from broker.protocol.fetch import TOPIC_IDS_FROM, FetchAnswer, FetchRequest, encode_fetch_response, parse_fetch
from broker.protocol.framing import Request
from broker.storage.file_slice import FileSlice


class _Reading:
    """One pass over a request's partitions: answers, the slices that follow them, and whether a failure forbids waiting."""

    __slots__ = ("answers", "byte_count", "failed", "more_follows", "partitions", "slices")

    def __init__(self) -> None:
        self.answers: list[FetchAnswer] = []
        self.slices: list[FileSlice | None] = []
        self.partitions: list[Partition] = []
        self.byte_count = 0
        self.failed = False
        self.more_follows = False  # visible records were left for the next fetch

    def release(self) -> None:
        """None of it will be sent: the request waits, so none of its partitions failed."""
        for partition, piece in zip(self.partitions, self.slices, strict=True):
            if piece is not None:
                partition.traffic.bytes_out -= piece.length
                piece.release()


def handle_fetch(request: Request, context: Context) -> Parts | Pending:
    if context.leader is not None and (replicas := replica_fetch_of(request)) is not None:
        return handle_replica_fetch(replicas, request, context, context.leader)
    fetch = parse_fetch(request.body, request.version)
    if fetch.session_id != 0:  # sessions are never opened here, so none can be continued
        return list(encode_fetch_response([], request.version, error=ErrorCode.FETCH_SESSION_ID_NOT_FOUND))
    reading = _read(fetch, request.version, request.origin.listener, context)
    bytes_missing = bytes_awaited(fetch, reading.byte_count, reading.more_follows, context)
    if reading.failed or bytes_missing <= 0 or not fetch.partitions:
        return _encode(reading, fetch, request.version)
    reading.release()
    version, listener = request.version, request.origin.listener  # not the request: its body is the connection's buffer
    return park(
        reading.partitions,
        bytes_missing,
        fetch.wait_ms_max,
        lambda _: answer_again(fetch, version, listener, context),
        context,
    )


def bytes_awaited(fetch: FetchRequest, byte_count: int, more_follows: bool, context: Context) -> int:
    """How many bytes must become visible before the fetch, which found `byte_count`, is answered; at most 0: answer it at once.

    Waiting is pointless once the answer cannot grow: it is as large as any may be, or a partition has more records than this
    answer can take, because of a limit or because they are in the next segment. Kafka does not wait in these cases either, except
    if only the limit of a single partition is in the way.
    """
    if fetch.wait_ms_max <= 0 or (byte_count and more_follows):
        return 0
    return min(fetch.bytes_min, max(fetch.bytes_max, 1), context.config.fetch_bytes_max) - byte_count


def park(
    partitions: list[Partition], bytes_missing: int, wait_ms: int, make: Callable[[Pending], Parts], context: Context
) -> Pending:
    """Wait for `bytes_missing` more bytes on these partitions, at most `wait_ms`; then build the answer with `make`."""
    pending = Pending(stops_reading=True)
    waiting = WaitingFetch(
        partitions=partitions,
        bytes_missing=bytes_missing,
        deadline=context.clock.monotonic() + wait_ms / 1000,
        answer=lambda: pending.complete_with(lambda: make(pending)),
    )
    pending.on_cancel = lambda: context.purgatory.cancel(waiting)
    context.purgatory.add(waiting)
    for partition in partitions:
        context.exposure.want(partition)
    return pending


def answer_again(fetch: FetchRequest, version: int, listener: str, context: Context) -> Parts:
    """The answer to a request that has waited."""
    return _encode(_read(fetch, version, listener, context), fetch, version)


def _read(fetch: FetchRequest, version: int, listener: str, context: Context) -> _Reading:
    reading = _Reading()
    partition_of: Any = context.partitions.get_by_id if version >= TOPIC_IDS_FROM else context.partitions.get
    budget = min(fetch.bytes_max, context.config.fetch_bytes_max)
    for part in fetch.partitions:
        try:
            partition = partition_of(part.topic, part.partition_index)
            if context.serves_consumers is not None and not context.serves_consumers(partition):
                raise NotLeaderOrFollower(f"this broker has not been sure for long that it leads {partition.name}")
            reading.partitions.append(partition)
            check_leader_epoch(part.leader_epoch, partition)
            piece = locate(partition, part.fetch_offset, min(part.bytes_max, budget), first=reading.byte_count == 0)
        except BrokerError as error:
            reading.failed = True
            code = code_of(error)
            context.counters.errors[ApiKey.FETCH, code] += 1
            leader = leader_hint(code, part.topic, part.partition_index, listener, context)
            reading.answers.append(FetchAnswer(part.topic, part.partition_index, code, -1, -1, 0, leader))
            reading.slices.append(None)
            continue
        size = 0
        if piece is not None:
            size = piece.length
            partition.traffic.bytes_out += size
            if piece.more_follows:
                reading.more_follows = True
        elif part.fetch_offset < partition.visible_offset:
            reading.more_follows = True
        if partition.end_offset > partition.visible_offset:
            context.exposure.want(partition)
        budget -= size
        reading.byte_count += size
        reading.slices.append(piece)
        answer = FetchAnswer(part.topic, part.partition_index, 0, partition.visible_offset, partition.log_start_offset, size)
        reading.answers.append(answer)
    return reading


def locate(partition: Partition, offset: int, limit: int, *, first: bool) -> FileSlice | None:
    """The records to send, or None; the first partition with data may exceed the limits by one batch, the others may not."""
    if limit <= 0 and not first:
        return None
    piece = partition.log.locate(offset, max(limit, 0), upto_offset=partition.visible_offset, upto_place=partition.visible_place)
    if piece.length == 0 or (piece.length > limit and not first):
        piece.release()
        return None
    return piece


def check_leader_epoch(epoch: int, partition: Partition) -> None:
    """-1 skips the check; an epoch older than ours is fenced, a newer one is unknown."""
    if epoch == -1 or epoch == partition.leader_epoch:
        return
    raise (FencedLeaderEpoch if epoch < partition.leader_epoch else UnknownLeaderEpoch)(
        f"epoch {epoch}, ours is {partition.leader_epoch}"
    )


def _encode(reading: _Reading, fetch: FetchRequest, version: int) -> Parts:
    pieces = encode_fetch_response(reading.answers, version, read_committed=fetch.read_committed)
    parts: list[Part] = []
    for head, piece in zip(pieces, reading.slices, strict=False):
        parts.append(head)
        if piece is not None:
            parts.append(piece)
    parts.append(pieces[-1])
    return parts
