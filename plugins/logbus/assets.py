"""What Airflow is told about a pipeline's data, so that it schedules other DAGs. An audit's success is an event of three assets:

    table_asset      x-logbus://pipeline/NAME            its event carries the windows, as an XCom does
    windows_asset    x-logbus://pipeline/NAME/windows    an event for each window, whose partition key is the window's start
    the table        postgres://HOST:PORT/DATABASE/SCHEMA/TABLE, or where an Iceberg table is: what others call it

An audit of an aggregate has two: `aggregate_asset`, x-logbus://aggregate/NAME, and `hours_asset`, x-logbus://aggregate/NAME/hours,
with an event for each hour that was computed again, whose partition key is the hour. The proof of a stream has two likewise:
`stream_asset`, x-logbus://stream/NAME, and `proven_hours_asset`, x-logbus://stream/NAME/hours.

Partition keys have an asset of their own, since an event with a key starts no DAG that is scheduled by the asset alone. The URI
of the table is known when the task runs, from its connection, hence the alias; cosmos and Airflow's providers make the same URI.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from airflow import __version__ as airflow_version
from airflow.sdk import Asset, AssetAlias
from packaging.version import Version

from logbus import errors, model, task_context
from logbus.loads.sinks import PublicTable

HAS_KEYS_OF_TASKS = Version(airflow_version) >= Version("3.3")
KEY_FORMAT = "%Y-%m-%dT%H:%M:%S"  # of Airflow's own timetables and mappers
# A week of hours. Airflow stores the events while a task waits for the answer to its success, for five seconds by default, and
# needs some milliseconds for each.
KEYS_MAX = 168

logger = logging.getLogger(__name__)

# In Airflow's store of asset states (3.3): before which instant all of the table is audited, as of its last audit.
COMPLETE_UNTIL = "complete_until"


def table_asset(pipeline: model.Pipeline | str) -> Asset:
    """The asset for what the pipeline loads. A DAG elsewhere needs only the pipeline's name."""
    name = pipeline if isinstance(pipeline, str) else pipeline.name
    return Asset(name=f"logbus/{name}", uri=f"x-logbus://pipeline/{name}", group="logbus")


def windows_asset(pipeline: model.Pipeline | str) -> Asset:
    """The asset that has an event for each proven window, with its start in the pipeline's time zone (2015-05-17T10:00:00) as the
    partition key: for a `PartitionedAssetTimetable`. Airflow 3.3 is the first whose tasks may set keys."""
    _require_keys("windows_asset", "table_asset, whose events carry the windows, or wait with WindowLoadedSensor")
    name = pipeline if isinstance(pipeline, str) else pipeline.name
    return Asset(name=f"logbus/{name}/windows", uri=f"x-logbus://pipeline/{name}/windows", group="logbus")


def _require_keys(asset: str, instead: str) -> None:
    if not HAS_KEYS_OF_TASKS:
        raise errors.UserError(f"{asset} needs Airflow 3.3 or newer, this is {airflow_version}: schedule by {instead}")


def aggregate_asset(name: str) -> Asset:
    """The asset for an aggregate's table. Its events carry the hours that were computed again, as `hours`."""
    return _derived_asset("aggregate", name)


def hours_asset(name: str) -> Asset:
    """The asset that has an event for each event hour of an aggregate that was computed again and audited, with its start in UTC
    as the partition key: for a `PartitionedAssetTimetable`."""
    _require_keys("hours_asset", "aggregate_asset, whose events carry the hours")
    return _derived_asset("aggregate", name, hours=True)


def stream_asset(name: str) -> Asset:
    """The asset for a stream's view. Its events carry the hours of arrival that were proven, as `hours`."""
    return _derived_asset("stream", name)


def proven_hours_asset(name: str) -> Asset:
    """The asset that has an event for each hour of arrival of a stream that was proven, with its start in UTC as the partition
    key: for a `PartitionedAssetTimetable`."""
    _require_keys("proven_hours_asset", "stream_asset, whose events carry the hours")
    return _derived_asset("stream", name, hours=True)


def _derived_asset(kind: str, name: str, *, hours: bool = False) -> Asset:
    suffix = "/hours" if hours else ""
    return Asset(name=f"logbus-{kind}/{name}{suffix}", uri=f"x-logbus://{kind}/{name}{suffix}", group="logbus")


def table_alias(pipeline: model.Pipeline | str) -> AssetAlias:
    """Stands for the table under its own URI."""
    name = pipeline if isinstance(pipeline, str) else pipeline.name
    return AssetAlias(name=f"logbus/{name}/table", group="logbus")


def outlets(pipeline: model.Pipeline | str) -> list[Asset | AssetAlias]:
    """The outlets of the audit."""
    return [table_asset(pipeline), *([windows_asset(pipeline)] if HAS_KEYS_OF_TASKS else []), table_alias(pipeline)]


def aggregate_outlets(name: str) -> list[Asset]:
    """The outlets of an aggregate's audit."""
    return [aggregate_asset(name), *([hours_asset(name)] if HAS_KEYS_OF_TASKS else [])]


def stream_outlets(name: str) -> list[Asset]:
    """The outlets of a stream's proof."""
    return [stream_asset(name), *([proven_hours_asset(name)] if HAS_KEYS_OF_TASKS else [])]


def tell_of_aggregated(context: Mapping[str, Any], outlets: Iterable[Any], name: str, hours: Sequence[datetime]) -> None:
    """Fills the events that the success of an aggregate's audit will create, for those of its outlets that are ours."""
    _tell_of_hours(context, outlets, "aggregate", name, hours, "audit again in shorter spans")


def tell_of_proven_hours(context: Mapping[str, Any], outlets: Iterable[Any], name: str, hours: Sequence[datetime]) -> None:
    """Fills the events that the success of a stream's proof will create, for those of its outlets that are ours."""
    _tell_of_hours(context, outlets, "stream", name, hours, "prove in shorter spans")


def _tell_of_hours(
    context: Mapping[str, Any], outlets: Iterable[Any], kind: str, name: str, hours: Sequence[datetime], advice: str
) -> None:
    declared = list(outlets)
    if (asset := _derived_asset(kind, name)) in declared:
        context["outlet_events"][asset].extra = {kind: name, "hours": [model.instant_text(hour) for hour in hours]}
    if HAS_KEYS_OF_TASKS and (keyed := _derived_asset(kind, name, hours=True)) in declared:
        event = context["outlet_events"][keyed]
        event.extra = {kind: name}
        _add_keys(event, [hour.strftime(KEY_FORMAT) for hour in sorted(hours)], advice)


def _add_keys(event: Any, keys: Sequence[str], advice: str) -> None:
    """The last ones, if there are too many."""
    if len(keys) > KEYS_MAX:
        logger.warning("Only the last %d of %d are events with a key: %s", KEYS_MAX, len(keys), advice)
    event.add_partitions(keys[-KEYS_MAX:])


def tell_of_proven(
    context: Mapping[str, Any],
    outlets: Iterable[Any],
    pipeline: model.Pipeline,
    windows: Sequence[model.FrozenWindow],
    public_table: Callable[[], PublicTable | None],
) -> None:
    """Fills the events that the audit's success will create for those of its outlets that are ours, or anybody's assets."""
    task_context.add_to_outlet_events(context, outlets, windows)
    declared = list(outlets)
    if HAS_KEYS_OF_TASKS and (keyed := windows_asset(pipeline)) in declared:
        event = context["outlet_events"][keyed]
        event.extra = {"pipeline": pipeline.name}  # Airflow stores it once for each key
        starts, zone = sorted(window.interval.start for window in windows), ZoneInfo(pipeline.timezone)
        _add_keys(event, [start.astimezone(zone).strftime(KEY_FORMAT) for start in starts], "catch up in shorter spans")
    if (alias := table_alias(pipeline)) in declared and (table := public_table()) is not None:
        context["outlet_events"][alias].add(Asset(table.uri), extra=task_context.event_extra(windows))


def store_complete_until(context: Mapping[str, Any], outlets: Iterable[Any], pipeline: str, until: datetime | None) -> None:
    """As the state of the table's asset, which every task that has it as an inlet can read."""
    asset, stores = table_asset(pipeline), context.get("asset_state_store")
    if stores is None or asset not in list(outlets):
        return
    if until is None:
        stores[asset].delete(COMPLETE_UNTIL)
    else:
        stores[asset].set(COMPLETE_UNTIL, model.instant_text(until))
