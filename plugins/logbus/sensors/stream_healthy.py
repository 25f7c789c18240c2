"""Is a stream at work, and are its counts fresh? Its driver sends heartbeats, and what it has not counted yet is no older than
some seconds.

For a DAG beside `logbus stream run`, which is a process of its own: Airflow observes it and does not start it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

from airflow.sdk import Context
from sqlalchemy import Engine

from logbus import errors, model
from logbus.hooks.broker import BrokerHook
from logbus.hooks.warehouse import WarehouseHook
from logbus.sensors.window_sensor import POLL_SECONDS_DEFAULT, LedgerSensor, LedgerTrigger
from logbus.streams import listing
from logbus.streams.definition import Stream

LAG_DEFAULT = timedelta(minutes=5)


class StreamHealthySensor(LedgerSensor):
    """Passes once the stream's driver is at work and its counts are at most `lag` old. Returns how it is; one that is not well
    within the sensor's `timeout` fails the task, and the log says why.

    :param stream: the stream, or its name (templated)
    :param lag: how old the newest record that is counted may be while others wait (default: five minutes)
    :param warehouse_conn_id: the connection of the warehouse (templated)
    :param kafka_conn_id: the connection of the broker, which says where the topic ends (templated)
    """

    template_fields: Sequence[str] = ("stream_name", "warehouse_conn_id", "kafka_conn_id")

    def __init__(
        self,
        *,
        stream: Stream | str,
        lag: timedelta = LAG_DEFAULT,
        warehouse_conn_id: str = WarehouseHook.default_conn_name,
        kafka_conn_id: str = BrokerHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.stream_name = stream if isinstance(stream, str) else stream.name
        self.lag = lag
        self.warehouse_conn_id = warehouse_conn_id
        self.kafka_conn_id = kafka_conn_id

    def has_happened(self, context: Context) -> bool:
        problem = self.trigger_for(context).problem(WarehouseHook(self.warehouse_conn_id).ledger().engine)
        if problem is not None:
            self.log.info("Stream %s: %s", self.stream_name, problem)
        return problem is None

    def outcome(self, context: Context) -> dict[str, Any]:
        status, lag = self.trigger_for(context).reading(WarehouseHook(self.warehouse_conn_id).ledger().engine)
        return status.summary(lag)

    def trigger_for(self, context: Context) -> StreamHealthyTrigger:
        return StreamHealthyTrigger(
            stream=self.stream_name,
            lag_seconds=self.lag.total_seconds(),
            warehouse_conn_id=self.warehouse_conn_id,
            kafka_conn_id=self.kafka_conn_id,
            poll_seconds=self.poke_interval,
        )


class StreamHealthyTrigger(LedgerTrigger):
    """Fires when the stream is at work and its counts are that fresh."""

    broker_hook = BrokerHook

    def __init__(
        self,
        *,
        stream: str,
        lag_seconds: float,
        warehouse_conn_id: str = WarehouseHook.default_conn_name,
        kafka_conn_id: str = BrokerHook.default_conn_name,
        poll_seconds: float = POLL_SECONDS_DEFAULT,
        now: Callable[[], datetime] = model.utc_now,
    ) -> None:
        super().__init__()
        self.stream = stream
        self.lag_seconds = lag_seconds
        self.warehouse_conn_id = warehouse_conn_id
        self.kafka_conn_id = kafka_conn_id
        self.poll_seconds = poll_seconds
        self._now = now

    def serialize(self) -> tuple[str, dict[str, Any]]:
        fields = ("stream", "lag_seconds", "warehouse_conn_id", "kafka_conn_id", "poll_seconds")
        return ("logbus.sensors.stream_healthy.StreamHealthyTrigger", {name: getattr(self, name) for name in fields})

    def has_happened(self, engine: Engine) -> bool:
        problem = self.problem(engine)
        if problem is not None:
            self.log.info("Stream %s: %s", self.stream, problem)
        return problem is None

    def event(self) -> dict[str, Any]:
        return {"stream": self.stream}

    def problem(self, engine: Engine) -> str | None:
        """Why it is not well; None if it is."""
        status, lag = self.reading(engine)
        return status.problem(lag, self.lag_seconds)

    def reading(self, engine: Engine) -> tuple[listing.StreamStatus, listing.StreamLag]:
        """The stream and how far it is behind, which is unknown while the broker does not answer."""
        with engine.connect() as connection:
            status = listing.status_of(connection, self.stream, self._now())
        try:
            ends = listing.log_ends(self.broker_hook(self.kafka_conn_id).log_offsets(), status)
        except errors.BrokerUnavailable as error:
            self.log.warning("The broker did not answer, so how far %s is behind is unknown: %s", self.stream, error)
            return status, listing.StreamLag()
        return status, status.lag(ends)
