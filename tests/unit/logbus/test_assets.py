from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from airflow.sdk.execution_time.context import OutletEventAccessors
from logbus import assets, task_context
from logbus.errors import UserError
from logbus.loads.sinks import PublicTable
from logbus.model import HOUR, Pipeline, instant_text
from logbus.operators.spark_submit_window import windows_of_events

from tests.support.airflow_context import HOUR_START
from tests.support.fake_ledger import window

ACCESS_LOG = Pipeline(name="access_log", topic="t", table="access_log", parse="combined")


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


def test_a_proof_is_told_by_the_window_by_its_key_and_under_the_tables_own_name() -> None:
    events, windows = OutletEventAccessors(), [window(HOUR_START + number * HOUR, attempt=1) for number in range(176)]
    table = PublicTable(namespace="postgres://h:5432", name="d.public.t", uri="postgres://h:5432/d/public/t", columns={})
    plain, keyed, alias = outlets = assets.outlets("access_log")
    assets.tell_of_proven({"outlet_events": events}, outlets, ACCESS_LOG, windows, lambda: table)
    extra = task_context.event_extra(windows)
    assert events[plain].extra == extra
    assert (events[keyed].extra, len(events[keyed].partition_keys)) == ({"pipeline": "access_log"}, assets.KEYS_MAX)
    assert max(events[keyed].partition_keys) == "2015-05-24T17:00:00", "the last week, of a span that is longer"
    [of_table] = events[alias].asset_alias_events
    assert (of_table.dest_asset_key.uri, of_table.extra) == (table.uri, extra)


def test_the_key_of_a_day_is_the_day_where_the_pipeline_is() -> None:
    events, keyed = OutletEventAccessors(), assets.windows_asset("access_log")
    berlin = replace(ACCESS_LOG, interval=timedelta(days=1), timezone="Europe/Berlin")
    midnight = datetime(2026, 3, 29, tzinfo=ZoneInfo("Europe/Berlin")).astimezone(UTC)
    assets.tell_of_proven({"outlet_events": events}, [keyed], berlin, [window(midnight, attempt=1)], lambda: None)
    assert events[keyed].partition_keys == {"2026-03-29T00:00:00"}


def test_a_table_that_is_not_there_yet_and_outlets_that_are_not_declared_get_no_event() -> None:
    events, windows = OutletEventAccessors(), [window(HOUR_START, attempt=1)]
    context = {"outlet_events": events}
    assets.tell_of_proven(context, [assets.table_alias("access_log")], ACCESS_LOG, windows, lambda: None)
    assets.tell_of_proven(context, [], ACCESS_LOG, windows, lambda: pytest.fail("not asked for"))
    assert len(events) == 0


def test_an_airflow_whose_tasks_cannot_set_keys_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assets, "HAS_KEYS_OF_TASKS", False)
    with pytest.raises(UserError, match=r"needs Airflow 3\.3 or newer, this is 3\.\d"):
        assets.windows_asset("p")
    assert assets.outlets("p") == [assets.table_asset("p"), assets.table_alias("p")]


def test_until_when_a_table_is_complete_is_the_state_of_its_asset() -> None:
    asset, state = assets.table_asset("p"), {"complete_until": "before"}
    store = SimpleNamespace(set=state.__setitem__, delete=state.pop)
    for context, declared, until, stored in (
        ({}, [asset], HOUR_START, "before"),  # Airflow 3.2
        ({"asset_state_store": {asset: store}}, [], HOUR_START, "before"),
        ({"asset_state_store": {asset: store}}, [asset], HOUR_START, "2015-05-17T10:00:00Z"),
        ({"asset_state_store": {asset: store}}, [asset], None, None),
    ):
        assets.store_complete_until(context, declared, "p", until)
        assert state.get("complete_until") == stored


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
