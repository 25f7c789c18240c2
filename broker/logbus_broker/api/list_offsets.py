"""ListOffsets: the log start, the log end, exactly the first record at or after a timestamp, or the first with the largest one;
OffsetForLeaderEpoch: where a leader epoch ended, so that a client that read in it can tell whether its position still exists
(KIP-320); and DeleteRecords: the log start moves forward, up to what has been acknowledged.

The end is the visible offset, but records acknowledged before the request arrived count: the answer waits until every in-sync
replica has flushed them. A new leader's answer waits until everything is visible that its log held when its epoch began, so that
the offsets reported to clients never go back (KIP-207). If a replica delays that for long, the answer is OFFSET_NOT_AVAILABLE:
clients retry, and none takes an older end for the latest one. A search by timestamp may have to read and decompress a batch, so
it runs on a helper thread, several of a request together: most take less time than the round trip to a thread. All records are
stored locally, so the earliest local record (KIP-405) is the earliest, and nothing has been moved to another tier.

The answer describes the log as it was when the request arrived: it excludes what the same client sends after it, or what any
other client sends in the meantime.

For DeleteRecords, records that are acknowledged but not yet visible count, as for ListOffsets: the answer waits until they are
visible, so a client may delete what it has just sent. The new log start offsets are written to the checkpoint before the answer,
all with one write: a crash does not bring records back.

With other replicas, those in sync are notified at once, and the answer waits until their logs start there, too: whichever of them
leads next, no client reads deleted records. Everything together waits at most the request's timeout_ms. Then the partitions that
are not done get REQUEST_TIMED_OUT, which means that their outcome is unknown, as in Kafka.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from operator import attrgetter
from typing import Any

from logbus_broker.api import authorization, error_codes, fetch, handler, purgatory
from logbus_broker.errors import BrokerError, InvalidTopic, OffsetNotAvailable, OffsetOutOfRange, PolicyViolation, RequestTimedOut
from logbus_broker.log import background_tasks, thread_pool
from logbus_broker.log.background_tasks import Steps
from logbus_broker.log.partition import Partition
from logbus_broker.log.thread_pool import ThreadPool
from logbus_broker.protocol import api, codec, framing

_LATEST, _EARLIEST, _MAX_TIMESTAMP, _EARLIEST_LOCAL, _LATEST_TIERED = -1, -2, -3, -4, -5
_WAIT_MS_MAX = 5_000  # for other replicas; clients' own timeouts are at least ten seconds
_NOT_AVAILABLE_SINCE = 5  # version of the request: older clients know LEADER_NOT_AVAILABLE, and retry likewise
_OFFERED_SINCE = {_LATEST: 1, _EARLIEST: 1, _MAX_TIMESTAMP: 7, _EARLIEST_LOCAL: 8, _LATEST_TIERED: 9}  # version of the request


# Few enough that all threads share in reading a request's cold batches, and that no other job waits long for one of these.
_SEARCHES_AT_ONCE = 16

_Result = tuple[int, int] | None  # offset and timestamp
_Search = Callable[[], _Result]
_Then = Callable[[_Result, BaseException | None], None]


@dataclass(slots=True)
class _Row:
    topic: str
    index: int
    error: int = 0
    timestamp: int = -1
    offset: int = -1
    leader_epoch: int = -1


class _Collected:
    """Rows that are found one by one; the response is sent with the last."""

    def __init__(self, pending: handler.Pending, version: int, thread_pool: ThreadPool) -> None:
        self.rows: list[_Row] = []
        self._left = 1  # held by the handler itself until every search has begun
        self._pending = pending
        self._version = version
        self._thread_pool = thread_pool
        self._searches: list[tuple[_Search, _Then]] = []
        self._searches_at_once = _SEARCHES_AT_ONCE

    def begin(self) -> None:
        self._left += 1

    def all_begun(self) -> None:
        """Partitions that become visible later are searched one at a time: when the next one follows is unknown."""
        self._searches_at_once = 1
        self._submit()
        self.end()

    def search(self, search: _Search, then: _Then) -> None:
        self._searches.append((search, then))
        if len(self._searches) >= self._searches_at_once:
            self._submit()

    def _submit(self) -> None:
        searches, self._searches = self._searches, []
        if searches:
            self._thread_pool.submit(partial(_run_all, [search for search, _ in searches]), partial(_report_all, searches))

    def end(self) -> None:
        self._left -= 1
        if self._left == 0:
            self._pending.complete_with(lambda: [_encode(self.rows, self._version)])


def handle_list_offsets(request: framing.Request, context: handler.Context) -> handler.Pending:
    message = codec.decode_request(request.api_key, request.version, request.body)
    pending = handler.Pending(stops_reading=True)
    caller = handler.caller_of(request, context)
    context.tasks.begin(_look_up_all(message, request.version, caller, pending, context), pending.fail_as_defect)
    return pending


def _look_up_all(
    message: Any, version: int, caller: authorization.Caller, pending: handler.Pending, context: handler.Context
) -> Steps:
    collected = _Collected(pending, version, context.thread_pool)
    for (topic, index), entries in handler.by_partition(message.topics).items():
        row = _Row(topic, index)
        collected.rows.append(row)
        try:
            caller.check(authorization.TOPIC, topic)
            # Refused as in Kafka, although nothing is changed: each search is work for a thread.
            _look_up(handler.only_one(entries, f"partition {topic}-{index}"), row, version, collected, context)
        except BrokerError as error:
            row.error = error_codes.code_of(error)
        yield None
    collected.all_begun()


def _run_all(searches: Sequence[_Search]) -> list[tuple[_Result, BaseException | None]]:
    """The result of each search, or its error; runs on a pool thread."""
    outcomes: list[tuple[_Result, BaseException | None]] = []
    for search in searches:
        try:
            outcomes.append((search(), None))
        except BaseException as error:  # as threads do: a failed search affects only its own partition
            outcomes.append((None, error))
    return outcomes


def _report_all(
    searches: Sequence[tuple[_Search, _Then]],
    outcomes: Sequence[tuple[_Result, BaseException | None]] | None,
    failure: BaseException | None,
) -> None:
    """`failure`: the threads accept no more jobs, because the broker is stopping."""
    for (_, then), (result, error) in zip(searches, outcomes or repeat((None, failure)), strict=False):
        then(result, error)


def _look_up(part: Any, row: _Row, version: int, collected: _Collected, context: handler.Context) -> None:
    partition = context.partitions.get(row.topic, row.index)
    fetch.check_leader_epoch(getattr(part, "current_leader_epoch", -1) if version >= 4 else -1, partition)
    partition.log.require_online()
    row.leader_epoch = partition.leader_epoch
    if part.timestamp < 0 and version < _OFFERED_SINCE.get(part.timestamp, version + 1):
        row.error = api.ErrorCode.UNSUPPORTED_VERSION
    elif part.timestamp in (_EARLIEST, _EARLIEST_LOCAL):
        row.offset, row.leader_epoch = partition.log_start_offset, _epoch_at(partition, partition.log_start_offset)
    elif part.timestamp != _LATEST_TIERED:
        _Lookup(part.timestamp, row, partition, version, collected, context).begin()


class _Lookup(purgatory.Deadline):
    """An answer that waits until everything is visible that was acknowledged when the request arrived."""

    __slots__ = ("_collected", "_context", "_end_offset", "_partition", "_row", "_timestamp", "_version")

    def __init__(
        self, timestamp: int, row: _Row, partition: Partition, version: int, collected: _Collected, context: handler.Context
    ) -> None:
        super().__init__(context.clock.monotonic() + _WAIT_MS_MAX / 1000)
        self._timestamp = timestamp
        self._row = row
        self._partition = partition
        self._version = version
        self._collected = collected
        self._context = context
        self._end_offset = max(partition.replicated_offset, partition.epoch_start_offset)

    def begin(self) -> None:
        self._collected.begin()
        if self._partition.replicated is not None:  # a standalone broker waits for its disk, however long
            self._context.deadlines.add_in_order(self, _WAIT_MS_MAX)
        self._context.high_watermark.when_visible(self._partition, self._end_offset, self._when_visible, self)

    def expire(self) -> None:
        self._refuse(OffsetNotAvailable(f"{self._partition.name} has acknowledged records that are not visible yet"))

    def _refuse(self, error: BaseException) -> None:
        code = error_codes.code_of(error)
        if code == api.ErrorCode.OFFSET_NOT_AVAILABLE and self._version < _NOT_AVAILABLE_SINCE:
            code = api.ErrorCode.LEADER_NOT_AVAILABLE
        self._row.error = code
        self._collected.end()

    def _when_visible(self, error: BrokerError | None) -> None:
        if self.is_over:
            return
        self._context.deadlines.cancel(self)
        try:
            if error is not None:
                raise error
            if self._timestamp == _LATEST:
                self._row.offset = self._end_offset
                self._collected.end()
                return
            search = self._partition.log.search_by_time(self._timestamp, upto_offset=self._end_offset)
        except BrokerError as failure:
            self._refuse(failure)
            return
        if self._timestamp == _MAX_TIMESTAMP:
            self._collected.search(search.run_for_max, self._searched)
        elif search.is_behind_all:
            self._collected.end()
        else:
            self._collected.search(search.run, self._searched)

    def _searched(self, result: _Result, failure: BaseException | None) -> None:
        if failure is not None:
            self._refuse(failure)
            return
        if result is not None:
            self._row.offset, self._row.timestamp = result
            self._row.leader_epoch = _epoch_at(self._partition, self._row.offset)
        self._collected.end()


def _epoch_at(partition: Partition, offset: int) -> int:
    """That of the record, not the leader's: a client that seeks there asks for the end of this epoch, and would take the end of
    a later one for a truncation."""
    return partition.leader_epoch if offset >= partition.end_offset else partition.log.epochs.written.epoch_of(offset)


def _encode(rows: list[_Row], version: int) -> bytes:
    response = codec.response_class(api.ApiKey.LIST_OFFSETS)
    topic_class = response.ListOffsetsTopicResponse
    topics: dict[str, list[Any]] = {}
    for row in rows:
        part = topic_class.ListOffsetsPartitionResponse(
            partition_index=row.index,
            error_code=row.error,
            timestamp=row.timestamp,
            offset=row.offset if not row.error else -1,
            leader_epoch=row.leader_epoch if row.offset >= 0 else -1,
        )
        topics.setdefault(row.topic, []).append(part)
    answer = response(topics=[topic_class(name=name, partitions=parts) for name, parts in topics.items()])
    return codec.encode_response(answer, version)


@handler.answered_in_slices
def handle_offset_for_leader_epoch(
    message: Any, version: int, caller: authorization.Caller, context: handler.Context
) -> handler.Answering:
    response = codec.response_class(api.ApiKey.OFFSET_FOR_LEADER_EPOCH)
    topic_class = response.OffsetForLeaderTopicResult
    topics = []
    for topic in message.topics:
        rows = []
        for part in topic.partitions:
            rows.append(_row(topic.topic, part, caller, context, topic_class.EpochEndOffset))
            yield None
        topics.append(topic_class(topic=topic.topic, partitions=rows))
    response = response(topics=topics)
    return (yield from handler.encode_in_slices(response, version, *(topic.partitions for topic in topics)))


def _row(topic: str, part: Any, caller: authorization.Caller, context: handler.Context, row_class: Any) -> Any:
    code, epoch, end_offset = 0, -1, -1
    try:
        caller.check(authorization.TOPIC, topic)
        partition = context.partitions.get(topic, part.partition)
        fetch.check_leader_epoch(part.current_leader_epoch, partition)
        partition.log.require_online()
        epoch, end_offset = partition.log.epochs.end_offset_of(part.leader_epoch, partition.end_offset)
    except BrokerError as error:
        code = error_codes.code_of(error)
    return row_class(error_code=code, partition=part.partition, leader_epoch=epoch, end_offset=end_offset)


# DeleteRecords: the log start offset moves forward, up to what has been acknowledged.


_HIGH_WATERMARK = -1


@dataclass(slots=True)
class _DeletionRow:
    topic: str
    index: int
    offset: int = -1
    partition: Partition | None = None  # None once the row has failed
    is_done: bool = False
    low_watermark: int = -1
    error: int = api.ErrorCode.NONE

    def refuse(self, error: BaseException) -> None:
        self.error, self.low_watermark, self.partition = error_codes.code_of(error), -1, None


@handler.answered_in_slices
def handle_delete_records(
    message: Any, version: int, caller: authorization.Caller, context: handler.Context
) -> handler.Answering:
    rows: list[_DeletionRow] = []
    for (topic, index), entries in handler.by_partition(message.topics).items():
        row = _DeletionRow(topic, index)
        rows.append(row)
        try:
            caller.check(authorization.TOPIC, topic)
            row.partition, row.offset = _checked(topic, entries[-1], context)  # the last of several, as in Kafka
        except BrokerError as error:
            row.refuse(error)
        yield None
    deletion = _Deletion([row for row in rows if row.partition is not None], message.timeout_ms, context)
    for row in deletion.rows:
        deletion.wait_for_visible(row)
        yield None
    while not deletion.is_over:
        while deletion.visible:
            deletion.delete(deletion.visible.popleft())
            yield None
        if not deletion.is_over:
            yield background_tasks.Until(deletion.when_stirred)
    moved = [row for row in rows if row.partition is not None]
    if moved:
        try:
            yield background_tasks.Until(context.checkpoints.until_written)
        except BrokerError as error:  # consumers see the new start, but a crash may bring records back: report failure
            for row in moved:
                row.refuse(error)
    return (yield from _encode_deletion(rows, version))


def _checked(topic: str, part: Any, context: handler.Context) -> tuple[Partition, int]:
    partition = context.partitions.get(topic, part.partition_index)
    if partition.is_internal:
        raise InvalidTopic(f"{topic} is internal: what the broker keeps in it would be lost")
    if not partition.log.config.is_trimmed:
        raise PolicyViolation(f"{topic} is compacted: the last record of each key stays; add delete to its cleanup.policy first")
    offset = partition.end_offset if part.offset == _HIGH_WATERMARK else part.offset
    if not 0 <= offset <= partition.end_offset:
        raise OffsetOutOfRange(f"{partition.name} holds {partition.log_start_offset} to {partition.end_offset}")
    return partition, offset


class _Deletion(purgatory.Deadline):
    """The rows of a request: each waits until its records are visible, and then until other replicas have deleted them."""

    __slots__ = ("_context", "_go_on", "_is_limited", "_left", "_timeout_ms", "rows", "visible")

    def __init__(self, rows: list[_DeletionRow], timeout_ms: int, context: handler.Context) -> None:
        super().__init__(context.clock.monotonic() + max(timeout_ms, 0) / 1000)
        self.rows = rows
        self.visible: deque[_DeletionRow] = deque()  # rows that can be deleted now
        self.is_over = not rows
        self._left = len(rows)
        # A standalone broker waits for its own disk, however long that takes.
        self._is_limited = any(row.partition is not None and row.partition.replicated is not None for row in rows)
        self._timeout_ms = timeout_ms
        self._context = context
        self._go_on: thread_pool.Outcome | None = None

    def wait_for_visible(self, row: _DeletionRow) -> None:
        assert row.partition is not None, "chosen so"
        self._context.high_watermark.when_visible(row.partition, row.offset, partial(self._is_visible, row), self)

    def delete(self, row: _DeletionRow) -> None:
        if row.is_done:
            return
        partition, leader = row.partition, self._context.leader
        assert partition is not None, "it is not refused yet"
        try:
            partition.require_led()
            partition.log.delete_before(row.offset, limit_offset=partition.visible_offset)
        except BrokerError as error:
            self._end(row, error)
            return
        if leader is None:
            self._end(row, None)
        else:
            leader.when_deleted(partition, row.offset, partial(self._end, row), self)

    def when_stirred(self, go_on: thread_pool.Outcome) -> None:
        """For a task with nothing to do: call `go_on` when there is something to delete, or everything is done."""
        self._go_on = go_on
        if self._is_limited and not self.is_timed:
            self._context.deadlines.add(self)

    def _is_visible(self, row: _DeletionRow, error: BrokerError | None) -> None:
        if error is not None:
            self._end(row, error)
        elif not row.is_done:
            self.visible.append(row)
            self._stir()

    def _end(self, row: _DeletionRow, error: BrokerError | None) -> None:
        if row.is_done:
            return
        row.is_done = True
        self._left -= 1
        if error is not None:
            row.refuse(error)
        elif row.partition is not None:
            leader = self._context.leader
            row.low_watermark = row.partition.log_start_offset if leader is None else leader.log_start_of_members(row.partition)
        if self._left == 0:
            self._context.deadlines.cancel(self)
            self._stir()

    def _stir(self) -> None:
        go_on, self._go_on = self._go_on, None
        if go_on is not None:
            go_on(None, None)

    def expire(self) -> None:
        error = RequestTimedOut(f"not deleted by all replicas in sync within {self._timeout_ms} ms (timeout.ms of the request)")
        for row in self.rows:
            self._end(row, error)


def _encode_deletion(rows: list[_DeletionRow], version: int) -> handler.Answering:
    response = codec.response_class(api.ApiKey.DELETE_RECORDS)
    topic_class = response.DeleteRecordsTopicResult
    part_class = topic_class.DeleteRecordsPartitionResult
    topics = [
        topic_class(
            name=name,
            partitions=[
                part_class(partition_index=row.index, low_watermark=row.low_watermark, error_code=row.error) for row in of_topic
            ],
        )
        for name, of_topic in handler.by_name(rows, attrgetter("topic")).items()
    ]
    return (yield from handler.encode_in_slices(response(topics=topics), version, rows))
