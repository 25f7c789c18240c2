"""Fetch: small headers followed by slices of log files, at once or when enough has become visible.

Hot path. Records are visible once every in-sync replica has flushed them; a fetch that finds written but unflushed records
requests a flush. The response is built just before it is sent, so a waiting fetch holds no file. At least one whole batch is
returned even if it exceeds the limits (KIP-74). From version 13 on, partitions are requested by topic id: one dictionary instead
of another.

Other brokers fetch the partitions that they follow with the same request: `Leader` answers when there is something for them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from logbus_broker.api.authorization import Caller
from logbus_broker.api.error_codes import code_of, current_leader
from logbus_broker.api.handler import Answering, Context, Part, Parts, Pending, caller_of, in_slices
from logbus_broker.api.purgatory import DelayedFetch
from logbus_broker.errors import (
    BrokerError,
    ClusterAuthorizationFailed,
    FencedLeaderEpoch,
    NotLeaderOrFollower,
    UnknownLeaderEpoch,
)
from logbus_broker.filesystem import FileSlice
from logbus_broker.log.background_tasks import Until
from logbus_broker.log.partition import Partition
from logbus_broker.log.thread_pool import Outcome
from logbus_broker.protocol.api import ApiKey, ErrorCode
from logbus_broker.protocol.fetch import (
    ADDRESSES_FROM,
    TOPIC_IDS_FROM,
    FetchAnswer,
    FetchPartition,
    FetchRequest,
    encode_fetch_response,
    parse_fetch,
)
from logbus_broker.protocol.framing import Origin, Request
from logbus_broker.protocol.replica_fetch import REPLICA_FETCH_VERSION, ReplicaFetch, encode_replica_answer, parse_replica_fetch
from logbus_broker.security.state import AclResourceType

if TYPE_CHECKING:
    from logbus_broker.replication.leader import Leader

# Partitions of a request that are read in one turn: 5 ms at 10 us each, 12 if each is in a segment that nobody has read lately.
# More are read in slices.
READ_AT_ONCE_MAX = 500
_READ_PER_STEP = 50


class _Reading:
    """One pass over a request's partitions: answers, the slices that follow them, and whether a failure forbids waiting."""

    __slots__ = ("answers", "budget", "byte_count", "failed", "more_follows", "partitions", "slices")

    def __init__(self, budget: int) -> None:
        """`budget` is how many bytes it may still take."""
        self.budget = budget
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
    if len(fetch.partitions) > READ_AT_ONCE_MAX:
        return _handle_many(fetch, request.version, request.origin, context)
    reading = _Reading(min(fetch.bytes_max, context.config.fetch_bytes_max))
    _read(fetch.partitions, reading, request.version, request.origin, context)
    bytes_missing = fetch.bytes_min - reading.byte_count
    if bytes_missing > 1:  # else no limit is lower; most consumers ask for one byte
        bytes_missing = bytes_awaited(fetch, reading.byte_count, reading.more_follows, context)
    if reading.failed or fetch.wait_ms_max <= 0 or bytes_missing <= 0 or not fetch.partitions:
        return _answer(reading, encode_fetch_response(reading.answers, request.version, read_committed=fetch.read_committed))
    reading.release()
    version, origin = request.version, request.origin  # not the request: its body is the connection's buffer
    return park(
        reading.partitions,
        bytes_missing,
        fetch.wait_ms_max,
        lambda _: answer_again(fetch, version, origin, context),
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
    waiting = DelayedFetch(
        partitions=partitions,
        bytes_missing=bytes_missing,
        deadline=context.clock.monotonic() + wait_ms / 1000,
        answer=lambda: pending.complete_with(lambda: make(pending)),
    )
    pending.on_cancel = lambda: context.purgatory.cancel(waiting)
    context.purgatory.add(waiting)
    for partition in partitions:
        context.high_watermark.request_flush(partition)
    return pending


def answer_again(fetch: FetchRequest, version: int, origin: Origin, context: Context) -> Parts:
    """The answer to a request that has waited."""
    reading = _Reading(min(fetch.bytes_max, context.config.fetch_bytes_max))
    _read(fetch.partitions, reading, version, origin, context)
    return _answer(reading, encode_fetch_response(reading.answers, version, read_committed=fetch.read_committed))


class _Requester:
    """Who sent a request of many partitions: it may leave while that is read, or waits."""

    __slots__ = ("_go_on", "_waiting", "has_left")

    def __init__(self) -> None:
        self.has_left = False
        self._waiting: Pending | None = None
        self._go_on: Outcome | None = None

    def wait(self, park: Callable[[Callable[[Pending], Parts]], Pending], go_on: Outcome) -> None:
        def answer(_: Pending) -> Parts:
            go_on(None, None)
            return []

        self._waiting, self._go_on = park(answer), go_on

    def leave(self) -> None:
        self.has_left = True
        if self._waiting is not None and self._go_on is not None and not self._waiting.done:
            self._waiting.cancel()
            self._go_on(None, None)


def _handle_many(fetch: FetchRequest, version: int, origin: Origin, context: Context) -> Parts | Pending:
    """A request of more partitions than are read in one turn."""
    requester = _Requester()
    answer = in_slices(_answer_many(fetch, version, origin, context, requester), context)
    if isinstance(answer, Pending):
        answer.on_cancel = requester.leave
    return answer


def _answer_many(fetch: FetchRequest, version: int, origin: Origin, context: Context, requester: _Requester) -> Answering:
    reading = yield from _read_in_slices(fetch, version, origin, context)
    bytes_missing = bytes_awaited(fetch, reading.byte_count, reading.more_follows, context)
    if bytes_missing > 0 and not reading.failed and not requester.has_left:
        reading.release()
        parked = partial(park, reading.partitions, bytes_missing, fetch.wait_ms_max, context=context)
        yield Until(partial(requester.wait, parked))
        if not requester.has_left:
            reading = yield from _read_in_slices(fetch, version, origin, context)
    if requester.has_left:
        return []
    pieces = yield partial(encode_fetch_response, reading.answers, version, read_committed=fetch.read_committed)
    return _answer(reading, pieces)


def _read_in_slices(fetch: FetchRequest, version: int, origin: Origin, context: Context) -> Generator[None, None, _Reading]:
    reading = _Reading(min(fetch.bytes_max, context.config.fetch_bytes_max))
    for start in range(0, len(fetch.partitions), _READ_PER_STEP):
        _read(fetch.partitions[start : start + _READ_PER_STEP], reading, version, origin, context)
        yield
    return reading


def _read(parts: Sequence[FetchPartition], reading: _Reading, version: int, origin: Origin, context: Context) -> None:
    partition_of: Any = context.partitions.get_by_id if version >= TOPIC_IDS_FROM else context.partitions.get
    budget = reading.budget
    caller = None if context.authorizer is None else Caller(ApiKey.FETCH, origin, context.authorizer)
    for part in parts:
        range_end: int | None = None  # of what the client may read, if that is not all
        try:
            if caller is not None and isinstance(part.topic, str):  # a name, before it is looked up
                range_end = caller.check_read(part.topic, part.partition_index, part.fetch_offset)
            partition = partition_of(part.topic, part.partition_index)
            if caller is not None and version >= TOPIC_IDS_FROM:
                range_end = caller.check_read(partition.topic, part.partition_index, part.fetch_offset)
            if context.serves_consumers is not None and not context.serves_consumers(partition):
                raise NotLeaderOrFollower(f"this broker has not been able to confirm for too long that it leads {partition.name}")
            reading.partitions.append(partition)
            check_leader_epoch(part.leader_epoch, partition)
            limit = min(part.bytes_max, budget)
            piece = locate(partition, part.fetch_offset, limit, first=reading.byte_count == 0, range_end=range_end)
        except BrokerError as error:
            reading.failed = True
            code = code_of(error)
            context.counters.errors[ApiKey.FETCH, code] += 1
            leader = None
            if version >= ADDRESSES_FROM:  # as Kafka: a leader whose address a client does not know is no help to it
                leader = current_leader(code, part.topic, part.partition_index, origin.listener, context)
            reading.answers.append(FetchAnswer(part.topic, part.partition_index, code, -1, -1, 0, leader))
            reading.slices.append(None)
            continue
        size = 0
        if piece is not None:
            size = piece.length
            partition.traffic.bytes_out += size
            if piece.more_follows or range_end is not None:  # the range may be over: nothing more is worth waiting for
                reading.more_follows = True
        elif part.fetch_offset < partition.visible_offset:
            reading.more_follows = True
        if partition.end_offset > partition.visible_offset:
            context.high_watermark.request_flush(partition)
        budget -= size
        reading.byte_count += size
        reading.slices.append(piece)
        answer = FetchAnswer(part.topic, part.partition_index, 0, partition.visible_offset, partition.log_start_offset, size)
        reading.answers.append(answer)
    reading.budget = budget


def locate(partition: Partition, offset: int, limit: int, *, first: bool, range_end: int | None = None) -> FileSlice | None:
    """The records to send, or None; the first partition with data may exceed the limits by one batch, the others may not.
    `range_end`: batches that begin there or later are left out."""
    if limit <= 0 and not first:
        return None
    upto_offset, upto_position = partition.visible_offset, partition.visible_position
    if range_end is not None and partition.log.log_start_offset <= offset and range_end < upto_offset:
        batch_end, position = partition.log.segments.batch_end(range_end - 1)
        if batch_end < upto_offset:
            upto_offset, upto_position = batch_end, position
    piece = partition.log.locate(offset, max(limit, 0), upto_offset=upto_offset, upto_position=upto_position)
    if piece.length == 0 or (piece.length > limit and not first):
        piece.release()
        return None
    return piece


def check_leader_epoch(epoch: int, partition: Partition) -> None:
    """-1 skips the check; an epoch older than ours is fenced, a newer one is unknown."""
    if epoch == -1 or epoch == partition.leader_epoch:
        return
    raise (FencedLeaderEpoch if epoch < partition.leader_epoch else UnknownLeaderEpoch)(
        f"leader epoch {epoch} in the request, {partition.leader_epoch} at this broker"
    )


def _answer(reading: _Reading, pieces: Sequence[bytes]) -> Parts:
    """The bytes around the records, and the records."""
    parts: list[Part] = []
    for head, piece in zip(pieces, reading.slices, strict=False):
        parts.append(head)
        if piece is not None:
            parts.append(piece)
    parts.append(pieces[-1])
    return parts


logger = logging.getLogger("broker.api")


def replica_fetch_of(request: Request) -> ReplicaFetch | None:
    """The parsed request, if another broker sent it; a consumer's request costs one comparison."""
    return parse_replica_fetch(request.body) if request.version == REPLICA_FETCH_VERSION else None


def handle_replica_fetch(fetch: ReplicaFetch, request: Request, context: Context, leader: Leader) -> Parts | Pending:
    refusal = _replica_refusal(fetch, request, context)
    if refusal is not None:
        context.counters.errors[ApiKey.FETCH, refusal] += 1
        return list(encode_replica_answer([], session_id=0, error=refusal))
    pending = Pending(stops_reading=False)  # a follower sends its next request while this one waits
    leader.fetch(fetch, request.origin, lambda parts: _complete_replica(pending, parts))
    return pending


def _complete_replica(pending: Pending, parts: Parts) -> None:
    if not pending.is_cancelled:  # else the connection is gone, and the answer's files are released with it
        pending.complete(parts)


def _replica_refusal(fetch: ReplicaFetch, request: Request, context: Context) -> ErrorCode | None:
    listener, expected = request.origin.listener, context.config.inter_broker_listener
    if listener != expected:
        logger.warning(
            "%s fetches as broker %d on listener %s: brokers use %s (inter.broker.listener.name)",
            request.origin.host,
            fetch.replica_id,
            listener,
            expected,
        )
        return ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    if fetch.cluster_id is None:
        return ErrorCode.INCONSISTENT_CLUSTER_ID
    if context.cluster is not None and fetch.replica_id not in context.cluster.image.incarnations:
        logger.warning("%s fetches as broker %d, which the cluster has never seen", request.origin.host, fetch.replica_id)
        return ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    try:
        caller_of(request, context).check(AclResourceType.CLUSTER, what=f"follow as broker {fetch.replica_id}")
    except ClusterAuthorizationFailed:
        return ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    return None
