"""The audit finds any change made to the table, the ledger or the topic after the commit."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest
from logbus.errors import AnotherCluster
from logbus.loads.audit import audit_window
from logbus.loads.sinks import sink_for
from logbus.loads.tally import ValuesReport
from logbus.model import FrozenWindow, PartitionTally, Pipeline, WindowState
from sqlalchemy import Engine

from tests.support.ledgers import NOW, World, at
from tests.support.loads import Loading


@pytest.fixture
def loaded(world: World) -> World:
    """Hour 10: four records, one of them a dead letter."""
    world.fill(10, 10.2, 10.4, 10.6, 11)
    Loading.of(world, 10, bad_offsets=frozenset({2})).load()
    return world


def test_an_exact_window_is_audited(loaded: World) -> None:
    report = loaded.audit()
    assert (report.ok, report.problems, report.notes) == (True, (), ())
    assert loaded.ledger.window("p", at(10)).state is WindowState.AUDITED


def test_a_summary_says_what_was_expected_and_what_was_found(loaded: World) -> None:
    summary = loaded.audit().summary()
    assert (summary["ok"], summary["expected"], summary["counted"]) == (True, {"0": 4}, {"0": 4})


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("delete from t where _offset = 0", r"t-0 \[0, 4\) holds 4 records, accounted for: 3 \(-1\)"),
        ("insert into t select * from t where _offset = 0", "accounted for: 5"),
        ("update t set _offset = 1 where _offset = 0", "1 twice"),
        ("update t set _fingerprint = _fingerprint + 1 where _offset = 0", "some row is another record's"),
        ("update t set _topic = 'other'", "accounted for: 1"),
        ("delete from logbus.dead_letter", "0 dead letters kept, written: 1"),
        ("update logbus.window set loaded_count = 2", "the ledger's counts do not add up"),
    ],
)
def test_what_was_changed_behind_the_loads_back_is_found(loaded: World, statement: str, problem: str) -> None:
    loaded.execute(statement)
    report = loaded.audit()
    assert not report.ok
    assert re.search(problem, "; ".join(report.problems))
    assert loaded.ledger.window("p", at(10)).state is WindowState.LOADED


def test_a_reload_that_commits_during_an_audit_is_no_fault(loaded: World) -> None:
    """Between the audit's reads of ledger and table, a reload with a better parser turns the dead letter into a row."""
    better = Loading.of(loaded, 10, bad_offsets=frozenset({2}), mended=True)
    reloads = iter([better])

    class Overtaken:
        def __init__(self, pipeline: Pipeline, engine: Engine) -> None:
            self.sink = sink_for(pipeline, engine)

        def recount(self, window: FrozenWindow) -> Mapping[int, PartitionTally]:
            for reload in reloads:
                reload.load()
            return self.sink.recount(window)

        def compare_values(self, window: FrozenWindow) -> ValuesReport:
            return self.sink.compare_values(window)

    report = audit_window(loaded.ledger.engine, loaded.log, "p", at(10), NOW, sink_for=Overtaken)
    assert (report.ok, report.window.loaded_attempt) == (True, 2)
    assert loaded.ledger.window("p", at(10)).state is WindowState.AUDITED


def test_a_failed_audit_takes_an_earlier_good_one_back(loaded: World) -> None:
    loaded.audit()
    loaded.execute("delete from t where _offset = 0")
    loaded.audit()
    assert loaded.ledger.window("p", at(10)).audited_at is None


def test_records_that_retention_took_after_the_load_are_a_note_and_no_problem(loaded: World) -> None:
    loaded.log.delete_records("t", before_offset=3)
    report = loaded.audit()
    assert report.ok
    assert "no longer replayable" in report.notes[0]


def test_a_topic_made_again_after_the_load_is_a_note_and_no_problem(loaded: World) -> None:
    loaded.log.create("t")
    assert "deleted and recreated" in loaded.audit().notes[0]


@pytest.mark.parametrize("has_topic", [True, False], ids=["a topic of that name", "no such topic"])
def test_another_broker_is_not_taken_for_a_topic_made_again(loaded: World, has_topic: bool) -> None:
    loaded.log.topics.clear()
    if has_topic:
        loaded.log.create("t", partitions=2)
    loaded.log.cluster = "another"
    with pytest.raises(AnotherCluster, match="this is another cluster"):
        loaded.audit()
    assert loaded.ledger.window("p", at(10)).audited_at is None


def test_a_log_that_became_shorter_than_a_loaded_range_is_a_problem(loaded: World) -> None:
    del loaded.log.topics["t"][0].stamps_ms[2:]
    assert "ends at 2" in loaded.audit().problems[0]


def test_a_window_that_is_not_loaded_cannot_be_audited(loaded: World) -> None:
    loaded.freeze(11)
    assert loaded.audit(11).problems == ("the window is not loaded: load it, then audit",)
