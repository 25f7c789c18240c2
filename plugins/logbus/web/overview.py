"""The Ingestion page's data: is every hour in, how far behind are we, for each pipeline that the user may see.

Made from a reading of the fleet (`FleetReading`, for which the broker is asked) and of the ledger's windows in the span shown
(`SpanReading`), each shared by all users for some seconds. Neither needs the other, so they are read in parallel. If the broker
is down, its part is None and the ledger's is shown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Engine

from logbus import errors, model
from logbus.kafka import topic_list
from logbus.status import ledger_facts
from logbus.status.fleet import PipelineReading, Registered, read_chains, read_pipelines, read_registered
from logbus.status.lag import Lag
from logbus.status.ledger_facts import LOADED_WITHIN, Loaded, Series, WindowFacts, micros
from logbus.web.cells import Cell, cells_of, columns_of, expires_at, gone_by_partition, waiting_cell
from logbus.windows.pipeline_chains import PipelineChain
from logbus.windows.rows import Row, to_pipeline

BROKER_DOWN = "the broker does not answer"
HOURS_DEFAULT = 168
HOURS_MAX = 24 * 62  # two months of hours: more is not read, and not drawn; of shorter windows as many
CONTEXT_OF_RUN = timedelta(hours=24)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetReading:
    """All pipelines as they are at an instant."""

    at: datetime
    pipelines: Sequence[PipelineReading]
    dag_ids: Mapping[str, Sequence[str]]
    loaded: Mapping[str, Loaded]
    newest_ends: Mapping[str, datetime] = field(default_factory=dict)
    produced_per_second: Mapping[str, float] = field(default_factory=dict)
    broker_error: errors.BrokerUnavailable | None = None

    @property
    def names(self) -> list[str]:
        return [reading.pipeline.name for reading in self.pipelines]


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What a user looks at. `run` is a Dag run by dag id and run id: its hours are shown, with the day before them."""

    since: datetime | None = None
    until: datetime | None = None
    hours: int = HOURS_DEFAULT
    run: tuple[str, str] | None = None
    run_interval: model.Interval | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanReading:
    """What the ledger holds in a span: windows by pipeline, and the rows that were loaded by pipeline and step."""

    span: model.Interval
    windows: Mapping[str, Sequence[WindowFacts]]
    loaded: Mapping[tuple[str, int], int]


def read(engine: Engine, log: topic_list.LogBatches, rates: topic_list.ProduceRates, now: datetime) -> FleetReading:
    """Asks ledger and broker about everything. Only a warehouse that is down is an error."""
    registered = read_registered(engine, now)
    pipelines, error = _pipelines_or_error(engine, log, registered, now)
    return FleetReading(
        at=now,
        pipelines=pipelines,
        dag_ids=registered.dag_ids,
        loaded=registered.loaded,
        newest_ends=registered.newest_ends,
        produced_per_second=produced(pipelines, rates, now),
        broker_error=error,
    )


def read_span(engine: Engine, span: model.Interval, run: tuple[str, str] | None = None) -> SpanReading:
    """`run` marks the hours that a Dag run (dag id, run id) worked on."""
    with engine.connect() as connection:
        windows = ledger_facts.windows_in(connection, span, run)
        return SpanReading(span=span, windows=windows, loaded=ledger_facts.loaded_in_steps(connection, span))


def _pipelines_or_error(
    engine: Engine, log: topic_list.LogBatches, registered: Registered, now: datetime
) -> tuple[list[PipelineReading], errors.BrokerUnavailable | None]:
    try:
        # Only a broker that does not answer is caught here. A missing topic or a missing ACL belongs to one pipeline and is in
        # its own `problem`: it must not hide the others from the page.
        return read_pipelines(engine, log, now, registered.rows, registered.policies), None
    except errors.BrokerUnavailable as error:
        return _without_broker(registered.rows, read_chains(engine, registered.rows)), error


def _without_broker(rows: Sequence[Row], chains: Mapping[str, PipelineChain]) -> list[PipelineReading]:
    """The ledger's part."""
    return [
        PipelineReading(
            pipeline=pipeline,
            chain=chains[pipeline.name],
            lag=Lag(pipeline=pipeline.name, topic=pipeline.topic, records_behind={}, problem=BROKER_DOWN),
        )
        for pipeline in map(to_pipeline, rows)
    ]


def produced(readings: Sequence[PipelineReading], rates: topic_list.ProduceRates, now: datetime) -> dict[str, float]:
    """Records a second by pipeline, if the topic was read before."""
    rates_by_pipeline = {}
    for reading in readings:
        if reading.topic_id is not None and reading.ends:
            key = f"{reading.topic_id} {reading.pipeline.isolation_level}"
            # By the topic's id and not by its name: recreated, it begins at 0, and the rate between the two would be negative.
            # By isolation level, since read_committed has another end.
            rates.record(key, reading.ends, now)
            rate = rates.per_second(key)
            if rate is not None:
                rates_by_pipeline[reading.pipeline.name] = rate
    return rates_by_pipeline


def pipelines_json(fleet: FleetReading, ledger: SpanReading) -> dict[str, dict[str, Any]]:
    """Every pipeline by its name as JSON-ready values."""
    return {
        reading.pipeline.name: _pipeline_json(fleet, reading, ledger.windows.get(reading.pipeline.name, ()), ledger)
        for reading in fleet.pipelines
    }


def window_cell_json(engine: Engine, fleet: FleetReading, window: model.FrozenWindow) -> dict[str, Any]:
    """The cell of one window, as the heat map shows it, and by partition what the broker has deleted unloaded."""
    reading = reading_of(engine, fleet, window.pipeline)
    facts = read_span(engine, window.interval).windows[window.pipeline]
    cells = cells_of(reading, facts, window.interval, fleet.at)
    cell = next(candidate for candidate in cells if candidate.start == micros(window.interval.start))
    gone = {} if reading.chain.is_other_topic else gone_by_partition(window, reading.starts)
    taken_at = expires_at(reading, window.interval) if window.loaded_attempt is None and window.record_count else None
    return {
        **cell.summary(),
        "gone": {str(part): count for part, count in gone.items()},
        "expires_at": taken_at and model.instant_text(taken_at),
    }


def waiting_json(engine: Engine, fleet: FleetReading, name: str, hour: model.Interval) -> dict[str, Any]:
    """The cell of an hour that is not frozen, None if no record is known to be in it; and why that cannot be known, if so."""
    reading = reading_of(engine, fleet, name)
    cell = waiting_cell(reading, hour, fleet.at)
    taken_at = None if cell is None else expires_at(reading, hour)
    return {
        "cell": None if cell is None else {**cell.summary(), "expires_at": taken_at and model.instant_text(taken_at)},
        "problem": reading.lag.problem,
    }


def reading_of(engine: Engine, fleet: FleetReading, name: str) -> PipelineReading:
    """A pipeline that was registered after the reading comes from the ledger alone."""
    for reading in fleet.pipelines:
        if reading.pipeline.name == name:
            return reading
    rows = [row for row in read_registered(engine, fleet.at).rows if row["name"] == name]
    (reading,) = _without_broker(rows, read_chains(engine, rows))
    return reading


def step_of(shown: Sequence[PipelineReading]) -> timedelta:
    """The width of a column: the shortest interval of all pipelines."""
    return min((reading.pipeline.interval for reading in shown), default=model.HOUR)


def span_of(
    fleet: FleetReading | None, names: Collection[str], view: View, now: datetime, of_run: model.Interval | None = None
) -> model.Interval:
    """What the heat map shows to a user who sees the pipelines of these names: what is asked for, or the last hours, or those
    before the last window if all is older. `of_run` is the span that the view's Dag run worked on."""
    shown = pipelines_of(fleet, names)
    step = step_of(shown)
    longest = min(timedelta(hours=HOURS_MAX), HOURS_MAX * step)
    length = min(timedelta(hours=max(1, view.hours)), longest)
    if view.since is not None or view.until is not None:
        since = view.since
        # A link with only a beginning means "from there on": as far as the page goes, but not into the future, where all cells
        # would be empty.
        latest = now if since is None else max(since, min(since + length, now))
        until = _next_step(latest, step) if view.until is None else view.until
        return model.Interval(max(until - length if since is None else since, until - longest), until)
    if of_run is not None:
        return model.Interval(max(min(of_run.start, of_run.end - CONTEXT_OF_RUN), of_run.end - longest), of_run.end)
    end, ends = _next_step(now, step), fleet.newest_ends if fleet else {}
    last = [ends[reading.pipeline.name] for reading in shown if reading.pipeline.name in ends]
    # If all records are old (a backfill, a sample), the last hours by the clock are empty in every row, and an empty page
    # would look like "all is well". Then the span ends where the records do.
    last += [gap.interval.end for reading in shown for gap in reading.lag.gaps if not gap.is_empty]
    if last and max(last) <= end - length:
        end = max(last)
    return model.Interval(end - length, end)


def pipelines_of(fleet: FleetReading | None, names: Collection[str]) -> list[PipelineReading]:
    return [reading for reading in fleet.pipelines if reading.pipeline.name in names] if fleet else []


def _next_step(now: datetime, step: timedelta) -> datetime:
    return model.Grid(step).floor(now) + step


def _pipeline_json(
    fleet: FleetReading,
    reading: PipelineReading,
    windows: Sequence[WindowFacts],
    ledger: SpanReading,
) -> dict[str, Any]:
    pipeline, cells = reading.pipeline, cells_of(reading, windows, ledger.span, fleet.at)
    series = ledger_facts.series(pipeline.name, windows, ledger.loaded, ledger.span)
    return {
        "name": pipeline.name,
        "topic": pipeline.topic,
        "table": pipeline.table,
        "interval_seconds": int(pipeline.interval.total_seconds()),
        "timezone": pipeline.timezone,
        "lateness_seconds": pipeline.lateness.total_seconds(),
        "lag": lag_json(reading.lag, fleet.loaded.get(pipeline.name), fleet.at),
        "throughput": _throughput_json(fleet, pipeline.name, series),
        "states": _states_of(cells),
        "dead_letters": sum(cell.dead_lettered for cell in cells),
        "cells": columns_of(cells, pipeline.interval),
    }


def _states_of(cells: Sequence[Cell]) -> dict[str, int]:
    """How many cells of the span are in each state that occurs."""
    return {state.value: count for state, count in Counter(cell.state for cell in cells).items()}


def lag_json(lag: Lag, loaded: Loaded | None, now: datetime) -> dict[str, Any]:
    """What `logbus lag` reports, and an estimate of the bytes. If it cannot be counted, everything but the problem is None."""
    summary = lag.summary(now)
    same = ("hours_behind", "hours_empty", "oldest_hour", "records_behind", "records_open", "records_lost", "age_seconds")
    size, is_estimated = bytes_behind(lag, loaded) if lag.problem is None else (None, False)
    return {
        **{name: summary[name] for name in (*same, "seconds_until_expiry", "expires_by", "expiry_problem", "problem")},
        "bytes_behind": size,
        "bytes_are_estimated": is_estimated,
        "oldest_unloaded_at": summary["oldest_record_at"] or summary["oldest_hour"],
    }


def bytes_behind(lag: Lag, loaded: Loaded | None) -> tuple[int | None, bool]:
    """Bytes of keys and values, and whether they are estimated: from the average loaded record of the pipeline."""
    if lag.bytes_behind is not None:
        return lag.bytes_behind, False
    if not lag.records:
        return 0, False
    each = loaded.bytes_each if loaded else None
    # The broker reports sizes of whole segments, of compressed batches, with other records in between: the average of loaded
    # records is closer, and is marked as an estimate.
    return (None, False) if each is None else (round(lag.records * each), True)


def _throughput_json(fleet: FleetReading, name: str, series: Series) -> dict[str, Any]:
    loaded = fleet.loaded.get(name)
    return {
        "produced_per_second": fleet.produced_per_second.get(name),
        "loaded_per_second": 0.0 if loaded is None else loaded.lately / LOADED_WITHIN.total_seconds(),
        "series": {"produced": series.produced, "loaded": series.loaded},
    }
