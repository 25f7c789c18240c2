"""The lag of every pipeline, all read together: one whose topic is gone has no lag, and does not hide the others'."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Engine

from logbus.exporter.target_reading import OK
from logbus.kafka.batches import LogBatches
from logbus.ledger.sql_errors import ledger_errors
from logbus.status.fleet import FUTURE_STAMPS, PipelineReading, read_fleet
from logbus.status.lag import Lag

TOPIC_MISSING, TOPIC_RECREATED, FUTURE, REFUSED = "topic_missing", "topic_recreated", "future_timestamps", "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineLag:
    """A pipeline's lag, or why there is none."""

    pipeline: str
    topic: str
    lag: Lag | None
    reason: str = OK


@dataclass(frozen=True, slots=True, kw_only=True)
class LagReading:
    """The lags of all pipelines, and when they were read."""

    at: datetime
    pipelines: Mapping[str, PipelineLag]


def read_lags(engine: Engine, log: LogBatches, now: datetime) -> LagReading:
    """All pipelines. `BrokerUnavailable` where the broker does not answer: then no pipeline's lag is known."""
    with ledger_errors():
        found = {one.pipeline.name: to_lag(one) for one in read_fleet(engine, log, now)}
    return LagReading(at=now, pipelines=found)


def to_lag(one: PipelineReading) -> PipelineLag:
    reason = reason_of(one)
    lag = one.lag if reason == OK else None
    return PipelineLag(pipeline=one.pipeline.name, topic=one.pipeline.topic, lag=lag, reason=reason)


def reason_of(one: PipelineReading) -> str:
    """A label should have few values; the full message is on the pages and in the output of `logbus lag`."""
    if one.lag.problem is None:
        return OK
    if one.topic_id is None:
        return TOPIC_MISSING
    if one.chain.is_other_topic:
        return TOPIC_RECREATED
    return FUTURE if one.lag.problem == FUTURE_STAMPS.format(name=one.pipeline.name) else REFUSED
