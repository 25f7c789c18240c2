"""How very many windows are listed."""

from __future__ import annotations

from logbus.cli.load import report_table
from logbus.cli.output import undrawn
from logbus.cli.window_views import FOLDED_FROM, behind_text, windows_table
from logbus.model import AuditReport, FrozenWindow, Interval, Pipeline, WindowState
from logbus.windows.missing import Gap, Missing

from tests.support import fake_ledger
from tests.support.ledgers import at

PIPELINE = Pipeline(name="p", topic="t", table="t", parse="lines")


def window(hour: int, records: int = 0, state: WindowState = WindowState.AUDITED, attempt: int | None = 1) -> FrozenWindow:
    return fake_ledger.window(at(hour), records=records, attempt=attempt, state=state)


def rows(windows: list[FrozenWindow], gaps: tuple[Gap, ...] = (), failed: tuple[int, ...] = ()) -> list[list[str]]:
    table = windows_table(PIPELINE, windows, gaps, [at(hour) for hour in failed])
    return [line.split("  ") for line in undrawn(table).splitlines()[1:]]


def test_many_empty_windows_behind_each_other_are_one_line() -> None:
    windows = [window(0, records=5), *map(window, range(1, 1 + FOLDED_FROM)), window(1 + FOLDED_FROM, records=7)]
    first, between, last = rows(windows)
    assert between[:2] == [
        "2015-05-17T01:00:00Z .. 2015-05-17T10:00:00Z",
        f"audited, {FOLDED_FROM} windows, without any record",
    ]
    assert (first[0].strip(), last[0].strip()) == ("2015-05-17T00:00:00Z", "2015-05-17T11:00:00Z")


def test_a_few_are_listed_one_by_one() -> None:
    assert len(rows([window(hour) for hour in range(FOLDED_FROM - 1)])) == FOLDED_FROM - 1


def test_what_is_not_alike_or_does_not_touch_is_not_one_line() -> None:
    frozen = [window(hour, state=WindowState.FROZEN, attempt=None) for hour in range(20, 20 + FOLDED_FROM)]
    apart = [window(hour) for hour in range(40, 40 + FOLDED_FROM)]
    found = rows([*map(window, range(10, 20)), *frozen, *apart])
    assert [row[1].strip().partition(",")[0] for row in found] == ["audited", "frozen", "audited"]


def test_a_window_whose_last_attempt_failed_says_so() -> None:
    windows = [window(1, 3, WindowState.FROZEN, None), window(2, 3, WindowState.LOADING, None), window(3, 3)]
    assert [row[1].strip() for row in rows(windows, failed=(1, 2, 3))] == ["failed", "loading", "audited"]


def test_a_span_speaks_for_itself_alone() -> None:
    assert behind_text(PIPELINE, ()) == "p is up to date: every closed window is loaded"
    assert behind_text(PIPELINE, (), is_span=True) == "in this span p is up to date: every closed window is loaded"
    gap = Gap(interval=Interval.hour(at(1)), missing=Missing.NOT_FROZEN)
    assert behind_text(PIPELINE, (gap,), is_span=True).startswith("in this span p is 1 hour behind")


def test_a_load_of_many_empty_windows_says_so_in_one_line() -> None:
    def report(found: FrozenWindow, problems: tuple[str, ...] = ()) -> AuditReport:
        return AuditReport(window=found, expected={}, counted={}, problems=problems, notes=())

    reports = [report(window(0, records=5)), *(report(window(hour)) for hour in range(1, 1 + FOLDED_FROM))]
    lines = undrawn(report_table([*reports, report(window(1 + FOLDED_FROM), ("gone",))])).splitlines()
    assert len(lines) == 4
    assert lines[2].endswith(f"exact, {FOLDED_FROM} windows")
    assert "gone" in lines[3] or "not exact" in lines[3]
