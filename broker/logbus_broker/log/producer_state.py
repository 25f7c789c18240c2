"""What an idempotent producer has sent to one partition: its epoch and its last five batches. Pure.

A producer numbers its records per partition. The next batch must begin where the last one ended; a resend of one of the last
five is a duplicate and gets its old offset; anything else is out of order. A new epoch begins at 0. A producer that is not
remembered may begin anywhere: after retention or a long pause its records are gone, and so is our memory of it. Sequence numbers
wrap from 2^31 - 1 to 0.

There is one exception, a producer whose first batch was refused: clients keep five requests in flight, and if the first is
refused because this broker is not sure of its leadership, or too few replicas are in sync, the second may arrive once that is
over. If it were accepted, the first could never be, though its client keeps resending it until it gives up. So such a producer
has to begin where it was refused.

Staged batches count as sent for the batches after them, and are forgotten if their write fails.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from logbus_broker.errors import InvalidProducerEpoch, OutOfOrderSequence
from logbus_broker.protocol.batch import NO_PRODUCER_ID, BatchHeader

BATCHES_REMEMBERED = 5  # as in Kafka, and the most that an idempotent client keeps in flight
SEQUENCE_MASK = (1 << 31) - 1
PRODUCERS_MAX = 100_000
REFUSED_MAX = 1_000  # refused first batches that are remembered; a client retries at once, or never


class SentBatch(NamedTuple):
    """One batch of a producer, as stored."""

    base_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    max_timestamp: int


class ProducerState(NamedTuple):
    """One producer: its batches from the oldest remembered to the newest."""

    epoch: int
    batches: tuple[SentBatch, ...]


class ProducerStates:
    """The producers of one partition; the one silent for longest is forgotten first."""

    def __init__(self, *, producers_max: int = PRODUCERS_MAX) -> None:
        self._producers_max = producers_max
        self._stored: dict[int, ProducerState] = {}
        self._staged: dict[int, ProducerState] = {}
        self._beginnings: dict[int, BatchHeader] = {}  # the first staged batch of each producer not remembered yet
        self._refused: dict[int, tuple[int, int]] = {}  # for such producers: epoch, and the sequence that must come first

    def __len__(self) -> int:
        return len(self._stored)

    def emptied(self) -> ProducerStates:
        """An empty one with the same capacity."""
        return ProducerStates(producers_max=self._producers_max)

    def get(self, producer_id: int) -> ProducerState | None:
        """What is remembered, staged batches included."""
        return self._staged.get(producer_id) or self._stored.get(producer_id)

    def stored(self) -> Mapping[int, ProducerState]:
        """What is remembered, staged batches not included, the producer silent for longest first."""
        return self._stored

    def restore(self, producers: Mapping[int, ProducerState]) -> None:
        """Adopt what was remembered before, in the order of the producers' last batches."""
        self._stored = dict(producers)

    def forget_before(self, offset: int) -> int:
        """Forget producers whose last batch ends before `offset`; returns how many."""
        count = 0
        while self._stored:
            producer_id, state = next(iter(self._stored.items()))
            if state.batches[-1].last_offset >= offset:
                break
            del self._stored[producer_id]
            count += 1
        return count

    def last_offsets(self) -> frozenset[int]:
        """Where the last batch of each producer ends: compaction keeps their headers, from which this memory can be rebuilt."""
        return frozenset(state.batches[-1].last_offset for state in self._stored.values())

    def check(self, header: BatchHeader) -> SentBatch | None:
        """None: the batch may be written; if it is a duplicate, what was stored the first time. Raises InvalidProducerEpoch or
        OutOfOrderSequence if it may not."""
        if header.producer_id == NO_PRODUCER_ID:
            return None
        state = self.get(header.producer_id)
        if state is None:
            if self._refused:
                self._check_beginning(header)
            return None
        if header.producer_epoch != state.epoch:
            _check_new_epoch(header, state)
            return None
        expected = (state.batches[-1].last_sequence + 1) & SEQUENCE_MASK
        if header.base_sequence == expected:
            return None
        last_sequence = _last_sequence(header)
        for sent in state.batches:
            # Both ends must match: a client that splits a batch that was too large sends the same first sequence with another
            # last one. That is not a duplicate: some of its records may be new.
            if sent.base_sequence == header.base_sequence and sent.last_sequence == last_sequence:
                return sent
        raise OutOfOrderSequence(
            f"producer {header.producer_id} sent sequence {header.base_sequence}: expected {expected}, "
            "or a retry of one of its last batches"
        )

    def follows(self, producer_id: int, epoch: int, base_sequence: int) -> bool:
        """Whether the batch may obviously be written: its producer is remembered, and this is its next sequence. If not, `check`
        decides, and gives the reason if it may not."""
        state = self._staged.get(producer_id) or self._stored.get(producer_id)
        return (
            state is not None and state.epoch == epoch and base_sequence == (state.batches[-1].last_sequence + 1) & SEQUENCE_MASK
        )

    def stage(self, header: BatchHeader) -> None:
        """Count a checked and stamped batch as sent, until `apply_staged` or `discard_staged`."""
        if header.producer_id != NO_PRODUCER_ID:
            state = self.get(header.producer_id)
            if state is None:
                self._beginnings[header.producer_id] = header
            self._staged[header.producer_id] = _next_state(state, header)

    def apply_staged(self) -> None:
        """The staged batches are stored."""
        for producer_id, state in self._staged.items():
            self._remember(producer_id, state)
        self._staged.clear()
        self._beginnings.clear()

    def discard_staged(self) -> None:
        """The staged batches were not stored."""
        self._staged.clear()
        # To their clients these were refused, like batches that were never staged. The next request, which is already in flight,
        # must not become its producer's first batch.
        for header in self._beginnings.values():
            self.refuse(header)
        self._beginnings.clear()

    def refuse(self, header: BatchHeader) -> None:
        """A batch was refused that may be resent: if its producer is not remembered, this batch has to be its first."""
        producer_id = header.producer_id
        if producer_id == NO_PRODUCER_ID or self.get(producer_id) is not None:
            return
        refused = self._refused.get(producer_id)
        if refused is None or refused[0] < header.producer_epoch:
            self._refused[producer_id] = header.producer_epoch, header.base_sequence
            if len(self._refused) > REFUSED_MAX:
                del self._refused[next(iter(self._refused))]

    def apply(self, header: BatchHeader) -> None:
        """Account for a stored batch: this is how the state is rebuilt from the log."""
        if header.producer_id != NO_PRODUCER_ID:
            self._remember(header.producer_id, _next_state(self._stored.get(header.producer_id), header))

    def _check_beginning(self, header: BatchHeader) -> None:
        epoch, sequence = self._refused.get(header.producer_id, (-1, -1))
        if epoch == header.producer_epoch and sequence != header.base_sequence:
            raise OutOfOrderSequence(
                f"producer {header.producer_id} sent sequence {header.base_sequence} before {sequence}, which was refused"
            )

    def _remember(self, producer_id: int, state: ProducerState) -> None:
        if self._refused:
            self._refused.pop(producer_id, None)
        self._stored.pop(producer_id, None)  # moves it to the end: a dict keeps insertion order
        self._stored[producer_id] = state
        if len(self._stored) > self._producers_max:
            del self._stored[next(iter(self._stored))]


def _check_new_epoch(header: BatchHeader, state: ProducerState) -> None:
    if header.producer_epoch < state.epoch:
        raise InvalidProducerEpoch(
            f"producer {header.producer_id} wrote with epoch {header.producer_epoch} after epoch {state.epoch}"
        )
    if header.base_sequence != 0:
        raise OutOfOrderSequence(
            f"producer {header.producer_id} begins epoch {header.producer_epoch} at sequence {header.base_sequence}, not 0"
        )


def _next_state(state: ProducerState | None, header: BatchHeader) -> ProducerState:
    sent = SentBatch(
        header.base_sequence,
        _last_sequence(header),
        header.base_offset,
        header.base_offset + header.last_offset_delta,
        header.max_timestamp,
    )
    if state is None or state.epoch != header.producer_epoch:
        return ProducerState(header.producer_epoch, (sent,))
    return ProducerState(state.epoch, (*state.batches[1 - BATCHES_REMEMBERED :], sent))


def _last_sequence(header: BatchHeader) -> int:
    return (header.base_sequence + header.last_offset_delta) & SEQUENCE_MASK
