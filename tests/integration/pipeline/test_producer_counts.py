"""Records numbered by `ship`, through a real broker, real windows and the load: the audit finds none missing and none twice."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from logbus.collector.sample import write_sample
from logbus.collector.ship import ship
from logbus.kafka.client import Client
from logbus.kafka.topics import Topics
from logbus.ledger.ledger import Ledger
from logbus.model import Pipeline
from logbus.proof.audit import audit_window
from logbus.proof.history import window_history
from logbus.warehouse.engine import connect
from logbus.warehouse.sinks import sink_for

from spark_jobs.outcomes import LoadState
from tests.support.broker import AnyBroker
from tests.support.ledgers import intervals_of
from tests.support.spark import LoadInProcess

END = datetime(2015, 5, 17, 16, tzinfo=UTC)
NOW = END + timedelta(days=1)


def test_every_number_that_ship_gave_arrives_once_however_the_hours_cut_them(
    broker: AnyBroker, warehouse_url: str, load_in_process: LoadInProcess, tmp_path: Path
) -> None:
    config, log = {"bootstrap.servers": broker.bootstrap}, tmp_path / "access.log"
    for number in (1, 2):  # each run ships three hours
        piece = tmp_path / f"{number}"
        write_sample(piece, lines=300, hours=3, seed=number, end=END - timedelta(hours=6 - 3 * number))
        with log.open("ab") as file:
            file.write(piece.read_bytes())
        ship([log], topic="numbered", client_config=config, state_path=tmp_path / "state", accept_times=True)
    ledger, offsets = Ledger(connect(warehouse_url)), Topics(Client(config))
    ledger.register(Pipeline(name="p", topic="numbered", table="t", parse="combined"), offsets, NOW)
    intervals = intervals_of(ledger.plan_load("p", offsets, NOW))
    windows = [ledger.freeze_or_get("p", interval, offsets, NOW) for interval in intervals]
    starts = [window.interval.start for window in windows]
    outcomes = load_in_process(warehouse_url, config, ledger.begin_attempts("p", starts, "run", 1, NOW))
    assert {outcome.state for outcome in outcomes} == {LoadState.COMMITTED}
    reports = [audit_window(ledger.engine, offsets, "p", start, NOW, sink_for) for start in starts]
    assert [(report.problems, report.notes) for report in reports] == [((), ())] * len(starts)
    counted = [stream for start in starts for stream in window_history(ledger.engine, "p", start).streams]
    assert len({stream.stream for stream in counted}) == 2 * 3
    assert sum(stream.count for stream in counted) == sum(window.record_count for window in windows) == 600
