"""What our DAGs have in common: the connections of their tasks, and the defaults of their own arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from logbus import errors, spark_submit
from logbus.hooks.broker import BrokerHook
from logbus.hooks.warehouse import WarehouseHook

# Runs of the past may be triggered (a rerun of an old hour); with catchup off, the start date alone schedules nothing.
START_DATE = datetime(2000, 1, 1, tzinfo=UTC)
TASK_DEFAULTS: Mapping[str, Any] = {"retries": 2, "retry_delay": timedelta(seconds=30)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Connections:
    """Airflow connections by their ids, and the pool that keeps Spark drivers from running in parallel."""

    kafka: str = BrokerHook.default_conn_name
    warehouse: str = WarehouseHook.default_conn_name
    spark: str = "spark_default"
    pool: str = spark_submit.LOAD_POOL


CONNECTIONS_DEFAULT = Connections()


def dag_defaults(arguments: Mapping[str, Any], given: Mapping[str, Any] | None) -> dict[str, Any]:
    """The defaults of all our DAGs, then those of this kind, then the author's arguments."""
    defaults = {"catchup": False, "tags": ["logbus"], **arguments, **(given or {})}
    default_args = {**TASK_DEFAULTS, **(defaults.get("default_args") or {})}
    if "start_date" not in {**default_args, **defaults}:
        if defaults["catchup"]:
            raise errors.UserError(
                "catchup=True needs a start_date in dag_arguments, too: Airflow creates a run for every window since then"
            )
        defaults["start_date"] = START_DATE
    return {**defaults, "default_args": default_args}
