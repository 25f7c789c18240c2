"""A consumer group with the smallest session timeout that Kafka allows loses no member, whatever large requests others make.

The loads are those of `make bench NAME=fairness`, in full size; each meets its own broker.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from benchmarks.fairness import PARTS, SETTINGS, TAIL_SECONDS, Part
from benchmarks.loads import FULL
from benchmarks.peers.logbus import LogbusBroker
from tests.support.consumers import GroupMember, poll_until, produce_numbers, shared_out
from tests.support.topics import create_topic

SESSION_MS = 6_000
HEARTBEAT_MS = 1_500
PARTITIONS = 4
JOINS_AT_ONCE = {"group.initial.rebalance.delay.ms": "100"}


HEAVY = (
    "3,000 partitions created",
    "a topic grown to 3,000 partitions",
    "3,000 partitions deleted",
    "records deleted in 2,000 partitions",
    "first append to 1,000 partitions after a crash",
)


def loads() -> Iterator[ParameterSet]:
    """Loads of ten seconds and more are left to `make soak`."""
    for part in PARTS:
        yield pytest.param(part, id=part.name.replace(" ", "-"), marks=[pytest.mark.long] if part.name in HEAVY else [])


@pytest.mark.parametrize("part", list(loads()))
def test_a_group_keeps_its_members_while(part: Part, tmp_path: Path) -> None:
    everything = {("steady", index) for index in range(PARTITIONS)}
    with LogbusBroker(tmp_path / "broker", settings={**SETTINGS, **JOINS_AT_ONCE, **part.settings}) as broker:
        create_topic(broker.bootstrap, "steady", partitions=PARTITIONS)
        act = part.prepare(broker, FULL)
        settings = {"session_timeout_ms": SESSION_MS, "heartbeat_interval_ms": HEARTBEAT_MS}
        members = [GroupMember(broker.bootstrap, ["steady"], group="steady", **settings) for _ in range(2)]
        try:
            poll_until(lambda: shared_out(everything, *members), *members)
            assignments = [member.assignments for member in members]
            while_polling(act, members)
            assert [member.assignments for member in members] == assignments, "a rebalance"
            sent = produce_numbers(broker.bootstrap, "steady", PARTITIONS, 10)
            poll_until(lambda: sum(member.records.total() for member in members) >= len(sent), *members)
            assert [member.assignments for member in members] == assignments, "a rebalance"
            assert [member.errors for member in members] == [[], []]
            assert sum((member.records for member in members), start=type(members[0].records)()) == dict.fromkeys(sent, 1)
        finally:
            for member in members:
                member.close()


def while_polling(act: Callable[[], object], members: list[GroupMember]) -> None:
    """Act in another thread while the members poll until a heartbeat after its end: work that follows an answer counts."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            act()
        except BaseException as failure:
            failures.append(failure)
        time.sleep(max(TAIL_SECONDS, HEARTBEAT_MS / 1000))

    thread = threading.Thread(target=run)
    thread.start()
    poll_until(lambda: not thread.is_alive(), *members)
    thread.join()
    if failures:
        raise failures[0]
