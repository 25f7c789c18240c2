"""Every file system call fails once, at each place where it is made while clients work: full disk, broken disk, no more
descriptors. The same process keeps serving, and all works again once the fault is gone, without a restart, except for a partition
whose flush failed: that one is offline, /health reports it, and a restart brings back everything that had been visible.

The places are learnt from a run without faults, so a new file system call is tested automatically. The broker is
`tests.support.saboteur`: the real process over a file system that fails on demand.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError
from logbus.waiting import wait_until
from logbus_broker.logs import BROKER_BUG

from tests.support.killing import PARTITIONS, Sender
from tests.support.sabotaged_broker import SabotagedBroker
from tests.support.saboteur import AFTER, BEFORE, PARTLY
from tests.support.scene import Scene, health
from tests.support.topics import create_topic, read_topic
from tests.support.workload import BUSY, KEYED, PLAIN, Workload

ERRORS = ("ENOSPC", "EIO", "EMFILE")
# The calls that put a file or a directory on the disk; if one fails, its partition cannot continue.
FLUSHES = {"sync_data", "sync_directory", "flush_in_kernel"}
REFUSED_FOR_A_WHILE = {
    "ENOSPC": ("write_some", "write_bytes", "make_directory"),
    "EIO": ("write_some", "write_bytes", "make_directory"),
    "EMFILE": ("open", "open_for_reading", "read_bytes", "write_bytes", "sync_directory", "list_names"),
}
LEARNT_ROUNDS = 25
ROUNDS_MAX = 60
SAMPLE = 16  # cases of the default run; a case takes about half a second, a failed flush a restart. `make soak` runs all

Case = tuple[str, str, str, str, int]  # call, kind of file, error, when, calls that succeed first


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    scene = Scene(tmp_path_factory.mktemp("refusals"))
    yield scene
    scene.strike()


@pytest.fixture(scope="module")
def cases(scene: Scene) -> list[Case]:
    """Every place, error and moment, in the same order in every run."""
    with scene as (broker, workload, _):
        broker.counts()  # discards the calls made by the start
        for _ in range(LEARNT_ROUNDS):
            workload.round()
        assert not workload.errors, workload.errors
        places = {place: count for place, count in broker.counts().items() if count > 1}  # one call may not recur
    chance = random.Random(2011)
    cases = [
        (call, where, error, when, chance.randrange(min(count // 4, 5) + 1))
        for (call, where), count in sorted(places.items())
        for error in ERRORS
        for when in ([BEFORE, PARTLY] if call == "write_some" else [BEFORE, AFTER] if call in FLUSHES else [BEFORE])
    ]
    chance.shuffle(cases)
    return cases


def test_a_refusal_anywhere_costs_single_requests(scene: Scene, cases: list[Case]) -> None:
    assert len(cases) > SAMPLE
    refuse_all(scene, cases[:SAMPLE])


@pytest.mark.long
@pytest.mark.timeout(3_600)
def test_every_refusal_everywhere_costs_single_requests(scene: Scene, cases: list[Case]) -> None:
    refuse_all(scene, cases)


def refuse_all(scene: Scene, cases: list[Case]) -> None:
    """Run all of them, then report which were not survived."""
    failed = {}
    for case in cases:
        try:
            refuse(scene, *case)
        except (AssertionError, OSError) as failure:
            failed[case] = str(failure).partition("\n")[0]
    assert not failed, f"{len(failed)} of {len(cases)}:\n" + "\n".join(f"{case}: {why}" for case, why in failed.items())


def refuse(scene: Scene, call: str, where: str, error: str, when: str, skip: int) -> None:
    with scene as (broker, workload, bystanders):
        pid, log_bytes = broker.pid, broker.log_bytes
        broker.fail(call, where, error=error, when=when, skip=skip)
        for _ in range(ROUNDS_MAX):
            workload.round()
            if not broker.left:
                break
        broker.forget()
        assert (broker.pid, broker.alive) == (pid, True)
        assert bystanders.lost() == 0
        offline = scene.all_is_well()
        assert not offline or call in FLUSHES, f"{offline} went offline for no flush"
        assert len(offline) <= 1, f"{offline} went offline"
        log = broker.log_since(log_bytes)
        assert BROKER_BUG not in log, log[log.index(BROKER_BUG) - 500 :][:3_000]


@pytest.mark.parametrize("error", ERRORS)
def test_a_write_that_can_neither_be_made_nor_taken_back_takes_its_partition_offline(scene: Scene, error: str) -> None:
    with scene as (broker, workload, bystanders):
        broker.fail("truncate", "plain/*.log", error=error)
        broker.fail("write_some", "plain/*.log", error=error, when=PARTLY)
        while broker.left:
            workload.round()
        assert [topic for topic, _ in workload.offline()] == [PLAIN]
        assert bystanders.lost() == 0
        assert len(scene.all_is_well()) == 1


@pytest.mark.parametrize("error", ERRORS)
def test_a_disk_that_refuses_everything_for_a_while_is_forgiven(scene: Scene, error: str) -> None:
    """Nothing can be written for ten rounds, then it can again: what was read in between was right, and everything works on."""
    with scene as (broker, workload, bystanders):
        pid, committed = broker.pid, workload.committed
        for call in REFUSED_FOR_A_WHILE[error]:
            broker.fail(call, "*", error=error, times=1_000_000)
        for _ in range(10):
            workload.round()
        assert workload.errors, "the disk was full"
        wait_until(lambda: health(broker)[0] == 503, what="/health that says checkpoints fail")
        if error != "EMFILE":  # with EMFILE, open files still take writes, and others cannot even be read
            workload.check()
            assert workload.committed == committed
        broker.forget()
        assert scene.all_is_well() == []
        assert bystanders.lost() == 0
        assert (broker.pid, broker.alive) == (pid, True)


def test_compaction_goes_on_after_a_refusal(scene: Scene) -> None:
    with scene as (broker, workload, _):
        broker.fail("open", f"{KEYED}/*.cleaned", error="ENOSPC", times=3)
        wait_until(lambda: workload.works() and not broker.left, what="the failed compaction, and a round without an error")
        assert scene.all_is_well() == []


def test_stock_clients_live_through_refusals(tmp_path: Path) -> None:
    """An idempotent producer that retries as an application's would: each of its records is stored once and in order."""
    chance = random.Random(2011)
    calls = [("write_some", "sent/*"), ("open", "sent/*"), ("write_bytes", "*"), ("replace_bytes", "*"), ("read_at", "*")]
    settings = {**BUSY, "log.segment.bytes": "200000", "logbus.acks.all.waits.for.flush": "false"}
    with SabotagedBroker(tmp_path / "broker", settings=settings) as broker:
        create_topic(broker.bootstrap, "sent", partitions=PARTITIONS)
        with Sender(broker.bootstrap, "sent") as sender:
            for _ in range(20):
                target = len(sender.acknowledged) + 500
                wait_until(lambda: len(sender.acknowledged) >= target, what="the next acknowledged records")  # noqa: B023
                call, where = chance.choice(calls)
                broker.fail(call, where, error=chance.choice(ERRORS), skip=chance.randrange(3))
            broker.forget()
        assert [error for error in sender.failures if error.code() != KafkaError._PURGE_INFLIGHT] == []
        for partition, messages in read_topic(broker.bootstrap, "sent").items():
            assert [message.value() for message in messages] == sender.sent[partition]
        with Workload(broker.bootstrap) as workload:
            assert workload.works()
        # What was refused for want of room is tried again from time to time.
        wait_until(lambda: health(broker)[0] == 200, what="/health that has nothing to say")
