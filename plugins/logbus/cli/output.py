"""How commands print: tables for people, JSON for programs, both on standard output; everything else goes to standard error.

On a terminal a table is as wide as the terminal; if even its longest words do not fit, each row becomes a few lines of its own.
Into a pipe it is plain columns, as wide as they need to be, without colours, so that `awk` and `grep` find what they look for.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from logbus.formatting import inert_json, printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

PIPE_COLUMNS = 100_000  # nothing is folded in a pipe
ROWS_DRAWN_MAX = 1_000  # rich takes 1.4 ms a row; no person reads more rows than this, but `grep` does
MOVED_EVERY = 1_000  # items of a stream of unknown length, which are many and quick
Item = TypeVar("Item")


class Coloured(NamedTuple):
    """A cell that a terminal shows in a colour."""

    text: str
    colour: str


Cell = str | Coloured


class Table:
    """Names of columns and rows of cells, each shown as it is: rich would take `[error]` in a record for its own markup."""

    def __init__(self, *names: str, numbers_from: int | None = None) -> None:
        """Columns from `numbers_from` on are aligned on the right."""
        self.names = names
        self.numbers_from = len(names) if numbers_from is None else numbers_from
        self.rows: list[tuple[Cell, ...]] = []

    def add_row(self, *cells: Cell) -> None:
        self.rows.append(cells)


def echo(*lines: str, mark: Coloured | None = None) -> None:
    """Lines for people, on standard output, safe whatever they quote; `mark` is what the first one begins with."""
    mark_text = "" if mark is None else click.style(printable(mark.text), fg=mark.colour or None)
    if lines:
        click.echo(mark_text + "\n".join(map(safe, lines)))


def echo_err(*lines: str) -> None:
    """Lines for people, on standard error: never in what a program reads."""
    for line in lines:
        click.echo(safe(line), err=True)


def safe(line: str) -> str:
    """Tabs, as in a stack trace of Java, harm no line; columns would no longer stand under each other."""
    return printable(line.expandtabs())


def write_raw(data: str | bytes) -> None:
    """What a program reads, byte by byte as it is: nothing is escaped."""
    click.echo(data, nl=False)


def stdin_is_terminal() -> bool:
    """Whether standard input is a terminal; a service may have none at all."""
    return sys.stdin is not None and not sys.stdin.closed and sys.stdin.isatty()


def show_json(value: Any, indent: int | None = None) -> None:
    click.echo(inert_json(json.dumps(value, ensure_ascii=False, indent=indent)))


def show(table: Table) -> None:
    """Prints the table in the form that suits where it goes."""
    from rich.console import Console

    is_terminal = sys.stdout.isatty()
    if len(table.rows) > ROWS_DRAWN_MAX:
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
    from rich.table import Table as DrawnTable

    drawn = DrawnTable(box=box.SIMPLE_HEAD if is_terminal else None, show_edge=False, pad_edge=False)
    if not is_terminal:
        drawn.padding = (0, 2, 0, 0)
    for number, name in enumerate(table.names):
        drawn.add_column(as_it_is(name), justify="left" if number < table.numbers_from else "right")
    for row in table.rows:
        drawn.add_row(*map(as_it_is, row))
    if is_terminal and Measurement.get(console, console.options.update_width(PIPE_COLUMNS), drawn).minimum > console.width:
        for line in row_lines(table):
            console.print(line)
    else:
        console.print(drawn)


def as_it_is(cell: Cell) -> Text:
    """For rich, which looks for markup in a `str` and not in this, and would pass on control characters in both."""
    from rich.text import Text

    return Text(plain(cell), style=cell.colour if isinstance(cell, Coloured) else "")


def plain(cell: Cell) -> str:
    return printable(cell.text if isinstance(cell, Coloured) else cell)


def undrawn(table: Table) -> str:
    """Plain columns without colours."""
    return plain_columns([table.names, *(map(plain, row) for row in table.rows)])


def row_lines(table: Table) -> Iterator[Text]:
    """`column: value` for each cell, rows separated by an empty line."""
    from rich.text import Text

    for number, row in enumerate(table.rows):
        if number:
            yield Text()
        yield from (
            Text.assemble((plain(name), "bold"), ": ", as_it_is(cell)) for name, cell in zip(table.names, row, strict=True)
        )


@contextmanager
def bar(description: str, total: float | None = None) -> Iterator[Callable[[float], None]]:
    """A progress bar on standard error, if that is a terminal; yields the function that advances it."""
    if not sys.stderr.isatty():
        yield lambda amount: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(printable(description), total=total)
        yield lambda amount: progress.advance(task, amount)


def tracked(items: Iterable[Item], description: str, total: int | None = None) -> Iterator[Item]:
    """The same items, with a bar that counts them."""
    with bar(description, total) as advance:
        for number, item in enumerate(items, 1):
            yield item
            if number % MOVED_EVERY == 0 or total is not None:
                advance(MOVED_EVERY if total is None else 1)


def show_columns(rows: Iterable[Iterable[Any]]) -> None:
    click.echo(plain_columns(rows))


def plain_columns(rows: Iterable[Iterable[Any]]) -> str:
    """Rows under each other in columns as wide as their widest cell: what Kafka's own tools print."""
    texts = [["-" if cell is None or cell == "" else printable(str(cell)) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in texts)
