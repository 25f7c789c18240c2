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
from logbus_broker.protocol.api import ErrorCode

from tests.support.raw_client import Closed
from tests.support.sabotaged_broker import SabotagedBroker
from tests.support.saboteur import AFTER, BEFORE
from tests.support.scene import Scene, health
from tests.support.workload import BUSY, PARTITIONS, PLAIN, TOPICS, Refused, Workload

STEPS = (
    # the turn as a whole, and what it dispatches
    "logbus_broker.engine:Engine.drain_thread_pool",
    "logbus_broker.engine:Engine.end_turn",
    "logbus_broker.engine:Engine.answer_staged",
    "logbus_broker.engine:Engine.next_deadline",
    "logbus_broker.api.produce_turn:ProduceTurn.end",
    "logbus_broker.api.produce:_complete",
    "logbus_broker.api.produce:_finish_when_safe",
    "logbus_broker.api.handler:Pending.complete",
    "logbus_broker.api.purgatory:Deadlines.expire",
    "logbus_broker.api.purgatory:Purgatory.exposed",
    "logbus_broker.api.purgatory:Purgatory.finish",
    "logbus_broker.groups.coordinator:GroupCoordinator.expire",
    "logbus_broker.api.groups:deliver",
    "logbus_broker.groups.committed_offsets:OffsetStore.applied",
    # flushes
    "logbus_broker.log.flusher:Flusher.appended",
    "logbus_broker.log.flusher:Flusher.end_turn",
    "logbus_broker.log.flusher:Flusher._start",
    "logbus_broker.log.flusher:Flusher._done",
    "logbus_broker.log.high_watermark:HighWatermark.flushed",
    "logbus_broker.log.high_watermark:HighWatermark._advance",
    "logbus_broker.log.partition_log:PartitionLog.begin_flush",
    "logbus_broker.log.partition_log:PartitionLog.finish_flush",
    "logbus_broker.log.thread_pool:KernelSync.collect",
    "logbus_broker.log.thread_pool:KernelSync._call_back",
    "logbus_broker.network.poller:Wakeup.drain",
    # work outside the traffic
    "logbus_broker.log.cleaner:LogCleaner.work",
    "logbus_broker.log.cleaner:LogCleaner._slice_ended",
    "logbus_broker.log.cleaner:run_slice",
    "logbus_broker.log.log_retention:LogRetention.work",
    "logbus_broker.log.log_retention:apply_retention",
    "logbus_broker.engine:Engine._checkpoint",
    "logbus_broker.log.manager:PartitionManager.checkpoint_job",
    "logbus_broker.log.manager:PartitionManager.expire_producers",
    "logbus_broker.api.internal_topics:sweep_groups",
    # large requests in slices, small files on a thread
    "logbus_broker.log.background_tasks:BackgroundTasks.work",
    "logbus_broker.log.background_tasks:BackgroundTasks._run",
    "logbus_broker.log.background_tasks:BackgroundTasks._ended",
    "logbus_broker.cluster.local_files:GroupedWrites.write",
    "logbus_broker.cluster.local_files:GroupedWrites._begin",
    "logbus_broker.log.topic_admin:TopicChanges._build_chunk",
    "logbus_broker.log.topic_admin:TopicChanges._discard_chunk",
    "logbus_broker.cluster.topic_registry:TopicRegistry.write_job",
    # connections
    "logbus_broker.network.acceptor:Acceptor.accept",
    "logbus_broker.network.acceptor:ConnectionTable.add",
    "logbus_broker.network.acceptor:ConnectionTable.remove",
    "logbus_broker.network.connection:Connection.receive",
    "logbus_broker.network.connection:Connection.process",
    "logbus_broker.network.connection:Connection.send",
    "logbus_broker.network.connection:Connection.close",
    "logbus_broker.network.server:Server._finish",
    "logbus_broker.network.server:Server._close",
    "logbus_broker.network.server:Server._sweep",
    "logbus_broker.network.server:Server._accept",
    "logbus_broker.network.server:Server._serve",
    # the metrics port
    "logbus_broker.network.http:HttpEndpoint._accept",
    "logbus_broker.network.http:HttpEndpoint._step",
    "logbus_broker.network.http:HttpEndpoint._finish",
    "logbus_broker.network.http:HttpEndpoint.sweep",
    "logbus_broker.network.http:respond",
    "logbus_broker.node:health",
)
# Between a write to the log and its bookkeeping: it is unknown what the file holds, so the partition goes offline.
BOOKKEEPING = (
    "logbus_broker.log.segment_index:SegmentIndex.observe",
    "logbus_broker.log.segment:Segment.append",
    "logbus_broker.log.partition_log:PartitionLog.append",
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
    """Nothing is compacted in the meantime, and no group that is over is swept, so the failing write must be this one."""
    quiet = {**BUSY, "log.cleaner.enable": "false", "offsets.retention.check.interval.ms": "600000"}
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
