"""Two hosts ship their logs: one writes UTC, the other, in Berlin, local time without a zone. Real ship, broker, load and audit.

Each ships every twenty minutes, as from cron. What the host in Berlin writes at 10:05 is stamped 11:05, and opens hour 11 for
both.
"""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner
from logbus.cli import main
from logbus.kafka.client import Client
from logbus.kafka.topics import Topics
from logbus.ledger.ledger import Ledger
from logbus.model import HOUR, AuditReport, Interval, Pipeline
from logbus.proof.audit import audit_window
from logbus.proof.history import window_history
from logbus.warehouse.engine import connect
from logbus.warehouse.sinks import sink_for

from spark_jobs.outcomes import LoadState
from tests.support.broker import AnyBroker
from tests.support.spark import LoadInProcess

START = datetime(2015, 11, 17, 10, tzinfo=UTC)  # winter: Berlin is an hour ahead
HOURS, STEP = 3, timedelta(minutes=20)
NOW = START + timedelta(days=2)

_numbers = itertools.count(1)


class Hosts:
    """What the two hosts log and ship."""

    def __init__(self, broker: AnyBroker, topic: str, directory: Path) -> None:
        self.broker, self.topic, self.directory = broker, topic, directory

    def live(self, *options: str) -> None:
        """Ships three hours, twenty minutes at a time; `options` apply to the host in Berlin."""
        for number in range(HOURS * 3):
            since = START + number * STEP
            minutes = [since + timedelta(minutes=minute) for minute in range(20)]
            self.ship("utc", [f"{at:%Y-%m-%dT%H:%M:%SZ} request" for at in minutes])
            self.ship("berlin", [f"{since + HOUR + timedelta(minutes=5):%Y-%m-%d %H:%M:%S} job"], *options)

    def ship(self, host: str, lines: list[str], *options: str) -> None:
        log = self.directory / f"{host}.log"
        with log.open("a") as file:
            file.write("".join(f"{line}\n" for line in lines))
        where = ["--bootstrap-server", self.broker.bootstrap, "--topic", self.topic, "--partitions", "1"]
        state = ["--state", str(self.directory / f"{host}.state"), "--server-name", host]
        done = CliRunner().invoke(main, ["ship", str(log), "--accept-times", *where, *state, *options])
        assert done.exit_code == 0, done.output


@pytest.fixture
def hosts(broker: AnyBroker, tmp_path: Path) -> Hosts:
    return Hosts(broker, f"hosts-{next(_numbers)}", tmp_path)


def load(hosts: Hosts, url: str, load_in_process: LoadInProcess) -> list[AuditReport]:
    """Loads, then audits, every hour."""
    config = {"bootstrap.servers": hosts.broker.bootstrap}
    ledger, log = Ledger(connect(url)), Topics(Client(config))
    ledger.register(Pipeline(name="p", topic=hosts.topic, table="t", parse="lines"), log, NOW)
    starts = [START + number * HOUR for number in range(HOURS + 1)]
    for start in starts:
        ledger.freeze_or_get("p", Interval.hour(start), log, NOW)
    outcomes = load_in_process(url, config, ledger.begin_attempts("p", starts, "run", 1, NOW))
    assert {outcome.state for outcome in outcomes} == {LoadState.COMMITTED}
    return [audit_window(ledger.engine, log, "p", start, NOW, sink_for) for start in starts]


def test_one_host_that_writes_local_time_moves_the_hours_and_every_witness_names_it(
    hosts: Hosts, warehouse_url: str, load_in_process: LoadInProcess
) -> None:
    hosts.live()
    reports = load(hosts, warehouse_url, load_in_process)
    assert [report.problems for report in reports] == [()] * len(reports)  # every offset is loaded once
    found = window_history(connect(warehouse_url), "p", START).hours
    assert found is not None
    assert found.sentences() == ["stamped 2015-11-17T10:00:00Z: 20 here, 40 in window 2015-11-17T11:00:00Z"]
    assert reports[0].notes == tuple(found.sentences())
    shown = CliRunner().invoke(main, ["window", "show", "--pipeline", "p", "--warehouse", warehouse_url, "2015-11-17T10:00:00Z"])
    assert found.sentences()[0] in shown.stdout
    where = ["--warehouse", warehouse_url, "--bootstrap-server", hosts.broker.bootstrap]
    assert "note: p: 120 of the 189 records" in CliRunner().invoke(main, ["lag", *where]).stderr


def test_the_hosts_zone_mends_it(hosts: Hosts, warehouse_url: str, load_in_process: LoadInProcess) -> None:
    hosts.live("--timezone", "Europe/Berlin")
    reports = load(hosts, warehouse_url, load_in_process)
    assert [(report.problems, report.notes) for report in reports] == [((), ())] * len(reports)
    counts = [report.window.counts.read for report in reports if report.window.counts]
    assert counts == [63, 63, 63, 0]
