"""What OpenLineage is told, as its own client would serialize it. The events of real runs: tests/e2e."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from logbus import lineage, model
from logbus.loads.sinks import PublicTable
from openlineage.client.serde import Serde

from tests.support.airflow_context import HOUR_START
from tests.support.fake_ledger import window

TABLE = PublicTable(
    namespace="postgres://h:5432", name="d.public.t", uri="postgres://h:5432/d/public/t", columns={"at": "timestamptz"}
)
WINDOW = window(HOUR_START, attempt=1)
REPORT = model.AuditReport(
    window=WINDOW, expected={0: 10}, counted={0: model.PartitionTally(partition=0, loaded=9, dead_lettered=1)}
)


def told(found: Any) -> tuple[list[Any], list[Any]]:
    return [Serde.to_dict(part) for part in found.inputs], [Serde.to_dict(part) for part in found.outputs]


@pytest.mark.parametrize("servers", ["b1:9092", "b1:9092,b2:9092", "SASL_SSL://b1:9092, b2:9092"])
def test_a_topic_is_named_after_the_first_broker(servers: str) -> None:
    assert lineage.topic_name({"bootstrap.servers": servers}, "t") == ("kafka://b1:9092", "t")


def test_a_load_reads_the_topic_and_has_put_rows_into_the_tables_columns() -> None:
    [topic], [table] = told(lineage.of_load(("kafka://b:1", "t"), TABLE, [WINDOW, WINDOW]))
    assert (topic["namespace"], topic["name"], topic["inputFacets"]["inputStatistics"]["rowCount"]) == ("kafka://b:1", "t", 20)
    assert (table["namespace"], table["name"]) == (TABLE.namespace, TABLE.name)
    [column] = table["facets"]["schema"]["fields"]
    assert (column["name"], column["type"]) == ("at", "timestamptz")
    assert table["outputFacets"]["outputStatistics"]["rowCount"] == 18
    assert told(lineage.of_load(("kafka://b:1", "t"), None, []))[1] == []


@pytest.mark.parametrize(
    ("reports", "is_exact"),
    [
        ([REPORT], True),
        ([REPORT, replace(REPORT, problems=("a row is missing",))], False),
        ([replace(REPORT, window=replace(WINDOW, loss_accepted={"by": "me"}))], False),
    ],
)
def test_an_audit_says_of_the_table_whether_it_is_exact(reports: list[model.AuditReport], is_exact: bool) -> None:
    [table], outputs = told(lineage.of_audit(TABLE, reports))
    facets = table["inputFacets"]
    assert [(one["assertion"], one["success"]) for one in facets["dataQualityAssertions"]["assertions"]] == [("exact", is_exact)]
    assert facets["dataQualityMetrics"]["rowCount"] == 9 * len(reports)
    assert outputs == []


def test_an_audit_that_came_to_nothing_says_nothing() -> None:
    assert told(lineage.of_audit(TABLE, [])) == told(lineage.of_audit(None, [REPORT])) == ([], [])
