"""How a leader changes the state of the partitions it leads (which replicas are in sync, which others may be elected, to which
broker leadership is handed over), and how it makes sure that it still leads them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from uuid import UUID

from logbus_broker.clock import Clock
from logbus_broker.cluster import metadata_image, metadata_log, znodes
from logbus_broker.cluster.store import Check, Committed, Outcome, Reason, Refused, Store, in_batches
from logbus_broker.replication import interfaces, led_partition

RETRY_SECONDS = 0.5  # after an unknown outcome; the store itself waits for a session timeout if ZooKeeper is away


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A state to replace the current one. `additions` are the brokers it makes members; `incarnations` are those of brokers that
    must still be the processes we know."""

    state: metadata_image.PartitionState
    additions: Mapping[int, int] = field(default_factory=dict)
    incarnations: Mapping[int, int] = field(default_factory=dict)


def propose_isr(
    progress: led_partition.PartitionProgress, departures: led_partition.Departures, may_belong: Callable[[int, int], bool]
) -> Proposal | None:
    """The in-sync replicas as they should be, or None if they already are. `may_belong(broker, incarnation)`: it is registered
    as this process, connected, and not being stopped."""
    state = progress.state
    leaving = (*departures.behind, *departures.lost)
    additions = {
        broker: follower.replica_epoch
        for broker, follower in progress.followers.items()
        if progress.may_join(broker) and broker not in departures.late and may_belong(broker, follower.replica_epoch)
    }
    isr = (*(broker for broker in state.isr if broker not in leaving), *additions)
    eligible = tuple(
        broker for broker in metadata_image.eligible_after(state, isr, progress.insync_min) if broker not in departures.lost
    )
    handover_to = state.handover_to if state.handover_to in isr else None
    # After an unclean election followers may truncate what was visible; those in sync with the new leader have done so.
    is_recovering = state.is_recovering and len(isr) < len(progress.replicas)
    withdrawn = tuple(end for end in state.withdrawn if end.broker not in additions)
    new = replace(state, isr=isr, eligible=eligible, handover_to=handover_to, is_recovering=is_recovering, withdrawn=withdrawn)
    if new == state:
        return None
    new = replace(new, version=state.version + 1)
    return Proposal(state=new, additions=additions, incarnations=additions)


@dataclass(slots=True, eq=False)
class _Pending:
    """A proposal whose outcome the image does not show yet."""

    led: led_partition.LedPartition
    proposal: Proposal
    retry_at: float = -inf  # inf: it is in flight, or answered


class Proposals:
    """Changes of states by compare-and-set on the version of the partition's znode that the leader knows. One is in flight for
    each partition, up to 250 of them in one transaction with one log entry. Only the image shows the outcome: a proposal is over
    when the image shows a newer version than the one it was made from, whichever broker wrote that.

        committed   waits for the image
        refused     because of its version: waits for the image. Because of the incarnation of a broker it adds: certain never to
                    happen, since incarnations only rise, so it is withdrawn. The states come before the checks in the
                    transaction, so this second reason implies that the versions still matched. All others are sent again
        unknown     may have happened, or may yet happen: ZooKeeper may receive it after we stopped waiting. The same is sent
                    again until the image moves. Once the version has moved, what is still in flight can never happen

    Until then a proposed addition counts for what is safe (led_partition.py); dropping it when its answer was lost would lose
    records."""

    def __init__(self, store: Store, clock: Clock) -> None:
        # A withdrawn addition may let R and V move.
        self.on_moved: Callable[[led_partition.LedPartition], None] = lambda led: None
        self._store = store
        self._clock = clock
        self._pending: dict[interfaces.TopicIdPartition, _Pending] = {}
        self._unsent: dict[interfaces.TopicIdPartition, _Pending] = {}

    def is_pending(self, led: led_partition.LedPartition) -> bool:
        return led.key in self._pending

    def is_handing_over(self, led: led_partition.LedPartition) -> bool:
        """Whether another broker may lead by now because we proposed it: nothing more may be written."""
        pending = self._pending.get(led.key)
        return pending is not None and pending.proposal.state.leader != led.progress.me

    def offer(self, led: led_partition.LedPartition, proposal: Proposal) -> None:
        """Send it with the next transaction."""
        assert led.key not in self._pending, "one for each partition"
        self._pending[led.key] = self._unsent[led.key] = _Pending(led, proposal)
        if proposal.additions:
            led.progress.propose(proposal.additions)
            led.confirmed_until = -inf  # a possible member may be elected: from now on its fetches are needed, too

    def learnt(self, led: led_partition.LedPartition) -> None:
        """The partition's progress has learnt a state from the image."""
        pending = self._pending.get(led.key)
        if pending is not None and led.progress.state.version >= pending.proposal.state.version:
            self.forget(led)

    def forget(self, led: led_partition.LedPartition) -> None:
        """Whatever was proposed for it is over, or it is no longer led."""
        self._pending.pop(led.key, None)
        self._unsent.pop(led.key, None)

    def send(self) -> None:
        """At the end of a turn, and when a retry is due."""
        if not self._unsent:
            return
        now = self._clock.monotonic()
        due = [pending for pending in self._unsent.values() if pending.retry_at <= now]
        for batch in in_batches(due, metadata_log.STATES_MAX):
            self._commit(batch, now)

    @property
    def next_retry(self) -> float:
        return min([pending.retry_at for pending in self._unsent.values()]) if self._unsent else inf

    def _commit(self, batch: Sequence[_Pending], now: float) -> None:
        changes: list[metadata_image.StateChange] = []
        brokers: dict[tuple[int, int], None] = {}
        for pending in batch:
            led, state = pending.led, pending.proposal.state
            changes.append(
                metadata_image.StateChange(topic=led.topic, topic_id=UUID(bytes=led.topic_id), index=led.index, state=state)
            )
            brokers.update(dict.fromkeys(pending.proposal.incarnations.items()))
            pending.retry_at = inf
            del self._unsent[led.key]
        checks = [Check(path=znodes.incarnation_path(broker), version=incarnation) for broker, incarnation in brokers]
        *writes, entry = metadata_log.state_writes(changes)
        answered = partial(self._answered, batch, list(brokers), now)
        self._store.commit([*writes, *checks, entry], answered)

    def _answered(self, batch: Sequence[_Pending], checked: list[tuple[int, int]], sent_at: float, outcome: Outcome) -> None:
        current = [pending for pending in batch if self._pending.get(pending.led.key) is pending]
        topics = list(dict.fromkeys(pending.led.topic_id for pending in batch))  # whose ids are checked before the states
        first_check = len(topics) + len(batch)
        match outcome:
            case Committed():
                for pending in current:
                    if pending.proposal.state.leader == pending.led.progress.me:
                        pending.led.stored_at = max(pending.led.stored_at, sent_at)
            case Refused(index=index, reason=Reason.BAD_VERSION | Reason.NO_NODE) if index < len(topics):
                self._send_again([pending for pending in current if pending.led.topic_id != topics[index]], -inf)
            case Refused(index=index, reason=Reason.BAD_VERSION | Reason.NO_NODE) if index < first_check:
                self._send_again([pending for pending in current if pending is not batch[index - len(topics)]], -inf)
            case Refused(index=index, reason=Reason.BAD_VERSION | Reason.NO_NODE) if index < first_check + len(checked):
                broker, incarnation = checked[index - first_check]
                void = [pending for pending in current if pending.proposal.incarnations.get(broker) == incarnation]
                for pending in void:
                    self._withdraw(pending.led)
                self._send_again([pending for pending in current if pending not in void], -inf)
            case _:
                self._send_again(current, self._clock.monotonic() + RETRY_SECONDS)

    def _send_again(self, batch: list[_Pending], retry_at: float) -> None:
        for pending in batch:
            pending.retry_at = retry_at
            self._unsent[pending.led.key] = pending

    def _withdraw(self, led: led_partition.LedPartition) -> None:
        self.forget(led)
        led.progress.withdraw_additions()
        self.on_moved(led)


_KEEPS_UP_SECONDS = 1.0  # a replica caught up this recently needs one round trip once writes stop


def takes_records(progress: led_partition.PartitionProgress, now: float) -> bool:
    """Whether producers are still served. A leader that can store nothing waits for its successor, if there can be one."""
    if progress.is_impaired and len(progress.state.isr) > 1:
        return False
    successor = _successor(progress)
    if successor is None:
        return True
    return successor.written < progress.end_offset and now - successor.caught_up_at > _KEEPS_UP_SECONDS


def propose_handover(progress: led_partition.PartitionProgress, now: float) -> Proposal | None:
    """A planned change of leader, carried out by the old one: the state in which the successor leads, once it has everything.
    Nothing is lost by it, not even what was acknowledged with acks=1. Pure.

    The controller writes `handover_to` into the partition's state. The leader continues until its successor keeps up, then takes
    no more records but still answers fetches. As soon as the successor has everything, the leader writes it to the znode as the
    new leader, with the next epoch. In Kafka the old leader is informed afterwards, and what was not fetched by then is
    truncated.

    It waits a moment for the other members, too, as long as they keep up: what producers wait for is then acknowledged. Told that
    another broker leads, they would send again what is stored, and one that is not idempotent would store it twice.

    The successor's incarnation is checked in the same transaction: another process of it may have lost what this one had. A
    request that leads to nothing is withdrawn by the controller after five seconds."""
    state, successor = progress.state, _successor(progress)
    if successor is None or successor.written < progress.end_offset:
        return None
    members = (follower for broker, follower in progress.followers.items() if broker in state.isr)
    if any(member.written < progress.end_offset and now - member.caught_up_at <= _KEEPS_UP_SECONDS for member in members):
        return None
    assert state.handover_to is not None, "there is a successor"
    new = replace(
        state,
        leader=state.handover_to,
        leader_epoch=state.leader_epoch + 1,
        handover_to=None,
        version=state.version + 1,
    )
    return Proposal(state=new, incarnations={state.handover_to: successor.replica_epoch})


def propose_stepping_down(progress: led_partition.PartitionProgress, may_belong: Callable[[int, int], bool]) -> Proposal | None:
    """The state in which another broker leads, if the disk here is full or does not answer: the first replica in sync that has
    everything, so nothing is lost. We leave the in-sync replicas in the same write, since we could not store what the next
    leader takes. If no other replica is in sync we keep the lead, and what is stored can still be read. Pure."""
    state = progress.state
    if not progress.is_impaired:
        return None
    for broker in progress.replicas:
        follower = progress.followers.get(broker)
        if follower is None or broker not in state.isr or follower.is_impaired or follower.written < progress.end_offset:
            continue
        if may_belong(broker, follower.replica_epoch):
            isr = tuple(member for member in state.isr if member != progress.me)
            new = replace(
                state,
                leader=broker,
                leader_epoch=state.leader_epoch + 1,
                isr=isr,
                eligible=metadata_image.eligible_after(state, isr, progress.insync_min),
                handover_to=None,
                version=state.version + 1,
            )
            return Proposal(state=new, incarnations={broker: follower.replica_epoch})
    return None


def _successor(progress: led_partition.PartitionProgress) -> led_partition.FollowerProgress | None:
    """The replica that is to lead; it must be in sync."""
    state = progress.state
    if state.handover_to is None or state.handover_to not in state.isr:
        return None
    return progress.followers.get(state.handover_to)


CHECK_SECONDS = 1.0  # between two check-only transactions; at most a third of the confirmation time


def confirmed_until(
    led: led_partition.LedPartition, alive_at: Callable[[int, led_partition.LedPartition], float], confirm_seconds: float
) -> float:
    """By the rules (a) to (c) of `Confirmation`."""
    progress, state = led.progress, led.progress.state
    followed_at = -inf
    if not state.eligible:
        others = [broker for broker in (*state.isr, *progress.additions) if broker != progress.me]
        if not others:
            return inf
        followed_at = min(alive_at(broker, led) for broker in others)
    return max(followed_at, led.stored_at) + confirm_seconds


class Confirmation:
    """May this leader acknowledge what only it has written (acks=1), or does another broker lead by now? Answered for each
    partition before a turn's write: nearly always by one comparison.

    acks=all and readers do not need the question: to move what is safe, a stale leader would need a fetch from the new one in the
    old epoch, and the new leader sends none. acks=1 needs it: a broker that was suspended, or cut off, would continue to
    acknowledge records that no client will ever read. So do a coordinator's answers about a group, which are true only while no
    other coordinator has taken commits.

    Leadership is confirmed until three seconds (`logbus.leader.confirm.ms`, half a session at most) after a time at which it was
    certain that no other broker led yet:

    (a) every other broker that may be in sync still followed us in this epoch. The arrival time of its fetch proves nothing,
        because the fetch may have waited in our socket while we were suspended: `FetchSession.alive_at` is a time before it was
        sent. Brokers whose addition is proposed may be members by now, so they count too. This requires that no broker outside
        the set is eligible: it could be elected while we and all members are cut off together;
    (b) ZooKeeper accepted a transaction on our version of the state that was *sent* at that time: one of our changes, or a bare
        check, which is sent when leadership begins, and once a second for partitions that need it, before their confirmation
        expires;
    (c) we are the only broker that could be elected: then there is no limit.

    Clocks only bound how long a stale leader continues; acks=all depends on no clock."""

    def __init__(
        self, store: Store, clock: Clock, alive_at: Callable[[int, led_partition.LedPartition], float], *, confirm_seconds: float
    ) -> None:
        self._store = store
        self._clock = clock
        self._alive_at = alive_at
        self._confirm_seconds = confirm_seconds
        self._ahead_seconds = confirm_seconds / 4  # so that the answer arrives in time
        self._check_seconds = min(CHECK_SECONDS, confirm_seconds / 3)
        self._wanted: dict[interfaces.TopicIdPartition, led_partition.LedPartition] = {}
        self._sent_at = -inf
        self._is_asking = False

    def is_confirmed(self, led: led_partition.LedPartition, now: float, *, grace_seconds: float = 0.0) -> bool:
        """Whether it is certain that no other broker led the partition until very recently. Consumers are served for longer
        (`grace_seconds`): what they see is true, only perhaps old."""
        enough_seconds = grace_seconds - self._ahead_seconds
        if now > led.confirmed_until + enough_seconds:
            led.confirmed_until = confirmed_until(led, self._alive_at, self._confirm_seconds)
            if now > led.confirmed_until + enough_seconds:
                self._wanted[led.key] = led
        return now <= led.confirmed_until + grace_seconds

    def lead_begins(self, led: led_partition.LedPartition) -> None:
        """No follower has fetched yet, and the state that makes this broker the leader may be old: ask at once, so that the
        first client need not wait for the answer."""
        self.is_confirmed(led, self._clock.monotonic())

    def send(self) -> None:
        """At the end of a turn: ask ZooKeeper about the partitions that nothing else confirms."""
        if not self._wanted or self._is_asking:
            return
        now = self._clock.monotonic()
        if now < self._sent_at + self._check_seconds:
            return
        batch = [led for led in self._wanted.values() if not led.is_over][: metadata_log.STATES_MAX]
        self._wanted = {key: led for key, led in self._wanted.items() if not led.is_over and led not in batch}
        if not batch:
            return
        self._sent_at, self._is_asking = now, True
        topics = list(dict.fromkeys(led.topic_id for led in batch))  # versions restart if a topic is recreated
        checks = [
            *(Check(path=znodes.topic_id_path(UUID(bytes=topic_id)), version=-1) for topic_id in topics),
            *(Check(path=znodes.state_path(led.topic, led.index), version=led.progress.state.version) for led in batch),
        ]
        self._store.commit(checks, partial(self._answered, batch, topics, now))

    def _answered(self, batch: list[led_partition.LedPartition], topics: list[bytes], sent_at: float, outcome: Outcome) -> None:
        self._is_asking = False
        match outcome:
            case Committed():
                for led in batch:
                    led.stored_at = max(led.stored_at, sent_at)
                if self._wanted and len(batch) == metadata_log.STATES_MAX:  # there was no room for the others
                    self._sent_at = -inf
                    self.send()
            case Refused(index=index, reason=Reason.BAD_VERSION | Reason.NO_NODE):
                # One has changed leader or state, or is gone, and the image will show it. Nothing was learnt about the others:
                # they are asked about again at once.
                if index < len(topics):
                    left = [led for led in batch if led.topic_id != topics[index]]
                else:
                    left = [led for number, led in enumerate(batch, len(topics)) if number != index]
                self._wanted.update({led.key: led for led in left})
                self._sent_at = -inf
                self.send()
            case _:
                pass  # partitions that still need it ask again

    @property
    def next_question(self) -> float:
        """When `send` has something to do; inf: not before `is_confirmed` wants an answer."""
        return self._sent_at + self._check_seconds if self._wanted and not self._is_asking else inf
