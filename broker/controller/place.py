"""Where to place the replicas of new partitions: round robin over the brokers from a seed, over racks first if all have one.

The first replica of a partition is its preferred leader, so the round robin spreads the leaders. The followers of each further
round of partitions are shifted by one more, so that when a broker fails all the others take over its partitions and not just its
neighbour (Apache Kafka's method, without its random numbers: the caller passes the seed).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from broker.errors import InvalidPartitions, InvalidReplicaAssignment, InvalidReplicationFactor


def place(
    partition_count: int, factor: int, racks: Mapping[int, str], *, seed: int, first: int = 0
) -> tuple[tuple[int, ...], ...]:
    """Replicas for `partition_count` new partitions, numbered from `first`. `racks`: by live broker, "" if it has none.
    InvalidReplicationFactor with the reason if there are too few brokers."""
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
    return [row[place] for place in range(max(map(len, rows))) for row in rows if place < len(row)]


def check_assignments(
    assignments: Mapping[int, Sequence[int]], brokers: Mapping[int, str], *, first: int = 0
) -> tuple[tuple[int, ...], ...]:
    """Check replicas assigned by the client, by partition; returns tuples in partition order. `brokers`: the live ones."""
    numbers = range(first, first + len(assignments))
    if not assignments or sorted(assignments) != list(numbers):
        raise InvalidReplicaAssignment(f"assignments name partitions {sorted(assignments)}: they must be all from {first} on")
    for number in numbers:
        replicas = assignments[number]
        unknown = [broker for broker in replicas if broker not in brokers]
        if not replicas or len(set(replicas)) != len(replicas):
            raise InvalidReplicaAssignment(f"partition {number}: {list(replicas)} is empty or names a broker twice")
        if unknown:
            raise InvalidReplicaAssignment(f"partition {number}: no live broker has the id {unknown[0]}")
        if len(replicas) != len(assignments[first]):
            raise InvalidReplicaAssignment(f"partition {number} has {len(replicas)} replicas, partition {first} another number")
    return tuple(tuple(assignments[number]) for number in numbers)
