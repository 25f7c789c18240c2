"""The fast path for Fetch: typical requests of consumers, read and answered by one short piece of code.

As with Produce (produce_fast_path.py), most of the cost of a fetch was the amount of code it touched. The rules are the same:
`take` does what the ordinary path (fetch.py) would do with the same bytes and decides nothing: **at the first thing that is
unusual or wrong it stops, having touched nothing**, and the ordinary path handles the request.
docs/decisions/2026-11-23-produce-fast-path.md says what may be added here and what may not;
tests/property/broker/test_fetch_fast_path.py compares both paths with each other.

    constant part of a request  is compared in one piece with what the connection has sent before (protocol/fetch.py)
    a partition                 is looked up among those that this broker leads now: nothing about it is remembered
    its records                 are located as usual; at the end of the visible log nothing is located
    a whole request passed      its answer is counted and packed at once, or it waits in the purgatory like any other fetch
    a fetch that has waited     is read again in the same way, or by the ordinary path if something is unusual by then

A request is taken only if it is all the buffer contains, which is so for every consumer that waits for its answers.

Hot path, measured with perf: a fetch that finds nothing took 188,000 instructions of the broker and now takes 61,000, its turn
included; each additional partition took 43,000 and now takes 6,000.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import error as StructError
from typing import Any

from logbus_broker.api.fetch import READ_AT_ONCE_MAX, answer_again, bytes_awaited, locate, park
from logbus_broker.api.handler import Context, Parts, Pending
from logbus_broker.errors import BrokerError
from logbus_broker.filesystem import FileSlice
from logbus_broker.log.partition import Partition
from logbus_broker.protocol.api import ApiKey
from logbus_broker.protocol.fetch import FetchShape, ReadRow, RequestedTopic, shape_of
from logbus_broker.protocol.framing import CONSTANT_START, FRAME_HEAD, Origin, Request
from logbus_broker.security.state import AclResourceType

LEARNT_FROM = 64  # after this many consecutive requests that the fast path could not take, only every sixteenth is examined
LEARNT_EACH = 16
_FETCH = int(ApiKey.FETCH)
_NO_BODY = memoryview(b"")


class _Unusual(Exception):
    """The ordinary path must handle the request."""


class _Reading:
    """One pass over a request's partitions."""

    __slots__ = ("byte_count", "more_follows", "partitions", "pieces", "results")

    def __init__(self) -> None:
        self.partitions: list[Partition] = []
        self.results: list[tuple[bytes, list[ReadRow]]] = []  # by topic, in the order of `partitions`
        self.pieces: list[tuple[Partition, FileSlice]] = []  # of partitions with records to send
        self.byte_count = 0
        self.more_follows = False  # visible records were left for the next fetch

    def release(self) -> None:
        """None of it will be sent."""
        for _, piece in self.pieces:
            piece.release()


class FetchFastPath:
    """State shared by all connections. `passes_by` is called when a request leaves work for the end of the turn."""

    def __init__(self, context: Context, passes_by: Callable[[], None]) -> None:
        self._context = context
        self._passes_by = passes_by
        self._reads = None if context.authorizer is None else context.authorizer.right(ApiKey.FETCH, AclResourceType.TOPIC)
        self.frame_bytes_max = context.config.frame_bytes_max

    def handle(self, shape: FetchShape, topics: Sequence[RequestedTopic], request: Request) -> Parts | Pending | None:
        """The complete answer, frame header included, now or later; None if anything is unusual."""
        context, settings = self._context, shape.settings
        reading = self._read(shape, topics, request)
        if reading is None:
            return None
        context.counters.requests[_FETCH] += 1
        context.counters.fetch_fast_path += 1
        if settings.wait_ms_max <= 0 or reading.byte_count >= settings.bytes_min:
            return self._answer(shape, reading, request)
        bytes_missing = settings.bytes_min - reading.byte_count
        if bytes_missing > 1:  # else no limit is lower; most consumers ask for one byte
            bytes_missing = bytes_awaited(settings, reading.byte_count, reading.more_follows, context)
            if bytes_missing <= 0:
                return self._answer(shape, reading, request)
        # It will wait, perhaps for half a second, and must not hold segments' file descriptors during that time: retention could
        # not free any space. `_answer_waiting` locates the records again.
        reading.release()
        due = context.deadlines.due
        pending = park(
            reading.partitions,
            bytes_missing,
            settings.wait_ms_max,
            lambda pending: self._answer_waiting(pending, shape, topics, request),
            context,
        )
        # A turn with only such requests skips its end. In these cases it must not: either the loop would sleep past the new
        # deadline, or records wait for a flush that only the end of the turn starts.
        if context.deadlines.due < due or any(
            partition.log.end_offset > partition.visible_offset for partition in reading.partitions
        ):
            self._passes_by()
        return pending

    def _read(self, shape: FetchShape, topics: Sequence[RequestedTopic], request: Request) -> _Reading | None:
        context, reading = self._context, _Reading()
        led: Any = context.partitions.led_by_id if shape.has_ids else context.partitions.led_by_name
        serves, partitions, reads = context.serves_consumers, reading.partitions, self._reads
        budget = min(shape.settings.bytes_max, context.config.fetch_bytes_max)
        left = READ_AT_ONCE_MAX  # partitions whose records are located; those at the end of their log cost little
        try:
            for topic, raw, rows in topics:
                results: list[ReadRow] = []
                reading.results.append((raw, results))
                for index, epoch, offset, bytes_max, tags in rows:
                    partition: Partition | None = led.get((topic, index))
                    if partition is None or tags or (serves is not None and not serves(partition)):
                        raise _Unusual
                    if reads is not None and not reads.allows(request.origin, partition.topic):
                        raise _Unusual
                    log, visible = partition.log, partition.visible_offset
                    start = log.log_start_offset
                    # The ordinary path has a separate error for each of these; the fast path has none. An offset between the
                    # visible offset and the end is not an error: its consumer has read everything that is visible.
                    if log.offline_reason or not start <= offset <= log.end_offset:
                        raise _Unusual
                    if epoch != -1 and epoch != partition.leader_epoch:
                        raise _Unusual
                    size = 0
                    if offset < visible:
                        left -= 1
                        if left < 0:
                            raise _Unusual
                        piece = locate(partition, offset, min(bytes_max, budget), first=not reading.byte_count)
                        if piece is not None:
                            size = piece.length
                            budget -= size
                            reading.byte_count += size
                            reading.pieces.append((partition, piece))
                            if piece.more_follows:
                                reading.more_follows = True
                        else:
                            reading.more_follows = True
                    partitions.append(partition)
                    results.append((index, visible, start, size))
        except (BrokerError, _Unusual):
            reading.release()
            return None
        return reading

    def _answer(self, shape: FetchShape, reading: _Reading, request: Request) -> Parts:
        for partition in reading.partitions:
            if partition.log.end_offset > partition.visible_offset:
                self._context.high_watermark.request_flush(partition)
                self._passes_by()
        texts = shape.answer(request.correlation_id, reading.results)
        if not reading.pieces:
            return texts  # type: ignore[return-value]
        parts: Parts = []
        for text, (partition, piece) in zip(texts, reading.pieces, strict=False):
            partition.traffic.bytes_out += piece.length
            parts += (text, piece)
        parts.append(texts[-1])
        return parts

    def _answer_waiting(self, pending: Pending, shape: FetchShape, topics: Sequence[RequestedTopic], request: Request) -> Parts:
        reading = self._read(shape, topics, request)
        if reading is None:
            return answer_again(shape.request(topics), request.version, request.origin, self._context)
        pending.is_framed = True
        return self._answer(shape, reading, request)


class ConnectionFetchFastPath:
    """The typical request of one connection: the settings that it sent last."""

    __slots__ = ("_fast_path", "_misses", "_shape")

    def __init__(self, fast_path: FetchFastPath) -> None:
        self._fast_path = fast_path
        self._shape: FetchShape | None = None
        self._misses = 0

    def take(
        self, buffer: bytearray, view: memoryview, start: int, end: int, origin: Origin
    ) -> tuple[Request, Parts | Pending] | None:
        """Handle the request that fills the buffer, if it is typical. Parts are the complete answer, frame header included."""
        shape = self._shape
        if shape is None or end - start < CONSTANT_START:
            return None
        length, api, correlation_id = FRAME_HEAD.unpack_from(buffer, start)
        position = start + CONSTANT_START
        if api != shape.api or start + 4 + length != end or length > self._fast_path.frame_bytes_max:
            return None
        if not buffer.startswith(shape.constant, position):
            return None
        try:
            topics = shape.topics(buffer, view, position + len(shape.constant), end)
        except (StructError, IndexError, ValueError):
            return None
        if topics is None:
            return None
        request: Request = tuple.__new__(Request, (_FETCH, shape.version, correlation_id, None, _NO_BODY, True, origin))
        answer = self._fast_path.handle(shape, topics, request)
        if answer is None:
            return None
        self._misses = 0
        return request, answer

    def learn(self, request: Request, frame: memoryview) -> None:
        """A Fetch request was handled by the ordinary path: the next one like it may be typical. `frame` excludes the length
        prefix."""
        self._misses += 1
        if self._misses <= LEARNT_FROM or not self._misses % LEARNT_EACH:
            self._shape = shape_of(request, frame) or self._shape
