"""A cluster whose ZooKeeper, or one of whose disks, is not the one that ran last."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from confluent_kafka import KafkaException, Producer
from logbus.waiting import PATIENCE_SECONDS, wait_until

from tests.support.clusters import ClusterBroker, RunningCluster
from tests.support.ordeal import create_replicated
from tests.support.topics import read_partition
from tests.support.zookeeper import RunningZooKeeper

BEFORE, AFTER = "before", "after"  # the backup
WAITS_FOR_FLUSH = {"logbus.acks.all.waits.for.flush": "true"}


def send(bootstrap: str, topic: str, count: int, *, start: int = 0) -> None:
    """To partition 0, each acknowledged by all."""
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": True})
    for number in range(start, start + count):
        producer.produce(topic, b"%d" % number, partition=0)
    assert producer.flush(PATIENCE_SECONDS) == 0


def values(bootstrap: str, topic: str) -> list[bytes | None]:
    """A broker may learn a moment after ZooKeeper who leads."""

    def read() -> list[bytes | None]:
        return [message.value() for message in read_partition(bootstrap, topic, 0)]

    return wait_until(read, what=f"a leader of {topic}", not_yet=KafkaException)


def recover(broker: ClusterBroker, *words: str) -> str:
    settings = [word for name, value in broker.settings.items() for word in ("--override", f"{name}={value}")]
    command = [sys.executable, "-m", "logbus_broker", "recover", *settings, "--override", f"log.dirs={broker.data}", *words]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def strays(brokers: Sequence[ClusterBroker]) -> list[list[str]]:
    return [
        sorted(path.name.partition(".")[0] for path in broker.data.iterdir() if path.name.endswith("-stray"))
        for broker in brokers
    ]


def test_a_zookeeper_from_a_backup_is_not_obeyed_and_accepting_it_deletes_nothing(tmp_path: Path) -> None:
    with RunningZooKeeper() as zookeeper, RunningCluster(tmp_path, zookeeper) as cluster:
        brokers, server = list(cluster.brokers.values()), zookeeper.servers[0]
        create_replicated(cluster, BEFORE, 1)
        send(cluster.bootstrap, BEFORE, 100)
        server.kill()
        server.back_up(tmp_path / "backup")
        server.ensure_serving()
        create_replicated(cluster, AFTER, 1)
        send(cluster.bootstrap, AFTER, 100)
        server.kill()
        server.restore(tmp_path / "backup")
        server.ensure_serving()

        # Running brokers: none of them acts on it.
        for broker in brokers:
            wait_until(
                lambda broker=broker: "Nothing of it is obeyed" in broker.log_path.read_text(),
                what=f"{broker.broker_id} to see it",
            )
        assert all((broker.data / f"{AFTER}-0").is_dir() for broker in brokers)
        assert len(values(cluster.bootstrap, AFTER)) == 100

        # Nor does one that starts.
        for broker in brokers:
            broker.kill9()
        brokers[0].launch()
        wait_until(lambda: not brokers[0].alive, what="the start to be given up")
        assert "restored from a backup" in brokers[0].log_path.read_text()[-3_000:]
        assert f"    {AFTER}-0" in recover(brokers[0])
        assert (brokers[0].data / f"{AFTER}-0").is_dir()

        # An operator who has no other state accepts it.
        assert "start every broker again" in recover(brokers[0], "--accept")
        cluster.start(brokers)
        cluster.wait_until_healed(BEFORE)
        assert len(values(cluster.bootstrap, BEFORE)) == 100
        assert strays(brokers) == [[f"{AFTER}-0"]] * 3
        send(cluster.bootstrap, BEFORE, 10, start=100)  # with producer ids that nobody had
        assert len(values(cluster.bootstrap, BEFORE)) == 110


def test_a_directory_from_a_copy_neither_leads_nor_is_vouched_for(tmp_path: Path) -> None:
    with RunningZooKeeper() as zookeeper, RunningCluster(tmp_path, zookeeper, settings=WAITS_FOR_FLUSH) as cluster:
        brokers = list(cluster.brokers.values())
        create_replicated(cluster, BEFORE, 1)
        send(cluster.bootstrap, BEFORE, 50)
        assert brokers[0].stop() == 0
        shutil.copytree(brokers[0].data, tmp_path / "copy")
        brokers[0].start()
        cluster.wait_until_healed(BEFORE)
        send(cluster.bootstrap, BEFORE, 50, start=50)
        for broker in brokers:
            broker.kill9()
        shutil.rmtree(brokers[0].data)
        (tmp_path / "copy").rename(brokers[0].data)
        brokers[0].start()  # first, and with half of the records
        cluster.start(brokers[1:])
        cluster.wait_until_healed(BEFORE)
        assert len(values(cluster.bootstrap, BEFORE)) == 100
