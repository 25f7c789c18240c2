"""Drivers that foresee wrongly, loads in any order, proofs and resets, all at the same time: the stream is exact in the end, and no
proof ever calls it different.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime, timedelta
from threading import Event

import pytest
from logbus.errors import AttemptSuperseded, ChainBroken, EpochStraddles, WrongRequest
from logbus.streams import stream_ledger
from logbus.streams.proof import prove_due, prove_span

from tests.integration.ledger.test_streams import assert_adds_up, loaded, streamed
from tests.support.event_lines import EventLines, random_lines
from tests.support.ledgers import NOW, World, at
from tests.support.streaming import StreamDriver

HOURS = 6
SHIFTS = [timedelta(minutes=minutes) for minutes in (0, 0, 0, 25, -25, 70)]
RESETS_ONE_IN = 20
SEEDS_LONG = 30

# Hours to which a reset passes nothing over.
REACHED = """
    select starts_at from logbus.window where not exists (
        select from logbus.window_range join logbus.stream_partition using (partition)
        where window_id = "window".id and window_range.start_offset > stream_partition.end_offset)
"""


def drive(lines: EventLines, source: random.Random, is_over: Event) -> None:
    driver = StreamDriver.begin(lines)
    while not is_over.is_set():
        driver.shift = source.choice(SHIFTS)
        try:
            if source.random() < 0.3:
                driver.repair()
            if not driver.read(offsets_max=source.choice([1, 5, 20])):
                is_over.wait(0.01)
        except EpochStraddles:
            continue
        except (AttemptSuperseded, ChainBroken):  # a repair may have been planned before a reset
            is_over.wait(source.random() / 20)
            driver = StreamDriver.begin(lines)


def load(lines: EventLines, source: random.Random) -> None:
    hours = list(range(HOURS))
    if source.random() < 0.5:
        first = source.randrange(HOURS - 1)
        hours[first : first + 2] = reversed(hours[first : first + 2])
    for number in hours:
        loaded(lines, number)
        if source.random() < 0.3:
            loaded(lines, number)  # again


def prove(lines: EventLines, is_over: Event) -> None:
    while not is_over.is_set():
        proof = prove_due(lines.world.ledger.engine, "live", NOW)
        assert proof.of("different") + proof.of("kept") == [], proof.failure()
        assert [hour for hour in proof.hours if hour.replaced_by is not None] == []
        is_over.wait(0.02)


def reset(lines: EventLines, source: random.Random, is_over: Event) -> None:
    while not is_over.wait(0.1):
        starts: list[datetime] = [start for (start,) in lines.world.rows(REACHED)]
        if starts and source.randrange(RESETS_ONE_IN) == 0:
            try:
                stream_ledger.reset(lines.world.ledger.engine, "live", source.choice(starts), NOW)
            except WrongRequest as refusal:
                assert "counts records of" in str(refusal)


def all_at_once(loads: Callable[[], None], is_over: Event, *others: Callable[[], None]) -> None:
    """Until the loads are done, or anything fails."""
    with ThreadPoolExecutor(1 + len(others)) as pool:
        futures: list[Future[None]] = [pool.submit(act) for act in (loads, *others)]
        for future in futures:
            future.add_done_callback(lambda _: is_over.set())
    for future in futures:
        future.result()


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, SEEDS_LONG))])
def test_whoever_reads_loads_proves_and_resets_at_once_it_is_exact_in_the_end(world: World, seed: int) -> None:
    source, is_over = random.Random(seed), Event()
    partitions, drivers = source.randint(1, 3), source.randint(1, 2)
    lines = streamed(world, partitions=partitions)
    for partition in range(partitions):
        lines.arrive(random_lines(source, hours=HOURS, per_hour=source.choice([5, 30]), late=1 / 6), partition)
    sources = [random.Random(seed * 10 + number) for number in range(drivers + 2)]
    all_at_once(
        lambda: load(lines, sources[0]),
        is_over,
        lambda: prove(lines, is_over),
        lambda: reset(lines, sources[1], is_over),
        *(lambda its=its: drive(lines, its, is_over) for its in sources[2:]),
    )
    driver = StreamDriver.begin(lines)
    while driver.repair() or driver.read():
        pass
    assert_adds_up(world, lines.lines)
    assert prove_due(world.ledger.engine, "live", NOW).of("different") == []
    assert prove_span(world.ledger.engine, "live", NOW).of("proven") == [at(number) for number in range(HOURS)]
