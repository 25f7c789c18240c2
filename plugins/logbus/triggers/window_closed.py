"""Waits for the clock: fires once when it has passed the instant at which a window closes.

It reads no data and holds no connection, so thousands of them cost the triggerer next to nothing. It waits in short sleeps
because the wall clock, not the length of a sleep, is what counts: it is still right after a laptop was suspended or a clock set.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from logbus.model import instant_text, parse_instant, utc_now

SLEEP_SECONDS_MAX = 30.0
Sleep = Callable[[float], Awaitable[None]]


class WindowClosedTrigger(BaseTrigger):
    """Fires at `closes_at`, an instant as text because triggers are serialized between processes."""

    def __init__(self, closes_at: str, now: Callable[[], datetime] = utc_now, sleep: Sleep = asyncio.sleep) -> None:
        super().__init__()
        self.closes_at = closes_at
        self._now = now
        self._sleep = sleep

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return ("logbus.triggers.window_closed.WindowClosedTrigger", {"closes_at": self.closes_at})

    async def run(self) -> AsyncIterator[TriggerEvent]:
        while (seconds := self._seconds_left()) > 0:
            await self._sleep(min(seconds, SLEEP_SECONDS_MAX))
        yield TriggerEvent({"closed_at": instant_text(self._now())})

    def _seconds_left(self) -> float:
        return (parse_instant(self.closes_at) - self._now()).total_seconds()
