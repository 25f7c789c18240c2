"""The brokers of a cluster: which requests they support, how full their disks are, and which of them has which partition.

All of it goes through `other_requests`, one conversation per reading. What needs a newer broker (DescribeTopicPartitions, for the
eligible leader replicas) or another kind of cluster is asked last, and is unknown where it is refused.

A broker that died a moment ago is still listed in the cluster until its session ends, and kafka-python picks a broker at random.
That is just when an operator wants to see the cluster, so a conversation whose connection is refused is started again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from logbus.kafka.client import Client, Place
from logbus.kafka.other_requests import conversation, explained

TRIES = 10  # with one broker of three dead, every try picks it once in 60,000 times


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryReading:
    """One log directory of one broker. Bytes of the whole file system are None where the broker does not report them."""

    broker_id: int
    path: str
    total_bytes: int | None
    usable_bytes: int | None
    partition_bytes: Mapping[tuple[str, int], int]

    @property
    def usable_share(self) -> float | None:
        """0.1 where a tenth of the file system is free."""
        return None if not self.total_bytes or self.usable_bytes is None else self.usable_bytes / self.total_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerPlace:
    """A live broker and its address."""

    broker_id: int
    host: str
    port: int
    rack: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionHolders:
    """The brokers of one partition. `leader` is None where it has none, `eligible` where the broker does not report it."""

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
        """No client can read or write it."""
        return self.leader is None

    @property
    def is_under_replicated(self) -> bool:
        """A replica is not in sync. Replicas still being added by a reassignment do not count."""
        return any(broker not in self.in_sync for broker in self.replicas if broker not in self.adding)

    @property
    def is_moving(self) -> bool:
        return bool(self.adding or self.removing)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """A cluster as one of its brokers describes it."""

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
        """How many partitions the broker has a replica of, how many of these it leads, and in how many it is not in sync."""
        held = [one for one in self.partitions if broker_id in one.replicas]
        behind = [one for one in held if broker_id not in one.in_sync]
        return len(held), sum(one.leader == broker_id for one in held), len(behind)


def api_versions(client: Client) -> dict[str, tuple[int, int]]:
    """The first and last version that the broker supports, by the request's protocol name (`Produce`, `ListOffsets`)."""
    with conversation(client) as broker:
        return {camel_case(key.name): (first, last) for key, (first, last) in broker.api_versions().items()}


def log_directories(client: Client) -> list[DirectoryReading]:
    """Every log directory of every broker, with the bytes that each partition takes up."""
    with conversation(client) as broker:
        answers = broker.describe_log_dirs()
    return [log_directory(answer["broker"], found) for answer in answers for found in answer["log_dirs"]]


def log_directory(broker_id: int, found: Mapping[str, Any]) -> DirectoryReading:
    sizes = {
        (topic["name"], partition["partition_index"]): partition["partition_size"]
        for topic in found["topics"]
        for partition in topic["partitions"]
    }
    total, usable = (known(found.get(name)) for name in ("total_bytes", "usable_bytes"))
    return DirectoryReading(
        broker_id=broker_id, path=found["log_dir"], total_bytes=total, usable_bytes=usable, partition_bytes=sizes
    )


def partition_bytes(directories: list[DirectoryReading]) -> dict[tuple[str, int], int]:
    """The size of each partition: that of its largest replica, where several brokers have one."""
    sizes: dict[tuple[str, int], int] = {}
    for directory in directories:
        for place, size in directory.partition_bytes.items():
            sizes[place] = max(size, sizes.get(place, 0))
    return sizes


def cluster_facts(client: Client, begin: Callable[[Client], AbstractContextManager[Any]] = conversation) -> ClusterFacts:
    """`BrokerUnavailable` where no broker answers."""
    from kafka.errors import KafkaConnectionError

    error: Exception | None = None
    for _ in range(TRIES):
        with begin(client) as broker:
            try:
                return told_by(broker)
            except KafkaConnectionError as refused:
                error = refused
    assert error is not None
    raise explained(client, error)


def told_by(client: Any) -> ClusterFacts:
    """The cluster, read in one conversation."""
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
    """The eligible leader replicas by partition; the broker answers in pages."""
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
    """All partitions, ordered by topic and number."""
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


def camel_case(name: str) -> str:
    """`LIST_OFFSETS` as the protocol spells it, whichever spelling the library uses."""
    return name if "_" not in name and not name.isupper() else "".join(word.capitalize() for word in name.split("_"))


def known(count: int | None) -> int | None:
    """The count, or None for -1, with which a broker marks a value that it does not have."""
    return None if count is None or count < 0 else count
