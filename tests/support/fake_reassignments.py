"""A cluster's replicas in memory; checked against real brokers by tests/contract/test_reassignments.py."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from logbus.errors import BrokerUnavailable, UserError
from logbus.kafka.client import PartitionId
from logbus.kafka.cluster import ClusterFacts, DirectoryReading, LiveBroker, PartitionReplicas
from logbus.kafka.reassignments import ThrottledReplicas, Throttles

SIZE = 1_000


class FakeReassignments:
    """All replicas are in sync, each of `SIZE` bytes. What is added is copied when `arrive` is called. `calls` names what was
    asked for, in order."""

    def __init__(self, brokers: Mapping[int, str | None], replicas: Mapping[PartitionId, Sequence[int]] | None = None) -> None:
        self.brokers = dict(brokers)
        self.parts: dict[PartitionId, PartitionReplicas] = {}
        self.insync_min: dict[str, int] = {}
        self.calls: list[str] = []
        self.is_away: list[bool] = []  # for each of the next questions
        self.set = Throttles()
        self.throttled: ThrottledReplicas | None = None
        for key, assigned in (replicas or {}).items():
            self.add(key, assigned)

    def add(self, key: PartitionId, assigned: Sequence[int]) -> None:
        self.parts[key] = PartitionReplicas(
            topic=key[0], partition=key[1], leader=assigned[0], replicas=tuple(assigned), in_sync=tuple(assigned)
        )

    def facts(self, topics: Iterable[str] = ()) -> ClusterFacts:
        if self.is_away and self.is_away.pop(0):
            raise BrokerUnavailable("the broker does not answer")
        parts = [self.parts[key] for key in sorted(self.parts)]
        directories = [
            DirectoryReading(
                broker_id=broker,
                path="/log",
                total_bytes=None,
                usable_bytes=None,
                partition_bytes={part.partition_id: SIZE for part in parts if broker in part.in_sync},
            )
            for broker in self.brokers
        ]
        live = [LiveBroker(broker_id=broker, host="h", port=broker, rack=rack) for broker, rack in sorted(self.brokers.items())]
        return ClusterFacts(
            cluster_id="c",
            controller=live[0].broker_id,
            brokers=live,
            partitions=parts,
            directories=directories,
            insync_min={topic: self.insync_min.get(topic, 1) for topic in topics},
        )

    def alter(self, targets: Mapping[PartitionId, Sequence[int] | None]) -> None:
        self.calls.append("alter")
        refused = []
        for key, target in targets.items():
            if key not in self.parts or any(broker not in self.brokers for broker in target or ()):
                refused.append(f"{key[0]}-{key[1]}")
                continue
            part = self.parts[key]
            originals = tuple(broker for broker in part.replicas if broker not in part.adding)
            wanted_replicas = originals if target is None else tuple(target)
            self.parts[key] = replace(
                part,
                replicas=tuple(dict.fromkeys((*wanted_replicas, *originals))),
                adding=tuple(broker for broker in wanted_replicas if broker not in originals),
                removing=tuple(broker for broker in originals if broker not in wanted_replicas),
            )
            if not self.parts[key].adding:
                self._finish(key)
        if refused:
            raise UserError(f"{', '.join(refused)}: refused")

    def arrive(self) -> None:
        """All that is being copied is there."""
        for key in self.parts:
            self._finish(key)

    def _finish(self, key: PartitionId) -> None:
        part = self.parts[key]
        targets = part.targets
        leader = part.leader if part.leader in targets else targets[0]
        in_sync = tuple(broker for broker in targets if broker in part.in_sync or broker in part.adding)
        self.parts[key] = replace(part, replicas=targets, in_sync=in_sync, adding=(), removing=(), leader=leader)

    def elect_preferred(self, partitions: Sequence[PartitionId]) -> dict[PartitionId, str]:
        self.calls.append("elect")
        remaining = {}
        for key in partitions:
            part = self.parts[key]
            if part.replicas[0] in part.in_sync:
                self.parts[key] = replace(part, leader=part.replicas[0])
            else:
                remaining[key] = "not in sync"
        return remaining

    def throttles(self, facts: ClusterFacts) -> Throttles:
        return self.set

    def throttle(self, rate: int, replicas: ThrottledReplicas) -> None:
        self.calls.append("throttle")
        self.throttled = replicas
        self.set = Throttles(brokers=list(replicas.brokers), topics=list(replicas.at_leaders))

    def unthrottle(self, throttles: Throttles) -> None:
        self.calls.append("unthrottle")
        self.set = Throttles()
