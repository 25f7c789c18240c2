"""Suggestions for users with the habits of other tools."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
from click.core import ParameterSource
from click.testing import CliRunner, Result
from logbus.cli import COMMANDS, main
from logbus.cli.endings import OTHER_TOOLS, address_origin
from logbus.kafka import client
from logbus.shipper import shipment


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
    assert OTHER_TOOLS.keys() & COMMANDS.keys() == set()
    context = click.Context(main)
    for meant in OTHER_TOOLS.values():
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


NOWHERE = "127.0.0.1:1"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (shipment, client):
        monkeypatch.setattr(module, "ANSWER_SECONDS_MAX", 0.2)


def run(*words: str, **environment: str) -> Result:
    return CliRunner(env={"LOGBUS_BOOTSTRAP_SERVER": None, "LOGBUS_CLIENT_CONFIG": None, **environment}).invoke(main, words)


@pytest.mark.parametrize(
    "words", ["topic ls", "topic describe t", "consume t", "produce t", "ship LOG --topic t", "group ls", "retention plan"]
)
def test_a_stale_address_in_the_environment_is_named_with_its_origin(tmp_path: Path, words: str) -> None:
    log = tmp_path / "log"
    log.write_text("2026-11-24T10:00:00Z started\n")
    state = ["--state", str(tmp_path / "state")] if words.startswith("ship") else []
    words = words.replace("LOG", str(log))
    result = run(*words.split(), *state, LOGBUS_BOOTSTRAP_SERVER=NOWHERE, LOGBUS_WAREHOUSE_URL="postgresql://u@127.0.0.1:1/d")
    assert result.exit_code == 4
    assert f"the broker at {NOWHERE} did not answer" in result.stderr
    assert f"{NOWHERE} is from the environment (LOGBUS_BOOTSTRAP_SERVER): `logbus up` starts a broker here" in result.stderr
    assert "source .logbus/up/env" in result.stderr


def test_an_address_of_the_command_line_is_not_called_the_environments() -> None:
    result = run("topic", "ls", "-b", NOWHERE, LOGBUS_BOOTSTRAP_SERVER="127.0.0.1:2")
    assert f"{NOWHERE} is from the command line" in result.stderr
    result = run("topic", "ls", "-X", f"bootstrap.servers={NOWHERE}")
    assert f"{NOWHERE} is from the command line" in result.stderr


def test_an_address_of_a_file_is_named_by_the_file(tmp_path: Path) -> None:
    file = tmp_path / "client.json"
    file.write_text(json.dumps({"bootstrap.servers": NOWHERE}))
    result = run("topic", "ls", "--client-config", str(file))
    assert f"the address is from {file}" in result.stderr


def test_the_default_says_that_nothing_names_a_broker() -> None:
    told = address_origin("127.0.0.1:9092", ParameterSource.DEFAULT)
    assert told.startswith(
        "127.0.0.1:9092 is the default, as neither --bootstrap-server nor LOGBUS_BOOTSTRAP_SERVER names a broker"
    )
