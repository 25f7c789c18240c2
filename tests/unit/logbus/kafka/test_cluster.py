"""Problems of a cluster, seen in its brokers' responses, and the client that asks for them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from kafka import errors as theirs
from kafka.errors import KafkaConnectionError
from logbus.errors import AccessDenied, BrokerUnavailable, LogbusError, NotAskable
from logbus.kafka import cluster
from logbus.kafka.client import Client
from logbus.status.checks import GIB, room, takes


def answered(index: int, leader: int, replicas: list[int], isr: list[int]) -> dict[str, Any]:
    return {"partition_index": index, "leader_id": leader, "replica_nodes": replicas, "isr_nodes": isr}


CLICKS = [answered(1, -1, [3], [3]), answered(0, 1, [1, 2, 3], [1, 2]), answered(2, 2, [4, 2, 1], [2, 1])]
TOPICS = [{"name": "views", "partitions": [answered(0, 1, [1, 2], [1, 2])]}, {"name": "clicks", "partitions": CLICKS}]
MOVING = {("clicks", 2): {"adding_replicas": [4], "removing_replicas": [1]}}


PARTITIONS = list(cluster.partition_replicas(TOPICS, {("clicks", 0): (3,)}, MOVING))
CLUSTER = cluster.ClusterFacts(cluster_id="c", controller=1, brokers=[], partitions=PARTITIONS)


# In a process that has not imported kafka-python yet, whose modules import each other, and in which each takes a moment.
ASKED_AT_ONCE = """
import sys, time
from threading import Barrier, Thread
from logbus.kafka import cluster

class Reached(Exception): ...

class Client:
    ask_cluster = None
    def ask(self, question): raise Reached

class Slow:
    def find_spec(self, name, path, target=None):
        time.sleep(0.01 if name.startswith("kafka.") else 0)

def begin(client): raise Reached

def check(ask):
    start.wait()
    try:
        ask()
    except Reached:
        reached.append(ask)

sys.meta_path.insert(0, Slow())
start, reached = Barrier(2), []
asks = [lambda: cluster.cluster_facts(Client(), begin), lambda: cluster.admin_client(Client()).__enter__()]
threads = [Thread(target=check, args=(ask,)) for ask in asks]
for thread in threads: thread.start()
for thread in threads: thread.join()
sys.exit(len(asks) - len(reached))
"""


def test_two_checks_may_be_the_first_to_ask_at_the_same_time() -> None:
    done = subprocess.run([sys.executable, "-c", ASKED_AT_ONCE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def ids(partitions: Sequence[cluster.PartitionReplicas]) -> list[tuple[str, int]]:
    return [(part.topic, part.partition) for part in partitions]


def test_partitions_come_in_the_order_of_topics_and_numbers() -> None:
    assert ids(PARTITIONS) == [("clicks", 0), ("clicks", 1), ("clicks", 2), ("views", 0)]


def test_a_partition_without_a_leader_is_offline_and_one_that_lacks_a_replica_under_replicated() -> None:
    assert ids(CLUSTER.offline) == [("clicks", 1)]
    assert ids(CLUSTER.under_replicated) == [("clicks", 0)]


def test_a_replica_that_is_being_added_is_not_missing_before_it_is_in_sync() -> None:
    (moving,) = CLUSTER.moving
    assert (ids([moving]), moving.adding, moving.removing) == ([("clicks", 2)], (4,), (1,))
    assert not moving.is_under_replicated


def test_eligible_replicas_are_unknown_where_the_broker_does_not_report_them() -> None:
    assert [part.eligible for part in PARTITIONS] == [(3,), None, None, None]


def test_each_broker_is_counted_by_what_it_has_leads_and_lacks() -> None:
    assert (CLUSTER.counts(1), CLUSTER.counts(3)) == ((3, 2, 0), (2, 0, 1))


class Pages:
    """A broker that describes one topic per response."""

    def describe_topic_partitions(self, names: list[str], cursor: dict[str, Any] | None = None) -> dict[str, Any]:
        name = cursor["topic_name"] if cursor else names[0]
        row = {"name": name, "partitions": [{"partition_index": 0, "eligible_leader_replicas": [len(name)]}]}
        rest = names[names.index(name) + 1 :]
        return {"topics": [row], "next_cursor": {"topic_name": rest[0], "partition_index": 0} if rest else None}


def test_eligible_replicas_of_a_large_cluster_come_in_pages() -> None:
    assert cluster.eligible_replicas(Pages(), ["a", "bb", "ccc"]) == {("a", 0): (1,), ("bb", 0): (2,), ("ccc", 0): (3,)}
    assert cluster.eligible_replicas(Pages(), []) == {}


class Brokers:
    """Admin clients, the first of which pick a dead broker."""

    def __init__(self, refused: int, *, has_dead_controller: bool = False) -> None:
        self.refused = refused
        self.has_dead_controller = has_dead_controller
        self.asked = 0

    @contextmanager
    def begin(self, client: Client) -> Iterator[Brokers]:
        self.asked += 1
        yield self

    def describe_cluster(self) -> dict[str, Any]:
        if self.asked <= self.refused:
            raise KafkaConnectionError("111 ECONNREFUSED")
        return {"cluster_id": "c", "controller_id": 1, "brokers": [{"broker_id": 1, "host": "h", "port": 1, "rack": None}]}

    def describe_topics(self) -> list[dict[str, Any]]:
        return []

    def list_partition_reassignments(self) -> dict[str, Any]:
        if self.has_dead_controller:
            raise KafkaConnectionError("111 ECONNREFUSED")
        return {}

    def describe_log_dirs(self, brokers: list[int]) -> list[dict[str, Any]]:
        if self.has_dead_controller:
            raise KafkaConnectionError("111 ECONNREFUSED")
        raise theirs.ClusterAuthorizationFailedError


def test_a_broker_that_died_a_moment_ago_does_not_hide_the_others() -> None:
    brokers = Brokers(refused=2)
    assert cluster.cluster_facts(Client({}), brokers.begin).controller == 1
    assert brokers.asked == 3


def test_a_dead_controller_that_nobody_replaces_is_named_and_hides_nothing_but_moves() -> None:
    facts = cluster.cluster_facts(Client({}), Brokers(refused=0, has_dead_controller=True).begin)
    assert (facts.controller, facts.unreachable) == (1, [1])


def test_an_error_of_every_broker_is_raised() -> None:
    brokers = Brokers(refused=100)
    with pytest.raises(BrokerUnavailable, match="ECONNREFUSED"):
        cluster.cluster_facts(Client({"bootstrap.servers": "h:1"}), brokers.begin)
    assert brokers.asked == cluster.TRIES


def directory(**changes: Any) -> cluster.DirectoryReading:
    values = {"broker_id": 0, "path": "/log", "total_bytes": 100 * GIB, "usable_bytes": 50 * GIB, "partition_bytes": {}}
    return cluster.DirectoryReading(**{**values, **changes})


def test_an_answer_becomes_sizes_by_partition_and_what_a_broker_does_not_know_is_none() -> None:
    topics = [{"name": "t", "partitions": [{"partition_index": 1, "partition_size": 7}]}]
    found = cluster.log_directory(2, {"log_dir": "/log", "topics": topics, "total_bytes": -1})
    assert found == directory(broker_id=2, total_bytes=None, usable_bytes=None, partition_bytes={("t", 1): 7})
    larger = directory(partition_bytes={("t", 1): 9, ("t", 0): 1})
    assert cluster.partition_bytes([found, larger]) == {("t", 1): 9, ("t", 0): 1}


@pytest.mark.parametrize(
    ("changes", "severity"),
    [
        ({}, "ok"),
        ({"usable_bytes": 15 * GIB}, "ok"),
        ({"usable_bytes": 14 * GIB}, "warning"),
        ({"usable_bytes": 4 * GIB}, "error"),
        ({"usable_bytes": 0}, "error"),
        ({"total_bytes": None}, "note"),
    ],
)
def test_a_disk_that_fills_is_reported_before_it_is_full(changes: dict[str, Any], severity: str) -> None:
    assert str(room(directory(**changes)).severity) == severity


def test_a_request_is_taken_in_a_version_or_not_at_all() -> None:
    versions = {"Fetch": (4, 17)}
    assert [takes(versions, "Fetch", 4), takes(versions, "Fetch", 18), takes(versions, "Produce", 3)] == [True, False, False]


def test_settings_of_librdkafka_become_those_of_kafka_python_and_others_are_left_out() -> None:
    config = {"bootstrap.servers": "b:1", "security.protocol": "sasl_plaintext", "sasl.mechanism": "plain", "linger.ms": 5}
    found = {"bootstrap_servers": "b:1", "security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN"}
    assert cluster.translated(config) == found


@pytest.mark.parametrize(
    ("protocol", "mechanism", "setting", "is_asked"),
    [
        ("SSL", "", "ssl.keystore.location", False),
        ("sasl_ssl", "PLAIN", "enable.ssl.certificate.verification", True),
        ("PLAINTEXT", "", "ssl.keystore.location", True),
        ("SASL_PLAINTEXT", "oauthbearer", "sasl.oauthbearer.method", False),
        ("SASL_PLAINTEXT", "PLAIN", "sasl.oauthbearer.method", True),
        ("SASL_PLAINTEXT", "PLAIN", "sasl.kerberos.service.name", True),
    ],
)
def test_a_setting_that_decides_how_to_connect_and_has_no_counterpart_is_named(
    protocol: str, mechanism: str, setting: str, is_asked: bool
) -> None:
    config = {"bootstrap.servers": "b:1", "security.protocol": protocol, "sasl.mechanism": mechanism, setting: "oidc"}
    if is_asked:
        assert cluster.translated(config)["bootstrap_servers"] == "b:1"
    else:
        with pytest.raises(NotAskable, match=f"unknown: this setting has no counterpart in kafka-python.*{setting}"):
            cluster.translated(config)


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (theirs.SaslAuthenticationFailedError("no such user"), AccessDenied, "authentication with"),
        (theirs.ClusterAuthorizationFailedError(), AccessDenied, "lacks Describe on the cluster"),
        (theirs.KafkaConnectionError("111 ECONNREFUSED"), BrokerUnavailable, "ECONNREFUSED"),
        (OSError(58, "not an error of Kafka's"), BrokerUnavailable, "not an error of Kafka's"),
    ],
)
def test_errors_of_kafka_python_are_explained_by_the_same_table(error: Exception, kind: type[LogbusError], words: str) -> None:
    found = cluster.explained(Client({"bootstrap.servers": "b:1"}), error)
    assert type(found) is kind
    assert words in str(found)
    assert "b:1" in str(found) or kind is AccessDenied


def test_without_a_broker_the_error_names_its_address() -> None:
    with (
        pytest.raises(BrokerUnavailable, match=r"127\.0\.0\.1:1 did not answer"),
        cluster.admin_client(Client({"bootstrap.servers": "127.0.0.1:1"}, timeout_seconds=0.1)),
    ):
        pass
