"""A replica whose disk fails, in the simulation: it no longer counts, and another broker leads."""

from __future__ import annotations

import errno
from collections.abc import Sequence

import pytest
from logbus_broker.cluster.metadata_image import NO_LEADER
from logbus_broker.disk.filesystem import OpenFile
from logbus_broker.protocol.api import ApiKey
from logbus_broker.protocol.batch import Buffer
from logbus_broker.protocol.framing import Request

from tests.sim import wire
from tests.sim.cluster import quiet_stage
from tests.sim.stage import TOPIC
from tests.sim.world import SECOND
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
    body = wire.produce(TOPIC, 0, bytes(batch(b"a")), acks=1, timeout_ms=1_000)
    engine.dispatch(Request(int(ApiKey.PRODUCE), 9, 1, "test", memoryview(bytearray(body))))
    leader.wake()

    def is_led_elsewhere() -> bool:
        now = stage.invariants.state(TOPIC, 0)
        has_left = now is not None and state.leader not in now.isr and not now.is_lost
        return has_left and now.leader not in (NO_LEADER, state.leader)

    assert stage.until(is_led_elsewhere, 10 * SECOND), stage.invariants.state(TOPIC, 0)
    assert partition.log.offline_reason
