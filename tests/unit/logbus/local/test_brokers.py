"""How the brokers of a local stack are started; that they run is tested wherever one is used."""

from __future__ import annotations

from pathlib import Path

import pytest
from logbus.local.brokers import LocalBrokers
from logbus.local.processes import Program


def programs(home: Path, count: int) -> list[Program]:
    ports = range(9000, 9000 + LocalBrokers.ports_needed(count))
    return LocalBrokers(home, count=count, environment={}, ports=ports).programs()


def test_one_broker_needs_no_zookeeper_and_keeps_its_place(tmp_path: Path) -> None:
    (program,) = programs(tmp_path, 1)
    assert program.name == "broker"
    assert f"log.dirs={tmp_path}/broker" in program.command
    assert not [word for word in program.command if word.startswith(("zookeeper.", "broker.id"))]


@pytest.mark.parametrize(("count", "replicas"), [(2, 2), (3, 3), (5, 3)])
def test_a_topic_has_three_replicas_where_there_are_so_many_brokers(tmp_path: Path, count: int, replicas: int) -> None:
    for program in programs(tmp_path, count):
        assert f"default.replication.factor={replicas}" in program.command


@pytest.mark.parametrize(
    ("count", "bootstrap", "zookeeper"), [(1, "127.0.0.1:1", None), (2, "127.0.0.1:1,127.0.0.1:2", "127.0.0.1:3")]
)
def test_clients_are_told_of_every_broker(tmp_path: Path, count: int, bootstrap: str, zookeeper: str | None) -> None:
    brokers = LocalBrokers(tmp_path, count=count, environment={}, ports=[1, 2, 3][: LocalBrokers.ports_needed(count)])
    assert brokers.bootstrap_servers == bootstrap
    assert brokers.zookeeper_connect == zookeeper
