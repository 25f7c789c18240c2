"""Changes to the table, its files or the ledger made without the product's knowledge: by plain SQL and on the disk."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.expressions import AlwaysTrue, BooleanExpression, EqualTo
from sqlalchemy import Connection, Engine, text

# The ledger's tables that hold a pipeline's rows, referenced ones first.
BY_NAME = ("anchor", "boundary", "inferred_column", "pipeline_dag", "window")
BY_WINDOW = ("window_range", "window_hour", "attempt", "dead_letter", "redrive", "producer_count")

Dump = dict[str, str]


def places(name: str) -> dict[str, str]:
    """For each table, which rows are the pipeline's."""
    mine = f"window_id in (select id from logbus.window where pipeline = '{name}')"
    return {"pipeline": f"name = '{name}'", **dict.fromkeys(BY_NAME, f"pipeline = '{name}'"), **dict.fromkeys(BY_WINDOW, mine)}


@dataclass
class ByHand:
    """The table of one pipeline. `directory`: the warehouse of its files, if it is one of Iceberg."""

    engine: Engine
    name: str
    directory: Path | None

    # Rows

    def row_changed(self, place: float, other: float) -> None:
        if self.directory:
            self.rewrite(place, lambda table: with_column(table, "forged"))
        else:
            self.at_row(place, f"update {self.name} set {self.value_column()} = 'forged' where ctid = :row and tableoid = :part")

    def row_deleted(self, place: float, other: float) -> None:
        if self.directory:
            self.rewrite(place, lambda table: table.slice(1))
        else:
            self.at_row(place, f"delete from {self.name} where ctid = :row and tableoid = :part")

    def row_doubled(self, place: float, other: float) -> None:
        if self.directory:
            self.rewrite(place, lambda table: pa.concat_tables([table, table.slice(0, 1)]))
        else:
            self.at_row(place, f"insert into {self.name} select * from {self.name} where ctid = :row and tableoid = :part")

    def row_swapped(self, place: float, other: float) -> None:
        """Two records swap their values."""
        with self.engine.begin() as connection:
            one, two = self.row_at(connection, place), self.row_at(connection, other)
            column = self.value_column()
            if one is None or two is None or one == two:
                return
            query = text(f"select {column} from {self.name} where ctid = :row and tableoid = :part")
            update = text(f"update {self.name} set {column} = :value where ctid = :row and tableoid = :part")
            values = [connection.execute(query, row).scalar_one() for row in (one, two)]
            for row, value in zip((two, one), values, strict=True):
                connection.execute(update, {**row, "value": value})

    def row_moved(self, place: float, other: float) -> None:
        """A row is moved to another loaded hour."""
        with self.engine.begin() as connection:
            one, two = self.row_at(connection, place), self.row_at(connection, other)
            if one is None or two is None:
                return
            hour = f"(select _window_start from {self.name} where ctid = :other_row and tableoid = :other_part)"
            update = text(f"update {self.name} set _window_start = {hour} where ctid = :row and tableoid = :part")
            connection.execute(update, {**one, "other_row": two["row"], "other_part": two["part"]})

    def at_row(self, place: float, statement: str) -> None:
        with self.engine.begin() as connection:
            row = self.row_at(connection, place)
            if row is not None:
                connection.execute(text(statement), row)

    def row_at(self, connection: Connection, place: float) -> dict[str, Any] | None:
        if connection.execute(text(f"select to_regclass('{self.name}')")).scalar_one() is None:
            return None
        query = f"select ctid, tableoid from {self.name} order by _window_start, _partition, _offset"
        rows = connection.execute(text(query)).all()
        return {"row": rows[int(place * len(rows))][0], "part": rows[int(place * len(rows))][1]} if rows else None

    def value_column(self) -> str:
        query = (
            "select attname from pg_attribute where attrelid = to_regclass(:name) and attname in ('line', 'name') order by attnum"
        )
        with self.engine.connect() as connection:
            return str(connection.execute(text(query), {"name": self.name}).scalars().first() or "line")

    def dead_letter_deleted(self, place: float, other: float) -> None:
        self.at_dead_letter(place, "delete from logbus.dead_letter where ctid = :row")

    def dead_letter_changed(self, place: float, other: float) -> None:
        self.at_dead_letter(place, "update logbus.dead_letter set value = 'forged' where ctid = :row")

    def at_dead_letter(self, place: float, statement: str) -> None:
        query = f'select ctid from logbus.dead_letter where {places(self.name)["dead_letter"]} order by window_id, partition, "offset"'
        with self.engine.begin() as connection:
            rows = connection.execute(text(query)).scalars().all()
            if rows:
                connection.execute(text(statement), {"row": rows[int(place * len(rows))]})

    # Files

    def public_files(self, where: BooleanExpression | None = None) -> list[Path]:
        """What the table's current snapshot lists, as any reader of Iceberg finds it."""
        catalog = SqlCatalog("logbus", uri=self.engine.url.render_as_string(hide_password=False), warehouse=str(self.directory))
        try:
            scan = catalog.load_table(("public", self.name)).scan(row_filter=where or AlwaysTrue())
            return sorted(Path(urlsplit(task.file.file_path).path) for task in scan.plan_files())
        except NoSuchTableError:
            return []
        finally:
            catalog.engine.dispose()

    def public_rows(self, start: datetime) -> Iterator[Mapping[str, Any]]:
        for path in self.public_files(EqualTo("_window_start", start.isoformat())):
            if path.exists():
                rows = pq.read_table(path, partitioning=None).to_pylist()
                yield from (row for row in rows if row["_window_start"] == start)  # the filter holds inside of a file too

    def rewrite(self, place: float, change: Callable[[pa.Table], pa.Table]) -> None:
        if path := self.file_at(place):
            pq.write_table(change(pq.read_table(path, partitioning=None)), path)

    def file_at(self, place: float) -> Path | None:
        files = [path for path in self.public_files() if path.exists()]
        return files[int(place * len(files))] if files else None

    def file_removed(self, place: float, other: float) -> None:
        if path := self.file_at(place):
            path.unlink()

    def file_of_another(self, place: float, other: float) -> None:
        """One window's file replaces another's."""
        one, two = self.file_at(place), self.file_at(other)
        if one and two and one != two:
            shutil.copy(one, two)

    # The ledger

    def dump(self) -> Dump:
        """The pipeline's part of the ledger, as a backup has it."""
        with self.engine.connect() as connection:
            query = "select coalesce(json_agg(t), '[]')::text from (select * from logbus.{} where {}) t"
            return {
                table: connection.execute(text(query.format(table, where))).scalar_one()
                for table, where in places(self.name).items()
            }

    def restore(self, dump: Dump) -> None:
        """Puts it back: anything newer is forgotten."""
        with self.engine.begin() as connection:
            for table, where in reversed(places(self.name).items()):
                connection.execute(text(f"delete from logbus.{table} where {where}"))
            for table, rows in dump.items():
                values = f"select * from json_populate_recordset(null::logbus.{table}, cast(:rows as json))"
                connection.execute(text(f"insert into logbus.{table} overriding system value {values}"), {"rows": rows})


def with_column(table: pa.Table, value: str) -> pa.Table:
    """Changes the first row's parsed column."""
    name = next(one for one in ("line", "name") if one in table.column_names)
    index, column = table.column_names.index(name), table.column(name).to_pylist()
    return table.set_column(index, table.schema.field(index), pa.array([value, *column[1:]], pa.string()))
