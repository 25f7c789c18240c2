"""Ends the pauses of what waits for the ledger as soon as windows of its pipeline change: commits and audits notify.

One connection listens for all waits of a process on one warehouse. Whoever hears nothing, because a pooler in between passes no
notifications on or the warehouse is away, asks again after its `poll_seconds`, as if there were no news: nothing depends on them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from logbus.hooks.warehouse import WarehouseHook
from logbus.loads.engine import libpq_uri
from logbus.windows.announcements import CHANNEL, subject

RECONNECT_SECONDS = 10.0

# What was heard of a pipeline: how often the connection was made anew, and how many notifications came.
Heard = tuple[int, int]


class LedgerNews:
    """What one connection hears; made by `listening`."""

    def __init__(self, hook: WarehouseHook) -> None:
        self._hook = hook
        self._changes: Counter[str] = Counter()
        self._connections = 0
        self._news = asyncio.Condition()
        self.waits = 0

    def heard(self, pipeline_name: str) -> Heard:
        """To be read before the ledger is asked, so that no change in between is missed."""
        return self._connections, self._changes[subject(pipeline_name)]

    async def wait(self, pipeline_name: str, heard: Heard, seconds: float) -> None:
        """Until there is more than was heard before, at most so long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds), self._news:
                await self._news.wait_for(lambda: self.heard(pipeline_name) != heard)

    async def listen(self) -> None:
        """Until it is cancelled."""
        import psycopg  # here, since every parsing of a DAG imports this module

        while True:
            with suppress(Exception):  # whatever it is, the waits meet it when they ask, and report it
                uri = await asyncio.to_thread(lambda: libpq_uri(self._hook.url))
                async with await psycopg.AsyncConnection.connect(uri, autocommit=True) as connection:
                    await connection.execute(f"listen {CHANNEL}")
                    self._connections += 1  # what changed before is not heard: everybody asks once more
                    await self._tell()
                    async for notification in connection.notifies():
                        self._changes[notification.payload] += 1
                        await self._tell()
            await asyncio.sleep(RECONNECT_SECONDS)

    async def _tell(self) -> None:
        async with self._news:
            self._news.notify_all()


_news: dict[tuple[asyncio.AbstractEventLoop, str], tuple[LedgerNews, asyncio.Task[None]]] = {}


@asynccontextmanager
async def listening(hook: WarehouseHook) -> AsyncIterator[LedgerNews]:
    """The news of this warehouse. All that wait in one event loop share them; the last one to leave ends the connection."""
    key = asyncio.get_running_loop(), hook.warehouse_conn_id
    if key not in _news:
        news = LedgerNews(hook)
        _news[key] = news, asyncio.create_task(news.listen())
    news, task = _news[key]
    news.waits += 1
    try:
        yield news
    finally:
        news.waits -= 1
        if not news.waits:
            del _news[key]
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
