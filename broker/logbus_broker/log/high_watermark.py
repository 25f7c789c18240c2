"""Requests that wait until a partition's records are safe, and how they are called back.

Two offsets of a partition only move forward while this broker leads it: everything below `replicated_offset` has been written by
each in-sync replica, and everything below `visible_offset`, its high watermark, has been flushed by each of them. Consumers,
ListOffsets and an acks=all that waits for the flush wait for the second, any other acks=all for the first.

On a single broker the first is the end of the log, so no request waits for it, and the second is what the flusher has brought to
disk: `HighWatermark`. With replicas, `Watermarks` computes both from what the followers report, and a follower's fetch may move
them as well as our own flush: `ReplicatedHighWatermark`. It also remembers the positions in the files where turns and flushes
ended: the visible offset is nearly always one of them, and then no fetch has to search the index for its position.

A callback that raises is a defect, and does not affect the other waiters. When a partition is no longer led, deleted or offline,
all its waiters get the error at once (`fail`).
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Callable
from operator import itemgetter
from typing import NamedTuple, Protocol

from logbus_broker.errors import BrokerError, StorageError
from logbus_broker.log.flusher import Flusher
from logbus_broker.log.partition import Partition, Wait, Waiting
from logbus_broker.log.segment import Segment
from logbus_broker.logs import log_bug

# How many ends of turns are remembered between the visible offset and the end. For older ones the position is searched for:
# nothing is lost, and a leader whose followers lag that far has bigger problems.
TURN_ENDS_MAX = 256
_SWEEP_FROM = 1024  # entries, and at each doubling: removes waiters that gave up while nothing became safe for hours

_WhenSafe = Callable[[BrokerError | None], None]
_offset_of = itemgetter(0)


class Watermarks(Protocol):
    """Computes what is safe from the state of all replicas of a partition. Each result is (replicated, visible); neither falls
    while this broker leads."""

    def written(self, partition: Partition) -> tuple[int, int]:
        """Our log has a new end."""

    def flushed(self, partition: Partition) -> tuple[int, int]:
        """More of our log is on disk."""

    def flush_requested(self, partition: Partition) -> None:
        """A request waits for records not visible yet: the followers should flush all of it, too."""


class HighWatermark:
    """For a partition whose only replica is this broker's: see the module docstring."""

    def __init__(self, flusher: Flusher) -> None:
        self._flusher = flusher
        self.written = flusher.appended  # spares the hot path a call in between
        self.request_flush = flusher.request
        self.on_advanced: Callable[[Partition, int], None] = lambda partition, byte_count: None
        self.on_offline: Callable[[Partition], None] = lambda partition: None
        flusher.on_flushed, flusher.on_failed = self.flushed, self.failed

    def when_visible(self, partition: Partition, offset: int, then: _WhenSafe, waiting: Waiting | None = None) -> None:
        """Call `then(None)` once everything below `offset` is visible, or `then(error)` if that will not happen; at once if it is
        visible already. If `waiting` is over before that, the call may be omitted."""
        if partition.visible_offset >= offset:
            then(None)
        else:
            _add(partition.awaits_visible, offset, then, waiting)
            self.request_flush(partition)

    def when_replicated(self, partition: Partition, offset: int, then: _WhenSafe, waiting: Waiting | None = None) -> None:
        """The same for what every in-sync replica has written."""
        if partition.replicated is None or partition.replicated >= offset:
            then(None)
        else:
            _add(partition.awaits_replicated, offset, then, waiting)

    def flushed(self, partition: Partition, byte_count: int) -> None:
        """The flusher has brought `byte_count` more bytes to the disk."""
        partition.visible_offset = partition.log.flushed_offset
        self._advance(partition, byte_count)

    def _advance(self, partition: Partition, byte_count: int) -> None:
        """The visible offset has moved past `byte_count` more bytes."""
        waits, visible = partition.awaits_visible, partition.visible_offset
        if waits:
            _complete_reached(partition, waits, visible)
            if waits:
                self.request_flush(partition)
        try:
            self.on_advanced(partition, byte_count)
        except Exception:
            log_bug("%s: waking fetches failed", partition.name)

    def failed(self, partition: Partition, error: StorageError) -> None:
        """A flush of the partition has failed, and it is offline."""
        self.fail(partition, error)
        self.on_offline(partition)

    def fail(self, partition: Partition, error: BrokerError) -> None:
        """None of its records will become safe any more, as far as this broker can tell: pass `error` to all waiters."""
        for waits in (partition.awaits_replicated, partition.awaits_visible):
            _complete(partition, waits, len(waits), error)

    def forget(self, partition: Partition, error: BrokerError) -> None:
        """The partition is gone."""
        self._flusher.forget(partition)
        self.lost(partition, error)

    def lost(self, partition: Partition, error: BrokerError) -> None:
        """This broker no longer leads it."""
        self.fail(partition, error)


class _TurnEnd(NamedTuple):
    """Where a turn's or a flush's last batch ends."""

    offset: int
    segment: Segment
    position: int
    byte_count: int  # total written before it since this broker began to lead


class _TurnEnds:
    """Those between the visible offset and the end, the newest last; and how many bytes have become visible."""

    __slots__ = ("ends", "visible_bytes", "written_bytes")

    def __init__(self) -> None:
        self.ends: deque[_TurnEnd] = deque(maxlen=TURN_ENDS_MAX)
        self.written_bytes = self.visible_bytes = 0


class ReplicatedHighWatermark(HighWatermark):
    """For partitions with other replicas: see the module docstring."""

    def __init__(self, flusher: Flusher, watermarks: Watermarks) -> None:
        super().__init__(flusher)
        self._watermarks = watermarks
        self._turn_ends: dict[Partition, _TurnEnds] = {}
        self.on_follower_flushed: Callable[[Partition], None] = lambda partition: None
        self.written = self._written
        self.request_flush = self._request_flush

    def lead(self, partition: Partition) -> None:
        """This broker begins to lead it: its followers' state is unknown, and the visible offset is the one last learnt."""
        self._turn_ends[partition] = _TurnEnds()
        partition.replicated = partition.visible_offset
        self._move(partition, self._watermarks.written(partition))

    def _written(self, partition: Partition, byte_count: int) -> None:
        self._flusher.appended(partition, byte_count)
        if partition.is_led:
            # Noted before the watermarks move: the move may make records visible up to this very end, whose position is then
            # known without an index search.
            turn_ends, segment = self._turn_ends[partition], partition.log.segments.active
            turn_ends.written_bytes += byte_count
            turn_ends.ends.append(_TurnEnd(partition.end_offset, segment, segment.size, turn_ends.written_bytes))
            self._move(partition, self._watermarks.written(partition))

    def _request_flush(self, partition: Partition) -> None:
        self._flusher.request(partition)
        if partition.is_led and partition.end_offset > partition.visible_offset:
            self._watermarks.flush_requested(partition)

    def flushed(self, partition: Partition, byte_count: int) -> None:
        if partition.is_led:
            self._move(partition, self._watermarks.flushed(partition))
        else:
            self.on_follower_flushed(partition)

    def moved(self, partition: Partition, replicated: int, visible: int) -> None:
        """A follower's fetch or a change of the in-sync replicas has moved these; unchanged values are harmless."""
        self._move(partition, (replicated, visible))

    def _move(self, partition: Partition, safe: tuple[int, int]) -> None:
        replicated, visible = safe
        assert partition.replicated is not None, "it is led"
        assert partition.visible_offset <= visible <= replicated <= partition.end_offset, "safe offsets never fall"
        if replicated > partition.replicated:
            partition.replicated = replicated
            _complete_reached(partition, partition.awaits_replicated, replicated)
        if visible > partition.visible_offset and partition.is_led:  # a callback may have ended the lead
            partition.visible_offset = visible
            self._advance(partition, self._pass_turn_ends(partition, visible))

    def _pass_turn_ends(self, partition: Partition, visible: int) -> int:
        """Forget those up to `visible`; returns how many bytes are newly visible, or a part of them if it is between two of them:
        at least one, so that a fetch waiting for any bytes looks again."""
        turn_ends = self._turn_ends[partition]
        ends, visible_bytes = turn_ends.ends, turn_ends.visible_bytes
        newest: _TurnEnd | None = None
        while ends and ends[0].offset <= visible:
            newest = ends.popleft()
        partition.visible_position = None
        if newest is not None:
            turn_ends.visible_bytes = newest.byte_count
            if newest.offset == visible:
                partition.visible_position = newest.segment, newest.position
        return max(1, turn_ends.visible_bytes - visible_bytes)

    def lost(self, partition: Partition, error: BrokerError) -> None:
        self._turn_ends.pop(partition, None)
        super().lost(partition, error)


def _add(waits: list[Wait], offset: int, then: _WhenSafe, waiting: Waiting | None) -> None:
    """Insert in order of offset; nearly all waiters wait for what was written last, so appending usually suffices."""
    if waits and waits[-1][0] > offset:
        insort(waits, (offset, then, waiting), key=_offset_of)
    else:
        waits.append((offset, then, waiting))
    size = len(waits)
    if size >= _SWEEP_FROM and not size & (size - 1):
        waits[:] = [wait for wait in waits if wait[2] is None or not wait[2].is_over]


def _complete_reached(partition: Partition, waits: list[Wait], offset: int) -> None:
    reached = len(waits) if waits and waits[-1][0] <= offset else bisect_right(waits, offset, key=_offset_of)
    _complete(partition, waits, reached, None)


def _complete(partition: Partition, waits: list[Wait], count: int, error: BrokerError | None) -> None:
    """Call back the first `count` of them."""
    # Taken off the list before any callback runs: a callback may issue the next request at once and wait again, on this same
    # list.
    completed = waits[:count]
    del waits[:count]
    for _, then, _ in completed:
        try:
            then(error)
        except Exception:
            log_bug("%s: the callback of a waiting request failed", partition.name)
