"""What Airflow is told about data: a pipeline's table as an asset that can schedule other DAGs, and OpenLineage's names.

What an asset's event carries is in task_context.py. Lineage (used only if Airflow's OpenLineage provider is installed):

    kafka://HOST:PORT  TOPIC   ->   postgres://HOST:PORT  DATABASE.SCHEMA.TABLE

A pipeline whose rows are not stored in the warehouse names only its topic: the location of files is the sink's concern.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow.sdk import Asset
from sqlalchemy.engine import make_url

from logbus.model import Pipeline


def table_asset(pipeline: Pipeline | str) -> Asset:
    """The asset for what the pipeline loads. A DAG elsewhere needs only the pipeline's name."""
    name = pipeline if isinstance(pipeline, str) else pipeline.name
    return Asset(name=f"logbus/{name}", uri=f"x-logbus://pipeline/{name}", group="logbus")


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
