"""`logbus exporter`: metrics of the pipeline side (lag, windows, dead letters, topics and groups) as a scraper reads them.

Three readings (broker, ledger, lag) start together and share one deadline, which is before the scraper's own: a reading that is
not done by then is left out, and its `logbus_up` has the reason `timeout`. They fail independently: with the broker down the
ledger's metrics are still exported, and `logbus_up` says what could not be read. Every metric, and how
readings become samples, is in metrics.py.

The HTTP port has /metrics for scrapers, /healthz for a supervisor, / for people. Each connection has a daemon thread, of which
there are few: one that has sent no request for a second gives way to a new one, and all have a deadline. At most SCRAPES_MAX are
served at once, the rest get a 503. As in other exporters there is no authentication: it listens on loopback by default, where it
answers to no name that a website could have, and otherwise use a network that you trust. /healthz reports only that the exporter
itself works, whatever the state of what it watches: restarting the exporter does not repair a broker that is down.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import re
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from ipaddress import ip_address
from typing import Any, TypeVar
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from sqlalchemy import Engine

from logbus.errors import UserError
from logbus.kafka.client import SLOW_SECONDS_MAX, Client
from logbus.kafka.topic_list import TopicBatches
from logbus.loads.engine import connect, warehouse_url
from logbus.status import fleet, ledger_facts
from logbus.streams import aggregate_listing as aggregates
from logbus.streams import listing as streams
from logbus.web import metrics
from logbus.web.metrics import COUNTER, ExportedMetric, Sample
from logbus.web.reading import DEFECT, NOT_READ, LazyEngine, Reading, reason_of

logger = logging.getLogger("logbus.web")

Value = TypeVar("Value")

FAMILIES: Mapping[str, type[GaugeMetricFamily] | type[CounterMetricFamily]] = {COUNTER: CounterMetricFamily}


class PipelineCollector(Collector):
    """Samples of broker, ledger and lag. Thread-safe."""

    def __init__(self, sources: Sources, limits: Limits) -> None:
        self._sources, self._limits = sources, limits
        self._arrivals = metrics.Arrivals()
        self.broker: Reading[metrics.KafkaReading] = self._reading("broker", self._read_kafka)
        self.ledger: Reading[LedgerFigures] = self._reading("ledger", self._read_ledger)
        self.lag: Reading[fleet.LagReading] = self._reading("lag", self._read_lags)

    def collect(self) -> Iterator[Family]:
        """Every family that has samples now."""
        yield from families(self._samples())

    def health(self) -> str:
        """One line per target, as of the last scrape."""
        lasts = {"broker": self.broker.last, "ledger": self.ledger.last, "lag": self.lag.last}
        return "".join(f"{target}: {NOT_READ if last is None else last.reason}\n" for target, last in lasts.items())

    def _samples(self) -> Iterator[Sample]:
        deadline = self._sources.monotonic() + self._limits.deadline_seconds
        broker_reading, ledger_reading, lag_reading = self.broker.begin(), self.ledger.begin(), self.lag.begin()

        def left() -> float:
            return deadline - self._sources.monotonic()

        broker, ledger, lag = broker_reading.wait_for(left()), ledger_reading.wait_for(left()), lag_reading.wait_for(left())
        yield metrics.BUILD, (version("logbus"),), 1
        yield from metrics.outcome_samples("broker", broker)
        yield from metrics.outcome_samples("ledger", ledger)
        yield from metrics.outcome_samples("lag", lag)
        if ledger is not None and ledger.value is not None:
            read_lags = lag.value.pipelines if lag is not None and lag.value is not None else ()
            yield from metrics.ledger_samples(ledger.value.totals)
            yield from metrics.aggregate_samples(ledger.value.aggregates)
            yield from metrics.stream_samples(
                ledger.value.streams, {reading.pipeline.name: reading.ends for reading in read_lags}
            )
        if lag is not None and lag.value is not None:
            yield from metrics.lag_samples(lag.value)
        if broker is not None and broker.value is not None:
            cluster_name = self._sources.cluster_name or broker.value.cluster_id
            yield from metrics.kafka_samples(broker.value, cluster_name)

    def _reading(self, target: str, read: Callable[[], Value]) -> Reading[Value]:
        """Begins at once, and logs what it cannot read."""
        return Reading(
            logged_failures(target, read),
            self._sources.monotonic,
            name=f"read-{target}",
            max_age_seconds=self._limits.max_age_seconds,
            answers_first_seconds=0.0,
        )

    def _read_kafka(self) -> metrics.KafkaReading:
        reading, now = self._sources.kafka.read(), self._sources.monotonic()
        self._arrivals.observe(reading.ends, now)
        waiting = {
            (group.name, partition): age
            for group in reading.groups
            for partition, offset in group.committed.items()
            if (age := self._arrivals.waiting_seconds(partition, offset, now)) is not None
        }
        return replace(reading, waiting=waiting)

    def _read_ledger(self) -> LedgerFigures:
        engine, seconds_max = self._sources.engine(), self._limits.reading_seconds_max
        with ledger_facts.one_moment(engine, timeout_seconds=seconds_max) as connection:
            return LedgerFigures(
                totals=ledger_facts.read_all(connection),
                aggregates=aggregates.all_statuses(connection),
                streams=streams.all_statuses(connection, self._sources.now()),
            )

    def _read_lags(self) -> fleet.LagReading:
        return fleet.read_lags(self._sources.engine(), TopicBatches(self._sources.kafka.client), self._sources.now())


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerFigures:
    """What the ledger says of pipelines, and of what is computed from them."""

    totals: ledger_facts.LedgerReading
    aggregates: Sequence[aggregates.AggregateStatus]
    streams: Sequence[streams.StreamStatus]


def logged_failures(target: str, read: Callable[[], Value]) -> Callable[[], Value]:
    """The same reading; why it failed is logged once per change, not at every scrape."""
    logged: str | None = None

    def read_and_log() -> Value:
        nonlocal logged
        try:
            value = read()
        except Exception as error:
            reason = reason_of(error)
            if reason != logged:
                logger.warning("%s: %s", target, error, exc_info=reason == DEFECT)
            logged = reason
            raise
        logged = None
        return value

    return read_and_log


def families(all_samples: Iterable[Sample]) -> Iterator[Family]:
    """Samples grouped by family, in order of each family's first sample. Values that are not finite numbers are left out."""
    by_metric: dict[ExportedMetric, Family] = {}
    for metric, labels, value in all_samples:
        if value is None or not math.isfinite(value):
            continue
        if metric not in by_metric:
            by_metric[metric] = FAMILIES.get(metric.kind, GaugeMetricFamily)(metric.name, metric.help, labels=metric.labels)
        by_metric[metric].add_metric(labels, value)  # type: ignore[attr-defined]
    yield from by_metric.values()


# A server that vanishes without closing its connections is noticed in half a minute, not after TCP's default of two hours.
KEEPALIVES = {
    "connect_timeout": "10",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "20000",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """`deadline_seconds` is below Prometheus' default timeout of ten. A reading is shared until it is `max_age_seconds` old; one
    that is slow goes on past the deadline, for `reading_seconds_max`, and the scrape after it gets it."""

    deadline_seconds: float = 8.0
    max_age_seconds: float = 5.0
    reading_seconds_max: float = SLOW_SECONDS_MAX


@dataclass(frozen=True, kw_only=True)
class Sources:
    """What the exporter reads from. `engine` raises `WarehouseUnavailable` while the warehouse is down."""

    engine: Callable[[], Engine]
    kafka: metrics.KafkaReader
    now: Callable[[], datetime]
    cluster_name: str | None = None
    monotonic: Callable[[], float] = time.monotonic


def make_sources(
    url: str,
    client_config: Mapping[str, Any],
    now: Callable[[], datetime],
    limits: Limits,
    *,
    cluster_name: str | None = None,
    topic_filter: str = ".*",
    group_filter: str = ".*",
) -> Sources:
    """Connects to nothing yet, so neither server need be up; an invalid URL or pattern is a `UserError` at once."""
    client = Client(client_config, timeout_seconds=limits.deadline_seconds, slow_seconds_max=limits.reading_seconds_max)
    return Sources(
        engine=LazyEngine(_patient_connection(url), time.monotonic, limits.max_age_seconds).get,
        kafka=metrics.KafkaReader(client, topic_filter=topic_filter, group_filter=group_filter),
        now=now,
        cluster_name=cluster_name,
    )


def _patient_connection(url: str) -> Callable[[], Engine]:
    """How to connect to the warehouse; a `UserError` at once if the URL is invalid."""
    parsed = warehouse_url(url)
    patient = parsed.update_query_dict({name: value for name, value in KEEPALIVES.items() if name not in parsed.query})
    return lambda: connect(patient.render_as_string(hide_password=False))


SCRAPES_MAX = 16  # a Prometheus pair and a few people; more means a mistake somewhere
CONNECTIONS_MAX = 32  # a thread each
CLIENT_SECONDS_MAX = 10.0  # a client that takes longer to send its request is disconnected
REQUEST_SECONDS = 1.0  # after this, a connection without a request gives way to a new one
NAMES_OF_LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})  # no website can make these its own
POLL_SECONDS = 0.1  # how soon a shutdown is noticed

TEXT = "text/plain; charset=utf-8"
HOME = b"logbus exporter\n\n/metrics  for Prometheus\n/healthz  what could be read at the last scrape\n"

Answer = tuple[HTTPStatus, str, bytes]


class MetricsServer(ThreadingHTTPServer):
    """Listens once constructed; `UserError` where the port is taken, or others could reach it and that is not allowed in words.
    `health` returns the text of /healthz."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(
        self,
        host: str,
        port: int,
        registry: CollectorRegistry,
        health: Callable[[], str],
        *,
        allow_unauthenticated: bool = False,
    ) -> None:
        self.registry, self.health = registry, health
        self.slots = threading.BoundedSemaphore(SCRAPES_MAX)
        self._thread_places = threading.BoundedSemaphore(CONNECTIONS_MAX)
        self._without_request: dict[Any, float] = {}  # since when, oldest first
        try:
            super().__init__((host, port), Handler)
        except OSError as error:
            raise UserError(_cannot_listen(host, port, error)) from None
        is_loopback = ip_address(str(self.server_address[0])).is_loopback
        self.names = {*NAMES_OF_LOOPBACK, host} if is_loopback else set()
        if not allow_unauthenticated and not is_loopback:
            self.server_close()
            raise UserError(
                f"--host {host} can be reached by others, and the exporter asks nobody for a login: use --host 127.0.0.1, or add "
                "--allow-unauthenticated if everyone who can connect may see the names and sizes of topics, groups and pipelines"
            )

    @property
    def url(self) -> str:
        return f"http://{self.server_address[0]!s}:{self.server_port}/metrics"

    def run_until(self, stop: threading.Event) -> None:
        """Serves until the event is set."""
        serving = threading.Thread(target=self.serve_forever, args=(POLL_SECONDS,), daemon=True)
        serving.start()
        stop.wait()
        self.shutdown()
        self.server_close()

    def answers_to(self, address: str) -> bool:
        """Whether a request's header Host is a name of ours: a website's page could read what is on loopback, by making the
        site's name lead there (DNS rebinding)."""
        name = address.rpartition(":")[0] if re.search(r":\d+$", address) else address
        return not self.names or not name or name.lower() in self.names

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._thread_places.acquire(blocking=False):
            has_ended_one = self._end_those_since(time.monotonic() - REQUEST_SECONDS, count_max=1)
            if not has_ended_one or not self._thread_places.acquire(timeout=POLL_SECONDS):
                self.shutdown_request(request)
                return
        self._without_request[request] = time.monotonic()
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.has_request(request)
            self._thread_places.release()

    def has_request(self, connection: Any) -> None:
        self._without_request.pop(connection, None)

    def service_actions(self) -> None:
        """Between two connections. A socket's own timeout begins anew with each byte."""
        self._end_those_since(time.monotonic() - CLIENT_SECONDS_MAX)

    def _end_those_since(self, moment: float, count_max: int = CONNECTIONS_MAX) -> bool:
        """Ends connections without a request since before the moment, whose threads find them closed; whether there are any."""
        ending = [connection for connection, since in list(self._without_request.items())[:count_max] if since <= moment]
        for connection in ending:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        return bool(ending)


def _cannot_listen(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} of {host} is in use: stop what listens there, or choose another with --port"
    return f"cannot listen on {host}:{port}: {error.strerror}; choose another --host or --port"


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: MetricsServer
    timeout = CLIENT_SECONDS_MAX
    server_version = "logbus-exporter"

    def do_GET(self) -> None:
        self.server.has_request(self.connection)
        if not self.server.answers_to(self.headers.get("Host", "")):
            self.answer((HTTPStatus.MISDIRECTED_REQUEST, TEXT, b"this is an exporter on loopback: ask it as localhost\n"))
            return
        if not self.server.slots.acquire(blocking=False):
            self.answer((HTTPStatus.SERVICE_UNAVAILABLE, TEXT, b"too many concurrent scrapes\n"))
            return
        try:
            route = ROUTES.get(urlsplit(self.path).path)
            self.answer(route(self) if route else (HTTPStatus.NOT_FOUND, TEXT, b"nothing here; /metrics is for Prometheus\n"))
        finally:
            self.server.slots.release()

    def metrics(self) -> Answer:
        encode, content_type = choose_encoder(self.headers.get("Accept", ""))
        return HTTPStatus.OK, content_type, encode(self.server.registry)

    def healthz(self) -> Answer:
        return HTTPStatus.OK, TEXT, f"ok\n{self.server.health()}".encode()

    def home(self) -> Answer:
        return HTTPStatus.OK, TEXT, HOME

    def answer(self, answer: Answer) -> None:
        status, content_type, body = answer
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Logs nothing: one line per scrape would fill the log."""


ROUTES: Mapping[str, Callable[[Handler], Answer]] = {"/metrics": Handler.metrics, "/healthz": Handler.healthz, "/": Handler.home}
