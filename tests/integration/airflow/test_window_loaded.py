"""The sensor reads a real ledger, and so does the trigger it defers to."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk.exceptions import TaskDeferred
from logbus.hooks.warehouse import WarehouseHook
from logbus.model import instant_text
from logbus.sensors.window_loaded import WindowLoadedSensor, WindowLoadedTrigger

from tests.support.airflow_context import run_context
from tests.support.ledgers import NOW, World, at
from tests.support.loads import load_hours

SPAN = {"start": instant_text(at(10)), "end": instant_text(at(11))}


@pytest.fixture
def frozen(world: World) -> World:
    world.fill(10.5, 11.5)
    world.freeze(10)
    return world


def sensor(**arguments: Any) -> WindowLoadedSensor:
    return WindowLoadedSensor(task_id="loaded", **{"pipeline": "p", "deferrable": True, **arguments})


def deferred(waiting: WindowLoadedSensor) -> WindowLoadedTrigger:
    with pytest.raises(TaskDeferred) as raised:
        waiting.execute(run_context())  # type: ignore[arg-type]
    assert callable(getattr(waiting, raised.value.method_name))
    assert isinstance(raised.value.trigger, WindowLoadedTrigger)
    return raised.value.trigger


def test_a_loaded_span_passes_without_deferring(frozen: World) -> None:
    frozen.mark(10, loaded_attempt=1)
    assert sensor().execute(run_context()) == {"pipeline": "p", **SPAN}  # type: ignore[arg-type]


def test_what_is_not_audited_yet_is_waited_for_in_the_triggerer(frozen: World) -> None:
    frozen.mark(10, loaded_attempt=1)
    trigger = deferred(sensor(audited=True))
    assert (trigger.pipeline, trigger.audited, trigger.warehouse_conn_id) == ("p", True, "warehouse_default")
    assert {"start": trigger.start, "end": trigger.end} == SPAN


def test_without_deferring_it_looks_again(frozen: World) -> None:
    class Watched(WindowLoadedSensor):
        looks = 0

        def poke(self, context: Any) -> bool:
            self.looks += 1
            if self.looks == 3:
                frozen.mark(10, loaded_attempt=1)
            return super().poke(context)

    waiting = Watched(task_id="loaded", pipeline="p", deferrable=False, poke_interval=0)
    waiting.execute(run_context())  # type: ignore[arg-type]
    assert waiting.looks == 3


@pytest.fixture
def late(world: World) -> World:
    """A record stamped in hour 10 arrives in hour 11; both hours are loaded."""
    world.fill(10, 10.2, 11, 10.4, 12)
    load_hours(world, 10, 11)
    return world


def test_an_event_time_hour_passes_with_the_windows_that_hold_it(late: World) -> None:
    passed = sensor(event_time=True, lateness=timedelta(0)).execute(run_context())  # type: ignore[arg-type]
    assert passed["windows"] == {SPAN["start"]: 2, SPAN["end"]: 1}


def test_an_event_time_hour_is_waited_for_in_the_triggerer(late: World) -> None:
    _, arguments = deferred(sensor(event_time=True, lateness=timedelta(minutes=20))).serialize()
    assert (arguments["event_time"], arguments["lateness_seconds"]) == (True, 1200)


def test_the_trigger_fires_when_the_whole_span_is_audited(frozen: World) -> None:
    class Watched(WindowLoadedTrigger):
        looks = 0

        async def fires(self, hook: WarehouseHook) -> bool:
            self.looks += 1
            if self.looks == 3:
                frozen.mark(10, loaded_attempt=1, audited_at=NOW)
            return await super().fires(hook)

    async def events() -> list[Any]:
        return [event.payload async for event in waiting.run()]

    waiting = Watched(pipeline="p", **SPAN, audited=True, poll_seconds=0.0)
    assert asyncio.run(events()) == [{"pipeline": "p", **SPAN}]
    assert waiting.looks == 3


def test_no_connection_is_held_while_it_waits(frozen: World) -> None:
    hook = WarehouseHook()
    assert not asyncio.run(WindowLoadedTrigger(pipeline="p", **SPAN).fires(hook))
    assert hook.get_engine().pool.checkedin() == 0  # type: ignore[attr-defined]
