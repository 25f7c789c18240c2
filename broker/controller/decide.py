"""What the controller would change: a pure function of the image, of who is there, and of what was asked for.

One look at a partition gives at most one new state, in this order of preference:

1. Nobody leads it: an election. First of the assignment that is in the in-sync set and there; else an eligible one (KIP-966);
   else nobody, in a new epoch, so that the old leader cannot come back in the one it had. Unclean only where it is allowed
   and neither a member of the set nor an eligible one is registered, or where somebody asks for it.
2. Members of the in-sync set whose session has ended are taken out, so that acks=all does not wait for them.
3. The lead is better elsewhere (the leader is being stopped, is not the preferred one, or is being moved away): the leader
   is asked to hand it over. It does so once the other has everything, so such a move loses nothing, not even with acks=1.

The epoch rises with the leader only. An election is safe at any time, whether the old leader lives or not (a new leader is
a member of the stored in-sync set, and the old one can move nothing without it): so it needs no proof that a broker is dead,
and a refused connection is reason enough. A broker that is only *suspected* is not taken out of sets that others lead.

No change, no state: decide(apply(decide(image))) is empty.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import inf

from broker.controller.reassign import leader_must_move
from broker.coordination.eligible import eligible_after
from broker.coordination.image import NO_LEADER, ClusterTopic, Image, PartitionState

HANDOVER_SECONDS = 5.0  # a leader that was asked to hand over takes no records: it is not kept waiting for a slow target
HANDOVER_AGAIN_SECONDS = 60.0  # before a request that was withdrawn is made again

Key = tuple[str, int]  # topic and partition


@dataclass(frozen=True, slots=True, kw_only=True)
class Presence:
    """Which brokers are there.

    `registered` have their znode. Of those `able` may lead: not suspected, and registered by the process that runs now (a newer
    incarnation than the registered one means that the registered process is dead, and the new one not yet ready). `leaving` are
    being stopped: they lead nothing new. While `is_settling`, because our own connection is young, brokers that are not
    registered may only not be so again *yet*: nobody is dead for that."""

    registered: frozenset[int]
    able: frozenset[int]
    leaving: frozenset[int] = frozenset()
    is_settling: bool = False

    def is_dead(self, broker: int) -> bool:
        return broker not in self.registered and not self.is_settling

    def may_stay(self, broker: int) -> bool:
        """May be a member of the in-sync set with which a new leader begins."""
        return broker in self.able or (self.is_settling and broker not in self.registered)

    def leads(self, broker: int) -> bool:
        """Nobody else has to be elected."""
        return broker != NO_LEADER and self.may_stay(broker)


def presence(image: Image, suspects: Collection[int], *, is_settling: bool) -> Presence:
    """`suspects`: brokers whose port refuses, which a live process' does not."""
    registered = frozenset(image.brokers)
    able = (
        broker
        for broker, node in image.brokers.items()
        if broker not in suspects and node.incarnation == image.incarnations.get(broker, node.incarnation)
    )
    return Presence(registered=registered, able=frozenset(able), leaving=image.leaving, is_settling=is_settling)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A leader was asked to hand over to `to`, in its epoch `epoch`, at `at` on the monotonic clock."""

    to: int
    epoch: int
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What was asked for besides what must be: by ElectLeaders (`preferred`, `unclean`), by the balance (`preferred`), and what
    was asked of leaders before (`handovers`)."""

    preferred: Collection[Key] = ()
    unclean: Collection[Key] = ()
    handovers: Mapping[Key, Asked] = field(default_factory=dict)


NO_WISHES = Wishes()


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Replace the state of one partition, if it still has this version. The new state has the next version."""

    topic: str
    index: int
    version: int
    state: PartitionState


def decide(
    topics: Iterable[ClusterTopic],
    there: Presence,
    *,
    minimum_of: Callable[[str], int],
    is_unclean_allowed: Callable[[str], bool],
    now: float,
    wishes: Wishes = NO_WISHES,
) -> list[Decision]:
    """What to change in these topics, which should not be among those that are being deleted. `minimum_of` a topic is its
    min.insync.replicas."""
    decisions = []
    quiet = there.able - there.leaving
    asked: dict[str, set[int]] = {}
    for name, index in (*wishes.preferred, *wishes.unclean):
        asked.setdefault(name, set()).add(index)
    for topic in topics:
        name = topic.name
        asked_here = asked.get(name, ())
        for index, state in enumerate(topic.states):
            # Nearly all of them, nearly always: ten thousand partitions are looked at in a few milliseconds.
            # What everything is as it should be looks like; whatever falls through is looked at properly by `next_state`, so a
            # condition too many here costs time and one too few costs a decision that is never made.
            if (
                state.leader in quiet
                and state.handover_to is None
                and (there.is_settling or there.registered.issuperset(state.isr))
                and index not in asked_here
                and index not in topic.removing
            ):
                continue
            if state.version < 0:  # the znode is not there: the topic is being deleted
                continue
            new = next_state(topic, index, there, minimum_of(name), is_unclean_allowed(name), now, wishes)
            if new != state:
                new = replace(new, version=state.version + 1)
                decisions.append(Decision(topic=name, index=index, version=state.version, state=new))
    return decisions


def next_state(
    topic: ClusterTopic,
    index: int,
    there: Presence,
    minimum: int,
    is_unclean_allowed: bool,
    now: float,
    wishes: Wishes = NO_WISHES,
) -> PartitionState:
    """The state that one partition should have, with the version of the one that it has."""
    state, replicas, key = topic.states[index], topic.replicas[index], (topic.name, index)
    waited = _waited(state, wishes.handovers.get(key), now)
    if not there.leads(state.leader):
        state = elect(state, replicas, there, minimum, is_unclean_allowed, is_unclean_asked=key in wishes.unclean)
    elif state.leader in there.leaving and state.handover_to is not None and waited >= HANDOVER_SECONDS:
        # The leader is being stopped and has not handed over in time. Taking the lead from it is safe (it can acknowledge
        # nothing without the set), merely less gentle: what it took with acks=1 may not be on the others.
        state = _elect_clean(state, replicas, there, minimum, other_than=state.leader) or state
    if state.leader == NO_LEADER:
        return state
    # Only where there is a leader: with none, the set is what the next election goes by, and members that are gone now may be
    # the only ones that have everything.
    state = without_dead(state, there, minimum)
    return replace(state, handover_to=_heir(topic, index, state, there, minimum, waited, key in wishes.preferred))


def _waited(state: PartitionState, asked: Asked | None, now: float) -> float:
    """For how long the leader has been asked to do what it is asked now, or, asked nothing now, since it was asked last.
    A request that this controller sees for the first time begins now."""
    is_asked = state.handover_to is not None
    if asked is None or asked.epoch != state.leader_epoch or (is_asked and asked.to != state.handover_to):
        return 0.0 if is_asked else inf
    return now - asked.at


def elect(
    state: PartitionState,
    replicas: tuple[int, ...],
    there: Presence,
    minimum: int,
    is_unclean_allowed: bool,
    *,
    is_unclean_asked: bool = False,
) -> PartitionState:
    """A new leader, or none; in any case nobody goes on in the old epoch."""
    new = _elect_clean(state, replicas, there, minimum)
    # Unclean only where waiting is hopeless: none of those that have everything is even registered. One that is registered and
    # not able to lead yet will be in a moment.
    holders = state.eligible if state.is_lost else (*state.isr, *state.eligible)  # who has all of it
    hopeless = not there.is_settling and there.registered.isdisjoint(holders)
    if new is None and (is_unclean_asked or (is_unclean_allowed and hopeless)):
        new = _elect_unclean(state, replicas, there)
    # "Nobody" is a decision too, with an epoch of its own. Without it a leader that was only cut off could come back and go on
    # in its old epoch, next to one that was elected meanwhile by a state that it has not seen.
    if new is None and state.leader != NO_LEADER:
        new = replace(state, leader=NO_LEADER, leader_epoch=state.leader_epoch + 1, handover_to=None)
    return state if new is None else new


def _elect_clean(
    state: PartitionState, replicas: tuple[int, ...], there: Presence, minimum: int, other_than: int = NO_LEADER
) -> PartitionState | None:
    """One that has everything that was acknowledged or seen. A member that is being stopped is better than an eligible one, which
    may lack what was only written."""
    members = [broker for broker in replicas if broker in state.isr and broker in there.able and broker != other_than]
    if members and not state.is_lost:
        # In the order of the assignment, not of the set: so the preferred leader is chosen wherever it can be, and the balance
        # needs no second move.
        leader = next((broker for broker in members if broker not in there.leaving), members[0])
        if other_than != NO_LEADER and leader in there.leaving:
            return None
        isr = tuple(broker for broker in state.isr if there.may_stay(broker))
        # Members that cannot lead now may stay in the set while this controller is still settling: a broker that has not
        # registered again yet is not dead for that.
        return _led_by(leader, state, isr, eligible_after(state, isr, minimum))
    if other_than != NO_LEADER:
        return None
    heirs = [broker for broker in replicas if broker in state.eligible and broker in there.able]
    if heirs:
        leader = next((broker for broker in heirs if broker not in there.leaving), heirs[0])
        # The members are dead, not behind: nothing has moved since the set became too small, and nothing will before it is large
        # enough. So each of them still has all of it when it is back, and whether its disk has kept it, it says itself then.
        holders = replace(state, isr=()) if state.is_lost else state
        return _led_by(leader, state, (leader,), eligible_after(holders, (leader,), minimum))
    return None


def _elect_unclean(state: PartitionState, replicas: tuple[int, ...], there: Presence) -> PartitionState | None:
    """Whoever is there. Records that were acknowledged may be lost, which the state says from then on."""
    present = [broker for broker in replicas if broker in there.able]
    if not present:
        return None
    # One whose log is gone comes after all that have one.
    # `present` is in the order of the assignment and min() takes the first of equals, so the preferred one wins unless
    # something speaks against it.
    leader = min(present, key=lambda broker: (state.is_lost and broker in state.isr, broker in there.leaving))
    return replace(_led_by(leader, state, (leader,), ()), is_recovering=True)


def _led_by(leader: int, state: PartitionState, isr: tuple[int, ...], eligible: tuple[int, ...]) -> PartitionState:
    return replace(
        state,
        leader=leader,
        leader_epoch=state.leader_epoch + 1,
        isr=isr,
        eligible=eligible,
        handover_to=None,
        is_lost=False,
    )


def without_dead(state: PartitionState, there: Presence, minimum: int) -> PartitionState:
    """Without the members that are dead. The leader is alive, so one always remains."""
    isr = tuple(broker for broker in state.isr if broker == state.leader or not there.is_dead(broker))
    return state if isr == state.isr else replace(state, isr=isr, eligible=eligible_after(state, isr, minimum))


def _heir(
    topic: ClusterTopic,
    index: int,
    state: PartitionState,
    there: Presence,
    minimum: int,
    waited: float,
    is_preferred_wanted: bool,
) -> int | None:
    """To whom the leader should hand over; None: it keeps the lead.

    A request that was asked before stays as it is while it can be met. One that a living leader does not meet in time is
    withdrawn, since no record is taken meanwhile, and not made again for a minute."""

    leader, replicas = state.leader, topic.replicas[index]

    def may_get_it(broker: int) -> bool:
        able = broker in there.able and broker not in there.leaving and broker != leader
        return able and broker in state.isr and broker not in topic.removing.get(index, ())

    # An earlier request stands although a better target may have come up: changing it would begin the wait anew each time, and
    # no record is taken during any of it.
    if state.handover_to is not None and may_get_it(state.handover_to):
        return state.handover_to if leader in there.leaving or waited < HANDOVER_SECONDS else None
    may_ask = state.handover_to is not None or waited >= HANDOVER_AGAIN_SECONDS
    if leader in there.leaving or (may_ask and leader_must_move(topic, index, state, minimum)):
        return next((broker for broker in replicas if may_get_it(broker)), None)
    if may_ask and is_preferred_wanted and may_get_it(replicas[0]):
        return replicas[0]
    return None


def handovers(topics: Iterable[ClusterTopic], known: Mapping[Key, Asked], now: float) -> dict[Key, Asked]:
    """Which leaders were asked to hand over, and since when: what `Wishes` carries from one decision to the next. Those that were
    withdrawn are kept until they may be made again."""
    asked = {}
    for topic in topics:
        for index, state in enumerate(topic.states):
            if state.handover_to is not None:
                key = (topic.name, index)
                before = known.get(key)
                is_same = before is not None and (before.to, before.epoch) == (state.handover_to, state.leader_epoch)
                asked[key] = before if before and is_same else Asked(to=state.handover_to, epoch=state.leader_epoch, at=now)
    for key, before in known.items():
        if key not in asked and now - before.at < HANDOVER_AGAIN_SECONDS:
            asked[key] = before
    return asked


IMBALANCE_PERCENT = 10  # Kafka's leader.imbalance.per.broker.percentage


def out_of_balance(image: Image) -> list[Key]:
    """Partitions that should go back to their preferred leaders: of each broker of whose preferred partitions more than a tenth
    are led elsewhere."""
    preferred: dict[int, int] = {}
    elsewhere: dict[int, list[Key]] = {}
    for topic in image.topics.values():
        if topic.name in image.deleting:
            continue
        for index, (replicas, state) in enumerate(zip(topic.replicas, topic.states, strict=True)):
            preferred[replicas[0]] = preferred.get(replicas[0], 0) + 1
            if state.leader != replicas[0]:
                elsewhere.setdefault(replicas[0], []).append((topic.name, index))
    return [key for broker, keys in elsewhere.items() if len(keys) * 100 > preferred[broker] * IMBALANCE_PERCENT for key in keys]
