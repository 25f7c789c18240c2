"""A consumer group with the session timeout that Kafka allows at the least loses no member while administrators ask for much."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from tests.support.broker import LogbusBroker
from tests.support.consumers import GroupMember, poll_until, produce_numbers, shared_out
from tests.support.topics import create_topic

SESSION_MS = 6_000
HEARTBEAT_MS = 1_500
PARTITIONS = 4
TOPICS = 1_000
WIDE = 3_000
REQUEST_SECONDS_MAX = 120.0
GROUP = "steady"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LogbusBroker]:
    settings = {"group.initial.rebalance.delay.ms": "100", "logbus.partitions.max": "20000"}
    with LogbusBroker(tmp_path_factory.mktemp("admin") / "broker", settings=settings) as running:
        create_topic(running.bootstrap, "steady", partitions=PARTITIONS)
        yield running


def test_a_group_keeps_its_members_while_thousands_of_partitions_come_and_go(broker: LogbusBroker) -> None:
    everything = {("steady", index) for index in range(PARTITIONS)}
    settings = {"session_timeout_ms": SESSION_MS, "heartbeat_interval_ms": HEARTBEAT_MS}
    members = [GroupMember(broker.bootstrap, ["steady"], group=GROUP, **settings) for _ in range(2)]
    try:
        poll_until(lambda: shared_out(everything, *members), *members)
        assignments = [member.assignments for member in members]
        for what, work in administration(broker.bootstrap).items():
            while_polling(work, members)
            assert [member.assignments for member in members] == assignments, f"a rebalance while {what}"
        sent = produce_numbers(broker.bootstrap, "steady", PARTITIONS, 10)
        poll_until(lambda: sum(member.records.total() for member in members) >= len(sent), *members)
        assert [member.assignments for member in members] == assignments
        assert [member.errors for member in members] == [[], []]
        assert sum((member.records for member in members), start=type(members[0].records)()) == dict.fromkeys(sent, 1)
    finally:
        for member in members:
            member.close()


def administration(bootstrap: str) -> dict[str, Callable[[], None]]:
    """What a setup script asks for, each as one request."""
    client = AdminClient({"bootstrap.servers": bootstrap})
    names = [f"set-up-{number}" for number in range(TOPICS)]

    def settled(futures: dict[str, object]) -> None:
        for future in futures.values():
            future.result(REQUEST_SECONDS_MAX)  # type: ignore[attr-defined]

    def asked(timeout: float = REQUEST_SECONDS_MAX) -> dict[str, float]:
        return {"request_timeout": timeout, "operation_timeout": timeout}

    return {
        "1,000 topics are created": lambda: settled(client.create_topics([NewTopic(name, 1) for name in names], **asked())),
        "3,000 partitions are created": lambda: settled(client.create_topics([NewTopic("wide", WIDE)], **asked())),
        "a topic is made for growing": lambda: settled(client.create_topics([NewTopic("grown", 1)], **asked())),
        "a topic grows to 3,000 partitions": lambda: settled(client.create_partitions([NewPartitions("grown", WIDE)], **asked())),
        "6,000 partitions are deleted": lambda: settled(client.delete_topics(["wide", "grown"], **asked())),
        "1,000 topics are deleted": lambda: settled(client.delete_topics(names, **asked())),
    }


def while_polling(work: Callable[[], None], members: list[GroupMember]) -> None:
    """Work in another thread, and let the members poll until it is done."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as failure:
            failures.append(failure)

    thread = threading.Thread(target=run)
    thread.start()
    poll_until(lambda: not thread.is_alive(), *members)
    thread.join()
    if failures:
        raise failures[0]
