"""How a local ZooKeeper is started; that it runs is tested wherever one is used."""

from __future__ import annotations

from pathlib import Path

import pytest
from logbus.local.processes import StackError
from logbus.local.zookeeper import ZooKeeperServer, mode, zookeeper_program


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
    with pytest.raises(StackError, match="there is no ZooKeeper in"):
        zookeeper_program(ZooKeeperServer(directory=tmp_path, port=1), environment=environment, run_directory=tmp_path)


def test_where_nothing_listens_there_is_no_mode() -> None:
    assert mode(1) is None
