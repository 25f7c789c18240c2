"""The brokers of a cluster and who has its partitions, by the requests of Kafka's own admin tools.

What needs a newer broker (DescribeTopicPartitions, for the eligible replicas) or another kind of cluster is asked last, and is
unknown where it is refused.

A broker that died a moment ago is still named as one of the cluster while its session lasts, and kafka-python draws whom it asks.
Just then somebody wants to see the cluster: so whoever is refused asks anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from logbus.kafka.broker_facts import admin, unavailable

TRIES = 10  # of three brokers one is dead: all draw it once in 60,000 times
Place = tuple[str, int]  # topic and partition


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerPlace:
    """A broker that is there."""

    broker_id: int
    host: str
    port: int
    rack: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionHolders:
    """Who has one partition. `leader` is None where nobody leads; `eligible` where the broker does not tell."""

    topic: str
    partition: int
    leader: int | None
    replicas: Sequence[int]
    in_sync: Sequence[int]
    offline: Sequence[int] = ()
    eligible: Sequence[int] | None = None
    adding: Sequence[int] = ()
    removing: Sequence[int] = ()

    @property
    def is_offline(self) -> bool:
        """Nobody can read or write it."""
        return self.leader is None

    @property
    def is_under_replicated(self) -> bool:
        """A replica is not in sync. Those that are only being added do not count until they are."""
        return any(broker not in self.in_sync for broker in self.replicas if broker not in self.adding)

    @property
    def is_moving(self) -> bool:
        return bool(self.adding or self.removing)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """A cluster as one of its brokers tells it."""

    cluster_id: str | None
    controller: int | None
    brokers: Sequence[BrokerPlace]
    partitions: Sequence[PartitionHolders]

    @property
    def offline(self) -> list[PartitionHolders]:
        return [one for one in self.partitions if one.is_offline]

    @property
    def under_replicated(self) -> list[PartitionHolders]:
        return [one for one in self.partitions if one.is_under_replicated]

    @property
    def moving(self) -> list[PartitionHolders]:
        return [one for one in self.partitions if one.is_moving]

    def counts(self, broker_id: int) -> tuple[int, int, int]:
        """Of how many partitions a broker has a replica, leads, and is not in sync."""
        held = [one for one in self.partitions if broker_id in one.replicas]
        behind = [one for one in held if broker_id not in one.in_sync]
        return len(held), sum(one.leader == broker_id for one in held), len(behind)


def cluster_facts(client_config: Mapping[str, Any], timeout_seconds: float | None = None) -> ClusterFacts:
    """`BrokerUnavailable` where no broker answers."""
    from kafka.errors import KafkaConnectionError

    error: Exception | None = None
    for _ in range(TRIES):
        with admin(client_config, timeout_seconds) as client:
            try:
                return told_by(client)
            except KafkaConnectionError as refused:
                error = refused
    assert error is not None
    raise unavailable(client_config, error)


def told_by(client: Any) -> ClusterFacts:
    """One conversation."""
    from kafka.errors import KafkaError

    cluster = client.describe_cluster()
    topics = client.describe_topics()
    moves = client.list_partition_reassignments()
    try:
        eligible = eligible_replicas(client, [topic["name"] for topic in topics])
    except KafkaError:
        eligible = {}
    places = [
        BrokerPlace(broker_id=row.get("broker_id", row.get("node_id")), host=row["host"], port=row["port"], rack=row["rack"])
        for row in cluster["brokers"]
    ]
    controller = cluster.get("controller_id", -1)
    moving = {(place.topic, place.partition): found for place, found in moves.items()}
    return ClusterFacts(
        cluster_id=cluster.get("cluster_id"),
        controller=None if controller < 0 else controller,
        brokers=sorted(places, key=lambda place: place.broker_id),
        partitions=list(holders(topics, eligible, moving)),
    )


def eligible_replicas(client: Any, names: Sequence[str]) -> dict[Place, Sequence[int]]:
    """By partition; the answers come in pages."""
    found: dict[Place, Sequence[int]] = {}
    cursor = None
    while names:
        page = client.describe_topic_partitions(names, cursor=cursor)
        for topic in page["topics"]:
            for part in topic["partitions"]:
                found[topic["name"], part["partition_index"]] = tuple(part["eligible_leader_replicas"] or ())
        cursor = page["next_cursor"]
        if cursor is None:
            break
    return found


def holders(
    topics: Iterable[Mapping[str, Any]], eligible: Mapping[Place, Sequence[int]], moving: Mapping[Place, Mapping[str, Any]]
) -> Iterable[PartitionHolders]:
    """In the order of topics and partitions."""
    for topic in sorted(topics, key=lambda topic: str(topic["name"])):
        for part in sorted(topic["partitions"], key=lambda part: int(part["partition_index"])):
            place = (topic["name"], part["partition_index"])
            move = moving.get(place, {})
            yield PartitionHolders(
                topic=place[0],
                partition=place[1],
                leader=None if part["leader_id"] < 0 else part["leader_id"],
                replicas=tuple(part["replica_nodes"]),
                in_sync=tuple(part["isr_nodes"]),
                offline=tuple(part.get("offline_replicas") or ()),
                eligible=eligible.get(place),
                adding=tuple(move.get("adding_replicas", ())),
                removing=tuple(move.get("removing_replicas", ())),
            )
