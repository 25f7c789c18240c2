from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from logbus.cli import COMMANDS, main, options, output
from logbus.cli.options import JSON
from logbus.cli.output import Coloured
from logbus.cli.tables import to_table
from rich.console import Console

MODULES = Path(output.__file__).parent
# `logbus airflow` prints three names of our own, and the demo draws what it has made itself.
PRINTING = ("output.py", "maintenance.py", "demo.py")
MARKUP_LIKE = ["[error] disk full", "[2015] [notice] up", "GET [/login] x", r"\[bold]x[/]", ":smile:"]


def table() -> output.Table:
    made = output.Table("window", "state")
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
    output.echo_err("note: said to people")


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


def on_terminal(width: int, shown: output.Table | None = None) -> list[str]:
    console = Console(width=width, file=io.StringIO(), force_terminal=True, no_color=True, color_system=None)
    output.render(console, shown or table(), True)
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
    made.add_row(Coloured("x", "yellow"), "[1, 2)")
    assert output.undrawn(made).splitlines() == [
        "window                state",
        "2015-05-17T10:00:00Z  loaded",
        "2015-05-17T11:00:00Z  a reason with words",
        "x                     [1, 2)",
    ]
    for number in range(output.ROWS_DRAWN_MAX):
        made.add_row(Coloured(str(number), "yellow"), "loaded")
    output.show(made)
    assert capsys.readouterr().out.splitlines()[-1] == f"{output.ROWS_DRAWN_MAX - 1:<20}  loaded"


@pytest.mark.parametrize("text", MARKUP_LIKE)
def test_what_looks_like_markup_is_shown_as_it_is(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = to_table([text], [(text,), ("x",)])
    output.show(found)
    assert capsys.readouterr().out.splitlines() == [text, text, "x"]
    assert output.undrawn(found).splitlines() == [text, text, "x"]
    assert on_terminal(80, found)[0] == on_terminal(80, found)[2] == text
    assert on_terminal(3, found)[0].startswith(text[:3])


def test_only_what_the_code_itself_colours_is_coloured() -> None:
    made = output.Table("state")
    made.add_row(Coloured("[red]failed", "red"))
    made.add_row("[red]loaded")
    console = Console(width=80, file=io.StringIO(), force_terminal=True, color_system="standard", highlight=False)
    output.render(console, made, True)
    lines = [line.strip() for line in console.file.getvalue().splitlines()[2:]]  # type: ignore[attr-defined]
    assert lines == ["\x1b[31m[red]failed\x1b[0m", "[red]loaded"]


HOSTILE = "evil\x1b]0;pwn\x07\x1b[31m\nforged  Stable\x9b2J"
SHOWN = r"evil\x1b]0;pwn\x07\x1b[31m\nforged  Stable\x9b2J"


def test_a_line_for_people_is_one_line_whatever_it_quotes(capsys: pytest.CaptureFixture[str]) -> None:
    output.echo(f"group {HOSTILE}", "of\ttabs", mark=Coloured("note", "red"))
    output.echo_err(f"group {HOSTILE}")
    output.echo()
    found = capsys.readouterr()
    assert found.out == f"notegroup {SHOWN}\nof      tabs\n"
    assert found.err == f"group {SHOWN}\n"


def test_a_cell_is_one_line_whatever_it_holds(capsys: pytest.CaptureFixture[str]) -> None:
    made = output.Table(HOSTILE)
    made.add_row(HOSTILE)
    made.add_row(Coloured(HOSTILE, "red"))
    output.show(made)
    output.show_columns([[HOSTILE]])
    assert capsys.readouterr().out.splitlines() == [SHOWN] * 4
    assert on_terminal(200, made)[0] == on_terminal(200, made)[2] == SHOWN


def test_json_holds_no_control_character_and_the_same_value(capsys: pytest.CaptureFixture[str]) -> None:
    output.show_json({"group": HOSTILE, "name": "Zoë"})
    line = capsys.readouterr().out
    assert line[:-1].isprintable()
    assert json.loads(line) == {"group": HOSTILE, "name": "Zoë"}


def test_commands_print_and_draw_only_by_what_shows_texts_as_they_are() -> None:
    for path in set(MODULES.glob("*.py")) - {MODULES / name for name in PRINTING}:
        text = path.read_text()
        drawing = {"rich.table", "rich.text", "rich.markup"} & set(re.findall(r"^\s*(?:from|import) ([\w.]+)", text, re.M))
        assert not drawing, f"{path.name} draws by itself: output.Table shows texts as they are"
        assert not re.search(r"click\.s?echo|(?<![\w.])print\(", text), (
            f"{path.name} prints by itself: output.echo escapes what it quotes"
        )


ORDER = "an order: it prints one sentence, and its status says whether it was done"
ORDERS = (
    *("airflow setup", "ledger upgrade", "pipeline rebase", "pipeline forget-dag", "pipeline register"),
    *("retention adopt", "retention give-back", "retention hold", "retention release", "retention set"),
    *("sample", "topic alter", "topic create", "window accept-loss"),
    *("acl add", "acl rm", "security grant", "user add", "user passwd", "user rm"),
)
WITHOUT_JSON = {
    **dict.fromkeys(ORDERS, ORDER),
    "broker": "hands its arguments to another program",
    "completion": "prints a script for a shell",
    "connect": "asks, and prints lines for a shell",
    "consume": "prints records: -o says where to begin, or json; -J and --output are the same",
    "dead-letter export": "prints records: --format says how, and JSON is the default",
    "demo": "its figures go to --report FILE as JSON",
    "exporter": "serves until it is ended, and prints nothing",
    "registry serve": "serves until it is ended, and prints its address",
    "roles": "prints statements for psql",
    "security keep": "runs until it is ended",
    "stream run": "runs until it is ended",
}


def commands() -> Iterator[tuple[str, click.Command]]:
    """Every command that can be run, by its full name."""
    context = click.Context(main)
    for name in COMMANDS:
        found = main.get_command(context, name)
        assert found is not None
        yield from below(name, found)


def below(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        yield name, command
        return
    for word, found in command.commands.items():
        yield from below(f"{name} {word}", found)


def takes_json(command: click.Command) -> bool:
    """Whether it takes both spellings of the choice between table and JSON."""
    forms = [one for one in command.params if isinstance(one.type, click.Choice) and JSON in one.type.choices]
    return any({"-o", "--output"} <= set(one.opts) for one in forms) and any("--json" in one.opts for one in command.params)


ALL = dict(commands())


@pytest.mark.parametrize("name", sorted(ALL.keys() - WITHOUT_JSON))
def test_a_command_that_prints_a_result_prints_it_as_json_too(name: str) -> None:
    assert takes_json(ALL[name]), f"logbus {name} takes no -o json: give it options.json_option, or say in WITHOUT_JSON why not"


def test_the_exceptions_are_commands_that_are_there_and_take_no_json() -> None:
    assert {name for name in WITHOUT_JSON if name not in ALL or takes_json(ALL[name])} == set()
