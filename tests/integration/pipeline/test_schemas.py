"""Values that name a schema of a registry, from a real broker into a real warehouse: frozen with the hour."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from logbus.loads.engine import connect
from logbus_spark.application import LoadState
from sqlalchemy import text

from tests.support.avro_values import record, written
from tests.support.broker import AnyBroker
from tests.support.ledgers import at
from tests.support.real_pipeline import RealPipeline
from tests.support.schema_registry import Registry, by_id

pytestmark = pytest.mark.usefixtures("without_spark")

FIRST = record(
    ("id", "long"), ("customer", "string"), ("amount", {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2})
)
SECOND = record(
    ("id", "long"),
    ("customer", ["null", "string"]),
    ("placed", {"type": "long", "logicalType": "timestamp-millis"}),
    ("day", {"type": "int", "logicalType": "date"}),
    ("tags", {"type": "array", "items": "string"}),
)


def rows(pipeline: RealPipeline, columns: str = "*") -> list[dict[str, Any]]:
    with pipeline.engine.connect() as connection:
        found = connection.execute(text(f"select {columns} from {pipeline.name} order by _offset")).mappings()
        return [dict(row) for row in found]


def dead_letters(pipeline: RealPipeline) -> list[str]:
    query = (
        'select error_class from logbus.dead_letter join logbus.window on id = window_id where pipeline = :name order by "offset"'
    )
    with pipeline.engine.connect() as connection:
        return list(connection.scalars(text(query), {"name": pipeline.name}))


@pytest.fixture
def pipeline(broker: AnyBroker, warehouse_url: str, registry: Registry) -> Iterator[RealPipeline]:
    engine = connect(warehouse_url)
    settings = {"registry": registry.url, "max_errors": 1000}
    yield RealPipeline(broker.bootstrap, engine, partitions=1, parse="avro", settings=settings)
    engine.dispose()


def test_an_hour_reads_by_its_schemas_and_again_when_the_registry_is_gone(pipeline: RealPipeline, registry: Registry) -> None:
    first, second = registry.register("orders-value", FIRST), registry.register("orders-value", SECOND)
    placed = datetime(2026, 11, 27, 10, 30, tzinfo=UTC)
    old = {"id": 1, "customer": "Ada", "amount": Decimal("12.50")}
    new = {"id": 2, "customer": None, "placed": placed, "day": date(2026, 11, 27), "tags": ["a", "b"]}
    values = [
        written(first, FIRST, old),
        written(second, SECOND, new),
        b"not avro",
        by_id(99, b"\x02"),
        written(first, FIRST, old)[:-1],
        written(first, FIRST, old) + b"\0",
        b"\0\0",
    ]
    pipeline.send([(10.5, value) for value in values])
    (outcome,) = pipeline.load(10)
    assert (outcome.state, outcome.error) == (LoadState.COMMITTED, None)
    loaded = rows(pipeline, "id, customer, amount, placed, day, tags, _rest")
    assert loaded == [
        {**dict.fromkeys(("placed", "day", "tags", "_rest")), **old},
        {**dict.fromkeys(("amount", "_rest")), **new},
    ]
    kinds = ["NoSchemaHeader", "UnknownSchemaId", "TruncatedValue", "TrailingBytes", "TruncatedValue"]
    assert dead_letters(pipeline) == kinds
    assert not pipeline.audit(10).problems

    registry.stop()
    before = pipeline.ledger.window(pipeline.name, at(10))
    (again,) = pipeline.load(10)
    assert (again.state, again.error) == (LoadState.COMMITTED, None)
    after = pipeline.ledger.window(pipeline.name, at(10))
    assert (after.fingerprint, after.loaded_attempt) == (before.fingerprint, 2)
    assert (rows(pipeline, "id, customer, amount, placed, day, tags, _rest"), dead_letters(pipeline)) == (loaded, kinds)
