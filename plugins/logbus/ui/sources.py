"""Where the pages' data comes from: for each pair of Airflow connections one engine, one client of the broker, and what was read
by them lately. Built once for a process; nothing connects before somebody asks.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from threading import Lock
from typing import Any

import orjson
from airflow.exceptions import AirflowNotFoundException
from sqlalchemy import Engine

from logbus.errors import LogbusError, UserError
from logbus.hooks.broker import BrokerHook
from logbus.hooks.warehouse import WarehouseHook
from logbus.ui.errors import NotConfigured, ledger_errors
from logbus.ui.shared import Shared
from logbus.warehouse.engine import connect
from logbus.windows.all_groups import GroupBatches, GroupReading, end_offsets_of
from logbus.windows.all_topics import TopicReading, read_topics, with_rates
from logbus.windows.broker_facts import log_directories, partition_bytes
from logbus.windows.broker_questions import Place
from logbus.windows.log_batches import PAGE_TIMEOUT_SECONDS, LogBatches, Question, TopicPlaces
from logbus.windows.log_offsets import LogOffsets
from logbus.windows.model import Interval
from logbus.windows.overview import Reading, pipelines_json, read
from logbus.windows.rates import Rates

# Pairs of connections that are kept open; most installations have one.
SOURCES_MAX = 8

# Spans of which the overview is kept: megabytes each, with fifty pipelines.
SPANS_MAX = 4

NO_CONNECTION = "Airflow has no connection {conn_id!r}: make it under Admin, Connections, or name another ({parameter})"


class NoBroker:
    """Stands where a broker's connection cannot be read: it answers nothing."""

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def topic_names(self, *, with_internal: bool = False) -> list[str]:
        raise NotConfigured(self.reason)

    def topics(self, names: Iterable[str]) -> dict[str, TopicPlaces | LogbusError]:
        raise NotConfigured(self.reason)

    def answers(self, questions: Collection[Question], partitions: Mapping[str, Sequence[int]]) -> dict[Question, Any]:
        raise NotConfigured(self.reason)

    def groups(self) -> list[GroupReading]:
        raise NotConfigured(self.reason)


@dataclass(frozen=True, slots=True)
class Groups:
    """All groups and the end offsets of what they read."""

    groups: Sequence[GroupReading]
    ends: Mapping[Place, int]


class Source:
    """One warehouse and one broker. Each reading is shared by all who ask within some seconds."""

    def __init__(
        self,
        make_engine: Callable[[], Engine],
        broker: GroupBatches | NoBroker,
        rates: Rates,
        now: Callable[[], datetime],
        clock: Callable[[], float],
    ) -> None:
        self._make_engine = make_engine
        self._engine: Engine | None = None
        self._making = Lock()
        self.broker = broker
        self._clock = clock
        self._lock = Lock()
        self._pieces: OrderedDict[tuple[Interval, tuple[str, str] | None], Shared[dict[str, bytes]]] = OrderedDict()
        self.fleet: Shared[Reading] = Shared(lambda: self._asked(lambda engine: read(engine, broker, rates, now())), clock)
        self.topics: Shared[list[TopicReading]] = Shared(lambda: self._topics(broker, rates, now), clock)
        self.groups: Shared[Groups] = Shared(lambda: self._groups(broker), clock)

    def engine(self) -> Engine:
        """`WarehouseUnavailable` where it does not answer the first who asks; later ones find out by their question."""
        with self._making:
            if self._engine is None:
                self._engine = self._make_engine()
            return self._engine

    def pieces(self, span: Interval, run: tuple[str, str] | None) -> dict[str, bytes]:
        """Each pipeline's part of the overview as JSON, made once for all who look at the same span."""

        def make() -> dict[str, bytes]:
            with ledger_errors():
                found = pipelines_json(self.engine(), self.fleet.get(), span, run)
            return {name: orjson.dumps(value) for name, value in found.items()}

        with self._lock:
            shared = self._pieces.setdefault((span, run), Shared(make, self._clock))
            self._pieces.move_to_end((span, run))
            while len(self._pieces) > SPANS_MAX:
                self._pieces.popitem(last=False)
        return shared.get()

    def log_offsets(self) -> LogOffsets:
        """For questions about one topic."""
        if isinstance(self.broker, NoBroker):
            raise NotConfigured(self.broker.reason)
        return LogOffsets(self.broker.client_config, timeout_seconds=self.broker.timeout_seconds)

    def close(self) -> None:
        if self._engine is not None:
            self._engine.dispose()

    def _asked(self, question: Callable[[Engine], Reading]) -> Reading:
        with ledger_errors():
            return question(self.engine())

    def _sizes(self) -> Mapping[Place, int]:
        if isinstance(self.broker, NoBroker):
            raise NotConfigured(self.broker.reason)
        return partition_bytes(log_directories(self.broker.client_config, self.broker.timeout_seconds))

    def _topics(self, broker: LogBatches, rates: Rates, now: Callable[[], datetime]) -> list[TopicReading]:
        return with_rates(read_topics(broker, sizes=self._sizes), rates, now())

    @staticmethod
    def _groups(broker: GroupBatches | NoBroker) -> Groups:
        groups = broker.groups()
        log: LogBatches = broker
        return Groups(groups, end_offsets_of(log, groups))


class Sources:
    """The sources in use, the ones used least lately closed first."""

    def __init__(
        self, now: Callable[[], datetime], clock: Callable[[], float], broker_timeout_seconds: float = PAGE_TIMEOUT_SECONDS
    ) -> None:
        self._broker_timeout_seconds = broker_timeout_seconds
        self._now = now
        self._clock = clock
        self._rates = Rates()
        self._lock = Lock()
        self._sources: OrderedDict[tuple[str, str], Source] = OrderedDict()

    def get(self, warehouse_conn_id: str, kafka_conn_id: str) -> Source:
        """The source behind two connections as they are now: changed ones make another. What does not fit tells when asked."""
        url, broker = warehouse_url(warehouse_conn_id), client_config(kafka_conn_id)
        key = (str(url), json.dumps(broker, sort_keys=True, default=str))
        with self._lock:
            if key not in self._sources:
                self._sources[key] = self._make(url, broker)
            self._sources.move_to_end(key)
            outdated = [self._sources.popitem(last=False)[1] for _ in range(len(self._sources) - SOURCES_MAX)]
            found = self._sources[key]
        for source in outdated:
            source.close()
        return found

    def _make(self, url: str | UserError, broker: Mapping[str, Any] | str) -> Source:
        limit = self._broker_timeout_seconds
        batches = NoBroker(broker) if isinstance(broker, str) else GroupBatches(broker, timeout_seconds=limit)
        return Source(lambda: engine_of(url), batches, self._rates, self._now, self._clock)


def engine_of(url: str | UserError) -> Engine:
    if isinstance(url, UserError):
        raise url
    return connect(url)


def warehouse_url(warehouse_conn_id: str) -> str | UserError:
    """The URL, or why there is none."""
    try:
        return WarehouseHook(warehouse_conn_id).url
    except AirflowNotFoundException:
        return NotConfigured(NO_CONNECTION.format(conn_id=warehouse_conn_id, parameter="warehouse_conn_id"))
    except UserError as error:
        return NotConfigured(str(error))


def client_config(kafka_conn_id: str) -> dict[str, Any] | str:
    """The client's configuration, or why there is none."""
    try:
        return BrokerHook(kafka_conn_id).client_config()
    except AirflowNotFoundException:
        return NO_CONNECTION.format(conn_id=kafka_conn_id, parameter="kafka_conn_id")
    except UserError as error:
        return str(error)
