"""What the kinds of streams differ in, by name: sums (`Aggregate`) and rows (`LiveRows`).

A module of its own for three lines of a choice: everything else asks here, and does not know which kinds there are. Tasks ask for
a collector alone: what is made of statements is imported for those that need it, and SQLAlchemy with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from logbus.streams.aggregate_definition import Aggregate
from logbus.streams.arrow_aggregation import Aggregator
from logbus.streams.definition import LiveRows, Stream
from logbus.windows.table_names import TableName

if TYPE_CHECKING:
    from logbus.streams.statements import ArrivalTable, WindowStatements
    from logbus.streams.tail import LoadedRows, RowCollector, Tail

    Collector = Aggregator | RowCollector

Content = Aggregate | LiveRows


def collector_of(content: Content, columns: Mapping[str, str]) -> Collector:
    """What tasks and the driver take rows in with, which have these columns, name to type."""
    if isinstance(content, LiveRows):
        from logbus.streams.tail import RowCollector

        return RowCollector(content, columns)
    return Aggregator(content, columns)


def arrival_table(stream: Stream, columns: Mapping[str, str]) -> ArrivalTable | Tail:
    """What epochs add these columns to."""
    from logbus.streams.statements import ArrivalTable
    from logbus.streams.tail import Tail

    content = stream.content
    if isinstance(content, LiveRows):
        return Tail(rows=content, columns=columns)
    return ArrivalTable(aggregate=content, columns=columns, lookup=stream.lookup)


def loaded_windows(stream: Stream, topic: str, source: TableName, columns: Mapping[str, str]) -> WindowStatements | LoadedRows:
    """What loaded windows are, in the pipeline's table, as the stream has them."""
    from logbus.streams.statements import WindowStatements
    from logbus.streams.tail import LoadedRows

    content = stream.content
    if isinstance(content, LiveRows):
        return LoadedRows(rows=content, topic=topic, source=source, columns=columns)
    return WindowStatements(aggregate=content, topic=topic, source=source, columns=columns)
