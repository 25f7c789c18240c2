"""A replica whose disk fails, is full or hangs, in the simulation: it no longer counts, and another broker leads."""

from __future__ import annotations

import errno
from collections.abc import Sequence

import pytest
from logbus_broker.cluster.metadata_image import NO_LEADER
from logbus_broker.engine import Engine
from logbus_broker.filesystem import OpenFile
from logbus_broker.metrics import health, metrics_page
from logbus_broker.protocol.api import ApiKey
from logbus_broker.protocol.batch import Buffer
from logbus_broker.protocol.framing import Request

from tests.sim import wire
from tests.sim.cluster import ClusterStage, quiet_stage
from tests.sim.stage import TOPIC
from tests.sim.world import MS, SECOND
from tests.support.engine import batch


def test_a_write_that_takes_the_leaders_log_offline_gives_the_lead_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left to be flushed, so no flush will reveal the failure."""
    stage = quiet_stage()
    assert not stage.finish()
    stage.run(stage.world.now + 5 * SECOND)
    state, leader, engine, _, partition = stage.leader()
    assert partition.log.flushed_offset == partition.end_offset
    log_file = partition.log.segments.active.file

    def refuses(file: OpenFile) -> None:
        if file is log_file:
            raise OSError(errno.EIO, "refused")

    def write_some(file: OpenFile, buffers: Sequence[Buffer], position: int, write: object = leader.disk.write_some) -> int:
        refuses(file)
        return write(file, buffers, position)  # type: ignore[no-any-return,operator]

    monkeypatch.setattr(leader.disk, "write_some", write_some)
    monkeypatch.setattr(leader.disk, "truncate", lambda file, length: refuses(file))
    produce(engine)
    leader.wake()

    def is_led_elsewhere() -> bool:
        now = stage.invariants.state(TOPIC, 0)
        has_left = now is not None and state.leader not in now.isr and not now.is_lost
        return has_left and now.leader not in (NO_LEADER, state.leader)

    assert stage.until(is_led_elsewhere, 10 * SECOND), stage.invariants.state(TOPIC, 0)
    assert partition.log.offline_reason


def produce(engine: Engine) -> None:
    body = wire.produce(TOPIC, 0, bytes(batch(b"a")), acks=1, timeout_ms=1_000)
    engine.dispatch(Request(int(ApiKey.PRODUCE), 9, 1, "test", memoryview(bytearray(body))))


def shown(engine: Engine, name: str) -> float:
    lines = b"".join(metrics_page(engine)).decode().splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith(name))


@pytest.fixture
def stage() -> ClusterStage:
    stage = quiet_stage()
    assert not stage.finish()
    stage.run(stage.world.now + 5 * SECOND)
    return stage


def test_a_leader_whose_disk_is_full_gives_its_lead_away_and_comes_back(
    stage: ClusterStage, caplog: pytest.LogCaptureFixture
) -> None:
    """Also while nothing more is written: it does not join only to leave again."""
    before, leader, engine, _, _ = stage.leader()
    leader.disk.room = 0
    produce(engine)
    leader.wake()
    assert stage.until(lambda: stage.leader().state.leader != before.leader, SECOND)
    state = stage.leader().state
    assert (before.leader in state.isr, state.leader_epoch) == (False, before.leader_epoch + 1)
    stage.run(stage.world.now + 20 * SECOND)
    assert stage.leader().state == state
    is_healthy, text = health(engine)
    assert (is_healthy, text.splitlines()[0]) == (
        False,
        f"1 of 1 partitions cannot be stored: No space left on device ({TOPIC}-0)",
    )
    assert shown(engine, "logbus_impaired_partitions") == 1
    outlook = "left to the other replicas in sync until that is over"
    assert [record.getMessage() for record in caplog.records if record.levelname == "CRITICAL"] == [
        f"cannot store {TOPIC}-0: No space left on device: {outlook}"
    ]
    _, _, successor, _, _ = stage.leader()
    produce(successor)
    stage.leader().node.wake()
    assert stage.until(lambda: shown(engine, "kafka_server_replicafetchermanager_maxlag") == 1, 5 * SECOND)
    leader.disk.room = None
    assert stage.until(lambda: not stage.ailments() and health(engine)[0], 10 * SECOND), stage.ailments()
    assert f"{TOPIC}-0 can be stored again" in caplog.messages


def test_a_leader_whose_disk_hangs_gives_its_lead_away_and_keeps_it_where_nobody_else_is(stage: ClusterStage) -> None:
    before, leader, engine, _, _ = stage.leader()
    leader.hang_disk()
    produce(engine)
    leader.wake()
    assert stage.until(lambda: stage.leader().state.leader != before.leader, 5 * SECOND)
    others = [node for node in stage.nodes if node is not leader]
    last = stage.leader()
    for node in others:
        if node is not last.node:
            node.kill()
    assert stage.until(lambda: stage.leader().state.isr == (last.state.leader,), 20 * SECOND)
    last.node.hang_disk()
    for _ in range(4):  # the first has to wait until ZooKeeper has confirmed the lead
        produce(last.engine)
        last.node.wake()
        stage.run(stage.world.now + 500 * MS)
    stage.run(stage.world.now + 10 * SECOND)
    assert stage.leader().state.leader == last.state.leader
    assert "a flush takes longer than 2 s (logbus.replica.flush.max.ms)" in health(last.engine)[1]
    for node in (leader, last.node):
        node.answer_again()
    for node in others:
        node.start()
    assert stage.until(lambda: not stage.ailments() and health(engine)[0], 30 * SECOND), stage.ailments()


def test_a_leader_with_a_damaged_batch_gives_its_lead_away_and_fetches_its_log_anew(caplog: pytest.LogCaptureFixture) -> None:
    """A new replica comes across it, in a segment that no start reads again."""
    stage = quiet_stage(segment_bytes=600, checkpoint_ms=500)
    assert not stage.finish()
    stage.run(stage.world.now + 5 * SECOND)
    before, leader, engine, _, _ = stage.leader()
    path, position, size = leader.old_batches(TOPIC, 0)[0]
    leader.disk.damage(path, position + size - 1)
    new = next(node for node in stage.nodes if node is not leader)
    new.kill()
    new.replace_disk()
    stage.invariants.lost_disk(new)
    new.start()
    assert stage.until(lambda: stage.leader().state.leader not in (before.leader, new.broker_id), 20 * SECOND)
    assert stage.until(lambda: not stage.ailments() and health(engine)[0], 30 * SECOND), stage.ailments()
    assert [record.getMessage() for record in caplog.records if record.levelname == "CRITICAL"] == [
        f"cannot store {TOPIC}-0: its log is damaged: the checksum of the batch at offset 0 does not match its bytes: "
        "left to the other replicas in sync until that is over"
    ]
    assert f"{TOPIC}-0 is damaged: moved to /disk/data/{TOPIC}-0." in caplog.text
    assert shown(engine, "logbus_damaged_logs_total") == 1
    assert not stage.read(0)
    stage.run(stage.world.now + 5 * SECOND)
    assert len({(held.end_offset, held.visible_offset) for node in stage.nodes if (held := node.held(TOPIC, 0))}) == 1
