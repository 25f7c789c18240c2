"""Lag from a real ledger: the same numbers as from an in-memory chain. It is 16:30."""

from __future__ import annotations

import json

import pytest
from logbus.cli import monitoring as command
from logbus.status.lag import lag_of, unloaded_of

from tests.support.commands import Run
from tests.support.ledgers import World, at, stamps
from tests.support.loads import load_hours

NOW_OF_DAY = at(16.5)


@pytest.fixture
def filled(world: World) -> World:
    """Hours 10 to 13 hold two records each; 10 and 11 are loaded."""
    world.fill(*(hour + part for hour in (10, 11, 12, 13) for part in (0.1, 0.5)))
    load_hours(world, 10, 11)
    return world


def test_a_topic_that_is_gone_does_not_blind_for_the_others(filled: World, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    filled.log.create("gone")
    filled.register(name="q", topic="gone", table="q")
    del filled.log.topics["gone"]
    monkeypatch.setattr(command.topics, "Topics", lambda config: filled.log)
    monkeypatch.setattr(command.options, "clock", lambda: NOW_OF_DAY)

    both = run("lag", "--json")
    found = {one["pipeline"]: one for one in json.loads(both.stdout)}
    assert (both.exit_code, found["p"]["hours_behind"], "no topic 'gone'" in found["q"]["problem"]) == (0, 2, True)
    assert found["p"].keys() == found["q"].keys()
    assert {name for name, value in found["q"].items() if value is not None} == {"pipeline", "topic", "problem"}
    assert (run("lag", "--fail-above", "5").exit_code, run("lag", "--pipeline", "p", "--fail-above", "5").exit_code) == (5, 0)
    alone = run("lag", "--pipeline", "q")
    assert (alone.exit_code, "nothing is known of q" in alone.stderr) == (3, True)
    assert run("lag", "--pipeline", "nobody").exit_code == 3


def test_what_a_pipeline_has_not_loaded_of_a_topic_is_known_before_that_is_deleted(filled: World) -> None:
    filled.log.append("t", *stamps(16.2))
    (needed,) = unloaded_of(filled.ledger.engine, filled.log, ["t"], NOW_OF_DAY)
    assert (needed.pipeline, needed.records, needed.hours) == ("p", 5, 2)
    assert str(needed) == "p (5 records in 2 closed hours and the open one)"
    assert list(unloaded_of(filled.ledger.engine, filled.log, ["other"], NOW_OF_DAY)) == []


def test_bytes_are_counted_only_by_reading(filled: World) -> None:
    read: list[tuple[str, int, int, int]] = []

    def measure(topic: str, partition: int, start: int, end: int) -> int:
        read.append((topic, partition, start, end))
        return 10 * (end - start)

    asked = (filled.ledger.engine, filled.log, "p", NOW_OF_DAY)
    assert lag_of(*asked).bytes_behind is None
    assert lag_of(*asked, measure).bytes_behind == 40
    assert read == [("t", 0, 4, 8)]
