"""The memory of producers against a model that keeps everything."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st
from logbus_broker.errors import InvalidProducerEpoch, OutOfOrderSequence
from logbus_broker.log.producer_state import ProducerStates
from logbus_broker.protocol.batch import BatchHeader, read_header

from tests.support.batches import plain_batch

TEMPLATE = read_header(plain_batch())
WRAP = 2**31


@dataclass
class Model:
    """For each producer, every batch ever accepted, as (epoch, first, last, offset). For one with nothing stored, the epoch and
    sequence of the first batch that was not stored: that batch has to come first."""

    sent: dict[int, list[tuple[int, int, int, int]]] = field(default_factory=dict)
    refused: dict[int, tuple[int, int]] = field(default_factory=dict)

    def verdict(self, producer_id: int, epoch: int, first: int, last: int) -> str | int:
        batches = self.sent.get(producer_id, [])
        if not batches:
            begins = self.refused.get(producer_id)
            return "gap" if begins is not None and begins[0] == epoch and begins[1] != first else "new"
        current = batches[-1][0]
        if epoch < current:
            return "stale"
        if epoch > current:
            return "new" if first == 0 else "gap"
        recent = [batch for batch in batches if batch[0] == epoch][-5:]
        for _, sent_first, sent_last, offset in recent:
            if (sent_first, sent_last) == (first, last):
                return offset
        return "new" if first == (recent[-1][2] + 1) % WRAP else "gap"


def header(producer_id: int, epoch: int, sequence: int, count: int, offset: int) -> BatchHeader:
    return TEMPLATE._replace(
        base_offset=offset,
        last_offset_delta=count - 1,
        record_count=count,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
    )


def verdict_of(states: ProducerStates, candidate: BatchHeader) -> str | int:
    try:
        duplicate = states.check(candidate)
    except OutOfOrderSequence:
        return "gap"
    except InvalidProducerEpoch:
        return "stale"
    return "new" if duplicate is None else duplicate.base_offset


ACTIONS = st.lists(
    st.tuples(
        st.integers(1, 2),  # producer
        st.integers(0, 2),  # epoch
        st.integers(-8, 3),  # sequence, relative to the next expected one
        st.integers(1, 3),  # records
        st.sampled_from(["apply", "stage", "stage", "write", "fail"]),
    ),
    max_size=60,
)


@given(ACTIONS, st.sampled_from([0, WRAP - 4]))
def test_every_verdict_is_the_models(actions: list[tuple[int, int, int, int, str]], begin: int) -> None:
    states, model, staged_model = ProducerStates(), Model(), Model()
    offset = 0
    for producer_id, epoch, step, count, action in actions:
        batches = staged_model.sent.get(producer_id)
        following = (batches[-1][2] + 1) if batches else begin
        first = 0 if batches and epoch > batches[-1][0] and step == 0 else (following + step) % WRAP
        last = (first + count - 1) % WRAP
        candidate = header(producer_id, epoch, first, count, offset)
        verdict = verdict_of(states, candidate)
        assert verdict == staged_model.verdict(producer_id, epoch, first, last)
        if verdict == "new":
            states.stage(candidate)
            staged_model.sent.setdefault(producer_id, []).append((epoch, first, last, offset))
            offset += count
        if action in ("apply", "write"):
            states.apply_staged()
            model.sent = {key: list(value) for key, value in staged_model.sent.items()}
            staged_model.refused = {key: begins for key, begins in staged_model.refused.items() if key not in model.sent}
        elif action == "fail":
            states.discard_staged()
            for key in staged_model.sent.keys() - model.sent.keys():
                beginning = staged_model.sent[key][0][:2]
                if key not in staged_model.refused or staged_model.refused[key][0] < beginning[0]:
                    staged_model.refused[key] = beginning
            staged_model.sent = {key: list(value) for key, value in model.sent.items()}
