"""What a replay reports before it runs, with a real ledger."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from logbus.errors import AnotherCluster, OtherRecords, RecordsLost, UserError, WindowBusy
from logbus.loads.history import WindowReading
from logbus.model import FrozenWindow
from logbus.status import replay
from logbus.status.replay import ReplayPlan, Span
from logbus.status.retention_run import RetentionStore
from logbus.windows.rows import HEARTBEAT_EXPIRY

from tests.support.ledgers import NOW, World, at
from tests.support.loads import load_hours


@pytest.fixture
def loaded(world: World) -> World:
    """Hours 10 to 13 hold two records each; 10 and 11 are loaded, 13 is frozen, 12 is neither."""
    world.fill(*(hour + part for hour in (10, 11, 12, 13) for part in (0, 0.5)))
    load_hours(world, 10, 11)
    world.freeze(13)
    return world


def plan(world: World, *, run_id: str | None = None, **span: Any) -> ReplayPlan:
    return replay.plan(world.ledger, world.log, "p", Span(**span), NOW, run_id)


def test_a_plan_says_what_would_be_loaded_and_replaced(loaded: World) -> None:
    found = plan(loaded, since=at(10.5), until=at(13.5))
    assert [(one.start, one.window.record_count, one.rows_replaced) for one in found.windows] == [
        (at(10), 2, 2),
        (at(11), 2, 2),
        (at(13), 2, 0),
    ]
    assert found.summary()["rows_replaced"] == 4
    assert found.windows[0].bytes
    assert found.windows[2].bytes is None
    assert found.starts() == [at(10), at(11), at(13)]
    assert found.notes == (
        "whether the log still holds the same records was not checked: `logbus replay plan --read` reads 4",
        "the hours from 2015-05-17T12:00:00Z to 2015-05-17T13:00:00Z are not frozen: not included",
    )
    assert plan(loaded, since=at(11), until=at(13)).starts() == [at(11)]


class FakeReader:
    """Returns the given record count and fingerprint for the named hours, and the frozen ones for all others."""

    def __init__(self, **others: tuple[int, str]) -> None:
        self.others = others
        self.begun: tuple[int, int] | None = None

    def begin(self, windows: int, records: int) -> None:
        self.begun = (windows, records)

    def window(self, window: FrozenWindow) -> WindowReading:
        same = (window.record_count, window.fingerprint or "")
        read, fingerprint = self.others.get(f"h{window.interval.start.hour}", same)
        return WindowReading(name="broker", read=read, fingerprint=fingerprint, partitions=None)


def test_a_plan_that_reads_says_what_the_log_holds_otherwise_and_a_replay_of_it_is_refused(loaded: World) -> None:
    reader = FakeReader(h10=(1, "0" * 16), h11=(2, "f" * 16))
    found = replay.plan(loaded.ledger, loaded.log, "p", Span(since=at(10)), NOW, reader=reader)
    assert reader.begun == (2, 4)
    assert [one.differs and one.differs.partition(";")[0] for one in found.windows] == [
        "1 of 2 records gone (compaction?)",
        f"2 records with fingerprint {'f' * 16}",
        None,
    ]
    assert [one.is_read for one in found.windows] == [True, True, False]
    with pytest.raises(OtherRecords, match=r"for 2 of 3 windows .*2015-05-17T10:00:00Z: 1 of 2 records.*--accept-other-records"):
        found.starts()
    assert found.starts(accept_other_records=True) == [at(10), at(11), at(13)]
    assert [one.start for one in found.windows if not (one.lost or one.busy or one.differs)] == [at(13)]


def test_a_plan_reads_no_more_than_it_may_and_says_how_much_that_would_be(loaded: World) -> None:
    reader = FakeReader()
    found = replay.plan(loaded.ledger, loaded.log, "p", Span(starts=(at(10), at(11))), NOW, reader=reader, records_max=3)
    assert reader.begun is None
    assert "--read` reads 4" in found.notes[0]
    assert found.starts() == [at(10), at(11)]


def test_what_retention_took_is_refused_by_name_or_left_out(loaded: World) -> None:
    loaded.log.delete_records("t", before_offset=1)
    found = plan(loaded, until=at(12))
    assert found.windows[0].lost == ("t-0 [0, 1)",)
    with pytest.raises(RecordsLost, match=r"1 of 2 windows .*t-0 \[0, 1\)"):
        found.starts()
    assert found.starts(skip_lost=True) == [at(11)]
    assert [one.start for one in found.windows if not (one.lost or one.busy or one.differs)] == [at(11)]


def test_windows_of_a_topic_that_was_made_again_are_lost(loaded: World) -> None:
    loaded.log.create("t")
    with pytest.raises(RecordsLost, match="recreated"):
        plan(loaded, starts=(at(10),)).starts()


def test_a_window_that_another_run_is_at_work_on_is_refused_unless_it_is_taken_over(loaded: World) -> None:
    (attempt,) = loaded.ledger.begin_attempts("p", [at(11)], "the other run", 1, NOW)
    found = plan(loaded, since=at(10), until=at(12))
    with pytest.raises(WindowBusy, match="attempt 2 at 2015-05-17T11:00:00Z by run the other run"):
        found.starts()
    assert found.starts(supersede=True) == [at(10), at(11)]
    assert plan(loaded, since=at(10), run_id="the other run").windows[1].busy is None
    loaded.ledger.heartbeat([attempt], NOW - HEARTBEAT_EXPIRY - timedelta(seconds=1))
    assert plan(loaded, since=at(10)).windows[1].busy is None


def test_a_hold_of_the_topic_is_noted(loaded: World) -> None:
    RetentionStore(loaded.ledger.engine).hold("t", "a look at May", None, NOW)
    assert "a look at May" in plan(loaded, starts=(at(10),)).notes[0]


def test_what_was_never_frozen_cannot_be_replayed(loaded: World) -> None:
    with pytest.raises(UserError, match="2015-05-17T12:00:00Z.*`logbus load`"):
        plan(loaded, starts=(at(10), at(12)))
    with pytest.raises(UserError, match="in that span"):
        plan(loaded, since=at(20))


@pytest.mark.parametrize("span", [{}, {"since": at(1), "starts": (at(2),)}])
def test_a_span_that_says_nothing_or_two_things_is_refused(span: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        Span(**span)


def test_a_wrong_broker_is_told_from_a_topic_that_was_made_again(loaded: World) -> None:
    loaded.log.create("t")
    assert plan(loaded, starts=(at(10),)).windows[0].lost == ("t was deleted and recreated since 2015-05-17T10:00:00Z",)
    loaded.log.cluster = "another"
    with pytest.raises(AnotherCluster, match="Name the right one by --bootstrap-server"):
        plan(loaded, starts=(at(10),))
