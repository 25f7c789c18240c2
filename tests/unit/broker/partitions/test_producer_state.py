from __future__ import annotations

import pytest

from broker.errors import InvalidProducerEpoch, OutOfOrderSequence
from broker.partitions.producer_state import REFUSED_MAX, DuplicateBatch, ProducerStates
from broker.records.batch import BatchHeader, read_header
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


def test_an_unknown_producer_may_begin_anywhere() -> None:
    assert ProducerStates().check(header(77)) is None


def test_a_producer_whose_first_batch_was_not_written_begins_with_it() -> None:
    states = ProducerStates()
    for sequence in (0, 5):
        states.stage(header(sequence, 5))
    states.discard_staged()
    for later in (5, 10):
        with pytest.raises(OutOfOrderSequence, match="before 0, which was refused"):
            states.check(header(later, 5))
    assert states.check(header(0, 5)) is None
    states.stage(header(0, 5))
    states.apply_staged()
    assert states.check(header(5, 5)) is None


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


def test_the_next_sequence_is_accepted() -> None:
    assert remembering(header(0, 5)).check(header(5)) is None


@pytest.mark.parametrize("sequence", [0, 3, 4, 6, 7, 2**31 - 1])
def test_a_gap_or_an_overlap_is_out_of_order(sequence: int) -> None:
    with pytest.raises(OutOfOrderSequence, match="neither 5"):
        remembering(header(0, 5)).check(header(sequence))


def test_a_batch_sent_again_gets_its_old_offset() -> None:
    states = remembering(header(0, 5, offset=100), header(5, 2, offset=105))
    assert states.check(header(0, 5)) == DuplicateBatch(100, NOW_MS)
    assert states.check(header(5, 2)) == DuplicateBatch(105, NOW_MS)


def test_a_batch_with_the_same_beginning_and_another_end_is_no_duplicate() -> None:
    with pytest.raises(OutOfOrderSequence):
        remembering(header(0, 5)).check(header(0, 4))


def test_five_batches_are_remembered_and_a_sixth_is_too_old() -> None:
    states = remembering(*[header(number, offset=100 + number) for number in range(6)])
    for number in range(1, 6):
        assert states.check(header(number)) == DuplicateBatch(100 + number, NOW_MS)
    with pytest.raises(OutOfOrderSequence):
        states.check(header(0))


def test_sequences_wrap_behind_the_largest_number() -> None:
    states = remembering(header(2**31 - 2, 2, offset=10))
    assert states.check(header(0, offset=12)) is None
    states.apply(header(0, offset=12))
    assert states.check(header(2**31 - 2, 2)) == DuplicateBatch(10, NOW_MS)


def test_a_batch_may_reach_across_the_wrap() -> None:
    states = remembering(header(2**31 - 2, 5, offset=10))
    assert states.check(header(3)) is None
    assert states.check(header(2**31 - 2, 5)) == DuplicateBatch(10, NOW_MS)
    with pytest.raises(OutOfOrderSequence):
        states.check(header(2**31 - 1))


def test_a_new_epoch_begins_at_zero() -> None:
    states = remembering(header(0, 5))
    with pytest.raises(OutOfOrderSequence, match="begins epoch 1 at sequence 5, not 0"):
        states.check(header(5, epoch=1))
    assert states.check(header(0, epoch=1)) is None


def test_an_older_epoch_is_refused_even_as_a_duplicate() -> None:
    states = remembering(header(0, 5), header(0, 1, epoch=1))
    with pytest.raises(InvalidProducerEpoch, match="epoch 0 after epoch 1"):
        states.check(header(0, 5))


def test_a_new_epoch_forgets_the_batches_of_the_old_one() -> None:
    states = remembering(header(0, 5, offset=10), header(0, 5, epoch=1, offset=20))
    assert states.check(header(0, 5, epoch=1)) == DuplicateBatch(20, NOW_MS)


def test_staged_batches_count_as_sent() -> None:
    states = remembering(header(0))
    states.stage(header(1, offset=50))
    assert states.check(header(2)) is None
    assert states.check(header(1)) == DuplicateBatch(50, NOW_MS)
    with pytest.raises(OutOfOrderSequence):
        states.check(header(3))


def test_discarded_batches_were_never_sent() -> None:
    states = remembering(header(0))
    states.stage(header(1))
    states.stage(header(0, producer_id=7))
    states.discard_staged()
    assert states.check(header(1)) is None
    assert states.get(7) is None


def test_applied_batches_stay() -> None:
    states = remembering(header(0))
    states.stage(header(1, offset=50))
    states.apply_staged()
    states.discard_staged()
    assert states.check(header(1)) == DuplicateBatch(50, NOW_MS)


def test_the_producer_not_heard_of_for_longest_is_forgotten_first() -> None:
    states = ProducerStates(producers_max=2)
    for producer_id, sequence in [(1, 0), (2, 0), (1, 1), (3, 0)]:
        states.apply(header(sequence, producer_id=producer_id))
    assert len(states) == 2
    assert states.get(2) is None
    assert states.get(1) is not None
    assert states.get(3) is not None
