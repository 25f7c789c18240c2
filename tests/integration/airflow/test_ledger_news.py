"""Pauses end when the ledger changes: a real one, and waits that would otherwise ask again in an hour."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime

import pytest
from logbus.hooks.warehouse import WarehouseHook
from logbus.model import instant_text
from logbus.sensors import window_sensor
from logbus.sensors.window_event import WindowEvents, WindowEventTrigger
from logbus.sensors.window_loaded import WindowLoadedTrigger
from logbus.windows.handover import NOTIFY
from sqlalchemy import Engine

from tests.support.ledgers import NOW, World, at
from tests.support.loads import load_hours

HOUR = 3_600.0
LISTENING = "from pg_stat_activity where datname = current_database() and query = 'listen logbus_windows'"


class Waiting(WindowLoadedTrigger):
    """Waits for hour 10 of `p` and counts how often it has asked."""

    def __init__(self, *, audited: bool = False) -> None:
        start, end = instant_text(at(10)), instant_text(at(11))
        super().__init__(pipeline="p", start=start, end=end, audited=audited, poll_seconds=HOUR)
        self.questions = 0

    def has_happened(self, engine: Engine) -> bool:
        self.questions += 1
        return super().has_happened(engine)


@pytest.fixture
def frozen(world: World) -> World:
    world.fill(10.5, 11.5)
    world.freeze(10)
    return world


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.02)


def played(story: Awaitable[None]) -> None:
    async def play() -> None:
        await asyncio.wait_for(story, 60)

    asyncio.run(play())


def test_a_wait_ends_with_the_load_or_with_the_audit_and_all_waits_share_a_connection(frozen: World) -> None:
    async def story() -> None:
        loaded, audited = [Waiting() for _ in range(3)], [Waiting(audited=True) for _ in range(3)]
        tasks = {trigger: asyncio.ensure_future(anext(trigger.run())) for trigger in (*loaded, *audited)}
        # The first time at once, the second when the connection listens: what changed in between was not heard.
        await until(lambda: all(trigger.questions == 2 for trigger in tasks))
        assert frozen.one(f"select count(*) {LISTENING}") == 1
        await asyncio.to_thread(load_hours, frozen, 10)
        await asyncio.gather(*(tasks[trigger] for trigger in loaded))
        await until(lambda: all(trigger.questions == 3 for trigger in audited))
        assert not any(tasks[trigger].done() for trigger in audited)
        await asyncio.to_thread(frozen.audit, 10)
        await asyncio.gather(*tasks.values())

    played(story())
    assert frozen.one(f"select count(*) {LISTENING}") == 0
    assert window_sensor._news == {}


def test_windows_of_other_pipelines_end_no_wait(frozen: World) -> None:
    async def story() -> None:
        async with window_sensor.listening(WarehouseHook()) as news:
            await until(lambda: news.heard("p") != (0, 0))
            before = news.heard("another")
            await asyncio.to_thread(load_hours, frozen, 10)
            await until(lambda: news.heard("p") > before)
            assert news.heard("another") == before
            long_name = "\N{SNOWMAN}" * 9_000
            with frozen.ledger.engine.begin() as connection:
                connection.execute(NOTIFY, {"name": long_name})
            await until(lambda: news.heard(long_name) > before)
            await news.wait("another", before, 0.01)

    played(story())


def test_after_a_broken_connection_everybody_asks_again(frozen: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window_sensor, "RECONNECT_SECONDS", 0.1)

    async def story() -> None:
        trigger = Waiting()
        task = asyncio.ensure_future(anext(trigger.run()))
        await until(lambda: trigger.questions == 2)
        await asyncio.to_thread(frozen.one, f"select pg_terminate_backend(pid) {LISTENING}")
        frozen.mark(10, loaded_attempt=1)  # by something that does not notify
        await task
        assert trigger.questions == 3

    played(story())


def test_an_event_comes_with_the_commit(frozen: World) -> None:
    async def story() -> None:
        trigger = WindowEventTrigger(pipeline="p", stage="loaded", poll_seconds=HOUR)
        stream = WindowEvents(trigger, now=lambda: NOW).open_stream()
        first: asyncio.Future[tuple[object, datetime]] = asyncio.ensure_future(anext(stream))
        await until(lambda: frozen.one(f"select count(*) {LISTENING}") == 1)
        await asyncio.to_thread(load_hours, frozen, 10)
        assert (await first)[1] == at(10)
        await stream.aclose()

    played(story())
