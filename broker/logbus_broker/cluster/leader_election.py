"""What the controller would change: a pure function of the image, of the live brokers, and of what was requested.

One look at a partition yields at most one new state, in this order of preference:

1. It has no live leader: an election. The first assigned replica that is in sync and live; else an eligible one (KIP-966); else
   none, in a new epoch, so that the old leader cannot return in the one it had. Unclean only if that is allowed and neither an
   in-sync nor an eligible replica is registered, or if a client requests it.
2. In-sync replicas whose session has ended are removed, so that acks=all does not wait for them.
3. Another leader is preferable (the current one is being stopped, is not the preferred one, or is being moved away): the leader
   is asked to hand over. It does so once its successor has everything, so this loses nothing, not even with acks=1.

The epoch rises only when the leader changes. An election is safe at any time, whether the old leader lives or not (a new leader
is a member of the stored in-sync set, and the old one can move nothing without it): so it needs no proof that a broker is dead,
and a refused connection is reason enough. A broker that is only *suspected* is not removed from sets that other brokers lead.

It is idempotent: decide(apply(decide(image))) is empty.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import inf

from logbus_broker.cluster import assignment, metadata_image

_HANDOVER_SECONDS = 5.0  # while it hands over, a leader takes no records: it must not wait for a slow target
_HANDOVER_AGAIN_SECONDS = 60.0  # before a withdrawn request is repeated

TopicPartition = tuple[str, int]  # topic and partition


@dataclass(frozen=True, slots=True, kw_only=True)
class Presence:
    """Which brokers are live.

    `registered` have their znode. Of those, `able` may lead: not suspected, and registered by the process that runs now (a newer
    incarnation than the registered one means that the registered process is dead, and the new one not yet ready). `leaving` are
    being stopped: they lead nothing new. While `is_settling`, because our own connection is new, a broker that is not registered
    may just not have re-registered *yet*: it does not count as dead, unless its port refuses connections (`suspects`)."""

    registered: frozenset[int]
    able: frozenset[int]
    leaving: frozenset[int] = frozenset()
    suspects: frozenset[int] = frozenset()
    is_settling: bool = False

    def is_dead(self, broker: int) -> bool:
        return broker not in self.registered and not self.is_settling

    def may_stay(self, broker: int) -> bool:
        """Whether it may stay in the in-sync set that a new leader starts with."""
        is_awaited = self.is_settling and broker not in self.registered and broker not in self.suspects
        return broker in self.able or is_awaited

    def leads(self, broker: int) -> bool:
        """Whether it can go on leading, so that no election is needed."""
        return broker != metadata_image.NO_LEADER and self.may_stay(broker)


def presence(image: metadata_image.MetadataImage, suspects: Collection[int], *, is_settling: bool) -> Presence:
    """`suspects`: brokers whose port refuses connections, which that of a live process does not."""
    registered = frozenset(image.brokers)
    able = (
        broker
        for broker, node in image.brokers.items()
        if broker not in suspects and node.incarnation == image.incarnations.get(broker, node.incarnation)
    )
    return Presence(
        registered=registered,
        able=frozenset(able),
        leaving=image.leaving,
        suspects=frozenset(suspects),
        is_settling=is_settling,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoverRequest:
    """A leader was asked to hand over to `to`, in its epoch `epoch`, at `at` on the monotonic clock."""

    to: int
    epoch: int
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionRequests:
    """Optional changes: requested by ElectLeaders (`preferred`, `unclean`) or by leader balancing (`preferred`); and what was
    already asked of leaders (`handovers`)."""

    preferred: Collection[TopicPartition] = ()
    unclean: Collection[TopicPartition] = ()
    handovers: Mapping[TopicPartition, HandoverRequest] = field(default_factory=dict)


NO_REQUESTS = ElectionRequests()


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Replace the state of one partition, if it still has the version before that of the new state."""

    topic: str
    index: int
    state: metadata_image.PartitionState


def decide(
    topics: Iterable[metadata_image.ClusterTopic],
    live: Presence,
    *,
    minimum_of: Callable[[str], int],
    is_unclean_allowed: Callable[[str], bool],
    now: float,
    requests: ElectionRequests = NO_REQUESTS,
) -> list[Decision]:
    """What to change in these topics, none of which should be in deletion. `minimum_of` returns a topic's
    min.insync.replicas."""
    decisions = []
    quiet = live.able - live.leaving
    requested: dict[str, set[int]] = {}
    for name, index in (*requests.preferred, *requests.unclean):
        requested.setdefault(name, set()).add(index)
    for topic in topics:
        name = topic.name
        requested_here = requested.get(name, ())
        for index, state in enumerate(topic.states):
            # True for nearly all partitions nearly always: ten thousand of them are checked in a few milliseconds.
            # This is what a partition in order looks like; any other is examined by `_next_state`, so a superfluous condition
            # here costs time, and a missing one a decision that is never made.
            if (
                state.leader in quiet
                and state.handover_to is None
                and (live.is_settling or live.registered.issuperset(state.isr))
                and index not in requested_here
                and index not in topic.removing
            ):
                continue
            if state.version < 0:  # the znode does not exist: the topic is being deleted
                continue
            new = _next_state(topic, index, live, minimum_of(name), is_unclean_allowed(name), now, requests)
            if new != state:
                new = replace(new, version=state.version + 1)
                decisions.append(Decision(topic=name, index=index, state=new))
    return decisions


def _next_state(
    topic: metadata_image.ClusterTopic,
    index: int,
    live: Presence,
    minimum: int,
    is_unclean_allowed: bool,
    now: float,
    requests: ElectionRequests = NO_REQUESTS,
) -> metadata_image.PartitionState:
    """The state that one partition should have, with the version of its current one."""
    state, replicas, key = topic.states[index], topic.replicas[index], (topic.name, index)
    waited = _waited(state, requests.handovers.get(key), now)
    if not live.leads(state.leader):
        state = elect(state, replicas, live, minimum, is_unclean_allowed, is_unclean_requested=key in requests.unclean)
    elif state.leader in live.leaving and state.handover_to is not None and waited >= _HANDOVER_SECONDS:
        # The leader is being stopped and has not handed over in time. Electing another is safe (the old one cannot answer
        # acks=all without the set), only less gentle: what it took with acks=1 may not be on the others.
        state = _elect_clean(state, replicas, live, minimum, other_than=state.leader) or state
    if state.leader == metadata_image.NO_LEADER:
        return state
    # Only if there is a leader: without one, the set decides the next election, and members that are gone now may be the only
    # ones that have everything.
    state = _without_dead(state, live, minimum)
    return replace(state, handover_to=_successor(topic, index, state, live, minimum, waited, key in requests.preferred))


def _waited(state: metadata_image.PartitionState, request: HandoverRequest | None, now: float) -> float:
    """How long the current hand-over request has been pending, or, if there is none, how long ago the last one was made.
    A request that this controller sees for the first time begins now."""
    is_asked = state.handover_to is not None
    if request is None or request.epoch != state.leader_epoch or (is_asked and request.to != state.handover_to):
        return 0.0 if is_asked else inf
    return now - request.at


def elect(
    state: metadata_image.PartitionState,
    replicas: tuple[int, ...],
    live: Presence,
    minimum: int,
    is_unclean_allowed: bool,
    *,
    is_unclean_requested: bool = False,
) -> metadata_image.PartitionState:
    """A new leader, or none; in either case no broker continues in the old epoch."""
    new = _elect_clean(state, replicas, live, minimum)
    # Unclean only if waiting is hopeless: none of the brokers that have everything is even registered. One that is registered but
    # not yet able to lead will be in a moment.
    holders = state.eligible if state.is_lost else (*state.isr, *state.eligible)  # brokers that have everything
    hopeless = not live.is_settling and live.registered.isdisjoint(holders)
    if new is None and (is_unclean_requested or (is_unclean_allowed and hopeless)):
        new = _elect_unclean(state, replicas, live)
    # "No leader" is a decision too, with its own epoch. Otherwise a leader that was only cut off could return and continue in its
    # old epoch, next to one elected in the meantime by a state that it has not seen.
    if new is None and state.leader != metadata_image.NO_LEADER:
        new = replace(state, leader=metadata_image.NO_LEADER, leader_epoch=state.leader_epoch + 1, handover_to=None)
    return state if new is None else new


def _elect_clean(
    state: metadata_image.PartitionState,
    replicas: tuple[int, ...],
    live: Presence,
    minimum: int,
    other_than: int = metadata_image.NO_LEADER,
) -> metadata_image.PartitionState | None:
    """Elect one that has everything acknowledged or visible. An in-sync replica that is being stopped is better than an eligible
    one, which may lack what was only written."""
    members = [broker for broker in replicas if broker in state.isr and broker in live.able and broker != other_than]
    if members and not state.is_lost:
        # In the order of the assignment, not of the set: so the preferred leader is chosen whenever possible, and balancing
        # needs no second move.
        leader = next((broker for broker in members if broker not in live.leaving), members[0])
        if other_than != metadata_image.NO_LEADER and leader in live.leaving:
            return None
        isr = tuple(broker for broker in state.isr if live.may_stay(broker))
        # Members that cannot lead now may stay in the set while this controller is still settling: a broker that has not
        # re-registered yet is not necessarily dead.
        return _led_by(leader, state, isr, metadata_image.eligible_after(state, isr, minimum))
    if other_than != metadata_image.NO_LEADER:
        return None
    successors = [broker for broker in replicas if broker in state.eligible and broker in live.able]
    if successors:
        leader = next((broker for broker in successors if broker not in live.leaving), successors[0])
        # The members are dead, not lagging: nothing has moved since the set became too small, and nothing will before it is large
        # enough. So each still has everything when it returns; it reports itself then if its disk has lost something.
        holders = replace(state, isr=()) if state.is_lost else state
        return _led_by(leader, state, (leader,), metadata_image.eligible_after(holders, (leader,), minimum))
    return None


def _elect_unclean(
    state: metadata_image.PartitionState, replicas: tuple[int, ...], live: Presence
) -> metadata_image.PartitionState | None:
    """Elect any live replica. Acknowledged records may be lost, which the state records from then on (`is_recovering`)."""
    present = [broker for broker in replicas if broker in live.able]
    if not present:
        return None
    # A broker whose log is gone ranks after all that have one; of those that have told how far theirs goes, the longest first.
    # `present` is in the order of the assignment and max() returns the first of equals, so the preferred leader wins unless it
    # ranks lower.
    reach = {end.broker: end.reach for end in state.withdrawn}
    leader = max(
        present,
        key=lambda broker: (
            not (state.is_lost and broker in state.isr),
            reach.get(broker, (-1, -1)),
            broker not in live.leaving,
        ),
    )
    return replace(_led_by(leader, state, (leader,), ()), is_recovering=True)


def _led_by(
    leader: int, state: metadata_image.PartitionState, isr: tuple[int, ...], eligible: tuple[int, ...]
) -> metadata_image.PartitionState:
    return replace(
        state,
        leader=leader,
        leader_epoch=state.leader_epoch + 1,
        isr=isr,
        eligible=eligible,
        handover_to=None,
        is_lost=False,
        withdrawn=(),
    )


def _without_dead(state: metadata_image.PartitionState, live: Presence, minimum: int) -> metadata_image.PartitionState:
    """The state without dead in-sync replicas. The leader is live, so at least one remains."""
    isr = tuple(broker for broker in state.isr if broker == state.leader or not live.is_dead(broker))
    return state if isr == state.isr else replace(state, isr=isr, eligible=metadata_image.eligible_after(state, isr, minimum))


def _successor(
    topic: metadata_image.ClusterTopic,
    index: int,
    state: metadata_image.PartitionState,
    live: Presence,
    minimum: int,
    waited: float,
    is_preferred_wanted: bool,
) -> int | None:
    """The broker that the leader should hand over to; None: it stays leader.

    An earlier request stays as it is while it can be met. One that a live leader does not meet in time is withdrawn, since no
    records are taken in the meantime, and not repeated for a minute."""

    leader, replicas = state.leader, topic.replicas[index]

    def may_get_it(broker: int) -> bool:
        able = broker in live.able and broker not in live.leaving and broker != leader
        return able and broker in state.isr and broker not in topic.removing.get(index, ())

    # An earlier request is kept even if a better target has appeared: changing it would restart the wait each time, and no
    # records are taken during it.
    if state.handover_to is not None and may_get_it(state.handover_to):
        return state.handover_to if leader in live.leaving or waited < _HANDOVER_SECONDS else None
    may_ask = state.handover_to is not None or waited >= _HANDOVER_AGAIN_SECONDS
    if leader in live.leaving or (may_ask and assignment.leader_must_move(topic, index, state, minimum)):
        return next((broker for broker in replicas if may_get_it(broker)), None)
    if may_ask and is_preferred_wanted and may_get_it(replicas[0]):
        return replicas[0]
    return None


def handovers(
    topics: Iterable[metadata_image.ClusterTopic], previous: Mapping[TopicPartition, HandoverRequest], now: float
) -> dict[TopicPartition, HandoverRequest]:
    """Which leaders were asked to hand over, and since when: `ElectionRequests` carries this from one decision to the next.
    Withdrawn requests are kept until they may be repeated."""
    requests = {}
    for topic in topics:
        for index, state in enumerate(topic.states):
            if state.handover_to is not None:
                key = (topic.name, index)
                before = previous.get(key)
                is_same = before is not None and (before.to, before.epoch) == (state.handover_to, state.leader_epoch)
                requests[key] = (
                    before if before and is_same else HandoverRequest(to=state.handover_to, epoch=state.leader_epoch, at=now)
                )
    for key, before in previous.items():
        if key not in requests and now - before.at < _HANDOVER_AGAIN_SECONDS:
            requests[key] = before
    return requests


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderBalancing:
    """How often the controller returns leads to preferred leaders, and from which share of them on; Kafka's settings."""

    interval_seconds: float = 300.0  # leader.imbalance.check.interval.seconds; never where auto.leader.rebalance.enable=false
    percentage: int = 10  # leader.imbalance.per.broker.percentage


KAFKAS_BALANCING = LeaderBalancing()


def out_of_balance(image: metadata_image.MetadataImage, percentage: int) -> list[TopicPartition]:
    """Partitions that should return to their preferred leaders: those of each broker of whose preferred partitions more than
    this percentage is led elsewhere."""
    preferred: dict[int, int] = {}
    elsewhere: dict[int, list[TopicPartition]] = {}
    for topic in image.topics.values():
        if topic.name in image.deleting:
            continue
        for index, (replicas, state) in enumerate(zip(topic.replicas, topic.states, strict=True)):
            preferred[replicas[0]] = preferred.get(replicas[0], 0) + 1
            if state.leader != replicas[0]:
                elsewhere.setdefault(replicas[0], []).append((topic.name, index))
    return [key for broker, keys in elsewhere.items() if len(keys) * 100 > preferred[broker] * percentage for key in keys]
