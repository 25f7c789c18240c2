from __future__ import annotations

from dataclasses import replace

import pytest
from logbus.lineage import DatasetName, load_lineage, table_name, topic_name
from logbus.model import Pipeline
from logbus.operators.load_window import LoadWindowOperator

from tests.support.fake_hooks import offline
from tests.support.fake_ledger import FakeLedger


@pytest.mark.parametrize("servers", ["b1:9092", "b1:9092,b2:9092", "SASL_SSL://b1:9092, b2:9092"])
def test_a_topic_is_named_after_the_first_broker(servers: str) -> None:
    assert topic_name({"bootstrap.servers": servers}, "t") == DatasetName(namespace="kafka://b1:9092", name="t")


@pytest.mark.parametrize(
    ("url", "table", "namespace", "name"),
    [
        ("postgresql+psycopg://u:p@h:5433/d", "clicks", "postgres://h:5433", "d.public.clicks"),
        ("postgresql+psycopg://u:p@h/d", "web.clicks", "postgres://h:5432", "d.web.clicks"),
        ("postgresql+psycopg://u@/d?host=/run/pg", "clicks", "postgres://localhost:5432", "d.public.clicks"),
    ],
)
def test_a_table_is_named_without_user_or_password(url: str, table: str, namespace: str, name: str) -> None:
    assert table_name(url, table) == DatasetName(namespace=namespace, name=name)


def test_a_load_reads_the_topic_and_writes_the_table(pipeline: Pipeline, ledger: FakeLedger) -> None:
    pytest.importorskip("airflow.providers.openlineage", reason="lineage is for those who have Airflow's OpenLineage provider")
    found = offline(LoadWindowOperator(task_id="load", pipeline=pipeline), ledger).get_openlineage_facets_on_complete(None)
    assert [(part.namespace, part.name) for part in found.inputs] == [("kafka://b:1", "access_log")]
    assert [(part.namespace, part.name) for part in found.outputs] == [("postgres://h:5432", "d.public.access_log")]
    elsewhere = replace(pipeline, settings={"sink": "iceberg"})
    assert load_lineage({"bootstrap.servers": "b:1"}, "postgresql://h/d", elsewhere).outputs == []
