"""Every sink behind one interface, so that one suite runs on all of them: load it, read it as users do, corrupt it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pytest
from logbus.loads.directory import AttemptFile
from logbus.loads.sinks import Sink, sink_for
from logbus.loads.sinks.iceberg import IcebergSink
from logbus.loads.target import SYSTEM_COLUMNS
from logbus.model import AuditReport, Pipeline
from logbus.windows.table_names import quoted
from sqlalchemy import Engine, text

from tests.support.ledgers import World, stamps
from tests.support.loads import Loading

Row = tuple[Any, ...]


class Reader(Protocol):
    """Reads columns, sorted, as a user would, and changes rows without the ledger's knowledge."""

    def rows(self, *columns: str) -> list[Row]: ...

    def remove_row(self, offset: int) -> None: ...

    def repeat_row(self, offset: int) -> None: ...

    def forge_row(self, offset: int) -> None:
        """Replace the record's line and leave everything else as it is."""

    def change(self, statement: str) -> None:
        """Run SQL, if the sink is a database."""


@dataclass
class PostgresReader:
    engine: Engine

    def rows(self, *columns: str) -> list[Row]:
        with self.engine.connect() as connection:
            return sorted(tuple(row) for row in connection.execute(text(f"select {', '.join(map(quoted, columns))} from t")))

    def remove_row(self, offset: int) -> None:
        self.change(f"delete from t where _offset = {offset}")

    def repeat_row(self, offset: int) -> None:
        self.change(f"insert into t select * from t where _offset = {offset}")

    def forge_row(self, offset: int) -> None:
        self.change(f"update t set line = 'forged' where _offset = {offset}")

    def change(self, statement: str) -> None:
        with self.engine.begin() as connection:
            connection.execute(text(statement))


@dataclass
class IcebergReader:
    sink: Any

    def rows(self, *columns: str) -> list[Row]:
        found = self.sink.table().scan(selected_fields=columns).to_arrow()
        return sorted(tuple(row[name] for name in columns) for row in found.to_pylist())

    def remove_row(self, offset: int) -> None:
        self.sink.table().delete(f"_offset = {offset}")

    def repeat_row(self, offset: int) -> None:
        table = self.sink.table()
        table.append(table.scan(row_filter=f"_offset = {offset}").to_arrow())

    def forge_row(self, offset: int) -> None:
        table = self.sink.table()
        table.overwrite(forged(table.scan().to_arrow(), offset))


def forged(rows: pa.Table, offset: int) -> pa.Table:
    lines = pa.array(["forged" if row["_offset"] == offset else row["line"] for row in rows.to_pylist()], rows.field("line").type)
    return rows.set_column(rows.schema.get_field_index("line"), rows.field("line"), lines)


@dataclass
class Bench:
    """One pipeline with one sink: records of hours ten and eleven in partitions 0 and 1."""

    world: World
    url: str
    kind: str
    settings: dict[str, Any]

    def register(self, **settings: Any) -> Pipeline:
        return self.world.register(settings={**self.settings, **settings})

    def register_parse(self, parse: str, settings: dict[str, Any]) -> Pipeline:
        return self.world.register(parse=parse, settings={**self.settings, **settings})

    @property
    def sink(self) -> Sink:
        return sink_for(self.world.ledger.pipeline("p"), self.world.ledger.engine)

    @property
    def is_files(self) -> bool:
        return isinstance(self.sink, IcebergSink)

    @property
    def reader(self) -> Reader:
        if self.kind == "iceberg":
            return IcebergReader(self.sink)
        return PostgresReader(self.world.ledger.engine)

    def start(self, hour: int = 10, bad: Sequence[int] = (), **how: Any) -> Loading:
        return Loading(world=self.world, url=self.url, window=self.world.freeze(hour), bad_offsets=frozenset(bad), **how)

    def rows(self) -> list[Row]:
        return self.reader.rows("_partition", "_offset", "line")

    def values(self, *columns: str) -> list[Row]:
        """These columns, in the order of the windows and the records."""
        keys = ("_window_start", "_partition", "_offset")
        return [row[len(keys) :] for row in self.reader.rows(*keys, *columns)]


KINDS = ("partitioned", "own", "iceberg")


@pytest.fixture(params=KINDS)
def bench(request: pytest.FixtureRequest, world: World, warehouse_url: str, tmp_path: Path) -> Iterator[Bench]:
    settings = {"sink": "iceberg", "warehouse": f"file://{tmp_path}/lake"} if request.param == "iceberg" else {}
    world.log.create("t", partitions=2)
    world.log.append("t", *stamps(10, 10.2, 10.4, 11, 11.5), partition=0)
    world.log.append("t", *stamps(10.1, 10.3, 11.1), partition=1)
    found = Bench(world=world, url=warehouse_url, kind=request.param, settings=settings)
    if request.param == "own":
        make_own_table(world.ledger.engine)
    found.register()
    yield found


def make_own_table(engine: Engine) -> None:
    columns = ", ".join(f"{name} {kind}" for name, kind in SYSTEM_COLUMNS.items())
    with engine.begin() as connection:
        connection.execute(text(f"create table t (line text, {columns})"))


def expected(*places: tuple[int, int]) -> list[Row]:
    return [(partition, offset, f"line {partition}/{offset}") for partition, offset in places]


HOUR_TEN = expected((0, 0), (0, 1), (0, 2), (1, 0), (1, 1))
HOUR_ELEVEN = expected((0, 3), (0, 4), (1, 2))


def audit(bench: Bench, hour: int = 10) -> AuditReport:
    return bench.world.audit(hour)


def files_of(bench: Bench) -> list[AttemptFile]:
    """Every file that an attempt has left, public or not, in the order of windows and attempts."""
    sink = bench.sink
    assert isinstance(sink, IcebergSink)
    return sorted(sink.directory().all_attempt_files(), key=lambda file: (file.start, file.number))
