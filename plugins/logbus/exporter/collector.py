"""The three readings, as prometheus_client asks for them at each scrape.

All three start together and share one deadline, which is before the scraper's own: a reading that is not done by then is
left out, and its `logbus_up` has the reason `timeout`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from importlib.metadata import version

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from logbus.exporter import catalogue as names
from logbus.exporter import samples
from logbus.exporter.arrivals import Arrivals
from logbus.exporter.catalogue import COUNTER, ExportedMetric
from logbus.exporter.kafka_reading import KafkaReading
from logbus.exporter.lag_reading import LagReading, read_lags
from logbus.exporter.samples import Sample
from logbus.exporter.sources import Limits, Sources
from logbus.exporter.target_reading import Outcome, TargetReading, wait
from logbus.kafka.batches import TopicBatches
from logbus.ledger.totals import LedgerReading, read_ledger

FAMILIES: Mapping[str, type[GaugeMetricFamily] | type[CounterMetricFamily]] = {COUNTER: CounterMetricFamily}


class PipelineCollector(Collector):
    """Samples of broker, ledger and lag. Thread-safe."""

    def __init__(self, sources: Sources, limits: Limits) -> None:
        self._sources, self._limits = sources, limits
        self._arrivals = Arrivals()
        age = limits.max_age_seconds
        self.broker: TargetReading[KafkaReading] = TargetReading("broker", self._read_kafka, max_age_seconds=age)
        self.ledger: TargetReading[LedgerReading] = TargetReading("ledger", self._read_ledger, max_age_seconds=age)
        self.lag: TargetReading[LagReading] = TargetReading("lag", self._read_lags, max_age_seconds=age)

    def collect(self) -> Iterator[Family]:
        """Every family that has samples now."""
        yield from families(self._samples())

    def health(self) -> str:
        """One line per target, as of the last scrape."""
        reasons = {"broker": self.broker.last.reason, "ledger": self.ledger.last.reason, "lag": self.lag.last.reason}
        return "".join(f"{target}: {reason}\n" for target, reason in reasons.items())

    def _samples(self) -> Iterator[Sample]:
        deadline = self._sources.monotonic() + self._limits.deadline_seconds
        begun = (self.broker.begin(), self.ledger.begin(), self.lag.begin())

        def left() -> float:
            return deadline - self._sources.monotonic()

        broker, ledger, lag = wait(begun[0], left()), wait(begun[1], left()), wait(begun[2], left())
        yield names.BUILD, (version("logbus"),), 1
        outcomes = (("broker", _plain(broker)), ("ledger", _plain(ledger)), ("lag", _plain(lag)))
        for target, outcome in outcomes:
            yield from samples.outcome_samples(target, outcome)
        if ledger.value is not None:
            yield from samples.ledger_samples(ledger.value)
        if lag.value is not None:
            yield from samples.lag_samples(lag.value)
        if broker.value is not None:
            cluster_name = self._sources.cluster_name or broker.value.cluster_id
            yield from samples.kafka_samples(broker.value, cluster_name)

    def _read_kafka(self) -> KafkaReading:
        reading, now = self._sources.kafka.read(), self._sources.monotonic()
        self._arrivals.observe(reading.ends, now)
        waiting = {
            (group.name, place): age
            for group in reading.groups
            for place, offset in group.committed.items()
            if (age := self._arrivals.waiting_seconds(place, offset, now)) is not None
        }
        return replace(reading, waiting=waiting)

    def _read_ledger(self) -> LedgerReading:
        return read_ledger(self._sources.engine(), timeout_seconds=self._limits.reading_seconds_max)

    def _read_lags(self) -> LagReading:
        return read_lags(self._sources.engine(), TopicBatches(self._sources.kafka.client), self._sources.now())


def _plain(outcome: Outcome[KafkaReading] | Outcome[LedgerReading] | Outcome[LagReading]) -> Outcome[object]:
    return Outcome(reason=outcome.reason, seconds=outcome.seconds)


def families(found: Iterable[Sample]) -> Iterator[Family]:
    """Samples grouped by family, in order of each family's first sample. Values that are not finite numbers are left out."""
    by_metric: dict[ExportedMetric, Family] = {}
    for metric, labels, value in found:
        if value is None or not math.isfinite(value):
            continue
        if metric not in by_metric:
            by_metric[metric] = FAMILIES.get(metric.kind, GaugeMetricFamily)(metric.name, metric.help, labels=metric.labels)
        by_metric[metric].add_metric(labels, value)  # type: ignore[attr-defined]
    yield from by_metric.values()
