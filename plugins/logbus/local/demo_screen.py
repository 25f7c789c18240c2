"""What the demo shows: steps as they end, a table of hours, the proof, where to look next.

On a terminal there are spinners and a progress bar; in a pipe or a file one line per step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TransferSpeedColumn
from rich.table import Table

from logbus.model import FrozenWindow, WindowCounts


class Screen:
    """Writes to one rich console."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def say(self, text: str) -> None:
        self._console.print(f"  {text}", highlight=False, soft_wrap=True)

    @contextlib.contextmanager
    def busy(self, doing: str) -> Iterator[None]:
        with self._console.status(doing) if self._console.is_terminal else contextlib.nullcontext():
            yield

    def done(self, what: str, seconds: float) -> None:
        self._console.print(f"[green]done[/green] {what} [dim]{seconds:.1f} s[/dim]", highlight=False, soft_wrap=True)

    @contextlib.contextmanager
    def bytes_sent(self) -> Iterator[Callable[[int, int, int], None]]:
        """A progress bar, as a function of bytes done, bytes in all and lines sent."""
        columns = (BarColumn(), TransferSpeedColumn(), TextColumn("{task.fields[lines]:,} lines"))
        with Progress(*columns, console=self._console, transient=True, disable=not self._console.is_terminal) as progress:
            task = progress.add_task("ship", total=None, lines=0)
            yield lambda done, total, lines: progress.update(task, completed=done, total=total, lines=lines)

    def windows(self, windows: Sequence[FrozenWindow]) -> None:
        """The table of hours with its sums."""
        table = Table(show_footer=True)
        total = [counts_of(window) for window in windows]
        audited = sum(window.audited_at is not None for window in windows)
        table.add_column("hour (UTC)", f"{len(windows)} hours")
        table.add_column("read", f"{sum(count.read for count in total):,}", justify="right")
        table.add_column("loaded", f"{sum(count.loaded for count in total):,}", justify="right")
        table.add_column("dead letters", f"{sum(count.dead_lettered for count in total):,}", justify="right")
        table.add_column("audited", f"{audited} exact")
        for window, count in zip(windows, total, strict=True):
            verdict = "exact" if window.audited_at is not None else "[red]not exact[/red]"
            hour = f"{window.interval.start:%Y-%m-%d %H:%M}"
            table.add_row(hour, f"{count.read:,}", f"{count.loaded:,}", f"{count.dead_lettered:,}", verdict)
        self._console.print(table)

    def rerun(self, before: FrozenWindow, after: FrozenWindow, identical: bool) -> None:
        """The proof: one hour's fingerprint, before and after it was loaded again."""
        self._console.print(
            f"The hour of {before.interval.start:%Y-%m-%d %H:%M} was loaded again through the hourly DAG:", highlight=False
        )
        for name, window in (("before", before), ("after ", after)):
            self.say(
                f"{name}  attempt {window.loaded_attempt}  {counts_of(window).read:,} records  fingerprint {window.fingerprint}"
            )
        verdict = "[green]identical[/green]: the same records, none twice" if identical else "[red]NOT identical[/red]"
        self.say(verdict)

    def seconds(self, seconds: Mapping[str, float]) -> None:
        steps = ", ".join(f"{step} {value:.1f}" for step, value in seconds.items())
        self._console.print(f"Seconds: {steps}", highlight=False, soft_wrap=True)

    def next_steps(self, lines: Sequence[tuple[str, str]]) -> None:
        for name, text in lines:
            self._console.print(f"[bold]{name}[/bold]  {escape(text)}", highlight=False, soft_wrap=True)


def counts_of(window: FrozenWindow) -> WindowCounts:
    return window.counts or WindowCounts()
