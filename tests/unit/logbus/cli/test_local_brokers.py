"""How the brokers of a local stack are started; that they run is tested wherever one is used."""

from __future__ import annotations

from pathlib import Path

import pytest
from logbus.cli.local_brokers import LocalBrokers, ZooKeeperServer, mode, zookeeper_program
from logbus.cli.processes import Program, StackError


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


def test_an_ensemble_is_told_of_all_its_servers(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").touch()
    servers = [
        ZooKeeperServer(directory=tmp_path / str(n), server_id=n, port=n, quorum_port=10 + n, election_port=20 + n)
        for n in (1, 2)
    ]
    for server in servers:
        program = zookeeper_program(server, environment={"JAVA_HOME": str(tmp_path)}, run_directory=tmp_path, ensemble=servers)
        lines = (server.directory / "zoo.cfg").read_text().splitlines()
        assert "server.1=127.0.0.1:11:21" in lines
        assert "server.2=127.0.0.1:12:22" in lines
        assert f"clientPort={server.port}" in lines
        assert (server.directory / "data" / "myid").read_text() == f"{server.server_id}\n"
        assert program.command[0] == str(tmp_path / "bin" / "java")
        assert program.command[-1] == str(server.directory / "zoo.cfg")


@pytest.mark.parametrize("environment", [{"PATH": ""}, {"JAVA_HOME": "/no/such/java"}])
def test_without_java_the_error_says_what_to_install(tmp_path: Path, environment: dict[str, str]) -> None:
    server = ZooKeeperServer(directory=tmp_path, port=1)
    with pytest.raises(StackError, match="install one, such as"):
        zookeeper_program(server, environment=environment, run_directory=tmp_path)


def test_a_spark_without_zookeeper_is_told(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").touch()
    environment = {"JAVA_HOME": str(tmp_path), "SPARK_HOME": str(tmp_path)}
    with pytest.raises(StackError, match="has no ZooKeeper"):
        zookeeper_program(ZooKeeperServer(directory=tmp_path, port=1), environment=environment, run_directory=tmp_path)


def test_where_nothing_listens_there_is_no_mode() -> None:
    assert mode(1) is None
