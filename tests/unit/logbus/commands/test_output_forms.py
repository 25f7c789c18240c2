"""Programs read commands' output: every command that prints a result takes `-o json`; the exceptions are explained here."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest
from logbus.cli import COMMANDS, main
from logbus.commands.options import JSON

ORDER = "an order: it prints one sentence, and its status says whether it was done"
WITHOUT_JSON = {
    "airflow setup": ORDER,
    "broker": "hands its arguments to another program",
    "completion": "prints a script for a shell",
    "connector-jars": ORDER,
    "consume": "prints records: -o says where to begin, or json; -J and --output are the same",
    "dead-letter export": "prints records: --format says how, and JSON is the default",
    "demo": "its figures go to --report FILE as JSON",
    "exporter": "serves until it is ended, and prints nothing",
    "ledger upgrade": ORDER,
    "pipeline rebase": ORDER,
    "pipeline forget-dag": ORDER,
    "pipeline register": ORDER,
    "retention adopt": ORDER,
    "retention give-back": ORDER,
    "retention hold": ORDER,
    "retention release": ORDER,
    "retention set": ORDER,
    "sample": ORDER,
    "topic alter": ORDER,
    "topic create": ORDER,
    "window accept-loss": ORDER,
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
