from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from airflow.triggers.shared_stream import AdvanceItem, AdvanceOutcome
from logbus.errors import WarehouseUnavailable
from logbus.hooks.warehouse import WarehouseHook
from logbus.ledger.announcements import Stage
from logbus.model import Interval, instant_text
from logbus.triggers import window_event
from logbus.triggers.window_event import WindowEvents, WindowEventTrigger

from tests.support.airflow_context import HOUR_START
from tests.support.fake_ledger import FakeLedger

HOURS = [Interval.hour(HOUR_START + timedelta(hours=number)) for number in range(3)]
STORED, FAILED, NOBODY = (
    AdvanceOutcome(acked=1, failed=0),
    AdvanceOutcome(acked=0, failed=1),
    AdvanceOutcome(acked=0, failed=0),
)


class Memory:
    """The ledger's memory of announcements, as far as the stream uses it."""

    def __init__(self) -> None:
        self.waiting: list[Interval] = []
        self.noted: list[datetime] = []
        self.outages = 0
        self.looks = 0

    def begin_watch(self, engine: object, name: str, pipeline: str, stage: Stage, now: datetime) -> None:
        self.began = (name, pipeline, stage)

    def unannounced(self, engine: object, name: str, now: datetime) -> list[Interval]:
        self.looks += 1
        if self.outages:
            self.outages -= 1
            raise WarehouseUnavailable("restarting")
        return [interval for interval in self.waiting if interval.start not in self.noted]

    def note_announced(self, engine: object, name: str, starts: list[datetime], now: datetime) -> None:
        self.noted += starts


class FakeEngine:
    def dispose(self) -> None:
        pass


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Memory:
    known, ledger = Memory(), FakeLedger()
    ledger.engine = FakeEngine()
    monkeypatch.setattr(WarehouseHook, "ledger", lambda hook: ledger)
    for name in ("begin_watch", "unannounced", "note_announced"):
        monkeypatch.setattr(window_event, name, getattr(known, name))
    return known


def play(memory: Memory, monkeypatch: pytest.MonkeyPatch, looks: int, between: Callable[[WindowEvents], Any]) -> list[str]:
    """Lets the stream run for so many looks, with something that happens while it sleeps; the hours of its events."""
    events = WindowEvents(WindowEventTrigger(pipeline="p", poll_seconds=3.0))

    async def sleep(seconds: float) -> None:
        assert seconds == 3.0
        if memory.looks >= looks:
            raise StopAsyncIteration
        await between(events)

    async def run() -> list[str]:
        seen: list[str] = []
        try:
            async for event, start in events.open_stream():
                assert event["start"] == instant_text(start)
                seen.append(event["start"])
        except RuntimeError:  # how a generator passes StopAsyncIteration on
            pass
        return seen

    monkeypatch.setattr(window_event.asyncio, "sleep", sleep)
    return asyncio.run(run())


def items(outcome: AdvanceOutcome, *hours: Interval) -> list[AdvanceItem]:
    return [AdvanceItem(broker_payload=interval.start, outcome=outcome) for interval in hours]


def texts(*hours: Interval) -> list[str]:
    return [instant_text(interval.start) for interval in hours]


def test_each_window_is_sent_once_while_it_is_under_way(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(events: WindowEvents) -> None:
        pass

    memory.waiting = HOURS[:2]
    assert play(memory, monkeypatch, 3, nothing) == texts(*HOURS[:2])
    assert memory.noted == []


def test_it_is_noted_only_when_airflow_has_stored_the_event(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    async def store_the_first(events: WindowEvents) -> None:
        if not memory.noted:
            await events.advance(items(STORED, HOURS[0]))

    memory.waiting = HOURS
    assert play(memory, monkeypatch, 3, store_the_first) == texts(*HOURS)
    assert memory.noted == [HOURS[0].start]


@pytest.mark.parametrize("outcome", [FAILED, NOBODY])
def test_an_event_that_nobody_stored_is_sent_again(
    outcome: AdvanceOutcome, memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lose(events: WindowEvents) -> None:
        if memory.looks == 1:
            await events.advance(items(outcome, HOURS[0]))

    memory.waiting = HOURS[:1]
    assert play(memory, monkeypatch, 3, lose) == texts(HOURS[0], HOURS[0])
    assert memory.noted == []


def test_a_warehouse_that_is_away_is_waited_for(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(events: WindowEvents) -> None:
        pass

    memory.waiting, memory.outages = HOURS[:1], 2
    assert play(memory, monkeypatch, 4, nothing) == texts(HOURS[0])


def test_it_is_rebuilt_from_what_it_is_stored_as_and_siblings_share_one_look() -> None:
    made = WindowEventTrigger(pipeline="p", stage="closed", warehouse_conn_id="w", poll_seconds=1.5)
    path, arguments = made.serialize()
    assert path == f"{WindowEventTrigger.__module__}.{WindowEventTrigger.__qualname__}"
    assert WindowEventTrigger(**arguments).serialize() == (path, arguments)
    assert made.watcher == "p/closed"
    assert made.shared_stream_key() == WindowEventTrigger(**{**arguments, "poll_seconds": 9.0}).shared_stream_key()


def test_a_stage_that_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match="finished"):
        WindowEventTrigger(pipeline="p", stage="finished")
