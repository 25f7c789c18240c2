"""What sensors share: check once, and only then wait, in the triggerer or by poking; there a pause ends as soon as windows of its
pipeline change: commits and audits notify.

One connection listens for all waits of a process on one warehouse. Whoever hears nothing, because a pooler in between passes no
notifications on or the warehouse is away, asks again after its `poll_seconds`, as if there were no news: nothing depends on them.

Checking first lets a run for a past interval pass in one step, and it is what makes a retry harmless: deferring can race with the
scheduler in Airflow 3 (a task that its trigger queues again before the scheduler has seen it defer is failed), so retries are on
by default, and a retry finds that what it waits for has happened.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import datetime, timedelta
from typing import Any, TypeVar

from airflow.providers.common.compat.sdk import conf
from airflow.sdk import BaseSensorOperator, Context
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException
from airflow.triggers.base import BaseTrigger, TriggerEvent
from sqlalchemy import Engine
from sqlalchemy.exc import InterfaceError, OperationalError

from logbus import errors, model, task_context
from logbus.hooks.warehouse import WarehouseHook
from logbus.loads.engine import libpq_uri
from logbus.windows.handover import CHANNEL, subject

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


# What sensors share: check once, and only then wait, in the triggerer or by poking.


RETRIES_DEFAULT = 2
RETRY_DELAY_DEFAULT = timedelta(seconds=10)


class WindowSensor(BaseSensorOperator):
    """Base of the sensors over windows.

    :param deferrable: wait in the triggerer, where a thousand waits cost no worker slot. Default: Airflow's setting
        `operators.default_deferrable`.
    """

    ui_color = "#e8f0fe"

    def __init__(
        self,
        *,
        deferrable: bool | None = None,
        # Named parameters, not defaults put into kwargs: Airflow reads them for mapped tasks, and default_args win over them.
        retries: int | None = RETRIES_DEFAULT,
        retry_delay: timedelta | float = RETRY_DELAY_DEFAULT,
        now: Callable[[], datetime] = model.utc_now,
        **kwargs: Any,
    ) -> None:
        super().__init__(retries=retries, retry_delay=retry_delay, **kwargs)
        self.deferrable = conf.getboolean("operators", "default_deferrable", fallback=False) if deferrable is None else deferrable
        self._now = now

    def execute(self, context: Context) -> Any:
        if not self.deferrable:
            super().execute(context)
        elif not self._passes_at_once(context):
            self.defer(
                trigger=self.trigger_for(context),
                method_name=self.resume.__name__,
                timeout=timedelta(seconds=self.timeout),
            )
        return self.outcome(context)

    def poke(self, context: Context) -> bool:
        with task_context.fail_without_retry():
            return self.has_happened(context)

    def _passes_at_once(self, context: Context) -> bool:
        """The one check before deferring. Airflow keeps its word about these three only where it pokes itself."""
        try:
            return self.poke(context)
        except AirflowSkipException:
            raise
        except Exception as error:
            is_final = isinstance(error, AirflowFailException)
            if self.silent_fail and not is_final:
                self.log.exception("The check failed, and will be repeated in the triggerer")
                return False
            if self.never_fail or (self.soft_fail and is_final):
                raise AirflowSkipException(f"skipped, as soft_fail or never_fail asks: {error}") from error
            raise

    def resume(self, context: Context, event: dict[str, Any]) -> Any:
        """Continues after the trigger has fired."""
        return self.outcome(context)

    @abstractmethod
    def has_happened(self, context: Context) -> bool:
        """Whether it passes now."""

    @abstractmethod
    def outcome(self, context: Context) -> Any:
        """What the task returns once it passes."""

    @abstractmethod
    def trigger_for(self, context: Context) -> BaseTrigger:
        """The trigger that waits in the task's place."""


POLL_SECONDS_DEFAULT = 30.0
AWAY = (errors.WarehouseUnavailable, OperationalError, InterfaceError)
Answer = TypeVar("Answer")


def ask_ledger(hook: WarehouseHook, question: Callable[[Engine], Answer]) -> Answer:
    """The answer of the ledger, on a connection that is closed afterwards: a thousand waits would hold a thousand of them."""
    engine = hook.ledger().engine
    try:
        return question(engine)
    finally:
        engine.dispose()


class LedgerSensor(WindowSensor):
    """Base of the sensors that wait for the ledger."""

    _has_answered = False

    def poke(self, context: Context) -> bool:
        """As in the triggerer, a warehouse that is away for a moment ends no wait. One that never answered is an error."""
        try:
            passes = super().poke(context)
        except AWAY as error:
            if not self._is_waiting(context):
                raise
            self.log.warning("The ledger did not answer, asking again in %g s: %s", self.poke_interval, error)
            return False
        self._has_answered = True
        return passes

    def _is_waiting(self, context: Context) -> bool:
        """Whether the warehouse has answered before: this process, or the one that rescheduled the task."""
        return self._has_answered or (self.reschedule and context["ti"].get_first_reschedule_date(context) is not None)


class LedgerTrigger(BaseTrigger):
    """Base of the triggers that wait for the ledger: fires once `has_happened`, which is asked every `poll_seconds`, and at once
    when a window of `pipeline` changes."""

    warehouse_conn_id: str
    poll_seconds: float
    pipeline = ""

    @abstractmethod
    def has_happened(self, engine: Engine) -> bool:
        """Whether it fires now."""

    @abstractmethod
    def event(self) -> dict[str, Any]:
        """What the task that waits is told."""

    async def run(self) -> AsyncIterator[TriggerEvent]:
        hook = WarehouseHook(self.warehouse_conn_id)
        async with listening(hook) as news:
            heard = news.heard(self.pipeline)
            while not await self.fires(hook):
                await news.wait(self.pipeline, heard, self.poll_seconds)
                heard = news.heard(self.pipeline)
        yield TriggerEvent(self.event())

    async def fires(self, hook: WarehouseHook) -> bool:
        """Whether it has happened; False if the warehouse does not answer."""
        try:
            return await asyncio.to_thread(ask_ledger, hook, self.has_happened)
        except AWAY as error:
            self.log.warning("The ledger did not answer, asking again in %g s: %s", self.poll_seconds, error)
            return False
