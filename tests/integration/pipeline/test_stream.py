"""Streams with the real broker, PostgreSQL and Spark's tasks: epoch by epoch beside freezing and loading, then proven."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import Decimal
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from logbus.cli import main
from logbus.errors import ExitCode, StreamUnknown
from logbus.expressions import avg_of, count, max_of, sum_of
from logbus.loads.engine import connect
from logbus.streams import stream_ledger
from logbus.streams.definition import define_live_rows, define_stream
from logbus.streams.proof import prove_due
from logbus.streams.run import StreamSubmission
from logbus_spark.records import SAMPLED_RECORDS_MAX, PlanSlice, pack_slices, read_plan
from logbus_spark.stream_driver import CHECKPOINT_SETTING, SparkTasks, StreamDriver, StreamRun
from logbus_spark.stream_task import EpochJob, EpochTaskResult, aggregate_chunks
from pyspark.sql import DataFrame, SparkSession
from sqlalchemy import Engine, text

from benchmarks.peers.maven import SPARK_KAFKA, Missing
from tests.support.avro_values import record, written
from tests.support.broker import AnyBroker
from tests.support.in_process import driver
from tests.support.ledgers import NOW, at
from tests.support.real_pipeline import RealPipeline
from tests.support.schema_registry import Registry

COLUMNS = {"word": "text", "n": "bigint", "seconds": "double precision", "time": "timestamptz"}


@pytest.fixture
def engine(warehouse_url: str) -> Iterator[Engine]:
    engine = connect(warehouse_url)
    yield engine
    engine.dispose()


@pytest.fixture
def pipeline(broker: AnyBroker, engine: Engine) -> RealPipeline:
    return RealPipeline(broker.bootstrap, engine, partitions=3, parse="json", settings={"columns": COLUMNS})


def values(hour: float, count_: int, partition: int) -> list[tuple[float, bytes]]:
    """Requests that arrive within an hour; one in fifty is a day late, and one in a hundred is no JSON."""
    records = []
    for number in range(count_):
        arrived = hour + number / count_
        happened = at(arrived) - timedelta(days=number % 50 == 7)
        member = {"word": f"w{number % 7}", "n": number - 50, "seconds": number / 7, "time": happened.isoformat()}
        records.append((arrived, b"oops" if number % 100 == 31 else json.dumps(member).encode()))
    return records


def once(pipeline: RealPipeline, run_id: str, name: str = "words") -> StreamRun:
    application = driver(pipeline.ledger, pipeline.log, pipeline.client_config)
    return StreamDriver(application=application, name=name, run_id=run_id, say=lambda line: None).run(once=True)


def in_process(job: EpochJob, slices: Sequence[PlanSlice], config: Mapping[str, Any]) -> list[EpochTaskResult]:
    """Without Spark, from the real broker."""
    plans = pack_slices(slices, 2, records_per_task_min=1)
    return [aggregate_chunks(read_plan(plan, config, job.topic, job.isolation_level), job) for plan in plans]


@pytest.mark.usefixtures("without_spark")
def test_values_that_name_a_schema_are_added_up_as_they_are_loaded(broker: AnyBroker, engine: Engine, registry: Registry) -> None:
    """The second schema is met by a task first. Sums, keys and conditions are of decimals and dates, too."""
    pipeline = RealPipeline(
        broker.bootstrap, engine, partitions=1, parse="avro", settings={"registry": registry.url, "max_errors": 9}
    )
    price = {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}
    first = record(("id", "long"), ("customer", "string"), ("price", price), ("day", {"type": "int", "logicalType": "date"}))
    second = record(*((field["name"], field["type"]) for field in first["fields"]), ("size", "int"))
    ids = [registry.register("orders-value", schema) for schema in (first, second)]
    days = [date(2026, 11, 27), date(2026, 11, 28)]
    bought = [
        {"id": number, "customer": "Ada", "price": Decimal(number) / 100, "day": days[number % 2]}
        for number in range(SAMPLED_RECORDS_MAX)
    ]
    orders = [written(ids[0], first, order) for order in bought]
    orders += [written(ids[1], second, {**bought[number], "customer": "Bob", "size": 1}) for number in range(5)]
    pipeline.send([(10.5, value) for value in [*orders, b"not avro", orders[0][:-1], orders[0] + b"\0"]])
    measures = {"orders": count(), "ids": sum_of("id"), "paid": sum_of("price"), "mean": avg_of("price"), "last": max_of("day")}
    stream = define_stream(
        "orders", pipeline.name, keys=["customer", "day"], measures=measures, where="price > 0.015 and day < '2026-11-29'"
    )
    stream_ledger.define(engine, stream, NOW)
    application = driver(pipeline.ledger, pipeline.log, pipeline.client_config)
    StreamDriver(application=application, name="orders", run_id="r", say=print, run_tasks=in_process).run(once=True)
    pipeline.load(10)
    assert pipeline.audit(10).ok
    assert [(hour.verdict, [*hour.problems]) for hour in prove_due(engine, "orders", NOW).hours] == [("proven", [])]
    with engine.connect() as connection:
        rows = connection.execute(text("select customer, day, orders, paid, mean, last from orders order by 1, 2")).all()
    assert rows == [
        ("Ada", days[0], 499, Decimal("2495.00"), 5.0, days[0]),
        ("Ada", days[1], 499, Decimal("2499.99"), 2499.99 / 499, days[1]),
        ("Bob", days[0], 2, Decimal("0.06"), 0.03, days[0]),
        ("Bob", days[1], 1, Decimal("0.03"), 0.03, days[1]),
    ]
    words = ["--pipeline", pipeline.name, "--warehouse", engine.url.render_as_string(hide_password=False)]
    for wrong, refusal in (
        (("--key", "costumer"), "the key 'costumer': there is no column 'costumer'"),
        (("--where", "day < 3"), "where: 'day' is date, so it is compared with a date, as in '2015-05-17'; got 3"),
    ):
        refused = CliRunner().invoke(main, ["stream", "create", "typed", *words, *wrong])
        assert (refused.exit_code, refusal in refused.stderr) == (ExitCode.FAILED, True), refused.stderr
    with pytest.raises(StreamUnknown), engine.connect() as connection:
        stream_ledger.find(connection, "typed")


def test_a_stream_is_computed_behind_spark_connect(pipeline: RealPipeline, warehouse_url: str, spark_connect: str) -> None:
    stream = define_stream("words", pipeline.name, keys=["word"], measures={"rows": count()}, event_time="time")
    stream_ledger.define(pipeline.engine, stream, NOW)
    for partition in range(3):
        pipeline.send(values(10, 100, partition), partition)
    settings = pipeline.client_config
    StreamSubmission(warehouse_url=warehouse_url, client_config=settings, say=print, remote=spark_connect).once("words")
    with pipeline.engine.connect() as connection:
        assert connection.execute(text("select sum(rows) from words")).scalar_one() == 3 * 99


def structured(session: SparkSession, checkpoints: Path, name: str) -> str:
    """A query of Structured Streaming reads one more file, with its checkpoint where the setting has it; its id."""
    files = checkpoints.with_name(f"files of {name}")
    files.mkdir(exist_ok=True)
    (files / str(len([*files.iterdir()]))).write_text("a word")
    session.conf.set(CHECKPOINT_SETTING, str(checkpoints))
    query = session.readStream.text(str(files)).writeStream.queryName(name).format("noop").trigger(availableNow=True).start()
    query.awaitTermination()
    return str(query.id)


def test_nothing_that_lies_on_the_drivers_disk_matters_to_a_stream(
    pipeline: RealPipeline,
    warehouse_url: str,
    spark_session: SparkSession,
    spark_connect: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There is no checkpoint that could be lost, another stream's, or old: each run has another home, working and temporary
    directory than the one before: a new one, one in which another stream was computed, and that of its first run. Where Spark is
    configured with a directory for those of Structured Streaming it is overruled: with another query's, gone, with an old one."""
    for name in ("words", "others"):
        stream = define_stream(name, pipeline.name, keys=["word"], measures={"rows": count()}, max_offsets_per_trigger=200)
        stream_ledger.define(pipeline.engine, stream, NOW)
    session, live = spark_session.newSession(), tmp_path / "live"
    ids = {name: structured(session, tmp_path / f"of {name}", name) for name in ("words", "others")}
    shutil.copytree(tmp_path / "of words", tmp_path / "old")
    assert structured(session, tmp_path / "of words", "words") == ids["words"]
    (tmp_path / "spark-defaults.conf").write_text(f"{CHECKPOINT_SETTING} {live.as_uri()}\n")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    runs: list[tuple[str, str, str, str | None]] = [
        ("words", "first", "", None),  # behind Spark Connect
        ("others", "another", "", None),
        (
            "words",
            "new",
            "of others",
            f"3, offsets 0:500, 1:0, 2:0. The directory holds others: query {ids['others']}, last batch 0",
        ),
        ("words", "another", "", "8, offsets 0:1500, 1:0, 2:0"),
        ("words", "first", "old", f"11, offsets 0:2000, 1:0, 2:0. The directory holds words: query {ids['words']}, last batch 0"),
    ]
    for number, (name, place, checkpoints, overruled) in enumerate(runs):
        pipeline.send(values(10 + number, 500, 0))
        home = tmp_path / "homes" / place
        home.mkdir(exist_ok=True, parents=True)
        for variable in ("HOME", "TMPDIR"):
            monkeypatch.setenv(variable, str(home))
        monkeypatch.chdir(home)
        shutil.rmtree(live, ignore_errors=True)
        if checkpoints:
            shutil.copytree(tmp_path / checkpoints, live)
        lines: list[str] = []
        remote = spark_connect if overruled is None else None
        settings = pipeline.client_config
        StreamSubmission(warehouse_url=warehouse_url, client_config=settings, say=lines.append, remote=remote).once(name)
        by_the_ledger = f"is overruled: a stream keeps no checkpoint, and by the ledger {name} is at epoch"
        line = f"{CHECKPOINT_SETTING} = {live.as_uri()} {by_the_ledger} {overruled}"
        assert [each for each in lines if CHECKPOINT_SETTING in each] == ([] if overruled is None else [line])
        assert [*home.rglob("*")] == []
        assert live.exists() == bool(checkpoints)
        with pipeline.engine.connect() as connection:
            assert connection.execute(text(f"select sum(rows) from {name}")).scalar_one() == 495 * (number + 1)


@pytest.mark.usefixtures("without_spark")  # of the loads
def test_a_stream_beside_loads_is_exact_and_proven(pipeline: RealPipeline, spark_session: SparkSession) -> None:
    measures = {"rows": count(), "total": sum_of("n"), "slow": avg_of("seconds"), "last": max_of("word")}
    definition: dict[str, Any] = {"keys": ["word"], "measures": measures, "event_time": "time", "where": "n <> 3"}

    def define(offsets_max: int) -> None:
        stream = define_stream("words", pipeline.name, **definition, max_offsets_per_trigger=offsets_max)
        stream_ledger.define(pipeline.engine, stream, NOW)

    define(200_000)
    stream_ledger.define(pipeline.engine, define_live_rows("live", pipeline.name, columns=[*COLUMNS, "_key"]), NOW)
    for partition in range(2):  # the third one is idle
        pipeline.send(values(10, 3_000, partition), partition)
        pipeline.send(values(11, 350, partition), partition)
    assert once(pipeline, "first").epochs == 1
    pipeline.freeze(10, 11)
    define(100)
    for partition in range(2):
        pipeline.send(values(12, 350, partition), partition)
    assert once(pipeline, "second").epochs == 7
    assert once(pipeline, "only", "live").read == 2 * (3_000 + 350 + 350)
    rows = f"select _partition, _offset, _timestamp, {', '.join(COLUMNS)}, _key from"
    with pipeline.engine.connect() as connection:
        live = connection.execute(text(f"{rows} live order by 1, 2")).all()
    for loaded in (10, 11, 12):
        pipeline.load(loaded)
        assert pipeline.audit(loaded).ok
    for name in ("words", "live"):
        proof = prove_due(pipeline.engine, name, NOW)
        assert [(hour.hour, hour.verdict) for hour in proof.hours] == [(at(hour), "proven") for hour in (10, 11, 12)], proof.hours
    with pipeline.engine.connect() as connection:
        assert live == connection.execute(text(f"{rows} {pipeline.name} order by 1, 2")).all()
        shown = connection.execute(text("select window_start, word, rows, total, slow, last from words order by 1, 2")).all()
        truth = connection.execute(
            text(
                "select date_bin('1 minute', time, timestamptz 'epoch'), word, count(*), sum(n), "
                "cast(sum(cast(seconds as numeric)) / count(seconds) as double precision), max(word) "
                f"from {pipeline.name} where n <> 3 group by 1, 2 order by 1, 2"
            )
        ).all()
    assert len(shown) > 1_000
    assert shown == truth


@dataclass(kw_only=True)
class Arriving:
    """Spark's tasks; records arrive once the first epoch has been planned."""

    pipeline: RealPipeline
    records: list[tuple[float, bytes]]
    run_tasks: SparkTasks = field(default_factory=SparkTasks)

    def __call__(self, job: EpochJob, slices: Sequence[PlanSlice], config: Mapping[str, Any]) -> list[EpochTaskResult]:
        self.pipeline.send(self.records)
        self.records = []
        return self.run_tasks(job, slices, config)


def test_once_ends_where_the_log_ended_at_its_start_and_sparks_own_source_reads_what_each_epoch_has(
    pipeline: RealPipeline, spark_session: SparkSession
) -> None:
    """In one, seven and a hundred epochs, while records arrive."""
    try:
        jars = SPARK_KAFKA.folder()
    except Missing as missing:
        pytest.skip(str(missing))
    for jar in jars.glob("*.jar"):
        spark_session.sql(f"add jar '{jar}'")
    for partition, (first, second) in enumerate([(700, 90), (500, 100)]):  # the third one is idle
        pipeline.send([*values(10, first, partition), *values(11, second, partition)], partition)
    application = driver(pipeline.ledger, pipeline.log, pipeline.client_config)
    definition: dict[str, Any] = {"keys": ["word"], "measures": {"rows": count(), "total": sum_of("n")}, "event_time": "time"}
    for hour, (epochs, offsets_max) in enumerate([(1, 200_000), (7, 200), (100, 14)], 12):
        stream = define_stream(f"in_{epochs}", pipeline.name, **definition, max_offsets_per_trigger=offsets_max)
        stream_ledger.define(pipeline.engine, stream, NOW)
        at_start = pipeline.log.end_offsets(pipeline.name, range(3), "read_committed")
        tasks = Arriving(pipeline=pipeline, records=values(hour, 5, 0))
        run = StreamDriver(application=application, name=stream.name, run_id="r", say=print, run_tasks=tasks).run(once=True)
        assert (run.epochs, run.read) == (epochs, sum(at_start.values()))
        assert stream_ledger.positions(pipeline.engine, stream.name) == at_start
        refuse_other_records(pipeline, stream.name, spark_session)
    assert sum(pipeline.log.end_offsets(pipeline.name, range(3), "read_committed").values()) == run.read + 5


def refuse_other_records(pipeline: RealPipeline, name: str, session: SparkSession) -> None:
    """Spark's own source for Kafka, given the offsets of the epochs, reads as many records of each as the ledger has, and they
    add up to what is in the stream's view."""
    with pipeline.engine.connect() as connection:
        query = (
            "select epoch, partition, min(start_offset), max(end_offset), sum(read_count) from logbus.epoch_part "
            f"where stream = '{name}' group by 1, 2 order by 1, 2"
        )
        parts = [tuple(row) for row in connection.execute(text(query))]
        shown = connection.execute(text(f"select window_start, word, rows, total from {name}")).all()
    epochs: dict[int, dict[int, tuple[int, int]]] = {}
    for epoch, partition, start, end, _ in parts:
        epochs.setdefault(epoch, {})[partition] = (start, end)
    ranges = [*epochs.values()]
    if len(ranges) > READ_ALONE_MAX:
        ranges = [{partition: (start, ranges[-1][partition][1]) for partition, (start, _) in ranges[0].items()}]
    rows = reduce(DataFrame.union, [by_connector(session, pipeline, of_epoch) for of_epoch in ranges]).collect()
    records = {(row.partition, row.offset): row.value for row in rows}
    assert len(records) == len(rows) == sum(read for *_, read in parts)
    for epoch, partition, start, end, read in parts:
        offsets = sorted(offset for of, offset in records if of == partition and start <= offset < end)
        assert (len(offsets), offsets[0], offsets[-1]) == (read, start, end - 1), (epoch, partition)
    sums: dict[tuple[datetime, str], tuple[int, int]] = {}
    for member in (json.loads(value) for value in records.values() if value != b"oops"):
        key = datetime.fromisoformat(member["time"]).replace(second=0, microsecond=0), member["word"]
        count_, total = sums.get(key, (0, 0))
        sums[key] = count_ + 1, total + member["n"]
    assert sorted(shown) == sorted((*key, *of_key) for key, of_key in sums.items())


READ_ALONE_MAX = 7  # epochs: each read costs two tasks and two consumers


def by_connector(session: SparkSession, pipeline: RealPipeline, ranges: Mapping[int, tuple[int, int]]) -> DataFrame:
    """As a program of anybody's reads them."""
    starts, ends = ({pipeline.name: {part: bounds[side] for part, bounds in ranges.items()}} for side in (0, 1))
    options = {
        "kafka.bootstrap.servers": pipeline.bootstrap,
        "assign": json.dumps({pipeline.name: [*ranges]}),
        "startingOffsets": json.dumps(starts),
        "endingOffsets": json.dumps(ends),
    }
    return session.read.format("kafka").options(**options).load().select("partition", "offset", "value")
