from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from logbus import assets, task_context
from logbus.errors import UserError
from logbus.model import HOUR, Pipeline, instant_text
from logbus.operators.load_window import LoadWindowOperator
from logbus.operators.take_windows import windows_of_events

from tests.support.airflow_context import HOUR_START
from tests.support.fake_hooks import offline
from tests.support.fake_ledger import FakeLedger, window


def test_a_pipeline_and_its_name_stand_for_the_same_asset() -> None:
    assert assets.table_asset("clicks") == assets.table_asset(Pipeline(name="clicks", topic="t", table="x", parse="json"))


def test_an_event_says_which_window_with_its_counts_and_fingerprint() -> None:
    extra = task_context.event_extra([window(HOUR_START, attempt=2)])
    assert (extra["pipeline"], extra["window_count"], extra["loaded"], extra["dead_lettered"]) == ("access_log", 1, 9, 1)
    [said] = extra["windows"]
    assert (said["start"], said["loaded_attempt"], said["fingerprint"]) == ("2015-05-17T10:00:00Z", 2, f"{10:016x}")
    assert json.loads(json.dumps(extra)) == extra


def test_an_event_over_very_many_windows_stays_small_and_names_them_all() -> None:
    windows = [window(HOUR_START + timedelta(hours=number), attempt=1) for number in range(task_context.WINDOWS_SHOWN_MAX + 5)]
    extra = task_context.event_extra(windows)
    assert (len(extra["windows"]), extra["window_count"]) == (task_context.WINDOWS_SHOWN_MAX, task_context.WINDOWS_SHOWN_MAX + 5)
    assert extra["starts"] == [instant_text(window.interval.start) for window in windows]
    assert extra["read"] == 10 * len(windows)


def test_each_outlet_asset_gets_the_windows_and_nothing_else_does() -> None:
    events: dict[Any, Any] = defaultdict(SimpleNamespace)
    asset = assets.table_asset("access_log")
    task_context.add_to_outlet_events({"outlet_events": events}, ["not an asset", asset], [window(HOUR_START, attempt=1)])
    assert list(events) == [asset]
    assert events[asset].extra["window_count"] == 1


def test_without_outlets_no_window_is_looked_at() -> None:
    events: dict[Any, Any] = defaultdict(SimpleNamespace)
    unread = iter([window(HOUR_START)])
    task_context.add_to_outlet_events({"outlet_events": events}, [], unread)
    assert (list(events), len(list(unread))) == ([], 1)


@pytest.mark.parametrize("servers", ["b1:9092", "b1:9092,b2:9092", "SASL_SSL://b1:9092, b2:9092"])
def test_a_topic_is_named_after_the_first_broker(servers: str) -> None:
    assert assets.topic_name({"bootstrap.servers": servers}, "t") == ("kafka://b1:9092", "t")


@pytest.mark.parametrize(
    ("url", "table", "namespace", "name"),
    [
        ("postgresql+psycopg://u:p@h:5433/d", "clicks", "postgres://h:5433", "d.public.clicks"),
        ("postgresql+psycopg://u:p@h/d", "web.clicks", "postgres://h:5432", "d.web.clicks"),
        ("postgresql+psycopg://u@/d?host=/run/pg", "clicks", "postgres://localhost:5432", "d.public.clicks"),
    ],
)
def test_a_table_is_named_without_user_or_password(url: str, table: str, namespace: str, name: str) -> None:
    assert assets.table_name(url, table) == (namespace, name)


def test_a_load_reads_the_topic_and_writes_the_table(pipeline: Pipeline, ledger: FakeLedger) -> None:
    pytest.importorskip("airflow.providers.openlineage", reason="lineage is for those who have Airflow's OpenLineage provider")
    found = offline(LoadWindowOperator(task_id="load", pipeline=pipeline), ledger).get_openlineage_facets_on_complete(None)
    assert [(part.namespace, part.name) for part in found.inputs] == [("kafka://b:1", "access_log")]
    assert [(part.namespace, part.name) for part in found.outputs] == [("postgres://h:5432", "d.public.access_log")]
    elsewhere = replace(pipeline, settings={"sink": "iceberg"})
    assert assets.load_lineage({"bootstrap.servers": "b:1"}, "postgresql://h/d", elsewhere).outputs == []


TEN, ELEVEN = "2015-05-17T10:00:00Z", "2015-05-17T11:00:00Z"


def test_windows_of_triggers_and_of_tasks_are_told_alike() -> None:
    of_trigger = {"from_trigger": True, "payload": {"watcher": "w", "pipeline": "p", "stage": "audited", "start": TEN}}
    of_task = {"pipeline": "p", "starts": [TEN, ELEVEN]}
    told = windows_of_events([SimpleNamespace(extra=extra) for extra in (of_trigger, of_task)])
    assert [instant_text(start) for start in told["p"]] == [TEN, TEN, ELEVEN]


def test_an_event_of_very_many_windows_tells_of_all() -> None:
    windows = [window(HOUR_START + number * HOUR, attempt=1) for number in range(150)]
    told = windows_of_events([SimpleNamespace(extra=task_context.event_extra(windows))])
    assert told == {"access_log": [one.interval.start for one in windows]}


def test_events_that_tell_of_no_window_are_a_clear_error() -> None:
    with pytest.raises(UserError, match="no event"):
        windows_of_events([SimpleNamespace(extra={})])
