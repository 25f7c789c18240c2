"""A chain loaded without its done prefix gives the same undone stretches as the whole chain."""

from __future__ import annotations

import random
from datetime import datetime

import pytest
from logbus.windows import pipeline_chains, schema
from logbus.windows.rows import pipeline_row
from sqlalchemy import ColumnElement, Connection, false, text, update

from tests.support.ledgers import World, at, stamps

HOURS = (8, 9, 10, 12, 13, 14, 15)  # hour 11 is not frozen
TRIES = 40
COUNTS = ("byte", "read", "loaded", "dead_lettered", "filtered", "late", "early", "lost")
NO_COUNTS = ", ".join(f"{name}_count = 0" for name in COUNTS)


@pytest.fixture
def frozen(world: World) -> World:
    """Two partitions; hour 11 is empty in the first, and in the second unless a test fills it."""
    hours = (8, 9, 10, 12, 13, 14)
    world.log.fill("t", stamps(*(hour + part for hour in hours for part in (0.1, 0.6))), stamps(*(hour + 0.2 for hour in hours)))
    return world


def freeze(world: World) -> None:
    world.register()
    for hour in HOURS:
        world.freeze(hour)


def chain(world: World, connection: Connection, done: ColumnElement[bool]) -> pipeline_chains.PipelineChain:
    return pipeline_chains.load_chain(connection, pipeline_row(connection, "p"), world.log.topic("t").topic_id, done)


def stretches_of(
    loaded: pipeline_chains.PipelineChain, partition: int, undone: pipeline_chains.Undone, start: int
) -> list[tuple[int, int, str, datetime | None]]:
    """The stretches that are not done and not deleted from the log; empty ones are left out."""
    stretches = pipeline_chains.pending_ranges(loaded, partition, undone)
    return [(max(one.first, start), one.end, one.why, one.ended_at) for one in stretches if one.end > start]


def test_the_done_prefix_can_be_left_out(frozen: World) -> None:
    freeze(frozen)
    chance, window, shorter = random.Random(5), schema.window, 0
    for _ in range(TRIES):
        first_undone = chance.choice((*HOURS, 99))
        starts = {0: chance.randrange(12), 1: chance.randrange(6)}
        with frozen.ledger.engine.begin() as connection:
            for hour in HOURS:
                is_done = hour < first_undone or chance.random() < 0.5
                values = {
                    "loaded_attempt": 1 if is_done else None,
                    "audited_at": at(20) if is_done and chance.random() < 0.9 else None,
                }
                connection.execute(update(window).where(window.c.starts_at == at(hour)).values(values))
                connection.execute(text(f"update logbus.window set {NO_COUNTS}"))
            whole = chain(frozen, connection, false())
            for_lag, for_retention = (
                chain(frozen, connection, done)
                for done in (pipeline_chains.is_loaded(), pipeline_chains.is_settled_and_gone(starts))
            )
        assert len(whole.windows) == len(HOURS)
        shorter += len(for_lag.windows) < len(HOURS) and len(for_retention.windows) < len(HOURS)
        for partition in (0, 1):
            assert stretches_of(for_lag, partition, pipeline_chains.not_loaded, 0) == stretches_of(
                whole, partition, pipeline_chains.not_loaded, 0
            )
            start = starts[partition]
            assert stretches_of(for_retention, partition, pipeline_chains.not_settled, start) == stretches_of(
                whole, partition, pipeline_chains.not_settled, start
            )
    assert shorter > TRIES // 10


def test_nothing_is_left_out_while_records_before_the_first_window_are_not_frozen(frozen: World) -> None:
    frozen.register()
    for hour in (12, 13, 14):
        frozen.freeze(hour)
    with frozen.ledger.engine.begin() as connection:
        connection.execute(text(f"update logbus.window set loaded_attempt = 1, {NO_COUNTS}"))
        assert len(chain(frozen, connection, pipeline_chains.is_loaded()).windows) == 3


def test_a_pipeline_without_windows_has_an_empty_chain(frozen: World) -> None:
    frozen.register()
    with frozen.ledger.engine.begin() as connection:
        assert chain(frozen, connection, pipeline_chains.is_loaded()).windows == ()
        topics = pipeline_chains.among_topics({"p": frozen.log.topic("t").topic_id})
        assert pipeline_chains.anchors_of(connection, topics)["p"].keys() == {0, 1}
