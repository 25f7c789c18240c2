"""Three brokers as real processes under the load of stock clients, while processes die and stop and links are cut.

A short run is part of the suite; `make soak` runs for ten minutes, with another order of faults in each round.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from random import Random

import pytest

from benchmarks.peers.authority import Authority
from tests.support.clusters import RunningCluster
from tests.support.disturbing import DISK_FAULTS, LINK_FAULTS, PROCESS_FAULTS, RESTORED_FAULTS, Fault
from tests.support.ordeal import Ordeal, report
from tests.support.zookeeper import RunningZooKeeper

SOAK_SECONDS = 600
SOAK_SEED = 3
ONLY_IN_THE_SOAK = (
    "controller stopped",
    "follower stopped",
    "leader and controller killed",
    "leader and follower killed",
    "leader stopped briefly",
)


def go_through(ordeal: Ordeal, faults: Iterable[tuple[str, Fault]], keep: Path) -> None:
    with ordeal.load():
        for name, fault in faults:
            ordeal.disturb(name, fault)
    verdict = ordeal.judge(keep)
    print(report(ordeal, verdict))
    assert verdict.anomalies == [], report(ordeal, verdict)


def shuffled_until(faults: Mapping[str, Fault], chance: Random, deadline: float) -> Iterator[tuple[str, Fault]]:
    """Round after round, each in another order, while time remains."""
    order = list(faults.items())
    while True:
        chance.shuffle(order)
        for one in order:
            if time.monotonic() > deadline:
                return
            yield one


def test_nothing_acknowledged_is_lost_twice_or_out_of_order_while_processes_are_killed_and_stopped(
    zookeeper: RunningZooKeeper, tmp_path: Path
) -> None:
    faults = [(name, fault) for name, fault in PROCESS_FAULTS.items() if name not in ONLY_IN_THE_SOAK]
    with RunningCluster(tmp_path, zookeeper, chroot="/killed") as cluster:
        go_through(Ordeal(cluster, seed=1), faults, tmp_path / "history.jsonl")


@pytest.mark.long
def test_nothing_acknowledged_is_lost_twice_or_out_of_order_where_brokers_log_in_at_each_other(tmp_path: Path) -> None:
    """Over TLS, with logins that end after six seconds; so at ZooKeeper."""
    with (
        RunningZooKeeper(authority=Authority(tmp_path)) as zookeeper,
        RunningCluster(tmp_path, zookeeper, chroot="/secured") as cluster,
    ):
        go_through(Ordeal(cluster, seed=4), PROCESS_FAULTS.items(), tmp_path / "history.jsonl")


@pytest.mark.long
def test_nothing_acknowledged_is_lost_twice_or_out_of_order_while_disks_are_full(
    zookeeper: RunningZooKeeper, tmp_path: Path
) -> None:
    """And each broker comes back by itself, with all its replicas."""
    with RunningCluster(tmp_path, zookeeper, chroot="/full", disk_megabytes=64) as cluster:
        go_through(Ordeal(cluster, seed=5), [*DISK_FAULTS.items()] * 2, tmp_path / "history.jsonl")
        logs = "".join(broker.log_path.read_text() for broker in cluster.brokers.values())
    assert "CRITICAL" in logs
    assert "No space left on device: left to the other replicas in sync until that is over" in logs
    assert "can be stored again" in logs


@pytest.mark.long
def test_nothing_acknowledged_is_lost_twice_or_out_of_order_while_links_are_cut_and_slow(
    zookeeper: RunningZooKeeper, tmp_path: Path
) -> None:
    with RunningCluster(tmp_path, zookeeper, chroot="/cut", has_links=True) as cluster:
        go_through(Ordeal(cluster, seed=2), LINK_FAULTS.items(), tmp_path / "history.jsonl")


@pytest.mark.long
@pytest.mark.timeout(3 * SOAK_SECONDS)
def test_nothing_acknowledged_is_lost_twice_or_out_of_order_in_ten_minutes_of_faults(
    zookeeper: RunningZooKeeper, tmp_path: Path
) -> None:
    # Segments of a quarter of a megabyte, so that there are old ones, of which a start checks no more.
    settings = {"log.segment.bytes": str(1 << 18), "log.flush.offset.checkpoint.interval.ms": "1000"}
    with RunningCluster(tmp_path, zookeeper, chroot="/soak", has_links=True, disk_megabytes=512, settings=settings) as cluster:
        every_fault = {**PROCESS_FAULTS, **LINK_FAULTS, **DISK_FAULTS, **RESTORED_FAULTS}
        faults = shuffled_until(every_fault, Random(SOAK_SEED), time.monotonic() + SOAK_SECONDS)
        go_through(Ordeal(cluster, seed=3), faults, tmp_path / "history.jsonl")
