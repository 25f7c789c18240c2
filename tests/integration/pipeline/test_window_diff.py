"""A loaded window compared with what a real broker still holds of it; and a window over its error budget, in the same load."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from click.testing import CliRunner, Result
from logbus.cli import main
from logbus.kafka.client import Client
from logbus.kafka.topics import Topics
from logbus.loads.engine import connect
from logbus.loads.history import window_history
from logbus.loads.ledger import Ledger
from logbus.model import Interval, Pipeline, milliseconds
from logbus_spark.application import LoadState, WindowOutcome

from tests.support.broker import AnyBroker, client_settings
from tests.support.ledgers import NOW, at
from tests.support.spark import LoadInProcess
from tests.support.topics import create_topic, delete_before, send

TEN = at(10)
WINDOW = "2015-05-17T10:00:00Z"


@pytest.fixture
def topic(broker: AnyBroker) -> str:
    """Five records in the hour from ten, with keys and headers, the second of them not text; and one in the next hour."""
    create_topic(broker.bootstrap, "diffed", config={"retention.ms": "-1"})
    records = [
        {
            "value": b"\xff" if number == 1 else b"line %d" % number,
            "key": f"key {number}",
            "timestamp": milliseconds(TEN + timedelta(minutes=12 * number)),
            "headers": [("host", b"web-1"), ("none", None)],
        }
        for number in range(6)
    ]
    send(broker.bootstrap, "diffed", records)
    return "diffed"


def test_a_loaded_window_is_compared_with_the_broker_and_what_is_gone_is_named(
    broker: AnyBroker, topic: str, warehouse_url: str, load_in_process: LoadInProcess
) -> None:
    def load(**settings: object) -> WindowOutcome:
        config = client_settings(broker)
        ledger, log = Ledger(connect(warehouse_url)), Topics(Client(config))
        ledger.register(Pipeline(name="p", topic=topic, table="t", parse="lines", settings=settings), log, NOW)
        ledger.freeze_or_get("p", Interval.hour(TEN), log, NOW)
        (outcome,) = load_in_process(warehouse_url, config, ledger.begin_attempts("p", [TEN], "run", 1, NOW))
        return outcome

    def diff() -> Result:
        where = ["--warehouse", warehouse_url, "--bootstrap-server", broker.bootstrap]
        return CliRunner().invoke(main, ["window", "diff", "--pipeline", "p", *where, "--against", "broker", "--json", WINDOW])

    def replay_plan() -> Result:
        where = ["--warehouse", warehouse_url, "--bootstrap-server", broker.bootstrap]
        return CliRunner().invoke(main, ["replay", "plan", "--pipeline", "p", *where, "--json", "--window", WINDOW])

    over = load(max_errors=0)
    assert over.state is LoadState.FAILED
    assert "NotUtf8 1" in str(over.error)
    history = window_history(connect(warehouse_url), "p", TEN)
    samples = history.attempts[0].error_samples
    assert samples is not None
    assert (history.window.loaded_attempt, samples["examples"][0]["offset"]) == (None, 1)

    assert load().state is LoadState.COMMITTED
    unchanged = diff()
    assert (unchanged.exit_code, json.loads(unchanged.stdout)["same"]) == (0, True)

    planned = replay_plan()
    assert [(one["read"], one["differs"]) for one in json.loads(planned.stdout)["windows"]] == [(True, None)]
    assert "reading the 5 records of 1 window" in planned.stderr

    delete_before(broker.bootstrap, topic, 0, 2)
    result = diff()
    found = {one["what"]: (one["left"], one["right"]) for one in json.loads(result.stdout)["differences"]}
    assert result.exit_code == 5
    assert found["records"] == (5, 3)
    assert found["partition 0 offsets without a record"] == ([], [[0, 2]])
