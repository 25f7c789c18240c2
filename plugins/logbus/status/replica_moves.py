"""A move of replicas from its beginning to its end: throttled, begun, looked on, and cleaned up after.

Everything is in the cluster: which partitions move, where to, and the throttle. So a command that is interrupted ends nothing,
and whoever runs it again only looks on. When nothing moves any more, the throttle is removed and the preferred leaders of what
has moved are elected; by whichever run sees it first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from logbus import errors, waiting
from logbus.kafka.client import PartitionId
from logbus.kafka.cluster import ClusterFacts, PartitionReplicas
from logbus.kafka.reassignments import Reassigning, Throttles, throttled_replicas
from logbus.status.replica_plan import Replicas

POLL_SECONDS = 1.0  # a question to every broker for what is on its disks


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveProgress:
    """What is left of a move. `bytes_left` is None where brokers do not report what is on their disks."""

    moving: Sequence[PartitionReplicas]
    replicas_left: int
    bytes_left: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleared:
    """What was done at the end: throttles removed, partitions that keep another leader than the preferred one, and why."""

    throttles: Throttles
    other_leaders: Mapping[PartitionId, str]


def progress(facts: ClusterFacts, scope: Collection[PartitionId] = ()) -> MoveProgress:
    """Of these partitions, or of all that move."""
    sizes = [(directory.broker_id, directory.partition_bytes) for directory in facts.directories]
    moving = [part for part in facts.partitions if part.is_moving and (not scope or part.partition_id in scope)]
    left, replicas_left = 0, 0
    for part in moving:
        on_disk = {broker: bytes_of[part.partition_id] for broker, bytes_of in sizes if part.partition_id in bytes_of}
        whole = max((on_disk.get(broker, 0) for broker in part.in_sync), default=0)
        for broker in part.adding:
            if broker not in part.in_sync:
                replicas_left += 1
                left += max(0, whole - on_disk.get(broker, 0))
    return MoveProgress(moving=moving, replicas_left=replicas_left, bytes_left=left if sizes else None)


class ReplicaMoves:
    """The moves in one cluster."""

    def __init__(
        self, cluster: Reassigning, *, poll_seconds: float = POLL_SECONDS, say: waiting.Say = waiting.say_nothing
    ) -> None:
        self._cluster = cluster
        self._poll_seconds = poll_seconds
        self._say = say

    def begin(self, facts: ClusterFacts, targets: Mapping[PartitionId, Replicas], rate: int | None) -> None:
        """The throttle comes first, or the copying would be ahead of it."""
        if rate is not None:
            self._cluster.throttle(rate, throttled_replicas(facts, targets))
        if targets:
            self._cluster.alter(targets)

    def cancel(self, partitions: Sequence[PartitionId]) -> None:
        """They return to the replicas that they had."""
        self._cluster.alter(dict.fromkeys(partitions))

    def give_leads_away(self, facts: ClusterFacts, broker: int) -> dict[PartitionId, str]:
        """What the broker leads goes to another replica in sync, if there is one, and the broker to the end of the list.
        Returns the partitions that it keeps on leading, with the reason."""
        orders: dict[PartitionId, Replicas] = {}
        if broker not in (live.broker_id for live in facts.brokers):
            return {}  # it leads nothing
        for part in facts.partitions:
            others = [other for other in part.targets if other != broker]
            heir = next((other for other in others if other in part.in_sync), None)
            leads = broker in (part.leader, part.targets[0])
            if leads and broker in part.targets and heir is not None and not part.is_moving:
                orders[part.partition_id] = (heir, *(other for other in others if other != heir), broker)
        if not orders:
            return {}
        self._cluster.alter(orders)
        return self._cluster.elect_preferred(list(orders))

    def watch(self, show: Callable[[MoveProgress], None], scope: Collection[PartitionId] = ()) -> None:
        """Return when nothing of it moves any more, however long that takes: brokers may be restarted meanwhile."""

        def is_over() -> bool:
            facts = waiting.wait_until(
                self._cluster.facts,
                what="a broker that answers",
                not_yet=errors.BrokerUnavailable,
                poll_seconds=self._poll_seconds,
                say=self._say,
            )
            now = progress(facts, scope)
            show(now)
            return not now.moving

        waiting.wait_until(is_over, what="the moves", timeout_seconds=inf, poll_seconds=self._poll_seconds)

    def clear(self, scope: Collection[PartitionId]) -> Cleared | None:
        """What is left to do once these have moved, or all; None while they move. A throttle stays while anything else moves."""
        facts = self._cluster.facts()
        if progress(facts, scope).moving:
            return None
        elsewhere = [
            part.partition_id
            for part in facts.partitions
            if part.partition_id in scope and part.leader not in (None, part.targets[0]) and not part.is_moving
        ]
        other_leaders = self._cluster.elect_preferred(elsewhere) if elsewhere else {}
        throttles = Throttles() if facts.moving else self._cluster.throttles(facts)
        if throttles:
            self._cluster.unthrottle(throttles)
        return Cleared(throttles=throttles, other_leaders=other_leaders)
