"""A cluster of real processes for tests: brokers that share a ZooKeeper, and every way in which one of them can be disturbed.

With links, each broker reaches every other, and ZooKeeper, through a separate proxy (link.py), so that any connection can be cut
or slowed in either direction while clients reach all brokers. What the brokers agree on is read from ZooKeeper, not from a
broker.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from confluent_kafka.admin import AdminClient
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError
from kazoo.retry import KazooRetry
from logbus.cli.processes import ReservedPorts
from logbus.errors import NotInTime
from logbus.waiting import PATIENCE_SECONDS, wait_until

from benchmarks import processes
from benchmarks.peers.cluster import ApacheKafkaOnZooKeeper
from benchmarks.peers.logbus import LogbusBroker
from tests.support.link import Link, PeerLink
from tests.support.small_disk import mounted
from tests.support.zookeeper import RunningZooKeeper

SESSION_MS = 2_000  # a stopped broker's session expires after this; ZooKeeper's ticks in tests allow up to 4 s
_silent = logging.getLogger("tests.kazoo")
_silent.setLevel(logging.CRITICAL)  # ZooKeeper is killed and stopped on purpose
SETTINGS = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "offsets.topic.num.partitions": "6",
    "zookeeper.session.timeout.ms": str(SESSION_MS),
    "replica.lag.time.max.ms": "5000",
    "group.initial.rebalance.delay.ms": "0",
}


def wait_until_all_see(count: int, bootstraps: Iterable[str]) -> None:
    """Wait until each of these brokers lists `count`. A broker answers before that, but refuses a topic of three replicas."""
    for bootstrap in bootstraps:
        # A new client each time: one that lives on asks any broker it has learnt of.
        def sees_all(bootstrap: str = bootstrap) -> bool:
            return len(AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=PATIENCE_SECONDS).brokers) == count

        wait_until(sees_all, what=f"{bootstrap}'s knowledge of {count} brokers")


class State(NamedTuple):
    """A partition's state in ZooKeeper."""

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]


class ClusterBroker(LogbusBroker):
    """One member. It listens for the others on `peer_port`, which they may reach through a proxy."""

    def __init__(self, directory: Path, broker_id: int, *, settings: Mapping[str, str]) -> None:
        super().__init__(directory)
        self.broker_id = broker_id
        self._reserved_for_peers = ReservedPorts(1)
        (self.peer_port,) = self._reserved_for_peers.numbers
        self.link: PeerLink | None = None
        self.zookeeper_link: Link | None = None
        self.settings = {"broker.id": str(broker_id), **settings}
        self.is_paused = False

    def listen_behind(self, link: PeerLink) -> None:
        """Have other brokers connect through this proxy; clients do not."""
        self.link = link
        self.settings |= {
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},PEERS://127.0.0.1:{self.peer_port}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.port},PEERS://127.0.0.1:{link.port}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,PEERS:PLAINTEXT",
            "inter.broker.listener.name": "PEERS",
        }

    def listen_securely(self, zookeeper: RunningZooKeeper, secrets: Path, chroot: str) -> None:
        """Have other brokers log in, on an encrypted listener of theirs, with sessions of six seconds; reach ZooKeeper by TLS, with
        znodes for the brokers only. Clients connect as before, and may do everything."""
        authority = zookeeper.authority
        assert authority is not None, "made without an authority"
        certificate, trusted = str(authority.issue(f"broker-{self.broker_id}")), str(authority.certificate)
        self.settings |= {
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},PEERS://127.0.0.1:{self.peer_port}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,PEERS:SASL_SSL",
            "inter.broker.listener.name": "PEERS",
            "connections.max.reauth.ms": "6000",
            "listener.name.peers.ssl.keystore.location": certificate,
            "listener.name.peers.ssl.truststore.location": trusted,
            "logbus.users.file": str(secrets / "users"),
            "logbus.inter.broker.user": "broker",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:broker;User:ANONYMOUS",
            "zookeeper.connect": f"127.0.0.1:{zookeeper.tls_port}{chroot}",
            "zookeeper.ssl.client.enable": "true",
            "zookeeper.ssl.keystore.location": certificate,
            "zookeeper.ssl.truststore.location": trusted,
            "logbus.zookeeper.auth.file": str(secrets / "zookeeper"),
            "zookeeper.set.acl": "true",
        }

    def release(self) -> None:
        super().release()
        self._reserved_for_peers.release()

    def launch(self) -> None:
        super().launch()
        if self.link is not None:
            with suppress(OSError):  # it may be open already
                self.link.accept()

    def kill9(self) -> None:
        """SIGKILL. The proxy then refuses connections at once, as the kernel would, instead of accepting them first."""
        super().kill9()
        self.is_paused = False
        if self.link is not None:
            self.link.refuse()

    def stop(self) -> int:
        self.resume()
        return super().stop()

    def pause(self) -> None:
        """SIGSTOP: its connections stay open, but nothing is answered."""
        processes.pause(self.pid)
        self.is_paused = True

    def resume(self) -> None:
        if self.is_paused and self.alive:
            os.kill(self.pid, signal.SIGCONT)
        self.is_paused = False


class KafkaMember(ClusterBroker):
    """An Apache Kafka broker instead, to run the same tests against the original."""

    def command(self) -> list[str]:
        listeners = {"listeners": f"PLAINTEXT://{self.bootstrap}"}
        kafka = ApacheKafkaOnZooKeeper(self.directory, settings={**listeners, **self.settings})
        kafka.prepare()
        return kafka.command()


class RunningCluster:
    """`count` brokers with ids from 1 on a running ZooKeeper, in a chroot of their own; a context manager. If the ZooKeeper has an
    authority, they log in at each other and there (`listen_securely`); `password` is theirs."""

    def __init__(
        self,
        directory: Path,
        zookeeper: RunningZooKeeper,
        *,
        count: int = 3,
        chroot: str = "/cluster",
        settings: Mapping[str, str] | None = None,
        has_links: bool = False,
        disk_megabytes: int = 0,
    ) -> None:
        """With `disk_megabytes` each broker has a disk of its own, of that size."""
        self._stack = ExitStack()
        self.zookeeper = zookeeper
        self._connect = f"{zookeeper.connect}{chroot}"
        self._again = KazooRetry(max_tries=-1, delay=0.1, backoff=1, max_delay=0.2, deadline=PATIENCE_SECONDS)
        self.password = uuid.uuid4().hex
        identity = [("digest", f"brokers:{self.password}")]
        self._truth = KazooClient(
            hosts=self._connect, timeout=10.0, connection_retry=self._again.copy(), logger=_silent, auth_data=identity
        )
        member = KafkaMember if os.environ.get("LOGBUS_TEST_BROKER") == "kafka" else ClusterBroker
        self.brokers = {
            number: member(
                directory / str(number), number, settings={"zookeeper.connect": self._connect, **SETTINGS, **(settings or {})}
            )
            for number in range(1, count + 1)
        }
        if zookeeper.authority is not None:
            for name, user in (("users", "broker"), ("zookeeper", "brokers")):
                (directory / name).write_text(f"{user}={self.password}\n")
                (directory / name).chmod(0o600)
            for broker in self.brokers.values():
                broker.listen_securely(zookeeper, directory, chroot)
        if disk_megabytes:
            for broker in self.brokers.values():
                broker.data.mkdir(parents=True)
                self._stack.enter_context(mounted(broker.data, disk_megabytes))
        if has_links:
            for broker in self.brokers.values():
                broker.listen_behind(self._stack.enter_context(PeerLink(broker.peer_port)))
                broker.zookeeper_link = self._stack.enter_context(Link(zookeeper.port))
                broker.settings["zookeeper.connect"] = f"127.0.0.1:{broker.zookeeper_link.port}{chroot}"

    def __enter__(self) -> Self:
        try:
            self.start(self.brokers.values())
            wait_until_all_see(len(self.brokers), (broker.bootstrap for broker in self.brokers.values()))
            self._truth.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        for broker in self.brokers.values():
            if broker.alive:
                broker.kill9()
            broker.release()
        self._truth.stop()
        self._truth.close()
        self._stack.close()

    def start(self, brokers: Iterable[ClusterBroker]) -> None:
        """Start all at the same time; return once each answers."""
        asked = list(brokers)
        for broker in asked:
            broker.prepare()
            broker.launch()
        for broker in asked:
            broker.wait_until_answering()

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.bootstrap for broker in self.brokers.values())

    def logs(self) -> str:
        """The end of each broker's log output."""
        return "\n".join(f"--- broker {number}\n{processes.tail(one.log_path)}" for number, one in self.brokers.items())

    # The truth, from ZooKeeper

    def controller(self) -> int | None:
        """The id of the controller; None if there is none."""
        node = self._node("/controller")
        return None if node is None else int(node["brokerid"])

    def registered(self) -> list[int]:
        """Brokers that have a session."""
        try:
            return sorted(int(name) for name in self._again(self._truth.get_children, "/brokers/ids"))
        except NoNodeError:
            return []

    def topics(self) -> list[str]:
        """All of them, internal ones too."""
        return sorted(self._again(self._truth.get_children, "/brokers/topics"))

    def assignment(self, topic: str) -> dict[int, list[int]]:
        """The replicas of each partition."""
        node = self._node(f"/brokers/topics/{topic}")
        return {} if node is None else {int(index): replicas for index, replicas in node["partitions"].items()}

    def state(self, topic: str, partition: int) -> State:
        node = self._node(f"/brokers/topics/{topic}/partitions/{partition}/state")
        if node is None:
            return State(-1, -1, ())
        return State(node["leader"], node["leader_epoch"], tuple(node["isr"]))

    def states(self, topic: str) -> dict[int, State]:
        return {partition: self.state(topic, partition) for partition in self.assignment(topic)}

    def leaders(self, topic: str) -> dict[int, int]:
        return {partition: state.leader for partition, state in self.states(topic).items()}

    def is_healed(self, topics: Sequence[str]) -> bool:
        """Whether every broker is registered, and every partition of these topics has a leader and all replicas in sync."""
        if self.registered() != sorted(self.brokers):
            return False
        for topic in topics:
            assignment, states = self.assignment(topic), self.states(topic)
            if not assignment or assignment.keys() != states.keys():
                return False
            if any(states[index].leader < 0 or sorted(states[index].isr) != sorted(assignment[index]) for index in states):
                return False
        return True

    def wait_until_healed(self, *topics: str) -> None:
        try:
            wait_until(lambda: self.is_healed(topics), what="the whole cluster")
        except NotInTime as late:
            states = {topic: self.states(topic) for topic in topics}
            raise AssertionError(f"{late}: brokers {self.registered()}, {states}\n{self.logs()}") from None

    def _node(self, path: str) -> dict[str, Any] | None:
        try:
            data, _ = self._again(self._truth.get, path)
        except NoNodeError:
            return None
        return dict(json.loads(data))

    # Faults

    def cut(self, source: int, target: int, *, to_target: bool = True, to_client: bool = True) -> None:
        """Requests from `source` to `target` do not arrive, or their answers do not."""
        self._gates(source, target).hold(to_target=to_target, to_client=to_client)

    def slow_down(self, source: int, target: int, delay_seconds: float) -> None:
        self._gates(source, target).delay_seconds = delay_seconds

    def isolate(self, number: int) -> None:
        """Cut this broker from all others; clients still reach it."""
        for other in self.brokers:
            if other != number:
                self.cut(other, number)
                self.cut(number, other)

    def cut_from_zookeeper(self, number: int) -> None:
        link = self.brokers[number].zookeeper_link
        assert link is not None, "made without links"
        link.hold()

    def mend(self) -> None:
        """End all faults: links pass everything, and ZooKeeper and every broker run."""
        for server in self.zookeeper.servers:
            server.ensure_serving()
        for broker in self.brokers.values():
            for link in (broker.link, broker.zookeeper_link):
                if link is not None and broker.alive:
                    link.let_go()
            broker.resume()
        self.start(broker for broker in self.brokers.values() if not broker.alive)

    def _gates(self, source: int, target: int) -> Any:
        link = self.brokers[target].link
        assert link is not None, "made without links"
        return link.gates_of(f"broker-{source}")
