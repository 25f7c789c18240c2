"""Which brokers have the replicas of a partition: where those of new partitions are placed, and how they are moved (KIP-455).

A partition that is moved gets the new replicas in addition, and once they have caught up its list becomes the target:

    replicas              adding   removing
    1 2 3                                      before
    4 5 1 2 3             4 5      2 3         requested: 4 5 1. The new replicas fetch, the old ones continue
    4 5 1                                      4 and 5 are in sync, and one of the targets leads

The originals are the list without `adding`, the target is the list without `removing`: the topic's znode holds all of it, so any
controller can continue, and cancelling is just a move back to the originals. A broker that was to be added but no longer is stays
in both until the last step. That step writes list and in-sync replicas in one transaction: a broker that is no longer a replica
never stays in the set (KAFKA-9672).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from logbus_broker.cluster import metadata_image, metadata_log
from logbus_broker.errors import InvalidPartitions, InvalidReplicaAssignment, InvalidReplicationFactor


def place_replicas(
    partition_count: int, factor: int, racks: Mapping[int, str], *, seed: int, first: int = 0
) -> tuple[tuple[int, ...], ...]:
    """Replicas for `partition_count` new partitions, numbered from `first`: round robin over the brokers from `seed`, over racks
    first if all have one. `racks`: by live broker, "" if it has none. InvalidReplicationFactor if there are too few brokers.

    The first replica of a partition is its preferred leader, so the round robin spreads the leaders. The followers of each
    further round of partitions are shifted by one more, so that when a broker fails all the others take over its partitions and
    not just its neighbour (Apache Kafka's method, without its random numbers: the caller passes the seed)."""
    if partition_count <= 0:
        raise InvalidPartitions(f"number of partitions {partition_count}: it must be at least 1")
    if factor <= 0:
        raise InvalidReplicationFactor(f"replication factor {factor}: it must be at least 1")
    if factor > len(racks):
        raise InvalidReplicationFactor(f"replication factor {factor} is larger than the number of live brokers, {len(racks)}")
    ring = _alternating(racks)
    rack_count = len({racks[broker] for broker in ring}) if all(racks.values()) else 1
    return tuple(_replicas(number, factor, ring, racks, rack_count, seed) for number in range(first, first + partition_count))


def _replicas(
    number: int, factor: int, ring: Sequence[int], racks: Mapping[int, str], rack_count: int, seed: int
) -> tuple[int, ...]:
    """Replicas of one partition: the leader at its place in the ring, then the brokers after a gap that grows from round to
    round; a rack is used twice only when all have been used."""
    start = (number + seed) % len(ring)
    chosen = [ring[start]]
    if len(ring) == 1:
        return tuple(chosen)
    gap = 1 + (number // len(ring) + seed) % (len(ring) - 1)
    others = [ring[(start + 1 + (gap - 1 + step) % (len(ring) - 1)) % len(ring)] for step in range(len(ring) - 1)]
    while len(chosen) < factor:
        taken = {racks[broker] for broker in chosen}
        fresh = (broker for broker in others if len(taken) >= rack_count or racks[broker] not in taken)
        chosen.append(next(fresh))
        others.remove(chosen[-1])
    return tuple(chosen)


def _alternating(racks: Mapping[int, str]) -> list[int]:
    """The brokers ordered so that neighbours are in different racks: the first of each rack, then the second of each."""
    by_rack: dict[str, list[int]] = {}
    for broker in sorted(racks):
        by_rack.setdefault(racks[broker], []).append(broker)
    rows = [by_rack[rack] for rack in sorted(by_rack)]
    return [row[position] for position in range(max(map(len, rows))) for row in rows if position < len(row)]


def check_assignments(
    assignments: Mapping[int, Sequence[int]], brokers: Mapping[int, str], *, first: int = 0
) -> tuple[tuple[int, ...], ...]:
    """Check replicas assigned by the client, by partition; returns tuples in partition order. `brokers`: the live ones."""
    numbers = range(first, first + len(assignments))
    if not assignments or sorted(assignments) != list(numbers):
        raise InvalidReplicaAssignment(
            f"assignments are for partitions {sorted(assignments)}: they must be consecutive, from {first} on"
        )
    for number in numbers:
        replicas = assignments[number]
        unknown = [broker for broker in replicas if broker not in brokers]
        if not replicas or len(set(replicas)) != len(replicas):
            raise InvalidReplicaAssignment(f"partition {number}: {list(replicas)} is empty or names a broker twice")
        if unknown:
            raise InvalidReplicaAssignment(f"partition {number}: no live broker has the id {unknown[0]}")
        if len(replicas) != len(assignments[first]):
            raise InvalidReplicaAssignment(
                f"partition {number} has {len(replicas)} replicas, but partition {first} has {len(assignments[first])}"
            )
    return tuple(tuple(assignments[number]) for number in numbers)


_MOVING_MAX = 10  # logbus.reassignments.max


@dataclass(frozen=True, slots=True, kw_only=True)
class Reassigned:
    """Replace the topic's znode, and in the same transaction the states of the partitions `moved`. All have the next versions,
    and the write succeeds only if the znodes still have the previous ones."""

    topic: metadata_image.ClusterTopic
    moved: tuple[int, ...] = ()


def originals(topic: metadata_image.ClusterTopic, index: int) -> tuple[int, ...]:
    """The replicas to return to if cancelled."""
    return _without(topic.replicas[index], topic.adding.get(index, ()))


def targets(topic: metadata_image.ClusterTopic, index: int) -> tuple[int, ...]:
    """The final replicas; for a partition that is not being moved, its current ones."""
    return _without(topic.replicas[index], topic.removing.get(index, ()))


def is_reassigned(topic: metadata_image.ClusterTopic, index: int) -> bool:
    return index in topic.adding or index in topic.removing


def reassign(topic: metadata_image.ClusterTopic, new_targets: Mapping[int, tuple[int, ...]]) -> Reassigned | None:
    """Begin to move partitions, or change their targets; None if they are already there. The order matters: the first broker of
    the target becomes the preferred leader.

    InvalidReplicaAssignment: a list is empty or names a broker twice. The caller checks that the brokers are live."""
    replicas, adding, removing = list(topic.replicas), dict(topic.adding), dict(topic.removing)
    for index, target in new_targets.items():
        if not target or len(set(target)) != len(target):
            raise InvalidReplicaAssignment(
                f"partition {index} of {topic.name!r}: {list(target)} is empty or names a broker twice"
            )
        # Replicas added by an earlier move stay in the list until the last step: the leader may be adding them to the set now.
        current, original = topic.replicas[index], originals(topic, index)
        replicas[index] = tuple(dict.fromkeys((*target, *current)))
        _put(adding, index, _without(replicas[index], original))
        _put(removing, index, _without(current, target))
    new = replace(topic, replicas=tuple(replicas), adding=adding, removing=removing, version=topic.version + 1)
    is_same = (new.replicas, new.adding, new.removing) == (topic.replicas, topic.adding, topic.removing)
    return None if is_same else Reassigned(topic=new)


def leader_must_move(topic: metadata_image.ClusterTopic, index: int, state: metadata_image.PartitionState, minimum: int) -> bool:
    """Whether the partition is ready except that its leader is one of the replicas to be removed."""
    return state.leader in topic.removing.get(index, ()) and _is_ready(topic, index, state, minimum)


def finish(
    topic: metadata_image.ClusterTopic, minimum: int, *, busy: Collection[int] = (), limit: int = metadata_log.STATES_MAX
) -> Reassigned | None:
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
        eligible = tuple(broker for broker in metadata_image.eligible_after(state, isr, minimum) if broker in target)
        successor = state.handover_to if state.handover_to in isr else None
        # Written even if unchanged: this fences writes that the leader makes before it has seen the shorter list.
        moved.append(index)
        withdrawn = tuple(end for end in state.withdrawn if end.broker in target)
        states[index] = replace(
            state, isr=isr, eligible=eligible, handover_to=successor, withdrawn=withdrawn, version=state.version + 1
        )
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


def moving(
    topics: Iterable[metadata_image.ClusterTopic], registered: Collection[int], limit: int = _MOVING_MAX
) -> dict[tuple[str, int], None]:
    """The partitions whose new replicas fetch now: the first unfinished ones in the order of names. One that waits for a broker
    that is not registered takes no slot.

    The throttle is per broker, so moving everything at once would slow all moves down for hours. The result is the same for every
    broker with the same image, so there is no queue to maintain."""
    chosen: dict[tuple[str, int], None] = {}
    for topic in sorted((topic for topic in topics if topic.adding), key=lambda topic: topic.name):
        for index, new in sorted(topic.adding.items()):
            missing = [broker for broker in new if broker in targets(topic, index) and broker not in topic.states[index].isr]
            if missing and all(broker in registered for broker in missing):
                chosen[topic.name, index] = None
                if len(chosen) == limit:
                    return chosen
    return chosen


def _is_ready(topic: metadata_image.ClusterTopic, index: int, state: metadata_image.PartitionState, minimum: int) -> bool:
    # A target that was a replica before and lags does not hold up the last step (as in KRaft), but the set must not end smaller
    # than min.insync.replicas, if there are that many targets.
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
