"""Every sink behind one interface, so that one suite runs on all of them: load it, read it as users do, corrupt it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from logbus.loads.directory import AttemptFile
from logbus.loads.sinks import MaintenanceOptions, Sink, sink_for
from logbus.loads.sinks.iceberg import IcebergSink
from logbus.model import AuditReport, Pipeline
from logbus.windows.table_names import SYSTEM_COLUMNS, quoted

from tests.support.ledgers import World, stamps
from tests.support.loads import Loading

Row = tuple[Any, ...]


@dataclass
class PostgresReader:
    """Reads columns, sorted, as a user would, and changes rows without the ledger's knowledge."""

    world: World

    def rows(self, *columns: str) -> list[Row]:
        return sorted(self.world.rows(f"select {', '.join(map(quoted, columns))} from t"))

    def remove_row(self, offset: int) -> None:
        self.world.execute(f"delete from t where _offset = {offset}")

    def repeat_row(self, offset: int) -> None:
        self.world.execute(f"insert into t select * from t where _offset = {offset}")

    def forge_row(self, offset: int) -> None:
        """Replaces the record's line and leaves everything else as it is."""
        self.world.execute(f"update t set line = 'forged' where _offset = {offset}")


@dataclass
class IcebergReader:
    """The same, in an Iceberg table."""

    sink: Any

    def rows(self, *columns: str) -> list[Row]:
        rows = self.sink.table().scan(selected_fields=columns).to_arrow().to_pylist()
        return sorted(tuple(row[name] for name in columns) for row in rows)

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

    def register(self, parse: str = "lines", **settings: Any) -> Pipeline:
        return self.world.register(parse=parse, settings={**self.settings, **settings})

    @property
    def sink(self) -> Sink:
        return sink_for(self.world.ledger.pipeline("p"), self.world.ledger.engine)

    @property
    def is_files(self) -> bool:
        return isinstance(self.sink, IcebergSink)

    @property
    def reader(self) -> PostgresReader | IcebergReader:
        return IcebergReader(self.sink) if self.kind == "iceberg" else PostgresReader(self.world)

    def start(self, hour: int = 10, bad: Sequence[int] = (), **how: Any) -> Loading:
        return Loading.of(self.world, hour, bad_offsets=frozenset(bad), **how)

    def rows(self) -> list[Row]:
        return self.reader.rows("_partition", "_offset", "line")

    def values(self, *columns: str) -> list[Row]:
        """These columns, in the order of the windows and the records."""
        keys = ("_window_start", "_partition", "_offset")
        return [row[len(keys) :] for row in self.reader.rows(*keys, *columns)]


KINDS = ("partitioned", "own", "iceberg")


@pytest.fixture(params=KINDS)
def bench(request: pytest.FixtureRequest, world: World, warehouse_url: str, tmp_path: Path) -> Bench:
    settings = {"sink": "iceberg", "warehouse": f"file://{tmp_path}/lake"} if request.param == "iceberg" else {}
    world.log.fill("t", stamps(10, 10.2, 10.4, 11, 11.5), stamps(10.1, 10.3, 11.1))
    bench = Bench(world=world, url=warehouse_url, kind=request.param, settings=settings)
    if request.param == "own":
        columns = ", ".join(f"{name} {kind}" for name, kind in SYSTEM_COLUMNS.items())
        world.execute(f"create table t (line text, {columns})")
    bench.register()
    return bench


def expected(*places: tuple[int, int]) -> list[Row]:
    return [(partition, offset, f"line {partition}/{offset}") for partition, offset in places]


HOUR_TEN = expected((0, 0), (0, 1), (0, 2), (1, 0), (1, 1))
HOUR_ELEVEN = expected((0, 3), (0, 4), (1, 2))


def audit(bench: Bench, hour: int = 10) -> AuditReport:
    return bench.world.audit(hour)


def maintain(bench: Bench, **later: int) -> list[str]:
    """What maintenance does so many hours or days after the newest file was written."""
    now = max(file.changed_at for file in files_of(bench)) + timedelta(**later)
    return bench.sink.maintain(MaintenanceOptions(now=now, sleep=lambda seconds: None))


def files_of(bench: Bench) -> list[AttemptFile]:
    """Every file that an attempt has left, public or not, in the order of windows and attempts."""
    sink = bench.sink
    assert isinstance(sink, IcebergSink)
    return sorted(sink.directory().all_attempt_files(), key=lambda file: (file.start, file.number))
