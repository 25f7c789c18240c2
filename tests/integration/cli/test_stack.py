"""The ports of a local stack: the same at every start, with a note when that is not possible."""

from __future__ import annotations

import json
import os
import socket
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from logbus.cli.local_brokers import LocalBrokers
from logbus.cli.processes import ReservedPorts
from logbus.cli.secure_home import SecureHome
from logbus.cli.stack import PORTS_FILE, LocalStack
from logbus.waiting import PATIENCE_SECONDS, wait_until

from tests.support.topics import send


def stack_in(home: Path, *, ports: tuple[int, ...] = ()) -> LocalStack:
    return LocalStack(home, project=home, environment={}, ports=ports)


def test_a_stack_takes_the_ports_of_its_last_start_before_those_that_are_easy_to_remember(tmp_path: Path) -> None:
    with ReservedPorts(3) as free:
        airflow, broker, memorable = free.numbers
    (tmp_path / PORTS_FILE).write_text(json.dumps([airflow, broker]))
    with stack_in(tmp_path, ports=(memorable, memorable)) as stack:
        assert (stack.bootstrap_servers, stack.notes()) == (f"127.0.0.1:{broker}", [])


def test_a_broker_that_cannot_have_its_port_says_who_holds_it_and_where_it_is(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, ReservedPorts(1) as free:
        taken = server.getsockname()[1]
        (tmp_path / PORTS_FILE).write_text(json.dumps([free.numbers[0], taken]))
        with stack_in(tmp_path) as stack:
            (note,) = stack.notes()
            assert f"port {taken} is taken by process {os.getpid()} (" in note
            assert f"the broker is at {stack.bootstrap_servers.partition(':')[2]} this time" in note


@pytest.mark.parametrize("noted", ["", "not json", "[8080]", '{"broker": 1}', "[8080, 0]", '["8080", "9092"]'])
def test_what_is_not_a_note_of_ports_is_passed_over(noted: str, tmp_path: Path) -> None:
    with ReservedPorts(2) as free:
        wanted = tuple(free.numbers)
    (tmp_path / PORTS_FILE).write_text(noted)
    with stack_in(tmp_path, ports=wanted) as stack:
        assert stack.bootstrap_servers == f"127.0.0.1:{wanted[1]}"


def test_three_brokers_take_a_topic_of_three_replicas_at_once_and_survive_one_that_is_killed(tmp_path: Path) -> None:
    """Secured ones: they log in at each other, and keep ZooKeeper to themselves."""
    said: list[str] = []
    with ReservedPorts(LocalBrokers.ports_needed(3)) as reserved:
        brokers = LocalBrokers(
            tmp_path,
            count=3,
            environment=os.environ,
            ports=reserved.numbers,
            security=SecureHome(tmp_path),
            say=said.append,
        )
        try:
            brokers.start()
            for number, port in enumerate(reserved.numbers[:3]):
                topic = NewTopic(f"t{number}", num_partitions=1, replication_factor=3)
                client = AdminClient({**brokers.client_config, "bootstrap.servers": f"127.0.0.1:{port}"})
                client.create_topics([topic], operation_timeout=PATIENCE_SECONDS)[topic.topic].result(PATIENCE_SECONDS)
                send(f"127.0.0.1:{port}", topic.topic, [{"value": "one"}], {**brokers.client_config, "acks": "all"})
            said.clear()
            for child in psutil.Process().children(recursive=True):
                with suppress(psutil.Error):  # another one ends meanwhile
                    if child.cmdline()[1:3] == ["-m", "logbus_broker"] and "broker.id=2" in child.cmdline():
                        child.kill()
            wait_until(lambda: brokers.keep_up() or said, what="the end of broker 2")
            brokers.raise_if_ended()
            assert "broker-2 ended with status" in said[0]
            for port in (reserved.numbers[0], reserved.numbers[1]):  # a survivor, and the one that is started again
                send(f"127.0.0.1:{port}", "t1", [{"value": "two"}], {**brokers.client_config, "acks": "all"})
        finally:
            brokers.stop()
