"""Values that name a schema of a registry, from a real broker into a real warehouse: frozen with the hour."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from logbus.cli import main
from logbus.loads import redrive
from logbus.loads.engine import connect
from logbus.loads.sinks import sink_for
from logbus.parsing.decoders import VALUE_HEADER
from logbus_spark.application import LoadState
from logbus_spark.records import SAMPLED_RECORDS_MAX
from sqlalchemy import text

from tests.support.avro_values import payload, record, written
from tests.support.broker import AnyBroker
from tests.support.ledgers import NOW, at, stamps
from tests.support.real_pipeline import RealPipeline
from tests.support.schema_registry import Registry, by_id
from tests.support.topics import send

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

    shown = CliRunner().invoke(
        main, ["consume", pipeline.name, "--registry", registry.url, "--bootstrap-server", pipeline.bootstrap]
    )
    assert shown.exit_code == 0, shown.output
    assert shown.stdout.splitlines()[:3] == [
        '{"id":1,"customer":"Ada","amount":12.50}',
        '{"id":2,"customer":null,"placed":"2026-11-27T10:30:00+00:00","day":"2026-11-27","tags":["a","b"]}',
        "not avro",
    ]
    assert "cannot be decoded: 2 TruncatedValue, 1 NoSchemaHeader, 1 UnknownSchemaId, 1 TrailingBytes" in shown.stderr

    words = ["try", "--topic", pipeline.name, "--registry", registry.url, "--bootstrap-server", pipeline.bootstrap]
    tried = CliRunner().invoke(main, words)
    assert "schema id 1 of 3 records, schema id 2 of 1 record" in tried.stdout
    assert "parse     avro: 2 of 7 records" in tried.stdout
    by_variable = CliRunner(env={"LOGBUS_REGISTRY_URL": registry.url}).invoke(main, [*words[:3], *words[5:]])
    assert by_variable.stdout == tried.stdout
    assert (tried.exit_code, "avro reads 2 of the last 7 records" in tried.stderr) == (1, True)
    found = json.loads(CliRunner().invoke(main, [*words, "--json"]).stdout)
    assert (found["parse"], found["settings"], found["schemas"]) == (
        "avro",
        {"registry": registry.url},
        {"schema id 1": 3, "schema id 2": 1},
    )
    assert found["samples"][0]["amount"] == "12.50"
    assert found["errors"] == {"TruncatedValue": 2, "NoSchemaHeader": 1, "UnknownSchemaId": 1, "TrailingBytes": 1}
    assert found["commands"][0].startswith(f"logbus pipeline register {pipeline.name} --topic {pipeline.name}")

    registry.stop()
    before = pipeline.ledger.window(pipeline.name, at(10))
    (again,) = pipeline.load(10)
    assert (again.state, again.error) == (LoadState.COMMITTED, None)
    after = pipeline.ledger.window(pipeline.name, at(10))
    assert (after.fingerprint, after.loaded_attempt) == (before.fingerprint, 2)
    assert (rows(pipeline, "id, customer, amount, placed, day, tags, _rest"), dead_letters(pipeline)) == (loaded, kinds)


def test_a_schema_that_was_not_among_the_sampled_values_has_its_columns_all_the_same(
    pipeline: RealPipeline, registry: Registry
) -> None:
    first, second = registry.register("orders-value", FIRST), registry.register("orders-value", SECOND)
    old = written(first, FIRST, {"id": 1, "customer": "Ada", "amount": Decimal("1.00")})
    new = {"id": 2, "customer": "Bob", "placed": datetime(2026, 11, 27, tzinfo=UTC), "day": date(2026, 11, 27), "tags": []}
    values = [old] * (SAMPLED_RECORDS_MAX + 10)
    pipeline.send([(10.5, value) for value in (*values, by_id(98, b""), written(second, SECOND, new), *values)])
    registry.away.add(second)  # while it loads: the first schema was answered
    (refused,) = pipeline.load(10)
    assert (refused.state, "HTTP 503" in str(refused.error)) == (LoadState.FAILED, True)
    assert (rows(pipeline), dead_letters(pipeline)) == ([], [])
    registry.away.clear()
    (outcome,) = pipeline.load(10)
    assert (outcome.state, outcome.error) == (LoadState.COMMITTED, None)
    assert [row for row in rows(pipeline, "id, customer, placed, day, tags, _rest") if row["id"] == 2] == [{**new, "_rest": None}]
    assert dead_letters(pipeline) == ["UnknownSchemaId"]
    with pipeline.engine.connect() as connection:
        used = connection.execute(text("select prefix, record_count from logbus.schema_use order by prefix")).all()
        frozen = connection.execute(text("select id, type, guid, registry from logbus.schema order by id")).all()
    assert used == [(by_id(first, b""), 2 * len(values)), (by_id(second, b""), 1), (by_id(98, b""), 1)]
    assert frozen == [(number, "AVRO", str(uuid.UUID(int=number)), registry.url) for number in (first, second)]
    asked = len(registry.asked)
    pipeline.load(10)
    assert registry.asked[asked:] == ["/schemas/ids/98"]  # what it did not have; all else is frozen


def test_a_registry_that_is_down_makes_a_retry_and_no_dead_letter(pipeline: RealPipeline, registry: Registry) -> None:
    number = registry.register("orders-value", FIRST)
    pipeline.send([(10.5, written(number, FIRST, {"id": 1, "customer": "Ada", "amount": Decimal("1.00")}))])
    registry.stop()
    (refused,) = pipeline.load(10)
    assert refused.state is LoadState.FAILED
    assert f"the schema registry at {registry.url} does not answer" in str(refused.error)
    assert dead_letters(pipeline) == []
    registry.start(registry.server.server_port)
    registry.login = "me:secret"
    (refused,) = pipeline.load(10)
    assert refused.state is LoadState.FAILED
    assert f"the schema registry at {registry.url} refuses this login" in str(refused.error)
    assert dead_letters(pipeline) == []
    pipeline.client["basic.auth.user.info"] = "me:secret"
    (outcome,) = pipeline.load(10)
    assert (outcome.state, outcome.counts and outcome.counts.loaded) == (LoadState.COMMITTED, 1)
    assert dead_letters(pipeline) == []
    assert not pipeline.audit(10).problems


def damaged(value: bytes, chance: random.Random) -> tuple[bytes, str]:
    """In one of the ways in which values arrive that are none, and the kind of its dead letter."""
    match chance.randrange(5):
        case 0:
            return bytes([chance.randrange(2, 256)]) + chance.randbytes(chance.randrange(40)), "NoSchemaHeader"
        case 1:
            return b'{"id": 1}', "NoSchemaHeader"
        case 2:
            return value[: chance.randrange(1, len(value))], "TruncatedValue"
        case 3:
            return value + chance.randbytes(chance.randrange(1, 40)), "TrailingBytes"
        case _:
            return by_id(1_000 + chance.randrange(3), value[5:]), "UnknownSchemaId"


def test_an_hour_of_five_versions_and_damaged_values_adds_up(pipeline: RealPipeline, registry: Registry) -> None:
    chance, names = random.Random(17), ("id", "customer", "note", "place", "colour")
    versions = [record(("id", "long"), *((name, "string") for name in names[1:count])) for count in range(1, 6)]
    numbers = [registry.register("orders-value", version) for version in versions]
    values, expected, kinds = list[bytes](), list[dict[str, Any]](), list[str]()
    for offset in range(4_000):
        number = chance.randrange(5)
        row = {"id": offset, **{name: chance.choice(("", "text", "\N{SNOWMAN}" * 9)) for name in names[1 : number + 1]}}
        value = written(numbers[number], versions[number], row)
        if chance.random() < 0.03:
            value, kind = damaged(value, chance)
            kinds.append(kind)
        else:
            expected.append(dict.fromkeys(names) | row)
        values.append(value)
    pipeline.send([(10.5, value) for value in values])
    words = ["--topic", pipeline.name, "--registry", registry.url, "--bootstrap-server", pipeline.bootstrap]
    tried = CliRunner().invoke(main, ["try", *words])
    assert tried.exit_code == 0, tried.output
    assert f'parse="avro",\n        registry={registry.url!r}' in tried.stdout
    (outcome,) = pipeline.load(10)
    assert (outcome.state, outcome.error) == (LoadState.COMMITTED, None)
    assert rows(pipeline, ", ".join(names)) == expected
    assert dead_letters(pipeline) == kinds
    assert len({*kinds}) == 4
    window = pipeline.ledger.window(pipeline.name, at(10))
    assert (window.record_count, len(expected) + len(kinds)) == (len(values), len(values))
    assert not pipeline.audit(10).problems


def test_a_type_that_changes_is_refused_with_the_field_and_both_types(pipeline: RealPipeline, registry: Registry) -> None:
    number, other = registry.register("a", record(("id", "long"))), registry.register("b", record(("id", "string")))
    pipeline.send([(10.5, written(number, record(("id", "long")), {"id": 1}))])
    pipeline.send([(11.5, written(other, record(("id", "string")), {"id": "x"}))])
    assert [outcome.state for outcome in pipeline.load(10)] == [LoadState.COMMITTED]
    (refused,) = pipeline.load(11)
    assert refused.state is LoadState.FAILED
    assert "field 'id' is text in schema id 2, and bigint in the table" in str(refused.error)


def test_a_guid_in_a_header_names_the_schema_and_a_redrive_asks_for_what_was_unknown(
    pipeline: RealPipeline, registry: Registry
) -> None:
    number = registry.register("orders-value", SECOND)
    later = record(("id", "long"), ("colour", "string"))
    value = {"id": 2, "customer": None, "placed": datetime(2026, 11, 27, tzinfo=UTC), "day": date(2026, 11, 27), "tags": ["a"]}

    def described(schema_number: int, schema: Any, content: Any) -> dict[str, Any]:
        headers = [(VALUE_HEADER, b"\x01" + uuid.UUID(int=schema_number).bytes)]
        return {"value": payload(schema, content), "headers": headers, "timestamp": stamps(10.5)[0], "partition": 0}

    records = [described(number, SECOND, value), described(2, later, {"id": 3, "colour": "red"})]
    send(pipeline.bootstrap, pipeline.name, records)
    pipeline.load(10)
    assert (rows(pipeline, "id, tags"), dead_letters(pipeline)) == ([{"id": 2, "tags": ["a"]}], ["UnknownSchemaId"])

    assert registry.register("orders-value", later) == 2
    window = pipeline.ledger.window(pipeline.name, at(10))
    defined = pipeline.ledger.pipeline(pipeline.name)
    parser = redrive.parser_of(pipeline.engine, defined, [window], pipeline.client_config)
    moving = redrive.Redrive(engine=pipeline.engine, pipeline=defined, parser=parser, run_id="run", now=lambda: NOW)
    assert moving.run(window).loaded == 1
    assert rows(pipeline, "id, colour") == [{"id": 2, "colour": None}, {"id": 3, "colour": "red"}]
    assert not pipeline.audit(10).problems
    registry.stop()
    pipeline.load(10)
    assert rows(pipeline, "id, colour, tags")[1] == {"id": 3, "colour": "red", "tags": None}


def test_dates_and_decimals_reach_tables_of_files(
    broker: AnyBroker, warehouse_url: str, registry: Registry, tmp_path: Path
) -> None:
    engine = connect(warehouse_url)
    settings = {"registry": registry.url, "sink": "iceberg", "warehouse": str(tmp_path)}
    pipeline = RealPipeline(broker.bootstrap, engine, partitions=1, parse="avro", settings=settings)
    first, second = registry.register("a", FIRST), registry.register("b", SECOND)
    amount, day = Decimal("12.50"), date(2026, 11, 27)
    new = {"id": 2, "customer": None, "placed": datetime(2026, 11, 27, tzinfo=UTC), "day": day, "tags": []}
    values = [written(first, FIRST, {"id": 1, "customer": "Ada", "amount": amount}), written(second, SECOND, new)]
    pipeline.send([(10.5, value) for value in values])
    (outcome,) = pipeline.load(10)
    assert (outcome.state, outcome.error) == (LoadState.COMMITTED, None)
    assert not pipeline.audit(10).problems
    window = pipeline.ledger.window(pipeline.name, at(10))
    table = sink_for(pipeline.ledger.pipeline(pipeline.name), engine)
    loaded = [table.rows_of(window, 0, offset)[0] for offset in range(2)]
    assert [(row["id"], row["amount"], row["day"]) for row in loaded] == [(1, amount, None), (2, None, day)]
    engine.dispose()
