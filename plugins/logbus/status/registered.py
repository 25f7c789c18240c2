"""What the ledger holds on all pipelines without reading each window: a handful of short queries, however many there are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Engine

from logbus.ledger import fleet as ledger_fleet
from logbus.ledger.fleet import Loaded
from logbus.ledger.pipeline_dags import dags_by_pipeline
from logbus.ledger.rows import Row, pipeline_rows, to_pipeline
from logbus.model import Pipeline, utc
from logbus.retention.model import RetentionPolicy
from logbus.retention.store import policies_by_topic


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """All pipelines as rows of the ledger; `policies` by topic; by pipeline its Dags, what it has loaded so far, and where the
    last of its windows with records ends."""

    rows: Sequence[Row]
    policies: Mapping[str, RetentionPolicy]
    dag_ids: Mapping[str, Sequence[str]]
    loaded: Mapping[str, Loaded]
    newest_ends: Mapping[str, datetime]

    @property
    def names(self) -> list[str]:
        return [row["name"] for row in self.rows]

    @property
    def pipelines(self) -> list[Pipeline]:
        return [to_pipeline(row) for row in self.rows]


def read_registered(engine: Engine, now: datetime) -> Registered:
    with engine.connect() as connection:
        return Registered(
            rows=pipeline_rows(connection),
            policies=policies_by_topic(connection),
            dag_ids=dags_by_pipeline(connection),
            loaded=ledger_fleet.loaded_by_pipeline(connection, utc(now)),
            newest_ends=ledger_fleet.newest_ends(connection),
        )
