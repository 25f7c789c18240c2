"""A broker that does not answer: the address, where it was set, what to type instead, and the exit status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.core import ParameterSource
from click.testing import CliRunner, Result
from logbus.cli import main
from logbus.collector import topic_client
from logbus.commands.addressing import address_origin
from logbus.kafka import client

NOWHERE = "127.0.0.1:1"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (topic_client, client):
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
