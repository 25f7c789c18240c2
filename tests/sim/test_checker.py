"""The checker finds each anomaly in a history written by hand, and none in a clean one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.sim.checker import LOST_BY, check
from tests.sim.histories import History, read, write

PLACE = {"topic": "t", "partition": 0}


class Told:
    """A history under construction; time advances with each event."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def add(self, event: str, **values: Any) -> Told:
        self.events.append({"at": len(self.events), "event": event, **values})
        return self

    def send(self, op: int, *values: str, client: str = "p", promise: str = "replicated") -> Told:
        return self.add("invoke", client=client, op=op, values=list(values), promise=promise, **PLACE)

    def ok(self, op: int, offset: int, *, client: str = "p", exactly_once: bool = True, session: str | None = "1") -> Told:
        return self.add("ok", client=client, op=op, offset=offset, exactly_once=exactly_once, session=session)

    def fail(self, op: int) -> Told:
        return self.add("fail", client="p", op=op, error="NOT_ENOUGH_REPLICAS")

    def unknown(self, op: int, *, exactly_once: bool = True) -> Told:
        return self.add("unknown", client="p", op=op, error="timeout", exactly_once=exactly_once, session=None)

    def poll(self, position: int, *values: str, client: str = "c", after: int | None = None) -> Told:
        records = [(position + number, value) for number, value in enumerate(values)]
        return self.add("poll", client=client, position=position, records=records, next=after or position + len(values), **PLACE)

    def seek(self, position: int) -> Told:
        return self.add("seek", client="c", position=position, **PLACE)

    def drained(self, *values: str, start: int = 0) -> Told:
        if values:
            self.poll(start, *values, client="last")
        return self.add("drained", client="last", start=start, end=start + len(values), **PLACE)

    def fault(self, kind: str) -> Told:
        return self.add("fault", kind=kind)

    @property
    def names(self) -> list[str]:
        return check(self.events).names


def test_a_history_in_which_all_is_well_has_no_anomaly() -> None:
    told = Told().send(1, "a", "b").ok(1, 0).send(2, "c").unknown(2).poll(0, "a").poll(1, "b", "c").send(3, "d").fail(3)
    verdict = check(told.drained("a", "b", "c").events)
    assert not verdict.anomalies
    assert verdict.counts == {"send ok": 1, "send unknown": 1, "send fail": 1, "polled": 6}


def test_lost_write_was_acknowledged_and_is_not_there_at_the_end() -> None:
    assert Told().send(1, "a").ok(1, 0).send(2, "b").ok(2, 1).drained("a").names == ["lost-write"]


def test_lost_write_was_acknowledged_without_an_offset_and_is_nowhere() -> None:
    told = Told().send(1, "a").ok(1, -1).send(2, "b").ok(2, -1)
    assert told.drained("b").names == ["lost-write"]
    told = Told().send(1, "a").ok(1, -1).send(2, "b").ok(2, -1)
    assert told.drained("b", start=1).names == [], "retention may have taken it"
    assert Told().send(1, "a", promise="none").ok(1, -1).drained().names == [], "nothing was promised"


def test_lost_write_was_passed_over_by_who_read_further() -> None:
    told = Told().send(1, "a").ok(1, 0).send(2, "b").ok(2, 1).poll(0, client="c", after=2)
    assert "lost-write" in told.names


def test_lost_write_was_seen_and_is_gone() -> None:
    told = Told().send(1, "a").ok(1, 0).send(2, "b").unknown(2).poll(0, "a", "b").drained("a")
    assert told.names == ["lost-write"]


def test_duplicate_is_a_counted_value_at_two_offsets() -> None:
    assert Told().send(1, "a").ok(1, 0).drained("a", "a").names == ["duplicate"]


def test_a_retry_without_numbers_may_be_stored_twice() -> None:
    assert Told().send(1, "a").ok(1, 0, exactly_once=False).drained("a", "a").names == []


def test_an_unknown_outcome_may_be_there_or_not_and_never_twice() -> None:
    assert Told().send(1, "a").unknown(1).drained().names == []
    assert Told().send(1, "a").unknown(1).drained("a").names == []
    assert Told().send(1, "a").unknown(1).drained("a", "a").names == ["duplicate"]


def test_inconsistent_offsets_are_two_values_at_one() -> None:
    told = Told().send(1, "a").unknown(1).send(2, "b").unknown(2).poll(0, "a", client="c").poll(0, "b", client="d")
    assert told.names == ["inconsistent-offsets"]


def test_inconsistent_offsets_are_an_acknowledged_value_where_another_is_read() -> None:
    assert "inconsistent-offsets" in Told().send(1, "a").ok(1, 0).send(2, "b").unknown(2).poll(0, "b").names


@pytest.mark.parametrize("records", [[(0, "a"), (0, "a")], [(1, "b"), (0, "a")]])
def test_nonmonotonic_poll_goes_back_within_one_answer(records: list[tuple[int, str]]) -> None:
    told = Told().send(1, "a", "b").ok(1, 0).add("poll", client="c", position=0, records=records, next=2, **PLACE)
    assert "nonmonotonic-poll" in told.names


def test_nonmonotonic_poll_asks_for_an_earlier_place_without_a_seek() -> None:
    told = Told().send(1, "a", "b").ok(1, 0).poll(0, "a", "b")
    assert told.poll(1, "b").names == ["nonmonotonic-poll"]


def test_a_consumer_may_seek() -> None:
    assert Told().send(1, "a", "b").ok(1, 0).poll(0, "a", "b").seek(0).poll(0, "a", "b").names == []


def test_poll_skip_passes_over_a_record_within_an_answer_or_between_two() -> None:
    told = Told().send(1, "a", "b", "c").ok(1, 0).poll(0, "a", "b", "c", client="d")
    assert "poll-skip" in Told().send(1, "a", "b", "c").ok(1, 0).poll(0, "a", after=1).poll(2, "c").names
    told.add("poll", client="c", position=0, records=[(0, "a"), (2, "c")], next=3, **PLACE)
    assert told.names == ["poll-skip"]


def test_an_offset_that_holds_no_record_may_be_passed_over() -> None:
    told = Told().send(1, "a").ok(1, 0).send(2, "c").ok(2, 2)
    told.add("poll", client="c", position=0, records=[(0, "a"), (2, "c")], next=3, **PLACE)
    assert told.names == []


def test_nonmonotonic_send_is_stored_in_another_order() -> None:
    told = Told().send(1, "a").ok(1, 1).send(2, "b").ok(2, 0).drained("b", "a")
    assert told.names == ["nonmonotonic-send"]


def test_another_session_and_another_producer_have_an_order_of_their_own() -> None:
    told = Told().send(1, "a").ok(1, 1, session="1").send(2, "b").ok(2, 0, session="2").drained("b", "a")
    assert told.names == []
    told = Told().send(1, "a").ok(1, 1).send(2, "b", client="q").ok(2, 0, client="q").drained("b", "a")
    assert told.names == []


def test_aborted_read_was_refused_and_is_there() -> None:
    assert Told().send(1, "a").fail(1).poll(0, "a").names == ["aborted-read"]


def test_unseen_was_acknowledged_beyond_where_anybody_has_read() -> None:
    assert Told().send(1, "a").ok(1, 0).send(2, "b").ok(2, 1).poll(0, "a").names == ["unseen"]


def test_corrupt_read_is_what_was_no_batch() -> None:
    assert Told().add("corrupt", client="c", position=3, **PLACE).names == ["corrupt-read"]


def test_falling_end_is_an_answer_behind_an_earlier_one() -> None:
    told = Told().add("ends", client="c", latest=5, **PLACE).add("ends", client="d", latest=3, **PLACE)
    assert told.names == []
    assert told.add("ends", client="c", latest=4, **PLACE).names == ["falling-end"]


def test_retention_may_have_taken_what_lies_before_the_start() -> None:
    assert Told().send(1, "a").ok(1, 0).send(2, "b").ok(2, 1).drained("b", start=1).names == []


@pytest.mark.parametrize("promise", sorted(LOST_BY))
def test_a_promise_is_excused_by_some_faults_only_and_only_for_what_was_sent_before(promise: str) -> None:
    for fault in ("kill", "power cut", "election", "unclean election"):
        before = Told().send(1, "a", promise=promise).ok(1, 0).fault(fault).drained()
        assert before.names == ([] if fault in LOST_BY[promise] else ["lost-write"])
        assert Told().fault(fault).send(1, "a", promise=promise).ok(1, 0).drained().names == ["lost-write"]


def test_with_acks_1_killed_leaders_lose_records_and_a_strict_checker_says_so() -> None:
    told = Told()
    for op in range(20):
        told.send(op, f"v{op}", promise="written").ok(op, op)
        if op % 5 == 4:
            told.fault("election")
    told.drained(*(f"v{op}" for op in range(12)))
    assert check(told.events).counts["excused losses"] == 8
    strict = check(told.events, {promise: frozenset() for promise in LOST_BY})
    assert strict.names == ["lost-write"]
    assert len(strict.anomalies) == 8


def test_a_history_is_written_and_read_as_lines_of_json(tmp_path: Path) -> None:
    history = History(lambda: 17)
    history.add("fault", kind="kill")
    history.add("poll", client="c", position=0, records=[(0, "a")], next=1, **PLACE)
    write(tmp_path / "history.jsonl", history.events)
    found = read(tmp_path / "history.jsonl")
    assert found[0] == {"at": 17, "event": "fault", "kind": "kill"}
    assert check(found).counts == check(history.events).counts
