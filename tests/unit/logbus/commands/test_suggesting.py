"""Suggestions for users with the habits of other tools."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner
from logbus.cli import COMMANDS, main
from logbus.commands.suggesting import ELSEWHERE


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("topics", "logbus topic ls?"),
        ("get windows", "window ls?"),
        ("kafka-console-consumer.sh --topic web", "logbus consume?"),
        ("consume -t web", "logbus consume TOPIC?"),
        ("consume web --from-beginning", "-o beginning?"),
        ("produce --topic web", "logbus produce TOPIC [FILES]...?"),
        ("topic get", "logbus topic describe or logbus topic ls?"),
        ("topic ls --zookeeper here", "--bootstrap-server HOST:PORT?"),
        ("topic delete web --force", "--execute?"),
        ("topic ls --describe", "the command describe?"),
        ("topic lst", "'ls'?"),  # click's own, which goes by the spelling
        ("pipeline remove x", "logbus pipeline delete?"),  # and not `move`, which is spelled alike
        ("lod", "logbus load?"),
        ("pipline ls", "logbus pipeline?"),
        ("rebase web", "logbus pipeline rebase?"),
        ("help", "logbus --help?"),
        ("lag web --warehouse postgresql://h/d", "--pipeline web?"),
    ],
)
def test_a_word_of_another_tool_names_ours(typed: str, meant: str) -> None:
    result = CliRunner().invoke(main, typed.split(), prog_name="logbus")
    assert result.exit_code == 2
    assert result.stderr.rstrip().endswith(meant), result.stderr
    assert result.stderr.count("Did you mean") == 1


@pytest.mark.parametrize("typed", ["nonsense", "load --force", "consume web --no-such-thing", "consume"])
def test_nothing_is_suggested_that_is_not_there(typed: str) -> None:
    result = CliRunner().invoke(main, typed.split(), prog_name="logbus")
    assert (result.exit_code, "Did you mean" in result.stderr) == (2, False)


def test_what_is_suggested_exists_and_hides_no_command_of_ours() -> None:
    assert ELSEWHERE.keys() & COMMANDS.keys() == set()
    context = click.Context(main)
    for meant in ELSEWHERE.values():
        for words in meant.replace(",", " or").split(" or "):
            first, *rest = words.split()
            command = main.get_command(context, first)
            assert first.startswith("--") or command is not None, words
            if rest and first != "broker":  # which hands its words to the broker's own command line
                assert isinstance(command, click.Group)
                assert rest[0] in command.list_commands(context), words


def test_a_terminal_that_knows_no_warehouse_is_told_what_sets_it() -> None:
    result = CliRunner(env={"LOGBUS_WAREHOUSE_URL": None}).invoke(main, ["lag"], prog_name="logbus")
    assert result.exit_code == 2
    assert "Missing option '--warehouse' (env var: 'LOGBUS_WAREHOUSE_URL'): `logbus up` starts a PostgreSQL here" in result.stderr
    assert "`source .logbus/up/env` in the directory where it runs sets it" in result.stderr
