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
    "broker.engine:Engine.drain_thread_pool",
    "broker.engine:Engine.end_turn",
    "broker.engine:Engine.answer_staged",
    "broker.engine:Engine.next_deadline",
    "broker.api.produce_turn:ProduceTurn.end",
    "broker.api.produce:_complete",
    "broker.api.produce:_finish_when_safe",
    "broker.api.handler:Pending.complete",
    "broker.api.purgatory:Deadlines.expire",
    "broker.api.purgatory:Purgatory.exposed",
    "broker.api.purgatory:Purgatory.finish",
    "broker.groups.coordinator:GroupCoordinator.expire",
    "broker.api.groups:deliver",
    "broker.groups.committed_offsets:OffsetStore.applied",
    # flushes
    "broker.log.flusher:Flusher.appended",
    "broker.log.flusher:Flusher.end_turn",
    "broker.log.flusher:Flusher._start",
    "broker.log.flusher:Flusher._done",
    "broker.log.high_watermark:HighWatermark.flushed",
    "broker.log.high_watermark:HighWatermark._advance",
    "broker.log.partition_log:PartitionLog.begin_flush",
    "broker.log.partition_log:PartitionLog.finish_flush",
    "broker.disk.kernel_sync:KernelSync.collect",
    "broker.disk.kernel_sync:KernelSync._call_back",
    "broker.network.poller:Wakeup.drain",
    # work outside the traffic
    "broker.log.cleaner:LogCleaner.work",
    "broker.log.cleaner:LogCleaner._slice_ended",
    "broker.log.cleaner:run_slice",
    "broker.log.log_retention:LogRetention.work",
    "broker.log.log_retention:apply_retention",
    "broker.engine:Engine._checkpoint",
    "broker.log.manager:PartitionManager.checkpoint_job",
    "broker.log.manager:PartitionManager.expire_producers",
    "broker.api.offsets_topic:sweep_groups",
    # large requests in slices, small files on a thread
    "broker.log.background_tasks:BackgroundTasks.work",
    "broker.log.background_tasks:BackgroundTasks._run",
    "broker.log.background_tasks:BackgroundTasks._ended",
    "broker.cluster.local_files:GroupedWrites.write",
    "broker.cluster.local_files:GroupedWrites._begin",
    "broker.log.topic_admin:TopicChanges._build_chunk",
    "broker.log.topic_admin:TopicChanges._discard_chunk",
    "broker.cluster.topic_registry:TopicRegistry.write_job",
    # connections
    "broker.network.acceptor:Acceptor.accept",
    "broker.network.acceptor:ConnectionTable.add",
    "broker.network.acceptor:ConnectionTable.remove",
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
    "broker.log.segment_index:SegmentIndex.observe",
    "broker.log.segment:Segment.append",
    "broker.log.partition_log:PartitionLog.append",
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
