"""Answers the followers of the partitions this broker leads: what they have is noted, what they lack is sent from the files.

The order of the checks is Kafka's, and each of them fixes a bug that Kafka once had:

1. the epoch, before anything else; one newer than ours means that we have to read ZooKeeper
2. is the follower assigned (KAFKA-14078)? If not, one of us is not up to date: unknown leader epoch (KAFKA-13837)
3. below the log start offset: out of range, before epochs are compared (KAFKA-12996)
4. does its log agree with ours? If not, the answer says where they diverge, and the fetch is *not* progress (KAFKA-13141)
5. progress

Records are sent up to the log end offset, not just what is visible: acks=all waits for followers to have them. A fetch that finds
nothing waits, holds no file meanwhile, and its answer is built when it is sent. A newer request of the session releases a waiting
one: so a follower whose flush ends while its fetch waits here can report that at once. The released one carries no records, which
are left for the newer one, but everything else the follower does not know yet, including what the newer one has made visible.

An error removes the partition from the session: the follower names it again when it wants more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import inf
from typing import NamedTuple

from logbus_broker import errors
from logbus_broker.filesystem import FileSlice
from logbus_broker.protocol import replica_fetch
from logbus_broker.protocol.api import ErrorCode
from logbus_broker.protocol.batch import NO_EPOCH
from logbus_broker.replication import interfaces, led_partition
from logbus_broker.settings import BrokerConfig


class _Row(NamedTuple):
    answer: replica_fetch.ReplicaAnswer
    piece: FileSlice | None = None


class ReplicaServer:
    """See the module docstring. One per broker; `led` is what it leads, and is maintained by `Leader`."""

    def __init__(
        self,
        led: dict[interfaces.TopicIdPartition, led_partition.LedPartition],
        config: BrokerConfig,
        *,
        cluster_id: str,
        code_of: Callable[[errors.BrokerError], int],
        session_ids: Iterator[int],
    ) -> None:
        self.led = led
        self.gone_since: dict[int, float] = {}  # followers whose connection was closed, until they fetch again
        self.on_moved: Callable[[led_partition.LedPartition], None] = lambda led: None  # R or V of a partition has moved
        # A follower's log start offset may have moved.
        self.on_deleted: Callable[[led_partition.LedPartition], None] = lambda led: None
        # A broker that may join or take over, or has to leave, has fetched.
        self.on_candidate: Callable[[led_partition.LedPartition], None] = lambda led: None
        # A follower could not use what it was sent, or it cannot be read: from which offset on, how many bytes to look at, and
        # the epoch of the batch before.
        self.on_suspect: Callable[[led_partition.LedPartition, int, int, int], None] = lambda led, offset, size, epoch: None
        self.on_newer_epoch: Callable[[interfaces.TopicIdPartition, int], None] = lambda key, epoch: None
        self.is_known_topic: Callable[[bytes], bool] = lambda topic_id: True
        self.quota = interfaces.ReplicationQuota(config.broker_id)
        self.cluster_id = cluster_id
        self._code_of = code_of
        self._session_ids = session_ids
        self._sessions: dict[int, led_partition.FetchSession] = {}  # by broker
        self._incarnations: dict[int, int] = {}  # the newest known of each broker
        self._response_bytes_max = config.fetch_bytes_max  # a first batch may be larger (KIP-74)
        # A follower with nothing to fetch confirms by its last request but one: up to twice this long ago.
        self._wait_seconds_max = config.confirm_ms / 4000
        self.next_deadline = inf  # when to call `expire`, or earlier: not updated when a fetch is answered early

    # Requests

    def fetch(
        self, fetch: replica_fetch.ReplicaFetch, answer: led_partition.Answer, now: float
    ) -> led_partition.FetchSession | None:
        """Handle a request; `answer` is called once, now or later. Returns its session, to be passed to `disconnected`."""
        if fetch.cluster_id is not None and fetch.cluster_id != self.cluster_id:
            self._refuse(ErrorCode.INCONSISTENT_CLUSTER_ID, answer)
            return None
        if fetch.replica_epoch < self._incarnations.get(fetch.replica_id, led_partition.UNKNOWN):
            self._refuse(ErrorCode.STALE_BROKER_EPOCH, answer)
            return None
        self._incarnations[fetch.replica_id] = fetch.replica_epoch
        self.gone_since.pop(fetch.replica_id, None)
        session = self._session_of(fetch, answer, now)
        if session is None:
            return None
        for key in fetch.forgotten:
            session.forget(key)
        session.stop_holding()
        if session.over_quota and now >= self.quota.free_at():
            session.go_on()
        problems = [_Row(row) for part in fetch.partitions if (row := self._take(session, part, now))]
        if session.waiting is not None:
            self._release(session, session.waiting, now)
        waits = (
            fetch.session_epoch not in (replica_fetch.FIRST_SESSION_EPOCH, replica_fetch.FINAL_SESSION_EPOCH)
            and fetch.wait_ms_max > 0
        )
        bytes_max = min(fetch.bytes_max, self._response_bytes_max)
        if problems or not waits or _has_urgent(session):
            self._answer(session, answer, bytes_max, now, problems)
            if fetch.session_epoch == replica_fetch.FINAL_SESSION_EPOCH:
                session.close()
        else:
            wait_seconds = min(fetch.wait_ms_max / 1000, self._wait_seconds_max)
            session.waiting = led_partition.WaitingReplicaFetch(answer, now + wait_seconds, bytes_max)
            self.next_deadline = min(self.next_deadline, now + wait_seconds)
        return session

    def _refuse(self, code: ErrorCode, answer: led_partition.Answer) -> None:
        answer(list(replica_fetch.encode_replica_answer([], session_id=replica_fetch.NO_SESSION, error=code)))

    def _session_of(
        self, fetch: replica_fetch.ReplicaFetch, answer: led_partition.Answer, now: float
    ) -> led_partition.FetchSession | None:
        session = self._sessions.get(fetch.replica_id)
        if fetch.session_epoch in (replica_fetch.FIRST_SESSION_EPOCH, replica_fetch.FINAL_SESSION_EPOCH):
            self._close(session)  # of an earlier connection, or of this one
            is_opened = fetch.session_epoch == replica_fetch.FIRST_SESSION_EPOCH
            opened = led_partition.FetchSession(
                next(self._session_ids) if is_opened else replica_fetch.NO_SESSION, fetch.replica_id, fetch.replica_epoch
            )
            if is_opened:
                self._sessions[fetch.replica_id] = opened
            return opened
        if session is None or session.session_id != fetch.session_id or session.replica_epoch != fetch.replica_epoch:
            self._refuse(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, answer)
            return None
        if not session.continues(fetch):  # also more than two in flight: `alive_at` would not hold
            self._close(session)
            self._refuse(ErrorCode.INVALID_FETCH_SESSION_EPOCH, answer)
            return None
        return session

    def _release(self, session: led_partition.FetchSession, waiting: led_partition.WaitingReplicaFetch, now: float) -> None:
        """A newer request has arrived. Partitions that it names for the first time have no place in the answer to the old one,
        and what is urgent is left for its own answer, which follows at once."""
        session.waiting = None
        rows = []
        for key, entry in list(session.dirty.items()):
            if entry.named_in != session.session_epoch and not entry.is_urgent:
                del session.dirty[key]
                if entry.has_news:
                    rows.append(self._news(entry))
        session.note_answer(now)
        waiting.answer(list(replica_fetch.encode_replica_answer(rows, session_id=session.session_id)))

    def _close(self, session: led_partition.FetchSession | None) -> None:
        if session is None:
            return
        waiting, session.waiting = session.waiting, None
        session.close()
        if self._sessions.get(session.replica_id) is session:
            del self._sessions[session.replica_id]
        if waiting is not None:
            self._refuse(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, waiting.answer)

    def disconnected(self, session: led_partition.FetchSession, now: float) -> None:
        """A session's connection was closed. A follower that reconnects soon stays in sync."""
        if self._sessions.get(session.replica_id) is session:
            session.waiting = None
            self._close(session)
            self.gone_since[session.replica_id] = now

    # One partition of a request

    def _take(
        self, session: led_partition.FetchSession, part: replica_fetch.ReplicaPartition, now: float
    ) -> replica_fetch.ReplicaAnswer | None:
        """Note what the follower has; returns an answer only if something is wrong."""
        key = part.topic_id, part.partition_index
        try:
            led = self._check(session, part, key)
            diverging = _divergence(part, led)
        except errors.BrokerError as error:
            session.forget(key)
            # If out of range, the follower starts over at our log start offset.
            start = self.led[key].log.log_start_offset if isinstance(error, errors.OffsetOutOfRange) else replica_fetch.NO_OFFSET
            return replica_fetch.ReplicaAnswer(*key, self._code_of(error), replica_fetch.NO_OFFSET, start)
        if diverging is not None:
            session.forget(key)
            start, visible = led.log.log_start_offset, led.progress.visible_offset
            return replica_fetch.ReplicaAnswer(*key, 0, visible, start, diverging_epoch=diverging)
        entry = session.follow(led)
        is_asked_again = entry.is_awaited and entry.offset == part.fetch_offset
        # A request already in flight when its predecessor was answered does not reflect what that answer carried.
        if is_asked_again and entry.sent_in == session.session_epoch - 1:
            session.held_in[key] = session.session_epoch
        else:
            if is_asked_again and not part.is_impaired:
                self.on_suspect(led, part.fetch_offset, part.bytes_max, part.last_fetched_epoch)
            entry.is_awaited = False
        entry.offset, entry.flushed, entry.bytes_max = part.fetch_offset, part.flushed_offset, part.bytes_max
        session.dirty[key] = entry
        self._note_progress(session, part, led, now)
        return None

    def _check(
        self, session: led_partition.FetchSession, part: replica_fetch.ReplicaPartition, key: interfaces.TopicIdPartition
    ) -> led_partition.LedPartition:
        led = self.led.get(key)
        if led is None:
            if not self.is_known_topic(part.topic_id):
                raise errors.UnknownTopicId("no such topic")
            self.on_newer_epoch(key, part.leader_epoch)
            raise errors.NotLeaderOrFollower("this broker does not lead it")
        if part.leader_epoch < led.progress.epoch:
            raise errors.FencedLeaderEpoch(f"epoch {part.leader_epoch}, ours is {led.progress.epoch}")
        if part.leader_epoch > led.progress.epoch:
            self.on_newer_epoch(key, part.leader_epoch)
            raise errors.UnknownLeaderEpoch(f"epoch {part.leader_epoch}, ours is {led.progress.epoch}")
        if session.replica_id not in led.progress.followers:
            raise errors.UnknownLeaderEpoch(f"broker {session.replica_id} is not a replica of it")
        return led

    def _note_progress(
        self,
        session: led_partition.FetchSession,
        part: replica_fetch.ReplicaPartition,
        led: led_partition.LedPartition,
        now: float,
    ) -> None:
        progress = led.progress
        before = progress.replicated_offset, progress.visible_offset
        progress.fetched(
            session.replica_id,
            session.replica_epoch,
            part.fetch_offset,
            part.flushed_offset,
            now,
            log_start=part.log_start_offset,
            is_impaired=part.is_impaired,
        )
        if (progress.replicated_offset, progress.visible_offset) != before:
            self.moved(led)
            self.on_moved(led)
        if progress.deleted_offset != led_partition.UNKNOWN:
            self.on_deleted(led)
        if (
            session.replica_id not in progress.state.isr
            or progress.state.handover_to is not None
            or part.is_impaired
            or progress.is_impaired
        ):
            self.on_candidate(led)

    # What happens to a partition

    def moved(self, led: led_partition.LedPartition) -> None:
        """Its visible offset or log start offset has moved; followers learn it with their next answer."""
        for entry in led.followed.values():
            entry.mark(wakes=False)

    def written(self, led: led_partition.LedPartition) -> None:
        """Its log has a new end."""
        for entry in led.followed.values():
            entry.mark(wakes=True)

    flush_requested = deleted = written  # a request waits for a flush, or for the log start offset: sent at once

    def ended(self, led: led_partition.LedPartition) -> None:
        """It is no longer led, or not in this epoch: followers waiting for it get an answer."""
        led.is_over = True
        for entry in list(led.followed.values()):
            entry.is_awaited = False
            entry.mark(wakes=True)

    def reassigned(self, led: led_partition.LedPartition) -> None:
        """Its assignment has changed: brokers that are no longer replicas get an answer."""
        for broker, entry in list(led.followed.items()):
            if broker not in led.progress.followers:
                entry.is_awaited = False
                entry.mark(wakes=True)

    def alive_at(self, broker: int, led: led_partition.LedPartition) -> float:
        """A time at which the broker still followed us in this epoch; -inf: none is known."""
        entry = led.followed.get(broker)
        return -inf if entry is None else entry.session.alive_at

    def restarted(self, broker: int, incarnation: int, now: float) -> None:
        """The image shows a newer process of a broker: requests of earlier ones are refused, and it is gone until it fetches."""
        if incarnation > self._incarnations.get(broker, led_partition.UNKNOWN):
            self._incarnations[broker] = incarnation
            session = self._sessions.get(broker)
            if session is not None and session.replica_epoch < incarnation:
                self._close(session)
                self.gone_since[broker] = now

    # Answers

    def answer_woken(self, now: float) -> None:
        """At the end of a turn: answer the waiting fetches for which something happened in it, with one answer for all of it."""
        for session in self._sessions.values():
            if session.is_woken:
                session.is_woken = False
                if session.waiting is not None and _has_urgent(session):
                    self._answer_waiting(session, now)

    def expire(self, now: float) -> None:
        """Answer the fetches whose wait time is over."""
        free_at = self.quota.free_at()
        for session in list(self._sessions.values()):
            goes_on = bool(session.over_quota) and now >= free_at
            if goes_on:
                session.go_on()
            if session.waiting is not None and (session.waiting.deadline <= now or (goes_on and _has_urgent(session))):
                self._answer_waiting(session, now)
        waits = [session.waiting.deadline for session in self._sessions.values() if session.waiting is not None]
        waits += [self.quota.free_at() for session in self._sessions.values() if session.over_quota]
        self.next_deadline = min(waits, default=inf)

    def _answer_waiting(self, session: led_partition.FetchSession, now: float) -> None:
        waiting, session.waiting = session.waiting, None
        assert waiting is not None, "the caller looked"
        self._answer(session, waiting.answer, waiting.bytes_max, now, [])

    def _answer(
        self, session: led_partition.FetchSession, answer: led_partition.Answer, bytes_max: int, now: float, rows: list[_Row]
    ) -> None:
        """Send everything new. A partition that got records returns to the end of the dirty set when it is named again: one that
        always has more does not starve the others."""
        budget, is_first = bytes_max, True
        for key, entry in list(session.dirty.items()):
            if budget <= 0 and not is_first:
                break
            del session.dirty[key]
            if not entry.has_news:
                continue
            if self.quota.is_active and self._is_over_quota(entry, now):
                session.over_quota[key] = entry
                self.next_deadline = min(self.next_deadline, self.quota.free_at())
                continue
            row = self._row(session, entry, budget, is_first)
            rows.append(row)
            if row.piece is not None:
                budget -= row.piece.length
                is_first = False
                if self.quota.is_active and self._is_held_up(entry):
                    self.quota.take(row.piece.length, now)
        session.is_woken = False
        session.note_answer(now)
        pieces = replica_fetch.encode_replica_answer([row.answer for row in rows], session_id=session.session_id)
        parts: list[bytes | FileSlice] = []
        for head, (_, piece) in zip(pieces, rows, strict=False):
            parts.append(head)
            if piece is not None:
                parts.append(piece)
        parts.append(pieces[-1])
        answer(parts)

    def _is_held_up(self, entry: led_partition.Followed) -> bool:
        """Whether its rate is limited; as long as it is in sync, acknowledgements wait for it."""
        led = entry.led
        return self.quota.is_listed(led.key) and entry.session.replica_id not in led.progress.state.isr

    def _is_over_quota(self, entry: led_partition.Followed, now: float) -> bool:
        return self.quota.free_at() > now and not entry.led.is_over and self._is_held_up(entry)

    def _row(self, session: led_partition.FetchSession, entry: led_partition.Followed, budget: int, is_first: bool) -> _Row:
        led, progress = entry.led, entry.led.progress
        try:
            if led.is_over:
                raise errors.NotLeaderOrFollower("this broker no longer leads it in this epoch")
            if session.replica_id not in progress.followers:
                raise errors.UnknownLeaderEpoch(f"broker {session.replica_id} is no longer a replica of it")
            piece = None if entry.is_awaited else self._records(session, entry, budget, is_first)
        except errors.BrokerError as error:
            if isinstance(error, errors.StorageError):
                self.on_suspect(led, entry.offset, entry.bytes_max, NO_EPOCH)
            session.forget(led.key)
            return _Row(
                replica_fetch.ReplicaAnswer(*led.key, self._code_of(error), replica_fetch.NO_OFFSET, led.log.log_start_offset)
            )
        size = 0
        if piece is not None:
            size = piece.length
            entry.is_awaited, entry.sent_in = True, session.session_epoch
        return _Row(self._news(entry, size), piece)

    def _news(self, entry: led_partition.Followed, size: int = 0) -> replica_fetch.ReplicaAnswer:
        """What its follower does not know yet, followed by `size` bytes of records."""
        led, flush_offset = entry.led, entry.wanted_offset
        entry.sent_visible, entry.sent_start = led.progress.visible_offset, led.log.log_start_offset
        entry.sent_wanted = max(entry.sent_wanted, flush_offset)
        return replica_fetch.ReplicaAnswer(*led.key, 0, entry.sent_visible, entry.sent_start, size, None, flush_offset)

    def _records(
        self, session: led_partition.FetchSession, entry: led_partition.Followed, budget: int, is_first: bool
    ) -> FileSlice | None:
        """The records to send; the first ones of an answer may exceed the limits by one batch, others may not."""
        led, limit = entry.led, min(entry.bytes_max, budget)
        end_offset = led.log.end_offset
        if entry.offset >= end_offset:
            return None
        if limit <= 0 and not is_first:
            session.dirty[led.key] = entry
            return None
        piece = led.log.locate(entry.offset, max(limit, 0), upto_offset=end_offset)
        if piece.length == 0 or (piece.length > limit and not is_first):
            piece.release()
            session.dirty[led.key] = entry
            return None
        return piece


def _has_urgent(session: led_partition.FetchSession) -> bool:
    """Whether a waiting fetch should be answered now."""
    return any(entry.is_urgent for entry in session.dirty.values())


def _divergence(part: replica_fetch.ReplicaPartition, led: led_partition.LedPartition) -> tuple[int, int] | None:
    """Where the follower's log diverges from ours, or None."""
    log, offset, epoch = led.log, part.fetch_offset, part.last_fetched_epoch
    start_offset, end_offset = log.log_start_offset, log.end_offset
    if offset < start_offset:
        raise errors.OffsetOutOfRange(f"offset {offset} is below the log's start {start_offset}")
    if epoch == NO_EPOCH:  # it has nothing that could differ
        if offset > end_offset:
            raise errors.OffsetOutOfRange(f"offset {offset} is beyond the log's end {end_offset}")
        return None
    if epoch == led.progress.epoch:
        return (epoch, end_offset) if offset > end_offset else None
    known_epoch, known_end = log.end_of_epoch(epoch)
    if known_end == replica_fetch.NO_OFFSET:
        raise errors.OffsetOutOfRange(f"epoch {epoch} is unknown")
    return (known_epoch, known_end) if known_epoch < epoch or known_end < offset else None
