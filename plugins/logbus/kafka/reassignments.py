"""Reassignments: replicas that move to other brokers (KIP-455), how fast (KIP-73), who leads afterwards, and the file in which
kafka-reassign-partitions has them. Any Kafka cluster answers these requests.

A throttle is four of Kafka's settings: two rates at each broker that takes part, and at each topic the replicas that they are
for, `PARTITION:BROKER`, those that are read and those that are copied. Nobody removes them but
who has set them, or the next who looks: one that is left behind holds up whatever moves later.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from confluent_kafka.admin import ConfigSource, ResourceType

from logbus.errors import LogbusError, UserError
from logbus.formatting import several
from logbus.kafka import cluster, errors
from logbus.kafka.client import Client, PartitionId
from logbus.kafka.topics import change_settings

RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
LISTS = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
PARTITIONS_MAX = 1_000  # in one request: our broker takes 20,000 elements
NAMED_MAX = 5
PREFERRED = 0  # the type of an election


@dataclass(frozen=True, slots=True, kw_only=True)
class Throttles:
    """What is set of a throttle: brokers that have a rate, topics that have a list."""

    brokers: Sequence[int] = ()
    topics: Sequence[str] = ()

    def __bool__(self) -> bool:
        return bool(self.brokers or self.topics)


@dataclass(frozen=True, slots=True, kw_only=True)
class ThrottledReplicas:
    """What is to be held up: by topic, the replicas at the leader's side and at the follower's, as Kafka writes them."""

    brokers: Sequence[int]
    at_leaders: Mapping[str, str]
    at_followers: Mapping[str, str]


class Reassigning(Protocol):
    """What a move asks of a cluster."""

    def facts(self, topics: Iterable[str] = ()) -> cluster.ClusterFacts: ...

    def alter(self, targets: Mapping[PartitionId, Sequence[int] | None]) -> None: ...

    def elect_preferred(self, partitions: Sequence[PartitionId]) -> dict[PartitionId, str]: ...

    def throttles(self, facts: cluster.ClusterFacts) -> Throttles: ...

    def throttle(self, rate: int, replicas: ThrottledReplicas) -> None: ...

    def unthrottle(self, throttles: Throttles) -> None: ...


class Reassignments:
    """Those of a real cluster."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def facts(self, topics: Iterable[str] = ()) -> cluster.ClusterFacts:
        """The cluster as it is, with the min.insync.replicas of these topics."""
        facts = cluster.cluster_facts(self.client)
        existing = {part.topic for part in facts.partitions}
        minima = cluster.insync_minima(self.client, sorted(existing.intersection(topics)))
        return replace(facts, insync_min={**facts.insync_min, **minima})

    def alter(self, targets: Mapping[PartitionId, Sequence[int] | None]) -> None:
        """Begin to move, or change where to; None cancels. `UserError` names the partitions that the cluster refuses; the others
        move."""
        kafka = cluster.kafka_python()
        refused: dict[str, list[str]] = {}
        with cluster.admin_client(self.client) as broker:
            for keys in _portions(list(targets)):
                request = {kafka.TopicPartition(*key): targets[key] for key in keys}
                for partition, error in broker.alter_partition_reassignments(request).items():
                    if error is not None and not _is_over(error):
                        refused.setdefault(_sentence(error), []).append(f"{partition.topic}-{partition.partition}")
        if refused:
            raise UserError("; ".join(f"{several(names, NAMED_MAX)}: {why}" for why, names in refused.items()))

    def elect_preferred(self, partitions: Sequence[PartitionId]) -> dict[PartitionId, str]:
        """Make the first of the replicas the leader. Returns the partitions that keep another leader, with the reason."""
        kafka = cluster.kafka_python()
        remaining: dict[PartitionId, str] = {}
        with cluster.admin_client(self.client) as broker:
            for keys in _portions(partitions):
                by_topic: dict[str, list[int]] = {}
                for topic, partition in keys:
                    by_topic.setdefault(topic, []).append(partition)
                answer = broker.elect_leaders(PREFERRED, by_topic, raise_errors=False)
                for row in answer.replica_election_results:
                    for result in row.partition_result:
                        error = kafka.errors.for_code(result.error_code)
                        if result.error_code and error.__name__ != "ElectionNotNeededError":
                            remaining[row.topic, result.partition_id] = result.error_message or _sentence(error)
        return remaining

    # Throttles

    def throttles(self, facts: cluster.ClusterFacts) -> Throttles:
        """Those that are set at any broker that is there, and at any topic."""
        client = self.client
        at_brokers = {broker.broker_id: client.ask_broker_settings(broker.broker_id) for broker in facts.brokers}
        at_topics = client.ask_settings(dict.fromkeys(part.topic for part in facts.partitions))
        dynamic = ConfigSource.DYNAMIC_BROKER_CONFIG, ConfigSource.DYNAMIC_TOPIC_CONFIG
        return Throttles(
            brokers=[key for key, future in at_brokers.items() if _sets(client.outcome(future, str(key)), RATES, dynamic[0])],
            topics=[key for key, future in at_topics.items() if _sets(client.outcome(future, key), LISTS, dynamic[1])],
        )

    def throttle(self, rate: int, replicas: ThrottledReplicas) -> None:
        """Both are needed: lists without a rate hold up nothing, nor does a rate without lists."""
        for topic in replicas.at_leaders:
            lists = replicas.at_leaders[topic], replicas.at_followers[topic]
            change_settings(self.client, ResourceType.TOPIC, topic, dict(zip(LISTS, lists, strict=True)))
        for broker in replicas.brokers:
            change_settings(self.client, ResourceType.BROKER, str(broker), dict.fromkeys(RATES, str(rate)))

    def unthrottle(self, throttles: Throttles) -> None:
        """Removes the settings."""
        for broker in throttles.brokers:
            change_settings(self.client, ResourceType.BROKER, str(broker), {}, RATES)
        for topic in throttles.topics:
            change_settings(self.client, ResourceType.TOPIC, topic, {}, LISTS)


def _portions(keys: Sequence[PartitionId]) -> Iterator[Sequence[PartitionId]]:
    for begin in range(0, len(keys), PARTITIONS_MAX):
        yield keys[begin : begin + PARTITIONS_MAX]


def _is_over(error: Any) -> bool:
    """Cancelling what has ended in the meantime."""
    return error.__name__ == "NoReassignmentInProgressError"


def _sentence(error: Any) -> str:
    """kafka-python gives the class of a partition's error, without the broker's own message."""
    explained = errors.explain_code(error.errno, "")
    return str(explained) if error.errno in errors.MEANINGS else f"{error.message} ({error.description})"


def _sets(settings: Any, names: Sequence[str], source: ConfigSource) -> bool:
    """Whether the broker or the topic itself has one of these; what the user may not see is unknown."""
    if isinstance(settings, LogbusError):
        return False
    entries = (settings.get(name) for name in names)
    return any(entry is not None and entry.value and ConfigSource(entry.source) is source for entry in entries)


def throttled_replicas(facts: cluster.ClusterFacts, targets: Mapping[PartitionId, Sequence[int]]) -> ThrottledReplicas:
    """For a move to these targets, and whatever else is moving: what is there is read, what is new is copied."""
    read, copied = dict[str, list[str]](), dict[str, list[str]]()
    brokers = set[int]()
    for part in facts.partitions:
        originals = [broker for broker in part.replicas if broker not in part.adding]
        target = targets.get(part.partition_id, part.targets)
        added = [broker for broker in target if broker not in originals]
        if added:
            read.setdefault(part.topic, []).extend(f"{part.partition}:{broker}" for broker in sorted(originals))
            copied.setdefault(part.topic, []).extend(f"{part.partition}:{broker}" for broker in sorted(added))
            brokers.update(originals, added)
    live = {broker.broker_id for broker in facts.brokers}
    joined = [{topic: ",".join(listed) for topic, listed in lists.items()} for lists in (read, copied)]
    return ThrottledReplicas(brokers=sorted(brokers & live), at_leaders=joined[0], at_followers=joined[1])


# The file


@dataclass(frozen=True, slots=True, kw_only=True)
class ReassignmentFile:
    """What kafka-reassign-partitions reads and writes."""

    targets: Mapping[PartitionId, tuple[int, ...]] = field(default_factory=dict)

    def to_json(self) -> str:
        rows = [
            {"topic": topic, "partition": partition, "replicas": list(replicas), "log_dirs": ["any"] * len(replicas)}
            for (topic, partition), replicas in self.targets.items()
        ]
        return json.dumps({"version": 1, "partitions": rows})

    @classmethod
    def from_json(cls, text: str) -> ReassignmentFile:
        """`UserError` says what is wrong with it."""
        targets: dict[PartitionId, tuple[int, ...]] = {}
        try:
            content = json.loads(text)
            if content.get("version", 1) != 1:
                raise UserError(f"version {content['version']} of the file is not known: this reads version 1")
            for row in content["partitions"]:
                topic, partition, replicas = str(row["topic"]), int(row["partition"]), tuple(map(int, row["replicas"]))
                name = f"{topic}-{partition}"
                if (topic, partition) in targets:
                    raise UserError(f"{name} is in the file twice: leave one of the rows out")
                if not replicas or len(set(replicas)) != len(replicas):
                    raise UserError(f"{name}: replicas {list(replicas)} is empty, or names a broker twice")
                if any(directory != "any" for directory in row.get("log_dirs") or ()):
                    raise UserError(f'{name}: only log_dirs of "any" can be moved to; kafka-reassign-partitions knows others')
                targets[topic, partition] = replicas
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            what = f"lacks {error}" if isinstance(error, KeyError) else str(error)
            raise UserError(
                f'the file is not what kafka-reassign-partitions takes ({what}): {{"version": 1, "partitions": [{{"topic": "t", '
                '"partition": 0, "replicas": [1, 2]}]}; `logbus cluster plan --out FILE` writes one'
            ) from None
        if not targets:
            raise UserError("the file names no partition")
        return cls(targets=targets)
