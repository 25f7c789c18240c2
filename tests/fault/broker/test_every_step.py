"""An unexpected exception, once in each step of a turn of the loop, while clients work: afterwards the same process is up and
correct, and it has cost at most one connection or one partition.

The broker is `tests.support.saboteur`: the real process with a wrapper around each of the steps below. A renamed step fails the
test, so this list stays accurate. One server serves all cases; if one ends it, the next case starts another.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from pkgutil import resolve_name

import pytest
from logbus.waiting import wait_until

from broker.protocol.api import ErrorCode
from tests.support.raw_client import Closed
from tests.support.sabotaged_broker import SabotagedBroker
from tests.support.saboteur import AFTER, BEFORE
from tests.support.scene import Scene, health
from tests.support.workload import BUSY, PARTITIONS, PLAIN, TOPICS, Refused, Workload

STEPS = (
    # the turn as a whole, and what it dispatches
    "broker.engine:Engine.drain_helpers",
    "broker.engine:Engine.end_turn",
    "broker.engine:Engine.answer_staged",
    "broker.engine:Engine.next_deadline",
    "broker.handlers.turn:ProduceTurn.end",
    "broker.handlers.produce:_complete",
    "broker.handlers.produce:_finish_when_safe",
    "broker.handlers.reply:Pending.complete",
    "broker.handlers.deadlines:Deadlines.expire",
    "broker.handlers.purgatory:Purgatory.exposed",
    "broker.handlers.purgatory:Purgatory.finish",
    "broker.groups.coordinator:GroupCoordinator.expire",
    "broker.engine:deliver",
    "broker.groups.offset_store:OffsetStore.applied",
    # flushes
    "broker.partitions.flusher:Flusher.appended",
    "broker.partitions.flusher:Flusher.end_turn",
    "broker.partitions.flusher:Flusher._start",
    "broker.partitions.flusher:Flusher._done",
    "broker.partitions.exposure:Exposure.flushed",
    "broker.partitions.exposure:Exposure._expose",
    "broker.storage.partition_log:PartitionLog.begin_flush",
    "broker.storage.partition_log:PartitionLog.finish_flush",
    "broker.storage.kernel_sync:KernelSync.collect",
    "broker.storage.kernel_sync:KernelSync._tell",
    "broker.network.wakeup:Wakeup.drain",
    # work outside the traffic
    "broker.partitions.cleaner:LogCleaner.work",
    "broker.partitions.cleaner:LogCleaner._slice_ended",
    "broker.partitions.cleaner:run_slice",
    "broker.partitions.retention_rounds:Retention.work",
    "broker.partitions.retention_rounds:apply_retention",
    "broker.engine:Engine._checkpoint",
    "broker.partitions.manager:PartitionManager.checkpoint_job",
    "broker.partitions.manager:PartitionManager.expire_producers",
    "broker.engine:sweep_groups",
    # large requests in slices, small files on a helper
    "broker.chores:Chores.work",
    "broker.chores:Chores._run",
    "broker.chores:Chores._ended",
    "broker.coordination.grouped_writes:GroupedWrites.write",
    "broker.coordination.grouped_writes:GroupedWrites._begin",
    "broker.partitions.topic_changes:TopicChanges._build_chunk",
    "broker.partitions.topic_changes:TopicChanges._discard_chunk",
    "broker.coordination.local:TopicRegistry.write_job",
    # connections
    "broker.network.acceptor:Acceptor.accept",
    "broker.network.crowd:Crowd.add",
    "broker.network.crowd:Crowd.remove",
    "broker.network.connection:Connection.receive",
    "broker.network.connection:Connection.process",
    "broker.network.connection:Connection.send",
    "broker.network.connection:Connection.close",
    "broker.network.server:Server._finish",
    "broker.network.server:Server._close",
    "broker.network.server:Server._sweep",
    "broker.network.server:Server._accept",
    "broker.network.server:Server._serve",
    # the metrics port
    "broker.network.http:HttpEndpoint._accept",
    "broker.network.http:HttpEndpoint._step",
    "broker.network.http:HttpEndpoint._finish",
    "broker.network.http:HttpEndpoint.sweep",
    "broker.network.http:respond",
    "broker.node:health",
)
# Between a write to the log and its bookkeeping: it is unknown what the file holds, so the partition goes offline.
BOOKKEEPING = (
    "broker.storage.segment_index:SegmentIndex.observe",
    "broker.storage.segment:Segment.append",
    "broker.storage.partition_log:PartitionLog.append",
)
ERRORS = ("RuntimeError", "MemoryError", "struct.error")


def is_there(step: str) -> bool:
    try:
        resolve_name(step)
    except (ImportError, AttributeError):
        return False
    return True


def sample(step: str) -> tuple[str, str]:
    """The error and the moment that the default run uses for a step."""
    chance = random.Random(step)
    return chance.choice(ERRORS), chance.choice((BEFORE, AFTER))


CASES = [
    pytest.param(
        step,
        error,
        when,
        id=f"{step.rpartition(':')[2]}-{error}-{when}",
        marks=[] if (error, when) == sample(step) else pytest.mark.long,
    )
    for step in STEPS
    for error in ERRORS
    for when in (BEFORE, AFTER)
]


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    scene = Scene(tmp_path_factory.mktemp("steps"), steps=[step for step in STEPS if is_there(step)])
    yield scene
    scene.strike()


@pytest.mark.parametrize(("step", "error", "when"), CASES)
def test_an_exception_in_any_step_costs_one_connection_or_partition_at_the_most(
    scene: Scene, step: str, error: str, when: str
) -> None:
    assert is_there(step), f"{step} has another name now"
    with scene as (broker, workload, bystanders):
        pid = broker.pid
        broker.fail(step, error=error, when=when)
        wait_until(lambda: happens(broker, workload), what=f"a call of {step}")
        assert bystanders.lost() <= 1
        assert (broker.pid, broker.alive) == (pid, True)
        assert len(scene.all_is_well()) <= 1


def happens(broker: SabotagedBroker, workload: Workload) -> bool:
    """Whether the injected failure has happened after a round of work on a new connection."""
    workload.disconnect()
    workload.round()
    health(broker)
    return not broker.left


@pytest.mark.parametrize(
    ("step", "error"),
    [
        pytest.param(step, error, marks=[] if error == sample(step)[0] else pytest.mark.long)
        for step in BOOKKEEPING
        for error in ERRORS
    ],
)
def test_an_exception_between_a_write_and_its_bookkeeping_takes_one_partition_offline(
    tmp_path: Path, step: str, error: str
) -> None:
    """Nothing is compacted in the meantime, so the failing write must be this one."""
    quiet = {**BUSY, "log.cleaner.enable": "false"}
    when = BEFORE if step.endswith("observe") else AFTER
    with SabotagedBroker(tmp_path / "broker", settings=quiet, steps=[step]) as broker, Workload(broker.bootstrap) as workload:
        for _ in range(5):
            workload.round()
        workload.check()
        pid = broker.pid
        broker.fail(step, error=error, when=when)
        with pytest.raises((Refused, Closed)):
            workload.produce(PLAIN, 0, acks=1)
        workload.disconnect()
        assert not broker.left
        assert is_refused(lambda: workload.produce(PLAIN, 0, acks=1))
        assert workload.offline() == [(PLAIN, 0)]
        assert health(broker)[0] == 503
        for topic in TOPICS:
            for index in range(PARTITIONS):
                if (topic, index) != (PLAIN, 0):
                    workload.produce(topic, index, acks=-1, key=b"key" if topic == "keyed" else None)
        assert (broker.pid, broker.alive) == (pid, True)
        workload.disconnect()
        broker.restart()
        assert workload.offline() == []
        assert health(broker)[0] == 200
        workload.check(everything=True)
        assert workload.works()


def is_refused(action: Callable[[], object]) -> bool:
    """Whether the partition reports that its storage has failed."""
    try:
        action()
    except Refused as refused:
        return refused.code == ErrorCode.KAFKA_STORAGE_ERROR
    return False
