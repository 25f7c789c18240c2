"""The checker finds each anomaly in a history written by hand, and none in a clean one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.sim.checker import LOST_BY, check
from tests.sim.histories import History, read, write

PLACE = {"topic": "t", "partition": 0}


class Draft:
    """A history under construction; time advances with each event."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def add(self, event: str, **values: Any) -> Draft:
        self.events.append({"at": len(self.events), "event": event, **values})
        return self

    def send(self, op: int, *values: str, client: str = "p", promise: str = "replicated") -> Draft:
        return self.add("invoke", client=client, op=op, values=list(values), promise=promise, **PLACE)

    def ok(self, op: int, offset: int, *, client: str = "p", exactly_once: bool = True, session: str | None = "1") -> Draft:
        return self.add("ok", client=client, op=op, offset=offset, exactly_once=exactly_once, session=session)

    def stored(self, op: int, offset: int, *values: str, promise: str = "replicated", **answer: Any) -> Draft:
        """Sent and acknowledged at an offset."""
        return self.send(op, *values, promise=promise).ok(op, offset, **answer)

    def fail(self, op: int) -> Draft:
        return self.add("fail", client="p", op=op, error="NOT_ENOUGH_REPLICAS")

    def unknown(self, op: int, *, exactly_once: bool = True) -> Draft:
        return self.add("unknown", client="p", op=op, error="timeout", exactly_once=exactly_once, session=None)

    def poll(self, position: int, *values: str, client: str = "c", after: int | None = None) -> Draft:
        records = [(position + number, value) for number, value in enumerate(values)]
        return self.add("poll", client=client, position=position, records=records, next=after or position + len(values), **PLACE)

    def seek(self, position: int) -> Draft:
        return self.add("seek", client="c", position=position, **PLACE)

    def drained(self, *values: str, start: int = 0) -> Draft:
        if values:
            self.poll(start, *values, client="last")
        return self.add("drained", client="last", start=start, end=start + len(values), **PLACE)

    def ends(self, client: str, latest: int) -> Draft:
        return self.add("ends", client=client, latest=latest, **PLACE)

    def fault(self, kind: str) -> Draft:
        return self.add("fault", kind=kind)

    @property
    def names(self) -> list[str]:
        return check(self.events).names


def test_a_history_in_which_all_is_well_has_no_anomaly() -> None:
    draft = Draft().send(1, "a", "b").ok(1, 0).send(2, "c").unknown(2).poll(0, "a").poll(1, "b", "c").send(3, "d").fail(3)
    verdict = check(draft.drained("a", "b", "c").events)
    assert not verdict.anomalies
    assert verdict.counts == {"send ok": 1, "send unknown": 1, "send fail": 1, "polled": 6}


def polled(draft: Draft, *records: tuple[int, str], next: int) -> Draft:
    return draft.add("poll", client="c", position=0, records=list(records), next=next, **PLACE)


def both() -> Draft:
    return Draft().stored(1, 0, "a").stored(2, 1, "b")


def three_seen_by_another() -> Draft:
    return Draft().stored(1, 0, "a", "b", "c").poll(0, "a", "b", "c", client="d")


@pytest.mark.parametrize(
    ("draft", "names"),
    {
        "acknowledged and not there at the end": (both().drained("a"), ["lost-write"]),
        "acknowledged without an offset and nowhere": (
            Draft().stored(1, -1, "a").stored(2, -1, "b").drained("b"),
            ["lost-write"],
        ),
        "retention may have taken it": (Draft().stored(1, -1, "a").stored(2, -1, "b").drained("b", start=1), []),
        "nothing was promised": (Draft().stored(1, -1, "a", promise="none").drained(), []),
        "read further, and passed over": (both().poll(0, client="c", after=2), ["lost-write", "poll-skip"]),
        "seen and gone": (Draft().stored(1, 0, "a").send(2, "b").unknown(2).poll(0, "a", "b").drained("a"), ["lost-write"]),
        "a counted value at two offsets": (Draft().stored(1, 0, "a").drained("a", "a"), ["duplicate"]),
        "a retry without numbers may be stored twice": (Draft().stored(1, 0, "a", exactly_once=False).drained("a", "a"), []),
        "an unknown outcome may not be there": (Draft().send(1, "a").unknown(1).drained(), []),
        "an unknown outcome may be there": (Draft().send(1, "a").unknown(1).drained("a"), []),
        "an unknown outcome is never there twice": (Draft().send(1, "a").unknown(1).drained("a", "a"), ["duplicate"]),
        "two values at one offset": (
            Draft().send(1, "a").unknown(1).send(2, "b").unknown(2).poll(0, "a", client="c").poll(0, "b", client="d"),
            ["inconsistent-offsets"],
        ),
        "another than the acknowledged value": (
            Draft().stored(1, 0, "a").send(2, "b").unknown(2).poll(0, "b"),
            ["inconsistent-offsets"],
        ),
        "one offset twice in an answer": (
            polled(Draft().stored(1, 0, "a", "b"), (0, "a"), (0, "a"), next=2),
            ["lost-write", "nonmonotonic-poll", "poll-skip"],
        ),
        "back within an answer": (
            polled(Draft().stored(1, 0, "a", "b"), (1, "b"), (0, "a"), next=2),
            ["nonmonotonic-poll", "poll-skip"],
        ),
        "an earlier place without a seek": (Draft().stored(1, 0, "a", "b").poll(0, "a", "b").poll(1, "b"), ["nonmonotonic-poll"]),
        "an earlier place after a seek": (Draft().stored(1, 0, "a", "b").poll(0, "a", "b").seek(0).poll(0, "a", "b"), []),
        "a record passed over between answers": (three_seen_by_another().poll(0, "a", after=1).poll(2, "c"), ["poll-skip"]),
        "a record passed over within an answer": (polled(three_seen_by_another(), (0, "a"), (2, "c"), next=3), ["poll-skip"]),
        "an offset that holds no record": (polled(Draft().stored(1, 0, "a").stored(2, 2, "c"), (0, "a"), (2, "c"), next=3), []),
        "stored in another order": (Draft().stored(1, 1, "a").stored(2, 0, "b").drained("b", "a"), ["nonmonotonic-send"]),
        "another session": (Draft().stored(1, 1, "a", session="1").stored(2, 0, "b", session="2").drained("b", "a"), []),
        "another producer": (Draft().stored(1, 1, "a").send(2, "b", client="q").ok(2, 0, client="q").drained("b", "a"), []),
        "refused and there": (Draft().send(1, "a").fail(1).poll(0, "a"), ["aborted-read"]),
        "acknowledged beyond where anybody has read": (both().poll(0, "a"), ["unseen"]),
        "no batch": (Draft().add("corrupt", client="c", position=3, **PLACE), ["corrupt-read"]),
        "the ends that two clients are told": (Draft().ends("c", 5).ends("d", 3), []),
        "an end behind an earlier one": (Draft().ends("c", 5).ends("c", 4), ["falling-end"]),
        "before the start of what is left": (both().drained("b", start=1), []),
    }.values(),
)
def test_each_anomaly_is_found_and_nothing_else(draft: Draft, names: list[str]) -> None:
    assert draft.names == names


@pytest.mark.parametrize("promise", sorted(LOST_BY))
def test_a_promise_is_excused_by_some_faults_only_and_only_for_what_was_sent_before(promise: str) -> None:
    for fault in ("kill", "power cut", "election", "unclean election"):
        before = Draft().send(1, "a", promise=promise).ok(1, 0).fault(fault).drained()
        assert before.names == ([] if fault in LOST_BY[promise] else ["lost-write"])
        assert Draft().fault(fault).send(1, "a", promise=promise).ok(1, 0).drained().names == ["lost-write"]


def test_with_acks_1_killed_leaders_lose_records_and_a_strict_checker_says_so() -> None:
    draft = Draft()
    for op in range(20):
        draft.send(op, f"v{op}", promise="written").ok(op, op)
        if op % 5 == 4:
            draft.fault("election")
    draft.drained(*(f"v{op}" for op in range(12)))
    assert check(draft.events).counts["excused losses"] == 8
    strict = check(draft.events, {promise: frozenset() for promise in LOST_BY})
    assert strict.names == ["lost-write"]
    assert len(strict.anomalies) == 8


def test_a_history_is_written_and_read_as_lines_of_json(tmp_path: Path) -> None:
    history = History(lambda: 17)
    history.add("fault", kind="kill")
    history.add("poll", client="c", position=0, records=[(0, "a")], next=1, **PLACE)
    write(tmp_path / "history.jsonl", history.events)
    events = read(tmp_path / "history.jsonl")
    assert events[0] == {"at": 17, "event": "fault", "kind": "kill"}
    assert check(events).counts == check(history.events).counts
