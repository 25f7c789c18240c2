"""What Airflow is told about data: a pipeline's table as an asset that can schedule other DAGs, and OpenLineage's names.

An asset's event carries the starts of its windows, so the DAG that it starts can see which hours to read. Nothing in it is
secret: names, instants, offsets and counts. Lineage (used only if Airflow's OpenLineage provider is installed):

    kafka://HOST:PORT  TOPIC   ->   postgres://HOST:PORT  DATABASE.SCHEMA.TABLE

A pipeline whose rows are not stored in the warehouse names only its topic: the location of files is the sink's concern.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from airflow.sdk import Asset
from sqlalchemy.engine import make_url

from logbus.model import FrozenWindow, Pipeline, instant_text

# Of the windows of an event or an XCom, with all that is known of them: both are rows of Airflow's database, and a window of 200
# partitions is 6 kB.
WINDOWS_SHOWN_MAX = 100


class Summarized(Protocol):
    """A window, or what was done to one."""

    def summary(self) -> dict[str, Any]: ...


def table_asset(pipeline: Pipeline | str) -> Asset:
    """The asset for what the pipeline loads. A DAG elsewhere needs only the pipeline's name."""
    name = pipeline if isinstance(pipeline, str) else pipeline.name
    return Asset(name=f"logbus/{name}", uri=f"x-logbus://pipeline/{name}", group="logbus")


def event_extra(windows: Iterable[FrozenWindow]) -> dict[str, Any]:
    """What an event carries about its windows: the starts of all, and details of the first ones."""
    window_list = list(windows)
    counts = [window.counts for window in window_list if window.counts is not None]
    return {
        "pipeline": window_list[0].pipeline if window_list else None,
        "loaded": sum(count.loaded for count in counts),
        "dead_lettered": sum(count.dead_lettered for count in counts),
        **windows_extra([window.interval.start for window in window_list], window_list),
    }


def windows_extra(starts: Iterable[datetime], windows: Sequence[Summarized]) -> dict[str, Any]:
    """What an event or an XCom has of many windows: the starts of all, for the tasks that work on them next, and details of the
    first ones."""
    return {
        "window_count": len(windows),
        "starts": [instant_text(start) for start in starts],
        "windows": [window.summary() for window in windows[:WINDOWS_SHOWN_MAX]],
    }


def add_to_outlet_events(context: Mapping[str, Any], outlets: Iterable[Any], windows: Iterable[FrozenWindow]) -> None:
    """Puts the windows into the events that the task's success will create for its outlet assets."""
    assets = [outlet for outlet in outlets if isinstance(outlet, Asset)]
    extra = event_extra(windows) if assets else {}
    for asset in assets:
        context["outlet_events"][asset].extra = extra


POSTGRES_PORT = 5432


def topic_name(client_config: Mapping[str, Any], topic: str) -> tuple[str, str]:
    """The topic's namespace and name, by the first broker of the configuration."""
    first = str(client_config["bootstrap.servers"]).split(",")[0].strip()
    return f"kafka://{first.rpartition('://')[2]}", topic


def table_name(warehouse_url: str, table: str) -> tuple[str, str]:
    """The table's namespace and name; a server reached through a socket is on localhost."""
    url = make_url(warehouse_url)
    schema, _, plain = table.rpartition(".")
    return f"postgres://{url.host or 'localhost'}:{url.port or POSTGRES_PORT}", f"{url.database}.{schema or 'public'}.{plain}"


def load_lineage(client_config: Mapping[str, Any], warehouse_url: str, pipeline: Pipeline) -> Any:
    """The provider's `OperatorLineage` of a load."""
    from airflow.providers.common.compat.openlineage.facet import Dataset
    from airflow.providers.openlineage.extractors import OperatorLineage

    def dataset(namespace: str, name: str) -> Any:
        return Dataset(namespace=namespace, name=name)

    is_table = pipeline.options.sink == "postgres"
    outputs = [dataset(*table_name(warehouse_url, pipeline.table))] if is_table else []
    return OperatorLineage(inputs=[dataset(*topic_name(client_config, pipeline.topic))], outputs=outputs)
