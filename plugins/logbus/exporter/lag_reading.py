"""How far every pipeline is behind, one by one: a pipeline whose topic is gone has no lag, and does not hide the others'."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Engine

from logbus.errors import BrokerUnavailable, LogbusError
from logbus.exporter.shared import OK, reason_of
from logbus.windows.lag import Lag, lag_of
from logbus.windows.ledger import Ledger
from logbus.windows.log_admin import LogAdmin

TOPIC_RECREATED = "topic_recreated"


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


def read_lags(engine: Engine, log: LogAdmin, now: datetime) -> LagReading:
    """All pipelines. `BrokerUnavailable` where the broker does not answer: then nobody's lag is known."""
    found = [lag_or_reason(engine, log, one.name, one.topic, now) for one in Ledger(engine).pipelines()]
    return LagReading(at=now, pipelines={one.pipeline: one for one in found})


def lag_or_reason(engine: Engine, log: LogAdmin, name: str, topic: str, now: datetime) -> PipelineLag:
    try:
        lag = lag_of(engine, log, name, now)
    except BrokerUnavailable:
        raise
    except LogbusError as error:
        return PipelineLag(pipeline=name, topic=topic, lag=None, reason=reason_of(error))
    if lag.problem is not None:
        return PipelineLag(pipeline=name, topic=topic, lag=None, reason=TOPIC_RECREATED)
    return PipelineLag(pipeline=name, topic=topic, lag=lag)
