"""The fast lane: typical Produce requests, checked, written and answered by one short piece of code.

Half of the broker's CPU time went not into its work but into the amount of code touched per batch: next to a busy client all of
that code is cold. So a typical Produce request skips framing, parser, handler, turn and output, and goes through `take`. It may
do no more than the ordinary path would do with the same bytes, and it decides nothing: **at the first thing that is unusual or
wrong it stops, having touched nothing**, and the ordinary path handles the request. All refusals, error codes and error texts are
there, and only there. docs/decisions/2026-11-23-fast-lane.md says what may be added here and what may not;
tests/property/broker/test_fast_lane.py compares both paths with each other.

    constant part of a request  is compared in one piece with what the connection has sent before (protocol/produce_shape.py)
    a partition                 is looked up among the armed ones (partitions/armed.py)
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

from broker.handlers.context import Context
from broker.handlers.fetch_lane import LEARNT_EACH, LEARNT_FROM, ConnectionFetchLane, FetchLane
from broker.partitions.armed import ArmedPartition, Home, arm
from broker.protocol.api import ApiKey
from broker.protocol.framing import CONSTANT_START, FRAME_HEAD, Request
from broker.protocol.produce import parse_produce
from broker.protocol.produce_shape import ProduceShape, shape_of
from broker.records.batch import BATCH_HEADER, BATCH_HEADER_BYTES, CRC_START, LENGTH_END, MAGIC, NO_PRODUCER_ID
from broker.records.compression import CODEC_MAX, DECOMPRESSED_BYTES_MAX, begins_like
from broker.records.crc import crc32c
from broker.records.validation import RECORD_BYTES_MIN

SHAPES_MAX = 16  # remembered per connection: a producer has one per topic
_INDEX_LENGTH = Struct(">ii")
_INDEX = Struct(">i")
_PRODUCE = int(ApiKey.PRODUCE)
_NO_TAGS = b"\0\0\0"  # of the last partition, of the topic, of the request

# The partition, the batch's position in the buffer, its size, and its header fields.
Row = tuple[ArmedPartition, int, int, tuple[int, ...]]


class _ArmedTopic:
    """The armed partitions of one topic, for all connections that send to it."""

    __slots__ = ("__weakref__", "partitions")

    def __init__(self) -> None:
        self.partitions: Home = {}


class FastLane:
    """State shared by all connections."""

    def __init__(self, context: Context) -> None:
        self._partitions = context.partitions
        self._turn = context.produce_turn
        self._flusher = context.flusher
        self._topics: WeakValueDictionary[str, _ArmedTopic] = WeakValueDictionary()
        self.clock = context.clock
        self.counters = context.counters
        self.frame_bytes_max = context.config.frame_bytes_max
        self.fetches = FetchLane(context, self.pass_by)
        self.request = 0  # the number of the request that is being read
        self.is_alone = False  # whether no other client has sent anything in this turn
        self._is_passed_by = False  # whether there has been work for the end of the turn since the last call of `took_all`

    def connect(self) -> ConnectionLane:
        """For a new connection."""
        return ConnectionLane(self)

    def took_all(self) -> bool:
        """Whether the lane has taken every request since the last call, and none of them made a flush due sooner."""
        passed, self._is_passed_by = self._is_passed_by, False
        return not passed and not self._flusher.has_news

    def pass_by(self) -> None:
        """A request takes the ordinary path, or leaves work for the end of the turn."""
        self._is_passed_by = True

    def topic(self, name: str) -> _ArmedTopic:
        """Kept for as long as a connection remembers it."""
        topic = self._topics.get(name)
        if topic is None:
            topic = self._topics[name] = _ArmedTopic()
        return topic

    def arm(self, name: str, index: int, home: Home) -> None:
        if index not in home and (partition := self._partitions.led(name, index)) is not None:
            arm(partition, home)

    def write(self, touched: list[ArmedPartition]) -> bool:
        """Write what was gathered and commit it. False: none of it is stored, and the buffer is as it was received."""
        try:
            for armed in touched:
                armed.write_ahead(armed.views)
        except Exception as error:
            written = touched.index(armed) + 1
            for armed in touched:
                armed.undo()
            for armed in touched[:written]:
                self._turn.take_back(armed.partition, error)
            return False
        failure: Exception | None = None
        for armed in touched:
            try:
                self._turn.settle(armed.partition, armed.batches, armed.end_offset, armed.size)
            except Exception as error:
                failure = error  # a defect: what is stored is unknown
            armed.reset()
        if failure is not None:
            raise failure
        if self.is_alone:
            self._flusher.start_due()
        return True


class ConnectionLane:
    """The typical requests of one connection."""

    __slots__ = ("_lane", "_misses", "_shapes", "answers", "fetches", "pass_by")

    def __init__(self, lane: FastLane) -> None:
        self._lane = lane
        self.pass_by = lane.pass_by  # a request takes the ordinary path
        self.fetches = ConnectionFetchLane(lane.fetches)
        self._shapes: list[tuple[ProduceShape, _ArmedTopic]] = []  # most recently used first
        self._misses = 0
        self.answers: list[bytes] = []  # to requests taken, until the connection sends them

    def take(self, buffer: bytearray, view: memoryview, start: int, end: int, requests_max: int) -> int:
        """Handle the typical requests in the buffer, up to the first other one. Returns where that one, or an incomplete request,
        begins; `answers` holds the answers to the requests before it. On an exception, what is stored is unknown, and none of
        them is answered."""
        if not self._shapes:
            return start
        touched: list[ArmedPartition] = []
        try:
            done, count = self._gather(buffer, view, start, end, requests_max, touched)
            if not count or not self._lane.write(touched):
                self.answers.clear()
                return start
        except Exception:
            for armed in touched:
                armed.undo()
            self.answers.clear()
            raise
        self._misses = 0
        counters = self._lane.counters
        counters.requests[_PRODUCE] += count
        counters.fast_lane += count
        return done

    def _gather(
        self, buffer: bytearray, view: memoryview, start: int, end: int, requests_max: int, touched: list[ArmedPartition]
    ) -> tuple[int, int]:
        """Gather the batches of typical requests; returns where the first other one begins, and how many were gathered."""
        lane, answers, count, now_ms = self._lane, self.answers, 0, 0
        shape, topic = self._shapes[0]
        while end - start > CONSTANT_START and count < requests_max:
            length, api, correlation_id = FRAME_HEAD.unpack_from(buffer, start)
            frame_end = start + 4 + length
            if frame_end > end or length > lane.frame_bytes_max:
                break
            if api != shape.api or not buffer.startswith(shape.constant, start + CONSTANT_START):
                known = self._find(api, buffer, start + CONSTANT_START)
                if known is None:
                    break
                shape, topic = known
            # The clock is read once for all requests in a buffer: they arrived in one read.
            now_ms = now_ms or lane.clock.now_ms()
            position = start + CONSTANT_START + len(shape.constant)
            try:
                rows = self._read(shape, topic.partitions, buffer, view, position, frame_end, now_ms)
            except (StructError, IndexError):
                break
            if not rows:
                break
            if len(rows) == 1:
                ((armed, position, size, header),) = rows
                if not armed.views:
                    touched.append(armed)
                base_offset = armed.add(view, position, size, header)
                if shape.acks:
                    answers.append(shape.answer(correlation_id, armed.index, base_offset, armed.log.log_start_offset))
            else:
                told = []
                for armed, position, size, header in rows:
                    if not armed.views:
                        touched.append(armed)
                    told.append((armed.index, armed.add(view, position, size, header), armed.log.log_start_offset))
                if shape.acks:
                    answers.append(shape.answer_all(correlation_id, told))
            start = frame_end
            count += 1
        return start, count

    def _find(self, api: int, buffer: bytearray, position: int) -> tuple[ProduceShape, _ArmedTopic] | None:
        shapes = self._shapes
        for place, known in enumerate(shapes):
            if known[0].api == api and buffer.startswith(known[0].constant, position):
                del shapes[place]
                shapes.insert(0, known)
                return known
        return None

    def _read(
        self,
        shape: ProduceShape,
        armed_partitions: Home,
        buffer: bytearray,
        view: memoryview,
        position: int,
        frame_end: int,
        now_ms: int,
    ) -> list[Row] | None:
        """The batches of a request whose partitions begin at `position`; None if it is unusual in any way."""
        lane = self._lane
        lane.request += 1
        request, is_flexible, waits = lane.request, shape.is_flexible, shape.acks == -1
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
            armed = armed_partitions.get(index)
            # `request` marks a partition as seen in this request. A second batch for it in the same request is refused by the
            # ordinary path; the mark costs one comparison and needs no set.
            if armed is None or armed.request == request or size < BATCH_HEADER_BYTES or end > frame_end:
                return None
            armed.request = request
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
                or size > armed.message_bytes_max
                or not 0 <= attributes <= CODEC_MAX
                or max_timestamp < base_timestamp
                or max_timestamp > now_ms + armed.timestamp_after_ms_max
                or base_timestamp < now_ms - armed.timestamp_before_ms_max
                or (waits and armed.waits_for_flush)
                or not armed.takes(size, last_delta, max_timestamp, now_ms)
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
            if producer_id != NO_PRODUCER_ID and not armed.partition.producers.follows(producer_id, epoch, sequence):
                return None
            # Last, because only this check reads every byte: any other fault is found more cheaply.
            if crc32c(view[position + CRC_START : end]) != crc:
                return None
            rows.append((armed, position, size, header))
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
        known = next((one for one in self._shapes if one[0].api == shape.api and one[0].constant == shape.constant), None)
        if known is None:
            known = shape, self._lane.topic(shape.topic)
            self._shapes.insert(0, known)
            del self._shapes[SHAPES_MAX:]
        for part in parse_produce(request.body, request.version).partitions:
            self._lane.arm(shape.topic, part.partition_index, known[1].partitions)
