"""Where the pages' data comes from: for each pair of Airflow connections one engine, one client of the broker, and what they read
recently. Built once for a process; nothing connects before the first request.
"""

from __future__ import annotations

import gc
import json
import os
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from threading import BoundedSemaphore, Lock
from typing import Any, NoReturn, TypeVar

import orjson
from airflow.exceptions import AirflowNotFoundException
from sqlalchemy import Engine

from logbus import errors, model, provider
from logbus.hooks.broker import BrokerHook
from logbus.hooks.warehouse import WarehouseHook
from logbus.kafka import cluster, topic_list, users
from logbus.kafka.client import Client, PartitionId
from logbus.kafka.groups import GroupReading, end_offsets_of
from logbus.kafka.groups import Groups as AllGroups
from logbus.kafka.topics import Topics
from logbus.loads.engine import connect
from logbus.status.fleet import read_registered
from logbus.web import topic_records
from logbus.web.overview import pipelines_json, read, read_span
from logbus.web.reading import LazyEngine, Reading
from logbus.windows.sql_errors import ledger_errors

Value = TypeVar("Value")

# Pairs of connections that are kept open; most installations have one.
SOURCES_MAX = 8

# Spans of which the overview is kept: megabytes each while it is read, with fifty pipelines, and 80 KB then.
SPANS_MAX = 6

# A page says that the warehouse does not answer, and asks again by itself: it need not wait for one that is slow.
CONNECT_TIMEOUT_SECONDS = 10

NO_CONNECTION = "Airflow has no connection {conn_id!r}: create it under Admin, Connections, or name another ({parameter})"


class NotConfigured(errors.WarehouseUnavailable, errors.BrokerUnavailable):
    """An Airflow connection is missing or does not fit. The message may be shown: it contains no address."""


class NoBroker(Client):
    """The client if a broker's connection cannot be read: it answers nothing."""

    def __init__(self, reason: NotConfigured) -> None:
        super().__init__({})
        self.reason = reason
        del self.config, self.broker_config

    def __getattr__(self, name: str) -> NoReturn:
        raise self.reason


@dataclass(frozen=True, slots=True)
class GroupsRead:
    """All groups and the end offsets of what they read."""

    groups: Sequence[GroupReading]
    ends: Mapping[PartitionId, int]


@dataclass(frozen=True, slots=True)
class SpanOverview:
    """The pipelines' part of the overview of one span: by name as JSON, made once for all users who may see them."""

    pipelines: Mapping[str, orjson.Fragment]

    def of(self, names: Collection[str]) -> list[orjson.Fragment]:
        return [part for name, part in self.pipelines.items() if name in names]


class PageSource:
    """One warehouse and one broker. Each reading is shared by all requests within some seconds."""

    def __init__(
        self,
        make_engine: Callable[[], Engine],
        broker: Client,
        rates: topic_list.ProduceRates,
        now: Callable[[], datetime],
        clock: Callable[[], float],
    ) -> None:
        self._engine = LazyEngine(make_engine, clock)
        self.engine = self._engine.get
        self.broker = broker
        self._clock = clock
        self._lock = Lock()
        self._spans: OrderedDict[tuple[model.Interval, tuple[str, str] | None], Reading[SpanOverview]] = OrderedDict()
        self._tails: OrderedDict[str, topic_records.LiveTail] = OrderedDict()
        self.searches = BoundedSemaphore(topic_records.SEARCHES_MAX)
        self.registered = self._shared(lambda engine: read_registered(engine, now()))
        self.fleet = self._shared(lambda engine: read(engine, topic_list.TopicBatches(broker), rates, now()))
        self.topics: Reading[list[topic_list.TopicReading]] = Reading(lambda: self._topics(broker, rates, now), clock)
        self.groups: Reading[GroupsRead] = Reading(lambda: self._groups(broker), clock)
        self.rights: Reading[users.ConnectionRights] = Reading(
            lambda: users.read_rights(broker, self._registered_topics()), clock
        )

    def overview(self, span: model.Interval, run: tuple[str, str] | None = None) -> Reading[SpanOverview]:
        """The overview of a span; `run` (dag id, run id) marks the hours that a Dag run worked on."""
        with self._lock:
            if (span, run) not in self._spans:
                self._spans[span, run] = self._span_overview(span, run)
            self._spans.move_to_end((span, run))
            while len(self._spans) > SPANS_MAX:
                self._spans.popitem(last=False)
            return self._spans[span, run]

    def tail(self, topic: str) -> topic_records.LiveTail:
        """The tail of a topic, shared by all pages that follow it."""
        with self._lock:
            if topic not in self._tails:
                self._tails[topic] = topic_records.LiveTail(self.broker, topic, self._clock)
            self._tails.move_to_end(topic)
            while len(self._tails) > topic_records.TAILS_MAX:
                self._tails.popitem(last=False)
            return self._tails[topic]

    def log_offsets(self) -> Topics:
        """For questions about one topic."""
        return Topics(self.broker)

    def close(self) -> None:
        self._engine.close()

    def _registered_topics(self) -> set[str]:
        """Those of the ledger's pipelines; none if it cannot be asked."""
        try:
            return {row["topic"] for row in self.registered.get().rows}
        except errors.UserError:
            return set()

    def _span_overview(self, span: model.Interval, run: tuple[str, str] | None) -> Reading[SpanOverview]:
        def make(engine: Engine) -> SpanOverview:
            ledger = read_span(engine, span, run)
            # As new as the ledger's part, unless requests wait for it. And made here, not in a request: fifty pipelines' cells
            # take 25 ms of computing.
            values = pipelines_json(self.fleet.fresh() if reading.has_answer() else self.fleet.get(), ledger)
            return SpanOverview({name: orjson.Fragment(orjson.dumps(value)) for name, value in values.items()})

        reading = self._shared(make)
        return reading

    def _shared(self, question: Callable[[Engine], Value]) -> Reading[Value]:
        """A question to the ledger."""

        def ask() -> Value:
            with ledger_errors():
                return question(self.engine())

        return Reading(ask, self._clock)

    @staticmethod
    def _topics(broker: Client, rates: topic_list.ProduceRates, now: Callable[[], datetime]) -> list[topic_list.TopicReading]:
        topics = topic_list.read_topics(
            topic_list.TopicBatches(broker), sizes=lambda: cluster.partition_bytes(cluster.log_directories(broker))
        )
        return topic_list.with_rates(topics, rates, now())

    @staticmethod
    def _groups(broker: Client) -> GroupsRead:
        groups = AllGroups(broker).read()
        return GroupsRead(groups, end_offsets_of(topic_list.TopicBatches(broker), groups))


class PageSources:
    """The sources in use; the least recently used are closed first."""

    def __init__(
        self,
        now: Callable[[], datetime],
        clock: Callable[[], float],
        broker_timeout_seconds: float = topic_list.PAGE_TIMEOUT_SECONDS,
    ) -> None:
        self._broker_timeout_seconds = broker_timeout_seconds
        self._now = now
        self._clock = clock
        self._rates = topic_list.ProduceRates()
        self._lock = Lock()
        self._sources: OrderedDict[tuple[str, str], PageSource] = OrderedDict()

    def get(self, warehouse_conn_id: str, kafka_conn_id: str) -> PageSource:
        """The source for two connections as they are now: changed ones make another. One that does not fit raises when used."""
        url = _configured(warehouse_conn_id, "warehouse_conn_id", lambda: _url_of(warehouse_conn_id))
        broker = _configured(kafka_conn_id, "kafka_conn_id", lambda: BrokerHook(kafka_conn_id).client_config())
        key = (str(url), json.dumps(broker, sort_keys=True, default=str))
        with self._lock:
            if not self._sources:
                _spare_what_stays()
            if key not in self._sources:
                self._sources[key] = self._make(url, broker)
            self._sources.move_to_end(key)
            outdated = [self._sources.popitem(last=False)[1] for _ in range(len(self._sources) - SOURCES_MAX)]
            current = self._sources[key]
        for source in outdated:
            source.close()
        return current

    def _make(self, url: str | NotConfigured, broker: Mapping[str, Any] | NotConfigured) -> PageSource:
        limit = self._broker_timeout_seconds
        client = NoBroker(broker) if isinstance(broker, NotConfigured) else Client.for_page(broker, limit)
        return PageSource(lambda: _engine_of(url), client, self._rates, self._now, self._clock)


def _spare_what_stays() -> None:
    """Excludes what an api-server holds after its start from garbage collection, once.

    It is a million objects that live as long as the process, and a full collection visits each of them: 340 ms were measured, in
    which nothing answers, every few requests for a page of fifty pipelines. Objects made from here on are collected as before.
    """
    gc.freeze()


def _url_of(conn_id: str) -> str:
    """The connection's, but for the default one as the administrator has set it for the pages alone."""
    own = os.environ.get(provider.PAGES_WAREHOUSE_VARIABLE) if conn_id == WarehouseHook.default_conn_name else None
    return own or WarehouseHook(conn_id).url


def _engine_of(url: str | NotConfigured) -> Engine:
    if isinstance(url, NotConfigured):
        raise url
    return connect(url, timeout_seconds=CONNECT_TIMEOUT_SECONDS)


def _configured(conn_id: str, parameter: str, read: Callable[[], Value]) -> Value | NotConfigured:
    """What Airflow's connection says, or why it says nothing."""
    try:
        return read()
    except AirflowNotFoundException:
        return NotConfigured(NO_CONNECTION.format(conn_id=conn_id, parameter=parameter))
    except errors.UserError as error:
        return NotConfigured(str(error))
