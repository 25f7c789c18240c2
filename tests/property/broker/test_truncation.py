"""Truncating a log on a disk that loses and tears what was not synced, with a power cut after each step of the truncation."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from logbus_broker.log.leader_epochs import TruncationTicket
from logbus_broker.log.partition_log import PartitionLog
from logbus_broker.protocol.batch import read_header

from tests.sim.disk import Stopped
from tests.support.examples import examples
from tests.support.logs import flush, located_bytes
from tests.support.replica_logs import Replica, Sent, epochs_of, producers_of

SMALL = {"segment_bytes": 500, "index_interval_bytes": 150}
SENT = st.builds(Sent, st.sampled_from([0, 0, 0, 3]), st.integers(0, 1), st.integers(-1, 2), st.integers(1, 4))
STEP = st.one_of(st.lists(SENT, min_size=1, max_size=4), st.just("flush"))
HISTORY = st.lists(STEP, min_size=1, max_size=12)
often = settings(max_examples=examples(4, at_least=4), deadline=None, suppress_health_check=[HealthCheck.too_slow])

Begin = Callable[[PartitionLog], TruncationTicket]


def played(history: list[object]) -> tuple[Replica, list[int]]:
    """The history up to the truncation, and every offset that a checkpoint may record as flushed."""
    replica, flushed, epoch = Replica(**SMALL), [0], 0
    for step in history:
        if isinstance(step, list):
            rows = []
            for row in step:
                epoch += row.epoch
                rows.append(row._replace(epoch=epoch))
            replica.take(*rows)
        else:
            flush(replica.log)
            flushed.append(replica.log.flushed_offset)
    return replica, flushed


def after_a_power_cut(replica: Replica, *, recovery_point: int, seed: int) -> Replica:
    """The next start, on what the disk kept."""
    replica.disk.power_cut(random.Random(seed).randint)
    again = Replica(replica.disk, recovery_point=recovery_point, **SMALL)
    assert again.log.offline_reason == ""
    again.batches = list(replica.batches)
    return again


def check(replica: Replica) -> None:
    """The log holds the replica's batches, and its metadata agrees with them."""
    log, batches = replica.log, replica.batches
    assert [*log.batches_from(log.log_start_offset)] == batches
    assert dict(replica.partition.producers.stored()) == producers_of(batches)
    assert log.epochs.written.entries == epochs_of(batches)
    for batch in batches:
        header = read_header(batch)
        for offset in (header.base_offset, header.last_offset):
            assert located_bytes(log, offset, 1, upto_offset=log.end_offset) == batch
        found = log.search_by_time(header.max_timestamp, upto_offset=log.end_offset).run()
        assert found == (header.base_offset, header.max_timestamp)


def goes_on(replica: Replica, *, recovery_point: int, seed: int) -> None:
    """What is written after a truncation survives a power cut, though no checkpoint knows of the truncation yet."""
    epoch = max(replica.log.epochs.written.latest, 0)  # the same epoch: recording a new one would flush the directory
    replica.take(Sent(0, epoch, 1, 2), Sent(0, epoch, 2, 3))
    check(replica)
    flush(replica.log)
    again = after_a_power_cut(replica, recovery_point=recovery_point, seed=seed)
    check(again)


def cut_after_each_step(history: list[object], begin: Begin, data: st.DataObject, judge: Callable[[Replica, int], None]) -> None:
    seed = data.draw(st.integers(0, 1 << 30))
    last, is_whole = 0, False
    while not is_whole:
        replica, flushed = played(history)
        recovery_point = data.draw(st.sampled_from(flushed))
        try:
            replica.cut(begin, last)
            is_whole = True
            check(replica)
        except Stopped:
            pass
        was_flushed = replica.log.flushed_offset
        again = after_a_power_cut(replica, recovery_point=recovery_point, seed=seed + last)
        judge(again, was_flushed)
        check(again)
        again.cut(begin)
        check(again)
        goes_on(again, recovery_point=recovery_point, seed=seed - last)
        last += 1


@often
@given(HISTORY, st.data())
def test_a_log_cut_at_any_offset_holds_what_is_below_whenever_the_power_goes(history: list[object], data: st.DataObject) -> None:
    end_offset = played(history)[0].log.end_offset
    offset = data.draw(st.integers(0, end_offset))

    def judge(again: Replica, was_flushed: int) -> None:
        """What is left is a prefix of the log, with everything that was flushed and is below the cut."""
        kept = [batch for batch in again.batches if read_header(batch).next_offset <= min(offset, was_flushed)]
        assert again.log.log_start_offset == 0
        again.keep_what_is_within()
        assert again.batches[: len(kept)] == kept

    cut_after_each_step(history, lambda log: log.begin_truncation(offset), data, judge)


@often
@given(HISTORY, st.integers(0, 60), st.data())
def test_a_log_that_begins_anew_is_empty_there_or_the_old_one_whenever_the_power_goes(
    history: list[object], offset: int, data: st.DataObject
) -> None:
    def judge(again: Replica, was_flushed: int) -> None:
        """Left is either an empty log at the new start, or the old log's end with everything that was flushed."""
        start, end = again.log.log_start_offset, again.log.end_offset
        assert end >= was_flushed or start == end == offset
        again.keep_what_is_within()

    cut_after_each_step(history, partial(PartitionLog.begin_truncation, offset=offset, resets=True), data, judge)
