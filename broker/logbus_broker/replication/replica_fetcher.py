"""A follower's side of replication: one `ReplicaFetcher` for each broker that leads something this one follows.

It has one connection, one incremental session (KIP-227) and at most two requests in flight: one is usually parked at the leader
until there is something new, the second reports what has changed here meanwhile (more written, more flushed) and makes the leader
answer the first. A request names only partitions that are new or whose position moved, so a round costs only what has moved.

The leader counts what a request reports as progress, so it must be accurate: positions are read from the log when the request is
built. An answer is used only if its question is still current:

* the partition is still followed, in the same leader epoch as when the request was built: otherwise the answer may come from
  another leader's past (KAFKA-13207). A new epoch is a new entry here, with nothing named yet.
* records only if they are for the log's current position: it may have been truncated since.
* a divergence or an error before anything else, and the visible offset only after records (KAFKA-14704).

A failure affects one partition: it is fetched again after a pause that doubles. Damaged records are never stored; what follows
them is fetched again, too. A session that the leader has forgotten is reopened, with everything named.

It does no I/O and has no clock: connections, replicas and the time are passed in.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from logbus_broker import errors, logs
from logbus_broker.protocol import replica_fetch
from logbus_broker.protocol.api import ApiKey, ErrorCode
from logbus_broker.replication.interfaces import PeerRequest, Peers, Replica, ReplicationQuota, TopicIdPartition
from logbus_broker.settings import BrokerConfig

logger = logging.getLogger("broker.replication")

IN_FLIGHT_MAX = 2  # what a leader concludes from a request depends on it (isr.py)
NAMED_MAX = 1_000  # partitions in one request: reading them takes the leader a millisecond
SLICE_SECONDS = 0.003  # how long answers are stored before other work gets its turn
_PAUSE_SECONDS_FIRST = 0.02  # after an error: at an election a follower is often one log entry ahead of its leader
_BYTES_MIN = 1
_SESSION_IS_GONE = frozenset({ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH})
_RESET = frozenset({ErrorCode.OFFSET_OUT_OF_RANGE})


@dataclass(slots=True, eq=False)
class _Entry:
    """One followed partition in one leader epoch. Changed by each round, so not frozen."""

    replica: Replica
    epoch: int = field(init=False)
    named: tuple[int, int] | None = None  # the fetch offset and last epoch last sent to the leader
    named_in: int = -1  # the first request with this position
    first_named_in: int = -1  # the first request at all
    reported_flushed: int = -1
    reported_start: int = -1
    reported_impaired: bool = False
    is_paused: bool = False  # while the log is being truncated, and after errors
    pause: float = _PAUSE_SECONDS_FIRST

    def __post_init__(self) -> None:
        self.epoch = self.replica.leader_epoch

    @property
    def has_unreported_progress(self) -> bool:
        """Whether anything but its position has changed; that moves with what the leader sends."""
        replica = self.replica
        return (
            replica.flushed_offset != self.reported_flushed
            or replica.log_start_offset != self.reported_start
            or replica.is_impaired != self.reported_impaired
        )

    def forget_session(self) -> None:
        self.named, self.named_in, self.first_named_in = None, -1, -1


@dataclass(slots=True, eq=False)
class _Session:
    """A session with the leader. Requests are counted from 0, even if the session epoch has wrapped around."""

    session_id: int = replica_fetch.NO_SESSION
    epoch: int = replica_fetch.FIRST_SESSION_EPOCH
    request_count: int = 0
    in_flight: int = 0


class ReplicaFetcher:
    """See the module docstring."""

    def __init__(
        self,
        leader: int,
        config: BrokerConfig,
        *,
        incarnation: int,
        cluster_id: str,
        peers: Peers,
        monotonic: Callable[[], float],
        quota: ReplicationQuota,
    ) -> None:
        self.due = math.inf
        self._quota = quota
        self._leader = leader
        self._config = config
        self._incarnation = incarnation
        self._cluster_id = cluster_id
        self._peers = peers
        self._monotonic = monotonic
        self._pause_max = config.replica_fetch_backoff_ms / 1000
        self._entries: dict[TopicIdPartition, _Entry] = {}
        self._to_name: dict[TopicIdPartition, None] = {}
        self._to_forget: dict[TopicIdPartition, None] = {}
        self._resting: dict[_Entry, float] = {}  # until when, after an error
        self._over_quota: dict[_Entry, None] = {}
        self._session: _Session | None = None
        self._rests_until = -math.inf  # after an error for a whole request
        self._pause = _PAUSE_SECONDS_FIRST
        self._arrived: deque[tuple[int, replica_fetch.ReplicaRecords]] = deque()  # each with the number of the request it answers

    # Events

    def follow(self, replica: Replica) -> None:
        """Fetch for it from now on, in its leader epoch; also if it was followed in an earlier one."""
        self._forget_entry(replica.key)
        self._entries[replica.key] = _Entry(replica)
        self._to_forget.pop(replica.key, None)
        self._to_name[replica.key] = None
        self.due = -math.inf

    def forget(self, key: TopicIdPartition) -> None:
        """It is no longer followed; answers in flight are ignored."""
        entry = self._forget_entry(key)
        if entry is not None and entry.first_named_in >= 0:
            self._to_forget[key] = None
            self.due = -math.inf

    def _forget_entry(self, key: TopicIdPartition) -> _Entry | None:
        self._to_name.pop(key, None)
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._resting.pop(entry, None)
            self._over_quota.pop(entry, None)
        return entry

    def changed(self, key: TopicIdPartition) -> None:
        """More of its log is on disk, or its disk is full, or no longer: report that to the leader."""
        entry = self._entries.get(key)
        if entry is not None and not entry.is_paused and entry.has_unreported_progress:
            self._to_name[key] = None
            self.due = -math.inf

    def quota_changed(self) -> None:
        """What is held up may be asked for now."""
        if self._over_quota:
            self.due = -math.inf

    def reached(self) -> None:
        """There is a new connection to the leader: a new session begins with it."""
        self._end_session()
        self._rests_until = -math.inf
        self.due = -math.inf

    def closed(self) -> None:
        """The connection is lost, and every outstanding answer with it."""
        self._end_session()

    def _end_session(self) -> None:
        self._session = None
        self._arrived.clear()
        self._to_forget.clear()
        for key, entry in self._entries.items():
            entry.forget_session()
            if not entry.is_paused:
                self._to_name[key] = None

    # A turn

    def work(self, now: float) -> None:
        """Store what has arrived, for one time slice, and ask for more."""
        self._end_rests(now)
        self._store_arrived(now)
        self._ask(now)
        self._set_due()

    def _end_rests(self, now: float) -> None:
        for entry, until in list(self._resting.items()) if self._resting else ():
            if until <= now:
                del self._resting[entry]
                self._resume(entry)
        if self._over_quota and self._quota.free_at() <= now:
            for entry in list(self._over_quota):
                self._resume(entry)
            self._over_quota.clear()

    def _resume(self, entry: _Entry) -> None:
        """Ask for it again, if it is still followed."""
        if self._entries.get(entry.replica.key) is entry:
            entry.is_paused = False
            self._to_name[entry.replica.key] = None
            self.due = -math.inf

    def _store_arrived(self, now: float) -> None:
        until = now + SLICE_SECONDS
        while self._arrived:
            self._take(*self._arrived.popleft())
            if self._arrived and self._monotonic() >= until:
                return

    def _set_due(self) -> None:
        if self._arrived:
            self.due = -math.inf
            return
        self.due = min(self._resting.values()) if self._resting else math.inf
        if self._over_quota:
            self.due = min(self.due, self._quota.free_at())
        if self._has_something_to_report and self._can_ask:
            self.due = min(self.due, self._rests_until)

    # Asking

    @property
    def _can_ask(self) -> bool:
        session = self._session
        if session is not None and (
            session.in_flight >= IN_FLIGHT_MAX or (session.session_id == replica_fetch.NO_SESSION and session.request_count)
        ):
            return False
        return self._peers.is_reached(self._leader)

    @property
    def _has_something_to_report(self) -> bool:
        """If there is something to report a second request is sent; the first is sent anyway, to wait at the leader."""
        if self._session is None and not self._entries:
            return False
        if self._to_name or self._to_forget:
            return True
        return bool(self._entries) and not self._arrived and (self._session is None or self._session.in_flight == 0)

    def _ask(self, now: float) -> None:
        while now >= self._rests_until and self._has_something_to_report and self._can_ask:
            self._session = self._session or _Session()
            self._send(self._session)

    def _send(self, session: _Session) -> None:
        number = session.request_count
        is_last = not self._entries
        partitions = [] if is_last else self._name(number)
        forgotten = list(self._to_forget)
        self._to_forget.clear()
        fetch = replica_fetch.ReplicaFetch(
            self._config.broker_id,
            self._incarnation,
            self._cluster_id,
            self._config.replica_fetch_wait_ms_max,
            _BYTES_MIN,
            self._config.replica_response_bytes_max,
            session.session_id,
            replica_fetch.FINAL_SESSION_EPOCH if is_last else session.epoch,
            partitions,
            forgotten,
        )
        session.request_count += 1
        session.epoch = replica_fetch.next_session_epoch(session.epoch)
        session.in_flight += 1
        if is_last:
            self._end_session()
        request = PeerRequest(int(ApiKey.FETCH), replica_fetch.REPLICA_FETCH_VERSION, replica_fetch.encode_replica_fetch(fetch))
        self._peers.send(self._leader, request, partial(self._answered, session, number))

    def _name(self, number: int) -> list[replica_fetch.ReplicaPartition]:
        """What is new or has moved; sorted by topic when a session begins, since each run of one topic sends its id once."""
        keys = sorted(self._to_name) if number == 0 else list(self._to_name)
        rows: list[replica_fetch.ReplicaPartition] = []
        for key in keys[:NAMED_MAX]:
            del self._to_name[key]
            entry = self._entries[key]
            replica = entry.replica
            position = replica.end_offset, replica.last_epoch
            if position != entry.named:
                entry.named, entry.named_in = position, number
            entry.reported_flushed, entry.reported_start = replica.flushed_offset, replica.log_start_offset
            entry.reported_impaired = replica.is_impaired
            if entry.first_named_in < 0:
                entry.first_named_in = number
            rows.append(
                replica_fetch.ReplicaPartition(
                    *key,
                    entry.epoch,
                    replica.end_offset,
                    replica.last_epoch,
                    replica.log_start_offset,
                    self._config.replica_fetch_bytes_max,
                    replica.flushed_offset,
                    entry.reported_impaired,
                )
            )
        return rows

    # Answers

    def _answered(self, session: _Session, number: int, body: memoryview | None) -> None:
        session.in_flight -= 1
        if session is not self._session:
            return
        self.due = -math.inf
        if body is None:
            self._end_session()
            return
        answer = replica_fetch.parse_replica_answer(body)
        if answer.error:
            self._refused(answer.error)
        elif answer.session_id == replica_fetch.NO_SESSION:  # the leader grants no session: as if it had forgotten it at once
            self._refused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        else:
            session.session_id = answer.session_id
            self._pause = _PAUSE_SECONDS_FIRST
            self._arrived.extend((number, row) for row in answer.partitions)

    def _refused(self, code: int) -> None:
        """The whole request was refused. A lost session is reopened: the first time at once, then after a pause."""
        self._end_session()
        is_first = self._pause == _PAUSE_SECONDS_FIRST
        if code not in _SESSION_IS_GONE or not is_first:
            self._rests_until = self._monotonic() + self._pause
            logger.warning("broker %d rejected the fetch: error %d", self._leader, code)
        self._pause = min(self._pause * 2, self._pause_max)

    def _take(self, number: int, row: replica_fetch.ReplicaRecords) -> None:
        """Handle one partition of an answer to request `number`."""
        key = row.topic_id, row.partition_index
        entry = self._entries.get(key)
        if entry is None or entry.is_paused or not 0 <= entry.first_named_in <= number:
            return  # an answer to a question that is no longer current
        replica = entry.replica
        is_current = entry.named_in <= number and entry.named == (replica.end_offset, replica.last_epoch)
        try:
            if row.error:
                if is_current:
                    self._take_error(entry, row)
            elif row.diverging_epoch is not None:
                if is_current:
                    self._pause_for(entry, partial(replica.cut, *row.diverging_epoch))
            else:
                self._take_records(entry, row, is_current=is_current)
        except errors.ReplicationRefused as error:
            logger.error("%s: rejected records from broker %d: %s", replica.name, self._leader, error)
            self._rest(entry)
        except errors.BrokerError as error:
            if not replica.is_impaired:  # else it has been told, for all partitions together
                logger.error("%s: could not store records from broker %d: %s", replica.name, self._leader, error)
            self._rest(entry)
        except Exception:
            logs.log_bug("%s: handling fetched records failed", replica.name)
            self._rest(entry)

    def _take_records(self, entry: _Entry, row: replica_fetch.ReplicaRecords, *, is_current: bool) -> None:
        replica = entry.replica
        if len(row.records) and is_current:
            try:
                replica.append(row.records)
            except errors.StorageError:
                # Learnt all the same: what the leader has deleted makes room here.
                if not replica.is_offline:
                    replica.learn(row.visible_offset, row.log_start_offset)
                raise
            self._to_name[replica.key] = None
        entry.pause = _PAUSE_SECONDS_FIRST
        replica.learn(row.visible_offset, row.log_start_offset)
        if replica.log_start_offset != entry.reported_start:  # a request at the leader may wait for that
            self._to_name[replica.key] = None
        if row.wanted_offset > replica.flushed_offset:
            replica.want_flush(row.wanted_offset)
        if self._quota.is_active and len(row.records) and is_current:
            self._hold_up(entry, len(row.records))

    def _hold_up(self, entry: _Entry, byte_count: int) -> None:
        """A moved replica's next records wait until the rate allows them."""
        if entry.replica.is_in_sync or not self._quota.is_listed(entry.replica.key):
            return
        now = self._monotonic()
        self._quota.take(byte_count, now)
        if self._quota.free_at() > now:
            self._stop_asking(entry)
            self._over_quota[entry] = None

    def _take_error(self, entry: _Entry, row: replica_fetch.ReplicaRecords) -> None:
        if row.error in _RESET and row.log_start_offset >= 0:
            self._pause_for(entry, partial(entry.replica.reset, row.log_start_offset))
            return
        logger.info("%s: broker %d returned error %d", entry.replica.name, self._leader, row.error)
        self._rest(entry)

    def _pause_for(self, entry: _Entry, change: Callable[[Callable[[errors.BrokerError | None], None]], None]) -> None:
        """Fetch nothing for it while its log is being changed."""
        entry.is_paused = True
        self._to_name.pop(entry.replica.key, None)
        change(partial(self._changed, entry))

    def _changed(self, entry: _Entry, error: errors.BrokerError | None) -> None:
        if self._entries.get(entry.replica.key) is not entry:
            return
        if error is None:
            entry.named = None
            self._resume(entry)
        else:
            logger.error("%s: could not truncate the log to match the leader: %s", entry.replica.name, error)
            self._rest(entry)

    def _rest(self, entry: _Entry) -> None:
        """Ask for it again after a pause that grows each time; never again if its disk has failed."""
        if entry.replica.is_offline:
            self.forget(entry.replica.key)
            return
        self._stop_asking(entry)
        self._resting[entry] = self._monotonic() + entry.pause
        entry.pause = min(entry.pause * 2, self._pause_max)
        self.due = min(self.due, self._resting[entry])

    def _stop_asking(self, entry: _Entry) -> None:
        entry.is_paused = True
        entry.named = None
        self._to_name.pop(entry.replica.key, None)


class ReplicaFetcherManager:
    """All fetchers of this broker, one for each leader, and which partition is fetched from which leader."""

    def __init__(self, make: Callable[[int], ReplicaFetcher]) -> None:
        self._make = make
        self._by_leader: dict[int, ReplicaFetcher] = {}
        self._leader_of: dict[TopicIdPartition, int] = {}

    def follow(self, replica: Replica, leader: int) -> None:
        """Fetch it from that broker, in its leader epoch, and from no other."""
        if self._leader_of.get(replica.key, leader) != leader:
            self.forget(replica.key)
        if leader not in self._by_leader:
            self._by_leader[leader] = self._make(leader)
        self._leader_of[replica.key] = leader
        self._by_leader[leader].follow(replica)

    def forget(self, key: TopicIdPartition) -> None:
        """Stop fetching it: it is led here, or it is gone."""
        leader = self._leader_of.pop(key, None)
        if leader is not None:
            self._by_leader[leader].forget(key)

    def changed(self, key: TopicIdPartition) -> None:
        """A flush of the partition has ended, or whether it can be stored has changed."""
        leader = self._leader_of.get(key)
        if leader is not None:
            self._by_leader[leader].changed(key)

    def quota_changed(self) -> None:
        for fetcher in self._by_leader.values():
            fetcher.quota_changed()

    def reached(self, broker: int) -> None:
        if broker in self._by_leader:
            self._by_leader[broker].reached()

    def closed(self, broker: int) -> None:
        if broker in self._by_leader:
            self._by_leader[broker].closed()

    @property
    def due(self) -> float:
        """When `work` has something to do."""
        due = math.inf
        for fetcher in self._by_leader.values():  # runs every turn: takes half the time of `min` over a generator
            if fetcher.due < due:
                due = fetcher.due
        return due

    def work(self, now: float) -> None:
        for fetcher in self._by_leader.values():
            if fetcher.due <= now:
                fetcher.work(now)
