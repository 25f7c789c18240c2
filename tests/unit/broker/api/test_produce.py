"""Produce and fetch through the engine: what is acknowledged, what is visible when, what is refused with which code, and what a
disk that refuses costs producers and consumers.

What the loop reads of one request's records is limited: batches to a compacted topic beyond it are sent again by their client.
"""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
from logbus_broker.api.handler import Pending
from logbus_broker.filesystem import FileSystem, OpenFile
from logbus_broker.protocol.api import ApiKey, ErrorCode
from logbus_broker.protocol.batch import ZSTD
from logbus_broker.protocol.records import NewRecord, build_batch, read_records
from logbus_broker.protocol.validation import INSPECTED_RECORDS_MAX, INSPECTED_RECORDS_PER_REQUEST_MAX
from logbus_broker.settings import LogConfig

from tests.support.engine import Harness, batch, produced
from tests.support.logs import FailingDisk
from tests.support.wire import Wanted, fetch_answer, produce_answer, produce_body


@pytest.fixture
def broker(tmp_path: Path) -> Harness:
    harness = Harness(tmp_path)
    harness.create("clicks", 2)
    return harness


def produce(broker: Harness, raw: bytes | None, **more: Any) -> Pending:
    pending = broker.produce(raw, **more)
    broker.turn()
    return pending


def code_of(pending: Pending) -> int:
    return int(produced(pending).error_code)


def test_an_acknowledged_batch_is_seen_only_after_its_flush(broker: Harness) -> None:
    assert code_of(produce(broker, batch(b"a", b"b"))) == 0
    before = broker.fetched(broker.fetch(Wanted(topic="clicks")))
    assert (before.high_watermark, bytes(before.records or b"")) == (0, b"")
    broker.settle()
    after = broker.fetched(broker.fetch(Wanted(topic="clicks")))
    assert after.high_watermark == 2
    assert [(r.offset, r.value) for r in read_records(bytes(after.records))] == [(0, b"a"), (1, b"b")]


def test_a_waiting_fetch_asks_for_the_flush_and_is_answered_by_it(broker: Harness) -> None:
    waiting = broker.fetch(Wanted(topic="clicks"), wait_ms=10_000)
    assert isinstance(waiting, Pending)
    assert waiting.stops_reading
    produce(broker, batch(b"a"))
    assert not waiting.done
    broker.settle()
    assert waiting.done
    assert broker.fetched(waiting).high_watermark == 1


def test_a_waiting_fetch_is_answered_empty_at_its_deadline(broker: Harness) -> None:
    waiting = broker.fetch(Wanted(topic="clicks"), wait_ms=500)
    broker.turn(after_ms=499)
    assert not waiting.done
    broker.turn(after_ms=1)
    assert bytes(broker.fetched(waiting).records or b"") == b""


def test_a_waiting_fetch_waits_for_its_minimum(broker: Harness) -> None:
    waiting = broker.fetch(Wanted(topic="clicks"), wait_ms=10_000, bytes_min=400)
    produce(broker, batch(b"a" * 100))
    broker.settle()
    assert not waiting.done
    produce(broker, batch(b"a" * 300))
    broker.settle()
    assert waiting.done


def test_without_a_reader_the_flush_comes_with_the_interval(tmp_path: Path) -> None:
    broker = Harness(tmp_path, log=LogConfig(flush_interval_ms=1000, flush_interval_messages=100))
    broker.create("clicks")
    produce(broker, batch(b"a"))
    assert not broker.thread_pool.jobs
    broker.turn(after_ms=1000)
    assert len(broker.thread_pool.jobs) == 1
    broker.settle()
    produce(broker, batch(*[b"x"] * 100))
    assert len(broker.thread_pool.jobs) == 1


def test_a_batch_is_given_whole_from_a_record_in_its_middle_even_beyond_the_limit(broker: Harness) -> None:
    produce(broker, batch(b"a", b"b", b"c"))
    broker.flush()
    row = broker.fetched(broker.fetch(Wanted(topic="clicks", offset=1, bytes_max=1), bytes_max=1))
    assert [r.offset for r in read_records(bytes(row.records))] == [0, 1, 2]


@pytest.mark.parametrize("offset", [-1, 2, 99])
def test_an_offset_outside_the_log_is_out_of_range(broker: Harness, offset: int) -> None:
    produce(broker, batch(b"a"))
    broker.settle()
    row = broker.fetched(broker.fetch(Wanted(topic="clicks", offset=offset), wait_ms=1000))
    assert (row.error_code, row.high_watermark) == (1, -1)


def test_an_unknown_partition_and_a_wrong_epoch_have_their_codes(broker: Harness) -> None:
    cases = {3: Wanted(topic="absent"), 75: Wanted(topic="clicks", leader_epoch=9)}
    for code, wanted in cases.items():
        assert broker.fetched(broker.fetch(wanted)).error_code == code


def test_a_fetch_session_that_was_never_opened_is_not_found(broker: Harness) -> None:
    assert fetch_answer(broker.bytes_of(broker.fetch(Wanted(topic="clicks"), session_id=7))).error_code == 70


def corrupt(raw: bytearray) -> bytearray:
    raw[-1] ^= 1
    return raw


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (None, 87),
        (b"", 87),
        (batch(b"a") + batch(b"b"), 87),
        (batch(b"a")[:-1], 87),
        (corrupt(batch(b"a")), 2),
        (batch(b"a", timestamp=1_700_000_000_000 + 7_200_000), 32),
        (batch(b"x" * (2 << 20)), 10),
    ],
)
def test_a_batch_that_cannot_be_stored_is_refused_with_kafkas_code(broker: Harness, raw: bytes | None, code: int) -> None:
    assert code_of(produce(broker, raw)) == code
    assert broker.engine.partitions.get("clicks", 0).end_offset == 0


def test_acks_that_do_not_exist_and_transactions_are_refused(broker: Harness) -> None:
    assert code_of(produce(broker, batch(b"a"), acks=2)) == 21
    assert code_of(produce(broker, batch(b"a"), transactional_id="t")) == 53
    assert code_of(produce(broker, batch(b"a"), topic="absent")) == 3


def test_acks_0_is_silent_and_its_failure_closes(broker: Harness) -> None:
    fine = produce(broker, batch(b"a"), acks=0)
    assert (fine.silent, fine.done, fine.closes) == (True, True, None)
    assert produce(broker, None, acks=0).closes == "acks_0"


def test_a_repeated_batch_gets_its_first_offset_and_is_stored_once(broker: Harness) -> None:
    sent = [bytes(batch(b"a", producer_id=5, producer_epoch=0, base_sequence=n)) for n in range(3)]
    for raw in [*sent, sent[1]]:
        pending = produce(broker, bytearray(raw))
    assert (produced(pending).error_code, produced(pending).base_offset) == (0, 1)
    assert broker.engine.partitions.get("clicks", 0).end_offset == 3


def test_a_skipped_sequence_is_out_of_order(broker: Harness) -> None:
    produce(broker, batch(b"a", producer_id=5, producer_epoch=0, base_sequence=0))
    assert code_of(produce(broker, batch(b"a", producer_id=5, producer_epoch=0, base_sequence=2))) == 45


@pytest.mark.parametrize("waits", ["true", "false"])
def test_a_topic_says_for_itself_whether_acks_all_waits_for_the_disk(tmp_path: Path, waits: str) -> None:
    broker = Harness(tmp_path, log=LogConfig(acks_all_waits_for_flush=waits == "false"))
    broker.create("clicks", **{"logbus.acks.all.waits.for.flush": waits})
    pending = produce(broker, batch(b"a"))
    broker.turn()
    assert pending.done is (waits == "false")
    broker.settle()
    assert code_of(pending) == 0


def test_a_disk_that_takes_longer_than_the_request_allows_is_told_in_time_and_stores_all_the_same(tmp_path: Path) -> None:
    """timeout_ms, as in Kafka: the outcome is still unknown. An idempotent producer retries and gets the batch's offset."""
    broker = Harness(tmp_path, log=LogConfig(acks_all_waits_for_flush=True))
    broker.create("clicks")
    sent = {"producer_id": 5, "producer_epoch": 0, "base_sequence": 0}
    pending = produce(broker, batch(b"a", **sent))
    broker.turn()
    broker.turn(after_ms=999)
    assert not pending.done
    broker.turn(after_ms=1)
    assert code_of(pending) == ErrorCode.REQUEST_TIMED_OUT
    broker.settle()
    again = produce(broker, batch(b"a", **sent))
    broker.settle()
    assert code_of(again) == 0
    assert broker.engine.partitions.get("clicks", 0).end_offset == 1
    assert len(broker.engine.context.deadlines) == 0


def test_deleting_a_topic_answers_who_waits_on_it(broker: Harness) -> None:
    waiting = broker.fetch(Wanted(topic="clicks"), wait_ms=10_000)
    assert broker.delete("clicks").error_code == 0
    assert broker.fetched(waiting).error_code == 3


def test_a_topic_with_log_append_time_stamps_records_itself_and_says_when(broker: Harness) -> None:
    broker.create("stamped", message_timestamp_type="LogAppendTime")
    far = batch(b"a", b"b", timestamp=4_102_444_800_000, producer_id=5, producer_epoch=0, base_sequence=0)
    first = produce(broker, bytearray(far), topic="stamped")
    stamped_ms = broker.clock.now_ms()
    broker.clock.advance_ms(1_000)
    again = produce(broker, bytearray(far), topic="stamped")
    for pending in (first, again):
        row = produced(pending)
        assert (row.error_code, row.base_offset) == (0, 0)
        assert row.log_append_time.timestamp() * 1000 == stamped_ms, "a duplicate was stamped the first time"
    broker.flush()
    stored = broker.fetched(broker.fetch(Wanted(topic="stamped")))
    assert [record.timestamp for record in read_records(bytes(stored.records))] == [stamped_ms] * 2


SMALL_SEGMENTS = LogConfig(segment_bytes=200)


class RefusingFileSystem(FileSystem):
    """Creates no file while `refusal` is set, as a roll fails when descriptors, space or quota run out."""

    refusal = 0

    def open(self, path: Path, *, create: bool = False) -> OpenFile:
        if create and self.refusal:
            raise OSError(self.refusal, "refused", str(path))
        return super().open(path, create=create)


@pytest.fixture
def small(tmp_path: Path) -> Harness:
    harness = Harness(tmp_path, filesystem=RefusingFileSystem(), log=SMALL_SEGMENTS)
    harness.create("clicks")
    return harness


def stored(broker: Harness, raw: bytearray) -> tuple[int, int]:
    (row,) = produce_answer(broker.bytes_of(produce(broker, raw))).values()
    return row.error_code, row.base_offset


def read(broker: Harness, offset: int) -> tuple[int, bytes]:
    row = broker.fetched(broker.fetch(Wanted(topic="clicks", offset=offset)))
    return row.error_code, bytes(row.records or b"")


@pytest.mark.parametrize("refusal", [errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT])
def test_a_roll_that_is_refused_fails_the_producer_keeps_readers_and_heals_by_itself(small: Harness, refusal: int) -> None:
    assert stored(small, batch(b"x" * 150)) == (0, 0)
    disk = small.engine._filesystem
    assert isinstance(disk, RefusingFileSystem)
    disk.refusal = refusal
    assert stored(small, batch(b"y" * 150)) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)
    small.flush()
    code, records = read(small, 0)
    assert code == 0
    assert b"x" * 150 in records
    disk.refusal = 0
    assert stored(small, batch(b"z" * 150)) == (0, 1)


def test_offsets_beyond_the_end_before_the_start_and_deleted_are_out_of_range(small: Harness) -> None:
    for _ in range(5):
        assert stored(small, batch(b"x" * 150))[0] == 0
    small.flush()
    small.engine.partitions.get("clicks", 0).log.delete_before(3)
    assert [read(small, offset)[0] for offset in (-1, 0, 2, 3, 5, 6, 10**12)] == [1, 1, 1, 0, 0, 1, 1]


def test_who_waits_for_a_log_that_a_write_takes_offline_is_told_at_once(tmp_path: Path) -> None:
    """A producer whose flush hangs, and a consumer whose fetch may wait for a minute."""
    disk = FailingDisk()
    broker = Harness(tmp_path, filesystem=disk)
    broker.create("clicks", logbus_acks_all_waits_for_flush="true")
    broker.thread_pool.flushes_wait = True
    producer = produce(broker, batch(b"a"))
    consumer = broker.fetch(Wanted(topic="clicks"), wait_ms=60_000)
    broker.turn()
    assert isinstance(consumer, Pending)
    assert not producer.done
    assert not consumer.done
    disk.writable_bytes, disk.failing = 10, {"truncate"}
    assert stored(broker, batch(b"b")) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)
    assert produce_answer(broker.bytes_of(producer))["clicks", 0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert broker.fetched(consumer).error_code == ErrorCode.KAFKA_STORAGE_ERROR


PASS = INSPECTED_RECORDS_PER_REQUEST_MAX // INSPECTED_RECORDS_MAX  # as many of the largest batches


PARTITIONS = PASS + 2


@pytest.fixture
def keyed(tmp_path: Path) -> Harness:
    harness = Harness(tmp_path)
    harness.create("keyed", PARTITIONS, cleanup_policy="compact")
    return harness


def large(count: int = INSPECTED_RECORDS_MAX, **fields: Any) -> bytes:
    row = NewRecord(timestamp=1_700_000_000_000, key=b"k", value=b"")
    return bytes(build_batch([row] * count, codec=ZSTD, **fields))


def produce_all(broker: Harness, batches: dict[int, bytes], *, acks: int = 1) -> tuple[Pending, dict[int, int]]:
    """The error of each partition, none with acks=0."""
    pending = broker.dispatch(
        ApiKey.PRODUCE, 9, produce_body({("keyed", index): batch for index, batch in batches.items()}, acks=acks)
    )
    assert isinstance(pending, Pending)
    broker.turn()
    raw = b"".join(pending.parts or [])  # type: ignore[arg-type]
    return pending, {index: row.error_code for (_, index), row in produce_answer(raw).items()} if raw else {}


def ends(broker: Harness) -> list[int]:
    return [broker.engine.partitions.get("keyed", index).end_offset for index in range(PARTITIONS)]


def test_batches_beyond_what_is_read_at_once_are_sent_again_and_stored(keyed: Harness) -> None:
    batch = large()
    _, errors = produce_all(keyed, dict.fromkeys(range(PARTITIONS), batch))
    assert list(errors.values()) == [ErrorCode.NONE] * PASS + [ErrorCode.REQUEST_TIMED_OUT] * 2
    assert ends(keyed) == [INSPECTED_RECORDS_MAX] * PASS + [0, 0]
    _, errors = produce_all(keyed, {index: batch for index, error in errors.items() if error})
    assert set(errors.values()) == {ErrorCode.NONE}
    assert ends(keyed) == [INSPECTED_RECORDS_MAX] * PARTITIONS


def test_an_idempotent_producer_sends_them_again_in_order(keyed: Harness) -> None:
    """Its second batch, in flight already, must not become the first."""
    first = large(producer_id=1, producer_epoch=0, base_sequence=0)
    then = large(1, producer_id=1, producer_epoch=0, base_sequence=INSPECTED_RECORDS_MAX)
    late = PARTITIONS - 1
    _, errors = produce_all(keyed, dict.fromkeys(range(PARTITIONS), first))
    assert errors[late] == ErrorCode.REQUEST_TIMED_OUT
    assert produce_all(keyed, {late: then})[1] == {late: ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER}
    assert produce_all(keyed, {late: first})[1] == {late: ErrorCode.NONE}
    assert produce_all(keyed, {late: then})[1] == {late: ErrorCode.NONE}
    assert ends(keyed)[late] == INSPECTED_RECORDS_MAX + 1


def test_without_acknowledgements_the_connection_is_closed(keyed: Harness) -> None:
    pending, _ = produce_all(keyed, dict.fromkeys(range(PARTITIONS), large()), acks=0)
    assert pending.closes == "acks_0"


def test_producer_ids_are_given_once_and_transactions_are_refused(broker: Harness) -> None:
    ids = [broker.ask(ApiKey.INIT_PRODUCER_ID, 4, transactional_id=None, transaction_timeout_ms=0).producer_id for _ in range(3)]
    assert len(set(ids)) == 3
    assert broker.ask(ApiKey.INIT_PRODUCER_ID, 4, transactional_id="t", transaction_timeout_ms=0).error_code == 53
