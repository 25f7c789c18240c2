from __future__ import annotations

import pytest
from logbus_broker.errors import OutOfOrderSequence
from logbus_broker.log.producer_state import REFUSED_MAX, ProducerStates, SentBatch
from logbus_broker.protocol.batch import BatchHeader, read_header

from tests.support.batches import NOW_MS, plain_batch, produced

PRODUCER = 1000


def header(sequence: int, count: int = 1, *, epoch: int = 0, offset: int = 0, producer_id: int = PRODUCER) -> BatchHeader:
    return read_header(produced(producer_id, sequence % 2**31, count, epoch=epoch)).stamped(offset, 0)


def remembering(*headers: BatchHeader) -> ProducerStates:
    states = ProducerStates()
    for each in headers:
        states.apply(each)
    return states


def test_a_batch_without_a_producer_is_always_new() -> None:
    states = ProducerStates()
    states.apply(read_header(plain_batch()))
    assert states.check(read_header(plain_batch())) is None
    assert len(states) == 0


def test_a_producer_whose_first_batch_was_refused_begins_with_it_also_when_others_were_refused_too() -> None:
    states = ProducerStates()
    for sequence in (3, 4):
        states.refuse(header(sequence))
    with pytest.raises(OutOfOrderSequence):
        states.check(header(4))
    assert states.check(header(3)) is None
    assert states.check(header(0, producer_id=PRODUCER + 1)) is None


def test_a_refusal_says_nothing_to_a_producer_that_is_remembered_or_takes_a_new_epoch() -> None:
    states = remembering(header(0, 5))
    states.refuse(header(20))
    assert states.check(header(5)) is None
    states = ProducerStates()
    states.refuse(header(20))
    assert states.check(header(0, epoch=1)) is None


def test_a_refusal_is_forgotten_when_the_producer_is_stored_after_all() -> None:
    states = ProducerStates()
    states.refuse(header(3))
    states.apply(header(3))
    states.forget_before(1)
    assert states.check(header(77)) is None


def test_of_refusals_only_the_latest_are_kept() -> None:
    states = ProducerStates()
    for number in range(REFUSED_MAX + 1):
        states.refuse(header(3, producer_id=number))
    assert states.check(header(4, producer_id=0)) is None
    with pytest.raises(OutOfOrderSequence):
        states.check(header(4, producer_id=1))


def test_a_batch_sent_again_gets_its_old_offset() -> None:
    states = remembering(header(0, 5, offset=100), header(5, 2, offset=105))
    assert states.check(header(0, 5)) == SentBatch(0, 4, 100, 104, NOW_MS)
    assert states.check(header(5, 2)) == SentBatch(5, 6, 105, 106, NOW_MS)


def test_the_producer_not_heard_of_for_longest_is_forgotten_first() -> None:
    states = ProducerStates(producers_max=2)
    for producer_id, sequence in [(1, 0), (2, 0), (1, 1), (3, 0)]:
        states.apply(header(sequence, producer_id=producer_id))
    assert len(states) == 2
    assert states.get(2) is None
    assert states.get(1) is not None
    assert states.get(3) is not None
