"""What a load reads and writes, under OpenLineage's names. Used only if Airflow's OpenLineage provider is installed.

    kafka://HOST:PORT  TOPIC   ->   postgres://HOST:PORT  DATABASE.SCHEMA.TABLE

A pipeline whose rows are not stored in the warehouse names only its topic: the location of files is the sink's concern.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy.engine import make_url

from logbus.model import Pipeline

POSTGRES_PORT = 5432


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetName:
    """OpenLineage's name for a dataset that is read or written."""

    namespace: str
    name: str


def topic_name(client_config: Mapping[str, Any], topic: str) -> DatasetName:
    """The topic, by the first broker of the configuration."""
    first = str(client_config["bootstrap.servers"]).split(",")[0].strip()
    return DatasetName(namespace=f"kafka://{first.rpartition('://')[2]}", name=topic)


def table_name(warehouse_url: str, table: str) -> DatasetName:
    """The table; a server reached through a socket is on localhost."""
    url = make_url(warehouse_url)
    schema, _, plain = table.rpartition(".")
    namespace = f"postgres://{url.host or 'localhost'}:{url.port or POSTGRES_PORT}"
    return DatasetName(namespace=namespace, name=f"{url.database}.{schema or 'public'}.{plain}")


def load_lineage(client_config: Mapping[str, Any], warehouse_url: str, pipeline: Pipeline) -> Any:
    """The provider's `OperatorLineage` of a load."""
    from airflow.providers.common.compat.openlineage.facet import Dataset
    from airflow.providers.openlineage.extractors import OperatorLineage

    def dataset(name: DatasetName) -> Any:
        return Dataset(namespace=name.namespace, name=name.name)

    is_table = pipeline.options.sink == "postgres"
    outputs = [dataset(table_name(warehouse_url, pipeline.table))] if is_table else []
    return OperatorLineage(inputs=[dataset(topic_name(client_config, pipeline.topic))], outputs=outputs)
