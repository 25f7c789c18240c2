from __future__ import annotations

import io
import json

import click
import pytest
from click.testing import CliRunner
from logbus.commands import options, output
from rich.console import Console
from rich.table import Table


def table() -> Table:
    made = Table("window", "state")
    made.add_row("2015-05-17T10:00:00Z", "loaded")
    made.add_row("2015-05-17T11:00:00Z", "a reason with words")
    return made


@click.command()
@options.json_option
def listing(as_json: bool) -> None:
    if as_json:
        output.show_json([{"name": "Zoë"}])
    else:
        output.show(table())
    output.say("note: said to people")


@pytest.mark.parametrize("words", [["--json"], ["-o", "json"], ["--output", "json"], ["-ojson"]])
def test_json_is_all_that_goes_to_standard_output(words: list[str]) -> None:
    result = CliRunner().invoke(listing, words)
    assert (json.loads(result.stdout), result.stderr) == ([{"name": "Zoë"}], "note: said to people\n")


def test_a_table_in_a_pipe_is_plain_columns_of_any_width() -> None:
    assert CliRunner(env={"COLUMNS": "20"}).invoke(listing, ["-o", "table"]).stdout.splitlines() == [
        "window                state",
        "2015-05-17T10:00:00Z  loaded",
        "2015-05-17T11:00:00Z  a reason with words",
    ]


def test_another_form_is_refused() -> None:
    assert CliRunner().invoke(listing, ["-o", "yaml"]).exit_code == 2


def on_terminal(width: int) -> list[str]:
    console = Console(width=width, file=io.StringIO(), force_terminal=True, no_color=True, color_system=None)
    output.render(console, table(), True)
    return [line.strip() for line in console.file.getvalue().splitlines() if line.strip()]  # type: ignore[attr-defined]


def test_a_table_on_a_terminal_folds_and_becomes_lines_where_it_does_not_fit() -> None:
    assert on_terminal(80)[2].split(maxsplit=1) == ["2015-05-17T10:00:00Z", "loaded"]
    assert len(on_terminal(34)) > len(on_terminal(80))
    assert on_terminal(28)[:2] == ["window: 2015-05-17T10:00:00Z", "state: loaded"]


def test_columns_are_as_wide_as_their_widest_cell_and_nothing_is_a_dash() -> None:
    rows = [("GROUP", "LAG", "HOST"), ("g", 12, None), ("longer", 3, "")]
    assert output.plain_columns(rows).splitlines() == ["GROUP   LAG  HOST", "g       12   -", "longer  3    -"]


def test_no_bar_is_drawn_where_nobody_looks(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(output.tracked(iter(range(3000)), "counting")) == list(range(3000))
    assert capsys.readouterr().err == ""


def test_a_very_long_table_is_plain_columns_on_a_terminal_too(capsys: pytest.CaptureFixture[str]) -> None:
    made = table()
    made.add_row("[yellow]x[/]", r"\[1, 2)")
    assert output.undrawn(made).splitlines() == [
        "window                state",
        "2015-05-17T10:00:00Z  loaded",
        "2015-05-17T11:00:00Z  a reason with words",
        "x                     [1, 2)",
    ]
    for number in range(output.ROWS_DRAWN_MAX):
        made.add_row(f"[yellow]{number}[/]", "loaded")
    output.show(made)
    assert capsys.readouterr().out.splitlines()[-1] == f"{output.ROWS_DRAWN_MAX - 1:<20}  loaded"
