from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.engine import Harness, batch
from tests.support.group_client import Client
from tests.support.wire import Wanted


@pytest.fixture
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("without_collector")
def test_a_deleted_partition_is_free_at_once_without_a_search_for_circles(tmp_path: Path) -> None:
    """A broker's partitions are hidden from the garbage collector, so a reference cycle through one would never be freed."""
    broker = Harness(tmp_path)
    broker.create("clicks", 2, cleanup_policy="compact")
    keyed = batch(b"v", producer_id=5, producer_epoch=0, base_sequence=0)
    broker.produce(keyed)
    broker.flush()
    broker.bytes_of(broker.fetch(Wanted(topic="clicks")))
    broker.fetch(Wanted(topic="clicks", offset=1), wait_ms=1000)
    for _ in range(3):
        broker.settle(after_ms=60_000)
    partitions = [broker.engine.partitions.get("clicks", index) for index in range(2)]
    left = [weakref.ref(part) for p in partitions for part in (p, p.log, p.producers, p.log.segments.active.file)]
    del partitions
    assert broker.delete("clicks").error_code == 0
    broker.settle()
    assert [reference() for reference in left] == [None] * len(left)
    broker.close()


def test_what_recovery_has_cut_off_is_logged_and_why_a_log_is_offline(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    broker = Harness(tmp_path / "data")
    broker.create("clicks", 2)
    for index in (0, 1):
        broker.produce(batch(b"v"), index=index)
    broker.flush()
    broker.engine._checkpoint()
    broker.settle()
    broker.crash()
    torn, damaged = (tmp_path / "data" / f"clicks-{index}" / "00000000000000000000.log" for index in (0, 1))
    torn.write_bytes(torn.read_bytes() + bytes(100))
    damaged.write_bytes(damaged.read_bytes()[:-1])
    caplog.clear()
    again = Harness(tmp_path / "data")
    lines = [(record.levelname, record.getMessage()) for record in caplog.records if record.name == "broker.log"]
    assert [level for level, _ in lines] == ["WARNING", "CRITICAL"]
    assert lines[0][1].startswith("clicks-0: recovery truncated 100 bytes (0 whole segments), the log ends at offset 1: ")
    assert lines[1][1].startswith("clicks-1 is offline: ")
    again.crash()


def test_topics_records_offsets_and_producers_survive_a_restart(tmp_path: Path) -> None:
    for crash in (False, True):
        directory = tmp_path / str(crash)
        broker = Harness(directory)
        created = broker.create("clicks", 1, retention_ms="-1")
        broker.produce(batch(b"a", b"b", producer_id=7, producer_epoch=0, base_sequence=0))
        assert Client(broker).commit(2) == 0
        broker.settle()
        if crash:
            broker.crash()
        else:
            broker.close()
        again = Harness(directory)
        assert again.engine.partitions.registry.get("clicks").topic_id == created.topic_id
        assert again.engine.partitions.get("clicks", 0).end_offset == 2
        assert Client(again).committed() == 2
        again.produce(batch(b"a", b"b", producer_id=7, producer_epoch=0, base_sequence=0))
        assert again.engine.partitions.get("clicks", 0).end_offset == 2
        again.close()


@pytest.mark.parametrize("is_running", [False, True])
def test_a_directory_that_no_topic_owns_is_set_aside_not_adopted(tmp_path: Path, is_running: bool) -> None:
    broker = Harness(tmp_path)
    broker.create("clicks")
    broker.produce(batch(b"old"))
    broker.settle()
    registry = broker.engine.partitions.registry
    registry.forget(registry.get("clicks"))  # as if the row was removed by hand, or the directory copied from another broker
    registry.write_job()()
    broker.close()
    if is_running:
        (tmp_path / "clicks-0").rename(tmp_path / "elsewhere")
    again = Harness(tmp_path)
    if is_running:
        (tmp_path / "elsewhere").rename(tmp_path / "clicks-0")
    again.create("clicks")
    assert again.engine.partitions.get("clicks", 0).end_offset == 0
    assert list(tmp_path.glob("clicks-0.*-stray/*.log"))
