"""A log in every format that docs/own-log.md names: the commands `logbus try` proposes, typed verbatim, load it.

Ship and register are the real commands; the load uses a Spark session that is already running, where `logbus load` starts one.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from logbus.cli import main
from logbus.kafka.client import Client
from logbus.kafka.topics import Topics
from logbus.loads.engine import connect
from logbus.loads.ledger import Ledger
from logbus.model import Interval
from logbus.shipper.proposal import shown
from logbus_spark.application import LoadState
from sqlalchemy import text

from tests.support.broker import AnyBroker, client_settings
from tests.support.ledgers import NOW
from tests.support.log_formats import BEGIN, COUNT, FORMATS, LogFormat
from tests.support.spark import LoadInProcess
from tests.support.topics import read_topic

HOUR = BEGIN.replace(minute=0)
OPTIONS = re.compile(r"it is read by (--time-.*?)(?: \(--time-.*\))?\. `logbus try")


def tried(log: Path, *options: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(CliRunner().invoke(main, ["try", str(log), "--json", *options]).stdout)
    return found


def typed(command: str, **environment: str) -> None:
    """Runs a command as it was proposed."""
    program, *words = shlex.split(command)
    done = CliRunner().invoke(main, words, env=environment)
    assert (program, done.exit_code) == ("logbus", 0), done.output


def proposed(log_format: LogFormat, place: Path) -> dict[str, Any]:
    """What is found out about the log, with the options that are proposed where it is in doubt."""
    log, options = log_format.write(place), list(log_format.options)
    if options:
        named = OPTIONS.search(tried(log)["trouble"])
        assert named is not None
        assert shlex.split(named[1]) == options
    found = tried(log, *options)
    assert (found["trouble"], found["time_format"], found["parse"]) == (None, [log_format.time_format], log_format.parse)
    assert (found["zoneless"] == 0, found["errors"]) == (log_format.has_zone, {})
    return found


@pytest.mark.parametrize("log_format", FORMATS, ids=lambda one: one.name)
def test_the_times_of_a_log_are_read_and_a_parser_is_proposed(log_format: LogFormat, tmp_path: Path) -> None:
    proposed(log_format, tmp_path)


def loaded_formats() -> Iterator[Any]:
    """The first log for each parser; the others take the same way from here on."""
    parsers = set[str]()
    for log_format in FORMATS:
        yield pytest.param(log_format, marks=pytest.mark.long if log_format.parse in parsers else [], id=log_format.name)
        parsers.add(log_format.parse)


@pytest.mark.parametrize("log_format", loaded_formats())
def test_what_is_proposed_for_a_log_loads_it(
    log_format: LogFormat, broker: AnyBroker, warehouse_url: str, load_in_process: LoadInProcess, tmp_path: Path
) -> None:
    ship, register, _ = proposed(log_format, tmp_path)["commands"]
    typed(ship, LOGBUS_BOOTSTRAP_SERVER=broker.bootstrap, XDG_STATE_HOME=str(tmp_path / "state"))
    name = shlex.split(register)[3]
    records = [message for messages in read_topic(broker.bootstrap, name).values() for message in messages]
    assert sorted(message.timestamp()[1] for message in records) == log_format.times_ms
    assert sorted(message.value() or b"" for message in records) == sorted_records(log_format)
    if log_format.key is not None:
        assert {message.key() for message in records} == {log_format.key.encode()}

    typed(register, LOGBUS_BOOTSTRAP_SERVER=broker.bootstrap, LOGBUS_WAREHOUSE_URL=warehouse_url)
    loaded = rows_of(name, broker, warehouse_url, load_in_process)
    assert len(loaded) == COUNT, "a header is filtered"
    assert {column: shown(value) for column, value in loaded[0].items()}.items() >= log_format.row.items()


def rows_of(name: str, broker: AnyBroker, warehouse_url: str, load_in_process: LoadInProcess) -> list[Mapping[str, Any]]:
    """The rows of the pipeline's table, once its hour is loaded."""
    client, engine = client_settings(broker), connect(warehouse_url)
    ledger = Ledger(engine)
    ledger.freeze_or_get(name, Interval.hour(HOUR), Topics(Client(client)), NOW)
    (outcome,) = load_in_process(warehouse_url, client, ledger.begin_attempts(name, [HOUR], "run", 1, NOW))
    assert outcome.state is LoadState.COMMITTED, outcome
    with engine.connect() as connection:
        return [dict(row) for row in connection.execute(text(f"select * from {name} order by _timestamp")).mappings()]


def sorted_records(log_format: LogFormat) -> list[bytes]:
    """The values sent: each line, joined with the lines that continue it."""
    whole = "\n".join(log_format.lines)
    for line in log_format.more:
        whole = whole.replace(f"\n{line}", f"\0{line}")
    return sorted(one.replace("\0", "\n").encode() for one in whole.split("\n"))
