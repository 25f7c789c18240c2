"""Moving replicas (KIP-455): a partition's list grows by the new ones, and once they have caught up it becomes the target.

    replicas              adding   removing
    1 2 3                                      before
    4 5 1 2 3             4 5      2 3         requested: 4 5 1. The new replicas fetch, the old ones continue
    4 5 1                                      4 and 5 are in sync, and one of the targets leads

The originals are the list without `adding`, the target is the list without `removing`: the topic's znode holds all of it, so any
controller can continue, and cancelling is just a move back to the originals. A broker that was to be added but no longer is stays
in both until the last step. That step writes list and in-sync replicas in one transaction: a broker that is no longer a replica
never stays in the set (KAFKA-9672).

A target that was a replica before and lags does not hold up the last step (as in KRaft), but the set must not end smaller than
min.insync.replicas, if there are that many targets.

The throttle is per broker, so moving everything at once would slow all moves down for hours. `moving` says which partitions' new
replicas fetch now: it is the same for every broker with the same image, so there is no queue to maintain.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from broker.coordination.eligible import eligible_after
from broker.coordination.image import ClusterTopic, PartitionState
from broker.coordination.journal import STATES_MAX
from broker.errors import InvalidReplicaAssignment

MOVING_MAX = 10  # logbus.reassignments.max


@dataclass(frozen=True, slots=True, kw_only=True)
class Reassigned:
    """Replace the topic's znode, and in the same transaction the states of the partitions `moved`. All have the next versions,
    and the write succeeds only if the znodes still have the previous ones."""

    topic: ClusterTopic
    moved: tuple[int, ...] = ()


def originals(topic: ClusterTopic, index: int) -> tuple[int, ...]:
    """The replicas to return to if cancelled."""
    return _without(topic.replicas[index], topic.adding.get(index, ()))


def targets(topic: ClusterTopic, index: int) -> tuple[int, ...]:
    """The final replicas; for a partition that is not being moved, its current ones."""
    return _without(topic.replicas[index], topic.removing.get(index, ()))


def is_reassigned(topic: ClusterTopic, index: int) -> bool:
    return index in topic.adding or index in topic.removing


def reassign(topic: ClusterTopic, wanted: Mapping[int, tuple[int, ...]]) -> Reassigned | None:
    """Begin to move partitions, or change their targets; None if they are already there. The order matters: the first broker of
    the target becomes the preferred leader.

    InvalidReplicaAssignment: a list is empty or names a broker twice. The caller checks that the brokers are live."""
    replicas, adding, removing = list(topic.replicas), dict(topic.adding), dict(topic.removing)
    for index, target in wanted.items():
        if not target or len(set(target)) != len(target):
            raise InvalidReplicaAssignment(
                f"partition {index} of {topic.name!r}: {list(target)} is empty or names a broker twice"
            )
        # Replicas added by an earlier move stay in the list until the last step: the leader may be adding them to the set now.
        held, original = topic.replicas[index], originals(topic, index)
        replicas[index] = tuple(dict.fromkeys((*target, *held)))
        _put(adding, index, _without(replicas[index], original))
        _put(removing, index, _without(held, target))
    new = replace(topic, replicas=tuple(replicas), adding=adding, removing=removing, version=topic.version + 1)
    is_same = (new.replicas, new.adding, new.removing) == (topic.replicas, topic.adding, topic.removing)
    return None if is_same else Reassigned(topic=new)


def leader_must_move(topic: ClusterTopic, index: int, state: PartitionState, minimum: int) -> bool:
    """Whether the partition is ready except that its leader is one of the replicas to be removed."""
    return state.leader in topic.removing.get(index, ()) and _is_ready(topic, index, state, minimum)


def finish(topic: ClusterTopic, minimum: int, *, busy: Collection[int] = (), limit: int = STATES_MAX) -> Reassigned | None:
    """The last step for the topic's partitions that are ready for it; None if none is. `busy` ones are left out: a write of their
    state is in flight."""
    replicas, adding, removing = list(topic.replicas), dict(topic.adding), dict(topic.removing)
    states, moved = list(topic.states), list[int]()
    for index in sorted({*topic.adding, *topic.removing}):
        state, target = states[index], targets(topic, index)
        if index in busy or len(moved) == limit or state.leader not in target or not _is_ready(topic, index, state, minimum):
            continue
        replicas[index] = target
        adding.pop(index, None)
        removing.pop(index, None)
        isr = tuple(broker for broker in state.isr if broker in target)
        eligible = tuple(broker for broker in eligible_after(state, isr, minimum) if broker in target)
        heir = state.handover_to if state.handover_to in isr else None
        # Written even if unchanged: this fences writes that the leader makes before it has seen the shorter list.
        moved.append(index)
        states[index] = replace(state, isr=isr, eligible=eligible, handover_to=heir, version=state.version + 1)
    if not moved:
        return None
    new = replace(
        topic,
        replicas=tuple(replicas),
        adding=adding,
        removing=removing,
        states=tuple(states),
        version=topic.version + 1,
    )
    return Reassigned(topic=new, moved=tuple(moved))


def moving(topics: Iterable[ClusterTopic], registered: Collection[int], limit: int = MOVING_MAX) -> dict[tuple[str, int], None]:
    """The partitions whose new replicas fetch now: the first unfinished ones in the order of names. One that waits for a broker
    that is not registered takes no slot."""
    chosen: dict[tuple[str, int], None] = {}
    for topic in sorted((topic for topic in topics if topic.adding), key=lambda topic: topic.name):
        for index, new in sorted(topic.adding.items()):
            missing = [broker for broker in new if broker in targets(topic, index) and broker not in topic.states[index].isr]
            if missing and all(broker in registered for broker in missing):
                chosen[topic.name, index] = None
                if len(chosen) == limit:
                    return chosen
    return chosen


def _is_ready(topic: ClusterTopic, index: int, state: PartitionState, minimum: int) -> bool:
    target = targets(topic, index)
    in_sync = [broker for broker in target if broker in state.isr]
    has_all_new = all(broker in state.isr for broker in topic.adding.get(index, ()) if broker in target)
    return has_all_new and len(in_sync) >= max(1, min(minimum, len(target)))


def _without(brokers: tuple[int, ...], others: Collection[int]) -> tuple[int, ...]:
    return tuple(broker for broker in brokers if broker not in others)


def _put(lists: dict[int, tuple[int, ...]], index: int, brokers: tuple[int, ...]) -> None:
    if brokers:
        lists[index] = brokers
    else:
        lists.pop(index, None)
