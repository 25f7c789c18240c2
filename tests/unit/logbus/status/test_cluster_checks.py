"""What is said of a cluster, from readings of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from logbus.errors import UnderReplicated
from logbus.kafka import cluster
from logbus.kafka.reassignments import Throttles
from logbus.status.checks import GIB
from logbus.status.cluster_checks import MATTERS, ClusterReading, by_matter, cluster_findings, raise_if_unwell

LIVE = [cluster.LiveBroker(broker_id=number, host="h", port=number) for number in (1, 2, 4)]


def part(topic: str, leader: int | None, replicas: tuple[int, ...], in_sync: tuple[int, ...]) -> cluster.PartitionReplicas:
    return cluster.PartitionReplicas(topic=topic, partition=0, leader=leader, replicas=replicas, in_sync=in_sync)


WELL = cluster.ClusterFacts(cluster_id="c", controller=1, brokers=LIVE, partitions=[part("t", 1, (1, 2), (1, 2))])
QUIET = {1: (), 2: (), 4: ()}


def said(facts: cluster.ClusterFacts) -> list[tuple[str, str]]:
    findings = cluster_findings(ClusterReading(facts=facts))
    return [(str(finding.severity), finding.message.partition(":")[0]) for finding in findings]


def severities(reading: ClusterReading) -> dict[str, str]:
    """Of the matters that are not in order."""
    return {line.subject: str(line.severity) for line in by_matter(reading) if line.severity != "ok"}


def test_what_is_wrong_is_said_the_worst_first() -> None:
    partitions = [part("clicks", 1, (1, 3), (1,)), part("views", None, (3,), (3,))]
    facts = replace(WELL, controller=None, partitions=partitions, insync_min={"clicks": 2}, unreachable=[4])
    assert said(facts) == [
        ("error", "there is no controller"),
        ("error", "broker 4 accepts no connection at h"),
        ("error", "broker 3 is gone"),
        ("error", "no leader, so no client can read or write"),
        ("error", "fewer in sync than min.insync.replicas, so acks=all fails"),
    ]


def test_a_live_broker_that_is_behind_or_without_its_log_is_named() -> None:
    behind = replace(part("t", 1, (1, 2), (1,)), offline=(2,))
    assert said(replace(WELL, partitions=[behind])) == [
        ("error", "a live broker has no usable log of t-0"),
        ("warning", "broker 2 is not in sync in 1 of 1 replica"),
    ]


@pytest.mark.parametrize(("factor", "live", "is_few"), [(3, 3, True), (1, 3, False), (3, 1, False), (None, 3, False)])
def test_internal_topics_have_as_many_replicas_as_are_set_and_possible(factor: int | None, live: int, is_few: bool) -> None:
    offsets = part("__consumer_offsets", 1, (1,), (1,))
    facts = replace(WELL, brokers=LIVE[:live], partitions=[offsets], offsets_factor=factor)
    assert bool(said(facts)) == is_few


def test_each_matter_has_a_line_whether_anything_is_wrong_or_not() -> None:
    reading = ClusterReading(facts=WELL, troubles=QUIET)
    assert [line.subject for line in by_matter(reading)] == list(MATTERS)
    assert severities(reading) == {}
    raise_if_unwell(reading, by_matter(reading))
    assert severities(ClusterReading(facts=WELL)) == {"ZooKeeper": "note"}, "no page can be reached"


def test_what_brokers_say_on_their_pages_is_told_by_matter() -> None:
    troubles = {1: ("ZooKeeper at z:1 has not answered for 9 s",), 2: ("t-0 is offline: its disk failed", "b failed")}
    reading = ClusterReading(facts=WELL, troubles=troubles)
    assert severities(reading) == {"ZooKeeper": "error", "health": "error"}
    (health,) = (line for line in by_matter(reading) if line.subject == "health")
    assert health.message == "broker 2: t-0 is offline: its disk failed; broker 2: b failed"
    with pytest.raises(UnderReplicated, match="broker 1: ZooKeeper"):
        raise_if_unwell(reading, by_matter(reading))
    both = ClusterReading(facts=WELL, troubles={1: troubles[1], 2: ("ZooKeeper at z:1 has not answered for 8 s",)})
    assert [finding.message for finding in cluster_findings(both)] == ["broker 1, 2: ZooKeeper at z:1 has not answered for 9 s"]


def test_a_throttle_is_left_behind_only_once_nothing_moves() -> None:
    left = ClusterReading(facts=WELL, throttles=Throttles(brokers=[1], topics=["t"]), troubles=QUIET)
    assert severities(left) == {"throttles": "warning"}
    moving = replace(WELL, partitions=[replace(WELL.partitions[0], adding=(4,), replicas=(1, 2, 4))])
    assert severities(replace(left, facts=moving)) == {"moves": "note"}


def test_a_disk_that_fills_is_a_matter() -> None:
    full = cluster.DirectoryReading(broker_id=2, path="/log", total_bytes=100 * GIB, usable_bytes=GIB, partition_bytes={})
    assert severities(ClusterReading(facts=replace(WELL, directories=[full]), troubles=QUIET)) == {"disk": "error"}


def test_a_replica_out_of_sync_is_a_status_for_scripts() -> None:
    facts = replace(WELL, partitions=[part("t", 1, (1, 2), (1,))])
    with pytest.raises(UnderReplicated, match="0 partitions without a leader, 1 with replicas out of sync"):
        raise_if_unwell(ClusterReading(facts=facts), [])
