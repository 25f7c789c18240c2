"""The operations commands, run against a real ledger and a real broker, ours and Apache Kafka, with the same outcome.

The time is midnight after a day on which hours 10 to 13 hold two records in each of two partitions; 10 to 12 count as loaded and
audited (other tests cover how that happens).
"""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Producer
from logbus.cli import main
from logbus.commands import options
from logbus.kafka.client import Client
from logbus.kafka.groups import Groups
from logbus.kafka.topics import Topics
from logbus.ledger.ledger import Ledger
from logbus.model import Interval, Pipeline
from logbus.status.group_checkpoint import commit_ends
from logbus.waiting import PATIENCE_SECONDS, wait_until
from logbus.warehouse.engine import connect
from sqlalchemy import text

from tests.support.topics import create_topic

_numbers = itertools.count(1)
DAY = datetime(2015, 5, 17, tzinfo=UTC)
NOW = DAY + timedelta(days=1)
HOURS = range(10, 14)
NEVER = {"retention.ms": "-1"}
HUNDRED_YEARS_MS = str(100 * 365 * 86_400_000)
TWELVE_HOURS_MS = "43200000"

LOADED = """
    update logbus.window set loaded_attempt = 1, last_attempt = 1, audited_at = :now, read_count = 4, loaded_count = 4,
        dead_lettered_count = 0, filtered_count = 0, late_count = 0, early_count = 0, lost_count = 0, byte_count = 24
    where starts_at < :until"""


@dataclass
class Site:
    """A broker, a ledger, and the command line between them."""

    bootstrap: str
    warehouse_url: str
    topic: str
    ledger: Ledger
    admin: Topics

    def type(self, *words: str) -> Result:
        environment = {"LOGBUS_WAREHOUSE_URL": self.warehouse_url, "COLUMNS": "200"}
        return CliRunner(env=environment).invoke(main, [*words])

    def at_broker(self, *words: str) -> Result:
        return self.type(*words, "--bootstrap-server", self.bootstrap)

    def json(self, *words: str) -> Any:
        result = self.at_broker(*words, "--json")
        return json.loads(result.stdout) if result.stdout else result.stderr

    @property
    def starts(self) -> dict[int, int]:
        return self.admin.start_offsets(self.topic, [0, 1])


@pytest.fixture(params=["broker", "apache_kafka"])
def site(request: pytest.FixtureRequest, warehouse_url: str, monkeypatch: pytest.MonkeyPatch) -> Site:
    bootstrap, topic = request.getfixturevalue(request.param).bootstrap, f"operations-{next(_numbers)}"
    monkeypatch.setattr(options, "clock", lambda: NOW)
    create_topic(bootstrap, topic, partitions=2, config=NEVER)
    fill(bootstrap, topic)
    config = {"bootstrap.servers": bootstrap}
    ledger, admin = Ledger(connect(warehouse_url)), Topics(Client(config))
    ledger.register(Pipeline(name="p", topic=topic, table="t", parse="lines"), admin, NOW)
    for hour in HOURS[:-1]:
        ledger.freeze_or_get("p", Interval.hour(DAY + timedelta(hours=hour)), admin, NOW)
    with ledger.engine.begin() as connection:
        connection.execute(text(LOADED), {"now": NOW, "until": NOW})
    return Site(bootstrap=bootstrap, warehouse_url=warehouse_url, topic=topic, ledger=ledger, admin=admin)


def fill(bootstrap: str, topic: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for hour, minute, partition in itertools.product(HOURS, (1, 31), (0, 1)):
        stamp = DAY + timedelta(hours=hour, minutes=minute)
        producer.produce(topic, b"record", partition=partition, timestamp=int(stamp.timestamp() * 1000))
    assert producer.flush(PATIENCE_SECONDS) == 0


def test_lag_counts_the_hour_that_is_not_loaded(site: Site) -> None:
    (lag,) = site.json("lag", "--bytes")
    assert (lag["hours_behind"], lag["oldest_hour"], lag["records_behind"], lag["bytes_behind"]) == (
        1,
        "2015-05-17T13:00:00Z",
        4,
        24,
    )
    assert (lag["oldest_record_at"], lag["expires_by"]) == ("2015-05-17T13:01:00Z", None)


def test_a_limit_by_age_takes_nothing_of_a_topic_that_is_only_compacted(site: Site) -> None:
    site.admin.change_settings(site.topic, {"retention.ms": HUNDRED_YEARS_MS})
    (lag,) = site.json("lag")
    assert (lag["expires_by"], lag["seconds_until_expiry"] > 0) == ("retention.ms", True)
    site.admin.change_settings(site.topic, {"cleanup.policy": "compact"})
    (lag,) = site.json("lag")
    assert (lag["hours_behind"], lag["expires_by"], lag["seconds_until_expiry"]) == (1, None, None)
    assert "is only compacted" in site.at_broker("retention", "adopt", site.topic).stderr


def test_a_group_goes_to_a_window_and_to_an_instant(site: Site) -> None:
    window = ["--to-window", "p@2015-05-17T11:00:00Z"]
    shown = site.at_broker("group", "seek", "--group", "g", *window).stdout.split()
    assert shown[5:] == ["g", site.topic, "0", "2", "-", "g", site.topic, "1", "2", "-"]
    assert site.at_broker("group", "seek", "--group", "g", *window, "--execute").exit_code == 0
    instant = ["--topic", f"{site.topic}:1", "--to-datetime", "2015-05-17T12:00:00.000"]
    assert site.at_broker("group", "seek", "--group", "g", *instant, "--execute").exit_code == 0
    groups = Groups(Client({"bootstrap.servers": site.bootstrap}))
    assert groups.committed("g") == {(site.topic, 0): 2, (site.topic, 1): 4}
    done = commit_ends(site.ledger.engine, groups, site.admin, "g", site.ledger.windows("p")[1:2])
    assert (done.committed, done.ahead) == ({0: 4, 1: 4}, {})


def test_old_hours_are_deleted_when_they_are_loaded_and_are_lost_to_a_replay_then(site: Site) -> None:
    site.admin.change_settings(site.topic, {"retention.ms": TWELVE_HOURS_MS})
    assert f"topic {site.topic} is left to the broker" in site.type("retention", "ls").stdout
    assert "keeps 12 hours" in site.at_broker("retention", "adopt", site.topic).stdout
    assert site.admin.settings(site.topic, ["retention.ms"]) == NEVER
    plan = site.json("retention", "plan")
    assert [(one["partition"], one["from"], one["to"]) for one in plan["topics"][0]["deletions"]] == [(0, 0, 4), (1, 0, 4)]
    assert (plan["records"], plan["topics"][0]["bytes"]) == (8, 48)
    assert plan["topics"][0]["no_longer_replayable"] == ["p@2015-05-17T10:00:00Z", "p@2015-05-17T11:00:00Z"]
    assert site.starts == {0: 0, 1: 0}

    assert site.type("retention", "hold", site.topic, "--reason", "a look at the morning").exit_code == 0
    assert site.json("retention", "run", "--execute")["records"] == 0
    assert site.type("retention", "release", "1").exit_code == 0
    assert site.json("retention", "run")["records"] == 8
    assert site.starts == {0: 0, 1: 0}
    assert site.json("retention", "run", "--execute")["records"] == 8
    assert site.starts == {0: 4, 1: 4}
    assert [one["state"] for one in json.loads(site.type("retention", "log", "--json").stdout)] == ["deleted", "deleted"]

    replay = site.json("replay", "plan", "--pipeline", "p", "--since", "2015-05-17")
    assert [one["retained"] for one in replay["windows"]] == [False, False, True]
    assert (
        "2 of 3 windows cannot be loaded again"
        in site.at_broker("replay", "run", "--pipeline", "p", "--since", "2015-05-17").stderr
    )
    site.at_broker("retention", "give-back", site.topic)
    given_back = {"retention.ms": TWELVE_HOURS_MS}
    # Apache Kafka answers before all of it has read the change.
    wait_until(lambda: site.admin.settings(site.topic, ["retention.ms"]) == given_back, what="the setting given back")


def test_an_hour_that_is_not_loaded_is_held_back_and_fails_the_command_when_that_takes_too_long(site: Site) -> None:
    mistyped = site.at_broker("retention", "set", "wbe", "--hours", "1")
    assert (mistyped.exit_code, "has no topic wbe" in mistyped.stderr) == (3, True)
    assert site.at_broker("retention", "set", site.topic, "--hours", "1", "--max-hold-hours", "6").exit_code == 0
    result = site.at_broker("retention", "run", "--execute")
    assert (result.exit_code, site.starts) == (5, {0: 6, 1: 6})
    assert "pipeline p has held back 4 records for 9 hours, 6 hours are allowed" in result.stderr
    assert "deleted unloaded" in site.at_broker("retention", "set", site.topic, "--when-overdue", "delete").stdout
    assert site.at_broker("retention", "run", "--execute").exit_code == 0
    assert site.starts == {0: 8, 1: 8}
    (lag,) = site.json("lag")
    assert (lag["hours_behind"], lag["records_behind"], lag["records_lost"]) == (1, 0, 4)
