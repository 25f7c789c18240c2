"""Compaction as the broker drives it: through the engine, slice by slice, beside produce and fetch."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.partitions.cleaner import ENDED, SLICE_SECONDS, run_slice
from broker.protocol.api import ApiKey
from broker.records.builder import NewRecord, build_batch
from broker.records.reader import Record, read_records
from tests.support.engine import Harness
from tests.support.wire import produce_answer, produce_body

BACKOFF_MS = 15_000


def keyed(*pairs: tuple[bytes | None, bytes | None], codec: int = 0) -> bytearray:
    return build_batch([NewRecord(timestamp=1_700_000_000_000, key=key, value=value) for key, value in pairs], codec=codec)


def produce(broker: Harness, raw: bytearray, topic: str = "t") -> int:
    """The error code."""
    answer = broker.bytes_of(broker.dispatch(ApiKey.PRODUCE, 9, produce_body({(topic, 0): raw})))
    return int(produce_answer(answer)[topic, 0].error_code)


def records(broker: Harness, topic: str = "t") -> list[Record]:
    log = broker.engine.partitions.get(topic, 0).log
    return [record for raw in log.batches_from(0) for record in read_records(raw)]


def clean(broker: Harness) -> None:
    """Let the backoff pass; without time passing, each slice goes on to its end."""
    broker.flush()
    broker.clock.advance_ms(BACKOFF_MS)
    broker.settle()


@pytest.fixture
def broker(tmp_path: Path) -> Harness:
    harness = Harness(tmp_path)
    harness.create("t", cleanup_policy="compact", segment_bytes="1000")
    return harness


def fill(broker: Harness, count: int = 50) -> None:
    for number in range(count):
        assert produce(broker, keyed((b"key-%d" % (number % 4), b"value-%d" % number))) == 0
        broker.flush()


def test_a_compacted_topic_keeps_the_last_record_of_each_key(broker: Harness) -> None:
    fill(broker)
    before = records(broker)
    clean(broker)
    after = records(broker)
    assert len(after) < len(before) // 2
    assert {r.key: r for r in after} == {r.key: r for r in before}
    assert broker.engine.partitions.get("t", 0).end_offset == 50


def test_a_restart_remembers_how_far_the_log_is_clean(broker: Harness, tmp_path: Path) -> None:
    fill(broker)
    clean(broker)
    expected = records(broker)
    broker.close()
    assert (tmp_path / "cleaner-offset-checkpoint").read_text().startswith("0\n1\nt 0 ")
    again = Harness(tmp_path)
    clean(again)
    assert again.engine._cleaner.passes == 0
    assert records(again) == expected


def test_a_topic_that_is_deleted_meanwhile_ends_its_pass(broker: Harness) -> None:
    fill(broker)
    broker.clock.advance_ms(BACKOFF_MS)
    broker.engine.end_turn()
    assert broker.helpers.jobs
    broker.engine.partitions.delete(broker.engine.partitions.registry.get("t"))
    broker.settle()
    broker.create("t", cleanup_policy="compact", segment_bytes="1000")
    fill(broker)
    clean(broker)
    assert len(records(broker)) < 50


def test_a_stop_in_the_middle_of_a_pass_is_a_clean_stop(broker: Harness, tmp_path: Path) -> None:
    fill(broker)
    expected = {r.key: r for r in records(broker)}
    broker.clock.advance_ms(BACKOFF_MS)
    broker.engine.end_turn()
    assert broker.helpers.jobs
    broker.close()
    again = Harness(tmp_path)
    assert again.engine.partitions.get("t", 0).log.recovery.was_clean
    assert {r.key: r for r in records(again)} == expected


@pytest.mark.parametrize("codec", range(5))
def test_a_record_without_a_key_is_refused_on_a_compacted_topic_only(broker: Harness, codec: int) -> None:
    broker.create("plain")
    assert produce(broker, keyed((b"k", b"v"), (None, b"v"), codec=codec)) == 87
    assert produce(broker, keyed((b"k", b"v"), (b"", None), codec=codec)) == 0
    assert produce(broker, keyed((None, b"v"), codec=codec), topic="plain") == 0


def test_a_slice_ends_after_its_time_and_the_next_goes_on_where_it_ended() -> None:
    class Ticking:
        now = 0.0

        def monotonic(self) -> float:
            Ticking.now += SLICE_SECONDS / 4
            return Ticking.now

        def now_ms(self) -> int:
            return 0

    done = []

    def work():  # type: ignore[no-untyped-def]
        for number in range(10):
            done.append(number)
            yield None

    steps = work()
    assert run_slice(steps, Ticking()).event is None
    assert done == [0, 1, 2, 3]
    run_slice(steps, Ticking())
    assert run_slice(steps, Ticking()).event is ENDED
    assert done == list(range(10))
