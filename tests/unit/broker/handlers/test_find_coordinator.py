"""FindCoordinator on a broker in a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.chores import SLICE_SECONDS
from broker.config.listeners import Listener
from broker.coordination.view import BrokerAddress, LocalView
from broker.errors import CoordinatorNotAvailable, InvalidReplicationFactor
from broker.protocol.api import ApiKey, ErrorCode
from tests.support.engine import Harness
from tests.support.replicas import ScriptedWatermarks

SLICE_MS = int(SLICE_SECONDS * 1000)


class ViewOfAnother(LocalView):
    """Broker 2 leads every partition of the offsets topic, once that exists."""

    def __init__(self) -> None:
        listener = Listener(host="one", port=1)
        super().__init__(broker_id=1, cluster_id="c", advertised={"PLAINTEXT": listener}, leader_epoch=lambda topic, index: 0)
        self.has_topic: Any = lambda: False

    def coordinator(self, group_id: str, listener: str) -> BrokerAddress:
        if not self.has_topic():
            raise CoordinatorNotAvailable("not made yet")
        return BrokerAddress(2, "two", 2)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Harness]:
    view = ViewOfAnother()
    harness = Harness(tmp_path, watermarks=ScriptedWatermarks(), view=view)
    view.has_topic = lambda: harness.engine.context.offsets.has_topic
    yield harness
    harness.close()


def find(broker: Harness) -> tuple[int, int]:
    (row,) = broker.ask(ApiKey.FIND_COORDINATOR, 4, key_type=0, coordinator_keys=["g"]).coordinators
    return row.error_code, row.node_id


def test_it_is_made_once_however_many_ask_and_again_if_it_could_not_be(broker: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    context = broker.engine.context
    created: list[str] = []

    def refuse(wanted: Any) -> Any:
        created.append("refused")
        broker.clock.advance_ms(SLICE_MS)
        yield None
        return [InvalidReplicationFactor("nobody lives")]

    monkeypatch.setattr(context.topic_changes, "create", refuse)
    for _ in range(3):
        broker.dispatch(ApiKey.FIND_COORDINATOR, 3, b"\2g\0\0")
    broker.settle()
    assert created == ["refused"]
    monkeypatch.undo()
    assert find(broker) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1)
    broker.settle()
    assert find(broker) == (0, 2)
