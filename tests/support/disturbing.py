"""Faults of real processes and links, each a function of a running cluster; `RunningCluster.mend` ends them all.

Which broker it hits is read from ZooKeeper at that moment: the leader of a partition, one of its followers, the controller.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from random import Random

from logbus.waiting import wait_until
from logbus_broker.filesystem import FileSystem
from logbus_broker.log.segment import scan_headers

from tests.support.clusters import SESSION_MS, ClusterBroker, RunningCluster

Fault = Callable[[RunningCluster, str, Random], None]
BRIEFLY_SECONDS = 1.0
BEYOND_A_SESSION_SECONDS = SESSION_MS / 1000 + 1.5
SLOW_SECONDS = 0.05


def leader(cluster: RunningCluster, topic: str) -> ClusterBroker:
    """The leader of the first partition that has one."""
    number = wait_until(lambda: next((one for one in cluster.leaders(topic).values() if one > 0), 0), what="a leader")
    return cluster.brokers[number]


def follower(cluster: RunningCluster, topic: str) -> ClusterBroker:
    """A follower of the first partition."""
    state = cluster.state(topic, 0)
    return cluster.brokers[next(number for number in cluster.assignment(topic)[0] if number != state.leader)]


def controller(cluster: RunningCluster, topic: str) -> ClusterBroker:
    return cluster.brokers[cluster.controller() or 1]


def killed(*chosen: Callable[[RunningCluster, str], ClusterBroker], seconds: float = BRIEFLY_SECONDS) -> Fault:
    """kill -9, and some time without them. One broker may have two of the roles."""

    def fault(cluster: RunningCluster, topic: str, chance: Random) -> None:
        for broker in {id(one): one for one in (choose(cluster, topic) for choose in chosen)}.values():
            broker.kill9()
        time.sleep(seconds)

    return fault


def paused(choose: Callable[[RunningCluster, str], ClusterBroker], seconds: float) -> Fault:
    def fault(cluster: RunningCluster, topic: str, chance: Random) -> None:
        broker = choose(cluster, topic)
        broker.pause()
        time.sleep(seconds)
        broker.resume()

    return fault


def all_killed(cluster: RunningCluster, topic: str, chance: Random) -> None:
    """All killed, one right after the other, in random order."""
    brokers = list(cluster.brokers.values())
    chance.shuffle(brokers)
    for broker in brokers:
        broker.kill9()


def restarted_in_turn(cluster: RunningCluster, topic: str, chance: Random) -> None:
    """A rolling restart: each broker is shut down cleanly, started, and in sync again before the next."""
    for broker in cluster.brokers.values():
        broker.stop()
        broker.start()
        cluster.wait_until_healed(topic)


def zookeeper_killed(cluster: RunningCluster, topic: str, chance: Random) -> None:
    cluster.zookeeper.servers[0].kill()
    time.sleep(BRIEFLY_SECONDS)


def zookeeper_paused(cluster: RunningCluster, topic: str, chance: Random) -> None:
    """Paused for longer than a session."""
    cluster.zookeeper.servers[0].pause()
    time.sleep(BEYOND_A_SESSION_SECONDS)


def filled(choose: Callable[[RunningCluster, str], ClusterBroker]) -> Fault:
    """Its disk is full until it is no longer in sync, for a moment more, and then there is room again."""

    def fault(cluster: RunningCluster, topic: str, chance: Random) -> None:
        broker = choose(cluster, topic)
        filler = broker.data / "filler"
        with filler.open("wb", buffering=0) as file, suppress(OSError):
            while file.write(bytes(1 << 16)):
                pass
        wait_until(
            lambda: not any(broker.broker_id in state.isr for state in cluster.states(topic).values()),
            what="the departure of the broker whose disk is full",
        )
        time.sleep(BRIEFLY_SECONDS)
        filler.unlink()

    return fault


def zookeeper_restored(cluster: RunningCluster, topic: str, chance: Random) -> None:
    """It comes back from a backup that lacks an election, serves for a while, and then somebody restores its newest state."""
    server = cluster.zookeeper.servers[0]
    with tempfile.TemporaryDirectory() as directory:
        backup, newest = Path(directory) / "backup", Path(directory) / "newest"
        server.kill()
        server.back_up(backup)
        server.ensure_serving()
        leader(cluster, topic).kill9()
        cluster.mend()
        cluster.wait_until_healed(topic)
        server.kill()
        server.back_up(newest)
        server.restore(backup)
        server.ensure_serving()
        time.sleep(BEYOND_A_SESSION_SECONDS)
        server.kill()
        server.restore(newest)
        server.ensure_serving()


def put_back(cluster: RunningCluster, topic: str, chance: Random) -> None:
    """All are killed, and the data directory of the first to be back is a copy of an earlier stop."""
    broker = chance.choice(list(cluster.brokers.values()))
    with tempfile.TemporaryDirectory() as directory:
        broker.stop()
        copied = Path(shutil.copytree(broker.data, Path(directory) / "copy"))
        broker.start()
        cluster.wait_until_healed(topic)
        time.sleep(BRIEFLY_SECONDS)
        all_killed(cluster, topic, chance)
        _empty(broker.data)
        shutil.copytree(copied, broker.data, dirs_exist_ok=True)
        broker.start()


def damaged(cluster: RunningCluster, topic: str, chance: Random) -> None:
    """A byte in an old segment of a leader changes, and another broker loses its disk: it asks for what is damaged."""
    broker, other = leader(cluster, topic), follower(cluster, topic)
    state = cluster.state(topic, 0)
    assert state.leader == broker.broker_id, "the first partition has a leader"
    segments = sorted((broker.data / f"{topic}-0").glob("*.log"))[:-2]
    if not segments:
        return  # a run that has just begun
    _damage(chance.choice(segments), chance)
    other.kill9()
    _empty(other.data)
    other.start()
    wait_until(lambda: cluster.state(topic, 0).leader != broker.broker_id, what="another leader than the one that is damaged")
    wait_until(lambda: list(broker.data.glob(f"{topic}-0.*-stray")), what="the damaged log to be set aside")
    for stray in broker.data.glob("*-stray"):
        shutil.rmtree(stray)


def _damage(segment: Path, chance: Random) -> None:
    """One bit of one of its batches."""
    filesystem = FileSystem()
    file = filesystem.open(segment)
    position, header = chance.choice(list(scan_headers(filesystem, file, 0, filesystem.size(file))))
    last = position + header.size - 1
    filesystem.write_some(file, [bytes([filesystem.read_at(file, 1, last)[0] ^ 1])], last)


def _empty(directory: Path) -> None:
    """It may be where a disk is mounted."""
    for path in directory.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def isolated(*, also_from_zookeeper: bool, also_from_peers: bool = True) -> Fault:
    """The leader is cut off from these, while clients still reach it."""

    def fault(cluster: RunningCluster, topic: str, chance: Random) -> None:
        number = leader(cluster, topic).broker_id
        if also_from_peers:
            cluster.isolate(number)
        if also_from_zookeeper:
            cluster.cut_from_zookeeper(number)
        time.sleep(BEYOND_A_SESSION_SECONDS)

    return fault


def cut_one_way(cluster: RunningCluster, topic: str, chance: Random) -> None:
    """One follower's requests do not arrive, or their answers do not."""
    source, target = follower(cluster, topic).broker_id, leader(cluster, topic).broker_id
    way = chance.random() < 0.5
    cluster.cut(source, target, to_target=way, to_client=not way)
    time.sleep(BEYOND_A_SESSION_SECONDS)


def slow(cluster: RunningCluster, topic: str, chance: Random) -> None:
    for source in cluster.brokers:
        for target in cluster.brokers:
            if source != target:
                cluster.slow_down(source, target, SLOW_SECONDS)
    time.sleep(2 * BRIEFLY_SECONDS)


# Faults that need neither proxies nor disks of a broker's own, then those that do.
PROCESS_FAULTS: Mapping[str, Fault] = {
    "leader killed": killed(leader),
    "leader stopped": paused(leader, BEYOND_A_SESSION_SECONDS),
    "follower killed": killed(follower),
    "leader stopped briefly": paused(leader, BRIEFLY_SECONDS),
    "controller killed": killed(controller),
    "ZooKeeper killed": zookeeper_killed,
    "follower stopped": paused(follower, BEYOND_A_SESSION_SECONDS),
    "all killed": all_killed,
    "controller stopped": paused(controller, BEYOND_A_SESSION_SECONDS),
    "leader and controller killed": killed(leader, controller),
    "ZooKeeper stopped": zookeeper_paused,
    "leader and follower killed": killed(leader, follower),
    "rolling restart": restarted_in_turn,
}
DISK_FAULTS: Mapping[str, Fault] = {"leader's disk full": filled(leader), "follower's disk full": filled(follower)}
# What was restored, copied or damaged.
RESTORED_FAULTS: Mapping[str, Fault] = {
    "ZooKeeper from a backup": zookeeper_restored,
    "a directory from a copy": put_back,
    "a damaged byte": damaged,
}
LINK_FAULTS: Mapping[str, Fault] = {
    "leader cut off": isolated(also_from_zookeeper=True),
    "leader cut off from its peers": isolated(also_from_zookeeper=False),
    "leader cut off from ZooKeeper": isolated(also_from_zookeeper=True, also_from_peers=False),
    "one way cut": cut_one_way,
    "slow links": slow,
}
