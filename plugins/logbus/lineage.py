"""What OpenLineage is told of a load and of an audit, if Airflow's OpenLineage provider is installed: it calls, we answer.

    load     kafka://HOST:PORT  TOPIC   ->   the sink's table, with its columns and how many rows the load has put there
    audit    the sink's table, with its columns, how many rows were counted, and whether all was as it should be

The names are OpenLineage's: postgres://HOST:PORT  DATABASE.SCHEMA.TABLE, or where an Iceberg table is. A task is asked after its
work, in a fork of its process: what it has to read for the answer it reads then, by connections of its own. Only those methods of
operators import this.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow.providers.openlineage import extractors
from openlineage.client import event_v2, facet_v2

from logbus import model
from logbus.loads.sinks import PublicTable


def topic_name(client_config: Mapping[str, Any], topic: str) -> tuple[str, str]:
    """The topic's namespace and name, by the first broker of the configuration."""
    first = str(client_config["bootstrap.servers"]).split(",")[0].strip()
    return f"kafka://{first.rpartition('://')[2]}", topic


def of_load(
    topic: tuple[str, str], table: PublicTable | None, windows: Sequence[model.FrozenWindow]
) -> extractors.OperatorLineage:
    """What a load of these windows has read and written."""
    counts = [window.counts for window in windows if window.counts is not None]
    rows, records = (sum(getattr(count, name) for count in counts) for name in ("loaded", "read"))
    read = facet_v2.input_statistics_input_dataset.InputStatisticsInputDatasetFacet(rowCount=records)
    written = facet_v2.output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(rowCount=rows)
    outputs = []
    if table is not None:
        facets = {"outputFacets": {"outputStatistics": written}, "facets": columns_of(table)}
        outputs.append(event_v2.OutputDataset(table.namespace, table.name, **facets))
    return extractors.OperatorLineage(
        inputs=[event_v2.InputDataset(*topic, inputFacets={"inputStatistics": read})], outputs=outputs
    )


def of_audit(table: PublicTable | None, reports: Sequence[model.AuditReport]) -> extractors.OperatorLineage:
    """What an audit has read, and what it found."""
    if table is None or not reports:
        return extractors.OperatorLineage()
    rows = sum(tally.loaded for report in reports for tally in report.counted.values())
    is_exact = all(report.verdict == model.EXACT for report in reports)
    # Catalogs keep a history by the assertion's name, so it names no window.
    assertion = facet_v2.data_quality_assertions_dataset.Assertion(assertion=model.EXACT, success=is_exact)
    counted = facet_v2.data_quality_metrics_input_dataset.DataQualityMetricsInputDatasetFacet(rowCount=rows, columnMetrics={})
    facets = {
        "dataQualityAssertions": facet_v2.data_quality_assertions_dataset.DataQualityAssertionsDatasetFacet([assertion]),
        "dataQualityMetrics": counted,
    }
    dataset = event_v2.InputDataset(table.namespace, table.name, facets=columns_of(table), inputFacets=facets)
    return extractors.OperatorLineage(inputs=[dataset])


def columns_of(table: PublicTable) -> dict[str, Any]:
    field = facet_v2.schema_dataset.SchemaDatasetFacetFields
    fields = [field(name=name, type=kind) for name, kind in table.columns.items()]
    return {"schema": facet_v2.schema_dataset.SchemaDatasetFacet(fields=fields)}
