"""How commands print: tables for people, JSON for programs, both on standard output; everything else goes to standard error.

On a terminal a table is as wide as the terminal; if even its longest words do not fit, each row becomes a few lines of its own.
Into a pipe it is plain columns, as wide as they need to be, without colours, so that `awk` and `grep` find what they look for.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

PIPE_COLUMNS = 100_000  # nothing is folded in a pipe
ROWS_DRAWN_MAX = 1_000  # rich takes 1.4 ms a row; no person reads more rows than this, but `grep` does
MOVED_EVERY = 1_000  # items of a stream of unknown length, which are many and quick
Item = TypeVar("Item")


def say(line: str) -> None:
    """A line for people, on standard error: never in what a program reads."""
    click.echo(line, err=True)


def somebody_types() -> bool:
    """Whether standard input is a terminal; a service may have none at all."""
    return sys.stdin is not None and not sys.stdin.closed and sys.stdin.isatty()


def show_json(value: Any, indent: int | None = None) -> None:
    click.echo(json.dumps(value, ensure_ascii=False, indent=indent))


def show(table: Table) -> None:
    """Prints the table in the form that suits where it goes."""
    from rich.console import Console

    is_terminal = sys.stdout.isatty()
    if table.row_count > ROWS_DRAWN_MAX:
        click.echo(undrawn(table))
        return
    console = Console(highlight=False) if is_terminal else Console(width=PIPE_COLUMNS, no_color=True, highlight=False)
    with console.capture() as captured:
        render(console, table, is_terminal)
    click.echo("\n".join(line.rstrip() for line in captured.get().rstrip("\n").split("\n")))


def render(console: Console, table: Table, is_terminal: bool) -> None:
    """Prints in one of three forms: plain columns, a table, or a few lines for each row."""
    from rich import box
    from rich.measure import Measurement

    table.box, table.show_edge, table.pad_edge = box.SIMPLE_HEAD if is_terminal else None, False, False
    if not is_terminal:
        table.padding = (0, 2, 0, 0)
    if is_terminal and Measurement.get(console, console.options.update_width(PIPE_COLUMNS), table).minimum > console.width:
        for line in row_lines(table):
            console.print(line)
    else:
        console.print(table)


def undrawn(table: Table) -> str:
    """Plain columns without colours."""
    from rich.text import Text

    columns = [[str(column.header), *(Text.from_markup(str(cell)).plain for cell in column.cells)] for column in table.columns]
    return plain_columns(zip(*columns, strict=True))


def row_lines(table: Table) -> Iterator[str]:
    """`column: value` for each cell, rows separated by an empty line."""
    columns = [(str(column.header), list(column.cells)) for column in table.columns]
    for number in range(table.row_count):
        if number:
            yield ""
        yield from (f"[bold]{header}[/]: {cells[number]}" for header, cells in columns)


@contextmanager
def bar(description: str, total: float | None = None) -> Iterator[Callable[[float], None]]:
    """A progress bar on standard error, if that is a terminal; yields the function that advances it."""
    if not sys.stderr.isatty():
        yield lambda amount: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(description, total=total)
        yield lambda amount: progress.advance(task, amount)


def tracked(items: Iterable[Item], description: str, total: int | None = None) -> Iterator[Item]:
    """The same items, with a bar that counts them."""
    with bar(description, total) as advance:
        for number, item in enumerate(items, 1):
            yield item
            if number % MOVED_EVERY == 0 or total is not None:
                advance(MOVED_EVERY if total is None else 1)


def plain_columns(rows: Iterable[Iterable[Any]]) -> str:
    """Rows under each other in columns as wide as their widest cell: what Kafka's own tools print."""
    texts = [["-" if cell is None or cell == "" else str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in texts)
