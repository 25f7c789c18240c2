"""What the loop reads for one Produce request is limited: batches to a compacted topic beyond it are sent again by their client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.api.handler import Pending
from broker.protocol.api import ApiKey, ErrorCode
from broker.protocol.batch_builder import NewRecord, build_batch
from broker.protocol.compression import ZSTD
from broker.protocol.validation import INSPECTED_RECORDS_MAX, INSPECTED_RECORDS_PER_REQUEST_MAX
from tests.support.engine import Harness
from tests.support.wire import produce_answer, produce_body

PASS = INSPECTED_RECORDS_PER_REQUEST_MAX // INSPECTED_RECORDS_MAX  # as many of the largest batches
PARTITIONS = PASS + 2


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Harness]:
    harness = Harness(tmp_path)
    harness.create("keyed", PARTITIONS, cleanup_policy="compact")
    yield harness
    harness.close()


def large(**fields: Any) -> bytes:
    row = NewRecord(timestamp=1_700_000_000_000, key=b"k", value=b"")
    return bytes(build_batch([row] * INSPECTED_RECORDS_MAX, codec=ZSTD, **fields))


def produce(broker: Harness, batches: dict[int, bytes], *, acks: int = 1) -> tuple[Pending, dict[int, int]]:
    """The error of each partition, none with acks=0."""
    body = produce_body({("keyed", index): batch for index, batch in batches.items()}, acks=acks)
    pending = broker.dispatch(ApiKey.PRODUCE, 9, body)
    assert isinstance(pending, Pending)
    broker.turn()
    raw = b"".join(pending.parts or [])  # type: ignore[arg-type]
    return pending, {index: row.error_code for (_, index), row in produce_answer(raw).items()} if raw else {}


def ends(broker: Harness) -> list[int]:
    return [broker.engine.partitions.get("keyed", index).end_offset for index in range(PARTITIONS)]


def test_batches_beyond_what_is_read_at_once_are_sent_again_and_stored(broker: Harness) -> None:
    batch = large()
    _, errors = produce(broker, dict.fromkeys(range(PARTITIONS), batch))
    assert list(errors.values()) == [ErrorCode.NONE] * PASS + [ErrorCode.REQUEST_TIMED_OUT] * 2
    assert ends(broker) == [INSPECTED_RECORDS_MAX] * PASS + [0, 0]
    _, errors = produce(broker, {index: batch for index, error in errors.items() if error})
    assert set(errors.values()) == {ErrorCode.NONE}
    assert ends(broker) == [INSPECTED_RECORDS_MAX] * PARTITIONS


def test_an_idempotent_producer_sends_them_again_in_order(broker: Harness) -> None:
    """Its second batch, in flight already, must not become the first."""
    first = large(producer_id=1, producer_epoch=0, base_sequence=0)
    then = bytes(
        build_batch(
            [NewRecord(timestamp=1_700_000_000_000, key=b"k", value=b"")],
            producer_id=1,
            producer_epoch=0,
            base_sequence=INSPECTED_RECORDS_MAX,
        )
    )
    late = PARTITIONS - 1
    _, errors = produce(broker, dict.fromkeys(range(PARTITIONS), first))
    assert errors[late] == ErrorCode.REQUEST_TIMED_OUT
    assert produce(broker, {late: then})[1] == {late: ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER}
    assert produce(broker, {late: first})[1] == {late: ErrorCode.NONE}
    assert produce(broker, {late: then})[1] == {late: ErrorCode.NONE}
    assert ends(broker)[late] == INSPECTED_RECORDS_MAX + 1


def test_without_acknowledgements_the_connection_is_closed(broker: Harness) -> None:
    pending, _ = produce(broker, dict.fromkeys(range(PARTITIONS), large()), acks=0)
    assert pending.closes == "acks_0"
