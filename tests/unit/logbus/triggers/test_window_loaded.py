from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from logbus.errors import WarehouseUnavailable
from logbus.hooks.warehouse import WarehouseHook
from logbus.model import Interval
from logbus.triggers import window_loaded
from logbus.triggers.window_loaded import WindowLoadedTrigger

from tests.support.fake_ledger import FakeLedger

SPAN = {"start": "2015-05-17T00:00:00Z", "end": "2015-05-18T00:00:00Z"}
Answer = bool | Exception


class FakeEngine:
    disposed = 0

    def dispose(self) -> None:
        self.disposed += 1


@pytest.fixture
def fire(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[Answer]], tuple[dict[str, str], list[float], FakeEngine]]:
    """Runs the trigger over these answers of the ledger; gives its event, how long it slept each time, and the engine."""

    def run(answers: list[Answer]) -> tuple[dict[str, str], list[float], FakeEngine]:
        slept: list[float] = []
        ledger = FakeLedger()
        ledger.engine = FakeEngine()

        def look(engine: object, name: str, span: Interval, *, audited: bool) -> Interval | None:
            answer = answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return None if answer else span

        async def sleep(seconds: float) -> None:
            slept.append(seconds)

        async def first_event() -> dict[str, str]:
            async for event in WindowLoadedTrigger(pipeline="p", **SPAN, poll_seconds=7.0).run():
                return event.payload
            raise AssertionError("the trigger ended without an event")

        monkeypatch.setattr(WarehouseHook, "ledger", lambda hook: ledger)
        monkeypatch.setattr(window_loaded, "missing_span", look)
        monkeypatch.setattr(window_loaded.asyncio, "sleep", sleep)
        return asyncio.run(first_event()), slept, ledger.engine

    return run


def test_it_fires_when_the_whole_span_is_loaded(fire: Callable) -> None:
    event, slept, _ = fire([False, False, True])
    assert event == {"pipeline": "p", **SPAN}
    assert slept == [7.0, 7.0]


def test_a_warehouse_that_is_away_is_waited_for(fire: Callable) -> None:
    event, slept, _ = fire([WarehouseUnavailable("restarting"), True])
    assert event["pipeline"] == "p"
    assert slept == [7.0]


def test_no_connection_is_held_while_it_waits(fire: Callable) -> None:
    _, slept, engine = fire([False, False, True])
    assert engine.disposed == len(slept) + 1


def test_it_is_rebuilt_from_what_it_is_stored_as() -> None:
    stamped = {"event_time": True, "lateness_seconds": 600.0}
    made = WindowLoadedTrigger(pipeline="p", **SPAN, audited=True, **stamped, warehouse_conn_id="w", poll_seconds=1.5)
    path, arguments = made.serialize()
    assert path == f"{WindowLoadedTrigger.__module__}.{WindowLoadedTrigger.__qualname__}"
    assert WindowLoadedTrigger(**arguments).serialize() == (path, arguments)
