"""The fast path: typical Produce requests, checked, written and answered by one short piece of code.

Half of the broker's CPU time went not into its work but into the amount of code touched per batch: next to a busy client all of
that code is cold. So a typical Produce request skips framing, parser, handler, turn and output, and goes through `take`. It may
do no more than the ordinary path would do with the same bytes, and it decides nothing: **at the first thing that is unusual or
wrong it stops, having touched nothing**, and the ordinary path handles the request. All refusals, error codes and error texts are
there, and only there. docs/decisions/2026-11-23-produce-fast-path.md says what may be added here and what may not;
tests/property/broker/test_produce_fast_path.py compares both paths with each other.

    constant part of a request  is compared in one piece with what the connection has sent before (protocol/produce.py)
    a partition                 is looked up among those on the fast path (log/partition.py)
    a batch                     is unpacked once and passes one chain of comparisons; then its checksum is verified
    a whole request passed      its batches are stamped: from here on they are to be written
    all requests in the buffer  one write per partition. If one fails, all of them are taken back and the stamps undone: the
                                ordinary path repeats the requests, and reports what it finds
    all writes succeeded        offsets, indexes, producers, counters and flusher are updated, then the answers are sent. If a
                                request waits for the disk and no other client has sent anything, the flush begins first

Hot path, measured with perf: every instruction counts, so names that are read twice are local, nothing but the checksum looks at
the records, and the chain of comparisons starts with what is most likely to be unusual.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError
from weakref import WeakValueDictionary

from logbus_broker.api.fetch_fast_path import LEARNT_EACH, LEARNT_FROM, ConnectionFetchFastPath, FetchFastPath
from logbus_broker.api.handler import Context
from logbus_broker.log.partition import FastPathState, FastPathStates, enter_fast_path
from logbus_broker.protocol.api import ApiKey
from logbus_broker.protocol.batch import (
    BATCH_HEADER,
    BATCH_HEADER_BYTES,
    CODEC_MAX,
    CRC_START,
    DECOMPRESSED_BYTES_MAX,
    LENGTH_END,
    MAGIC,
    NO_PRODUCER_ID,
    begins_like,
    crc32c,
)
from logbus_broker.protocol.framing import CONSTANT_START, FRAME_HEAD, Origin, Request
from logbus_broker.protocol.produce import ProduceShape, parse_produce, shape_of
from logbus_broker.protocol.validation import RECORD_BYTES_MIN
from logbus_broker.security.state import AclResourceType, SecurityState

SHAPES_MAX = 16  # remembered per connection: a producer has one per topic
_INDEX_LENGTH = Struct(">ii")
_INDEX = Struct(">i")
_PRODUCE = int(ApiKey.PRODUCE)
_NO_TAGS = b"\0\0\0"  # of the last partition, of the topic, of the request

# The partition, the batch's position in the buffer, its size, and its header fields.
Row = tuple[FastPathState, int, int, tuple[int, ...]]


class _FastPathTopic:
    """The partitions of one topic that have a state, for all connections that send to it."""

    __slots__ = ("__weakref__", "partitions")

    def __init__(self) -> None:
        self.partitions: FastPathStates = {}


class ProduceFastPath:
    """State shared by all connections."""

    def __init__(self, context: Context) -> None:
        self._partitions = context.partitions
        self._turn = context.produce_turn
        self._flusher = context.flusher
        self._topics: WeakValueDictionary[str, _FastPathTopic] = WeakValueDictionary()
        self.writes = None if context.authorizer is None else context.authorizer.right(ApiKey.PRODUCE, AclResourceType.TOPIC)
        self.security = context.security
        self.clock = context.clock
        self.counters = context.counters
        self.frame_bytes_max = context.config.frame_bytes_max
        self.fetches = FetchFastPath(context, self.pass_by)
        self.request = 0  # the number of the request that is being read
        self.is_alone = False  # whether no other client has sent anything in this turn
        self._is_passed_by = False  # whether there has been work for the end of the turn since the last call of `took_all`

    def connect(self) -> ConnectionFastPath:
        """For a new connection."""
        return ConnectionFastPath(self)

    def took_all(self) -> bool:
        """Whether the fast path has taken every request since the last call, and none of them made a flush due sooner."""
        passed, self._is_passed_by = self._is_passed_by, False
        return not passed and not self._flusher.has_news

    def pass_by(self) -> None:
        """A request takes the ordinary path, or leaves work for the end of the turn."""
        self._is_passed_by = True

    def topic(self, name: str) -> _FastPathTopic:
        """Kept for as long as a connection remembers it."""
        topic = self._topics.get(name)
        if topic is None:
            topic = self._topics[name] = _FastPathTopic()
        return topic

    def enter(self, name: str, index: int, states: FastPathStates) -> None:
        if index not in states and (partition := self._partitions.led_by_name.get((name, index))) is not None:
            enter_fast_path(partition, states)

    def write(self, touched: list[FastPathState]) -> bool:
        """Write what was gathered and commit it. False: none of it is stored, and the buffer is as it was received."""
        try:
            for state in touched:
                state.write_ahead(state.views)
        except Exception as error:
            written = touched.index(state) + 1
            for state in touched:
                state.undo()
            for state in touched[:written]:
                self._turn.take_back(state.partition, error)
            return False
        failure: Exception | None = None
        for state in touched:
            try:
                self._turn.settle(state.partition, state.batches, state.end_offset, state.size)
            except Exception as error:
                failure = error  # a defect: what is stored is unknown
            state.reset()
        if failure is not None:
            raise failure
        if self.is_alone:
            self._flusher.start_due()
        return True


class ConnectionFastPath:
    """The typical requests of one connection."""

    __slots__ = ("_allowed", "_fast_path", "_misses", "_shapes", "answers", "fetches", "pass_by")

    def __init__(self, fast_path: ProduceFastPath) -> None:
        self._fast_path = fast_path
        self.pass_by = fast_path.pass_by  # a request takes the ordinary path
        self.fetches = ConnectionFetchFastPath(fast_path.fetches)
        self._shapes: list[tuple[ProduceShape, _FastPathTopic]] = []  # most recently used first
        self._misses = 0
        self._allowed: tuple[ProduceShape | None, Origin | None, SecurityState | None] = None, None, None
        self.answers: list[bytes] = []  # to requests taken, until the connection sends them

    def take(self, buffer: bytearray, view: memoryview, start: int, end: int, requests_max: int, origin: Origin) -> int:
        """Handle the typical requests in the buffer, up to the first other one. Returns where that one, or an incomplete request,
        begins; `answers` holds the answers to the requests before it. On an exception, what is stored is unknown, and none of
        them is answered."""
        if not self._shapes:
            return start
        touched: list[FastPathState] = []
        try:
            done, count = self._gather(buffer, view, start, end, requests_max, touched, origin)
            if not count or not self._fast_path.write(touched):
                self.answers.clear()
                return start
        except Exception:
            for state in touched:
                state.undo()
            self.answers.clear()
            raise
        self._misses = 0
        counters = self._fast_path.counters
        counters.requests[_PRODUCE] += count
        counters.fast_path += count
        return done

    def _gather(
        self,
        buffer: bytearray,
        view: memoryview,
        start: int,
        end: int,
        requests_max: int,
        touched: list[FastPathState],
        origin: Origin,
    ) -> tuple[int, int]:
        """Gather the batches of typical requests; returns where the first other one begins, and how many were gathered."""
        fast_path, answers, count, now_ms = self._fast_path, self.answers, 0, 0
        writes, security = fast_path.writes, fast_path.security
        shape, topic = self._shapes[0]
        while end - start > CONSTANT_START and count < requests_max:
            length, api, correlation_id = FRAME_HEAD.unpack_from(buffer, start)
            frame_end = start + 4 + length
            if frame_end > end or length > fast_path.frame_bytes_max:
                break
            if api != shape.api or not buffer.startswith(shape.constant, start + CONSTANT_START):
                remembered = self._find(api, buffer, start + CONSTANT_START)
                if remembered is None:
                    break
                shape, topic = remembered
            if writes is not None:
                # The same as for the request before: nothing has to be looked up.
                allowed_shape, allowed_origin, allowed_state = self._allowed
                if shape is not allowed_shape or security.state is not allowed_state or origin is not allowed_origin:
                    if not writes.allows(origin, shape.topic):
                        break
                    self._allowed = shape, origin, security.state
            # The clock is read once for all requests in a buffer: they arrived in one read.
            now_ms = now_ms or fast_path.clock.now_ms()
            position = start + CONSTANT_START + len(shape.constant)
            try:
                rows = self._read(shape, topic.partitions, buffer, view, position, frame_end, now_ms)
            except (StructError, IndexError):
                break
            if not rows:
                break
            if len(rows) == 1:
                ((state, position, size, header),) = rows
                if not state.views:
                    touched.append(state)
                base_offset = state.add(view, position, size, header)
                if shape.acks:
                    answers.append(shape.answer(correlation_id, state.index, base_offset, state.log.log_start_offset))
            else:
                answered = []
                for state, position, size, header in rows:
                    if not state.views:
                        touched.append(state)
                    answered.append((state.index, state.add(view, position, size, header), state.log.log_start_offset))
                if shape.acks:
                    answers.append(shape.answer_all(correlation_id, answered))
            start = frame_end
            count += 1
        return start, count

    def _find(self, api: int, buffer: bytearray, position: int) -> tuple[ProduceShape, _FastPathTopic] | None:
        shapes = self._shapes
        for index, entry in enumerate(shapes):
            if entry[0].api == api and buffer.startswith(entry[0].constant, position):
                del shapes[index]
                shapes.insert(0, entry)
                return entry
        return None

    def _read(
        self,
        shape: ProduceShape,
        states: FastPathStates,
        buffer: bytearray,
        view: memoryview,
        position: int,
        frame_end: int,
        now_ms: int,
    ) -> list[Row] | None:
        """The batches of a request whose partitions begin at `position`; None if it is unusual in any way."""
        fast_path = self._fast_path
        fast_path.request += 1
        request, is_flexible, waits = fast_path.request, shape.is_flexible, shape.acks == -1
        if is_flexible:
            left = buffer[position] - 1
            position += 1
            if left > 126:
                return None
        else:
            (left,) = _INDEX.unpack_from(buffer, position)
            position += 4
        rows: list[Row] = []
        while left > 0:
            left -= 1
            if is_flexible:
                (index,) = _INDEX.unpack_from(buffer, position)
                size = buffer[position + 4]
                position += 5
                if size >= 0x80:
                    more = buffer[position]
                    size += (more << 7) - 0x80
                    position += 1
                    if more >= 0x80:
                        more = buffer[position]
                        size += (more << 14) - 0x4000
                        position += 1
                        if more >= 0x80:
                            return None
                size -= 1
            else:
                index, size = _INDEX_LENGTH.unpack_from(buffer, position)
                position += 8
            end = position + size
            state = states.get(index)
            # `request` marks a partition as seen in this request. A second batch for it in the same request is refused by the
            # ordinary path; the mark costs one comparison and needs no set.
            if state is None or state.request == request or size < BATCH_HEADER_BYTES or end > frame_end:
                return None
            state.request = request
            header = BATCH_HEADER.unpack_from(buffer, position)
            (
                base_offset,
                length,
                _,
                magic,
                crc,
                attributes,
                last_delta,
                base_timestamp,
                max_timestamp,
                producer_id,
                epoch,
                sequence,
                record_count,
            ) = header
            if (
                length + LENGTH_END != size
                or magic != MAGIC
                or base_offset
                or record_count <= 0
                or last_delta != record_count - 1
                or size > state.message_bytes_max
                or not 0 <= attributes <= CODEC_MAX
                or max_timestamp < base_timestamp
                or max_timestamp > now_ms + state.timestamp_after_ms_max
                or base_timestamp < now_ms - state.timestamp_before_ms_max
                or (waits and state.waits_for_flush)
                or state.partition.staged_views  # what arrived first is written first
                or not state.segment.has_room(
                    state.size + size,
                    (state.end_offset if state.views else state.log.end_offset) + last_delta,
                    max_timestamp,
                    state.segment_bytes,
                    state.age_ms_max,
                    now_ms - state.log.rolled_ms,
                )
            ):
                return None
            if attributes:
                if record_count * RECORD_BYTES_MIN > DECOMPRESSED_BYTES_MAX:
                    return None
                if not begins_like(attributes, view[position + BATCH_HEADER_BYTES : end]):
                    return None
            elif record_count * RECORD_BYTES_MIN > size - BATCH_HEADER_BYTES:
                return None
            # Remembered sequences were validated when stored: an impossible sequence or epoch does not follow any of them.
            if producer_id != NO_PRODUCER_ID and not state.partition.producers.follows(producer_id, epoch, sequence):
                return None
            # Last, because only this check reads every byte: any other fault is found more cheaply.
            if crc32c(view[position + CRC_START : end]) != crc:
                return None
            rows.append((state, position, size, header))
            position = end
            if is_flexible and left:
                if buffer[position]:
                    return None
                position += 1
        if not is_flexible:
            return rows if position == frame_end else None
        return rows if position + 3 == frame_end and buffer.startswith(_NO_TAGS, position) else None

    def learn(self, request: Request, frame: memoryview) -> None:
        """A Produce request was handled by the ordinary path: the next one like it may be typical. `frame` excludes the length
        prefix."""
        self._misses += 1
        if self._misses > LEARNT_FROM and self._misses % LEARNT_EACH:
            return
        shape = shape_of(frame)
        if shape is None:
            return
        remembered = next(
            (entry for entry in self._shapes if entry[0].api == shape.api and entry[0].constant == shape.constant), None
        )
        if remembered is None:
            remembered = shape, self._fast_path.topic(shape.topic)
            self._shapes.insert(0, remembered)
            del self._shapes[SHAPES_MAX:]
        for part in parse_produce(request.body, request.version).partitions:
            self._fast_path.enter(shape.topic, part.partition_index, remembered[1].partitions)
