from __future__ import annotations

import json
from collections import defaultdict
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

from logbus.assets import WINDOWS_SHOWN_MAX, event_extra, table_asset, tell_outlets
from logbus.model import Pipeline, instant_text
from logbus.operators.load_window import load_summary

from tests.support.airflow_context import HOUR_START
from tests.support.fake_ledger import window


def test_a_pipeline_and_its_name_stand_for_the_same_asset() -> None:
    assert table_asset("clicks") == table_asset(Pipeline(name="clicks", topic="t", table="x", parse="json"))


def test_an_event_says_which_window_with_its_counts_and_fingerprint() -> None:
    extra = event_extra([window(HOUR_START, attempt=2)])
    assert (extra["pipeline"], extra["window_count"], extra["loaded"], extra["dead_lettered"]) == ("access_log", 1, 9, 1)
    [said] = extra["windows"]
    assert (said["start"], said["loaded_attempt"], said["fingerprint"]) == ("2015-05-17T10:00:00Z", 2, f"{10:016x}")
    assert json.loads(json.dumps(extra)) == extra


def test_an_event_over_very_many_windows_stays_small_and_names_them_all() -> None:
    windows = [window(HOUR_START + timedelta(hours=number), attempt=1) for number in range(WINDOWS_SHOWN_MAX + 5)]
    extra = event_extra(windows)
    assert (len(extra["windows"]), extra["window_count"]) == (WINDOWS_SHOWN_MAX, WINDOWS_SHOWN_MAX + 5)
    assert extra["starts"] == [instant_text(window.interval.start) for window in windows]
    assert load_summary(windows) == {"read": 10 * len(windows), **extra}


def test_each_outlet_asset_is_told_and_nothing_else() -> None:
    events: dict[Any, Any] = defaultdict(SimpleNamespace)
    asset = table_asset("access_log")
    tell_outlets({"outlet_events": events}, ["not an asset", asset], [window(HOUR_START, attempt=1)])
    assert list(events) == [asset]
    assert events[asset].extra["window_count"] == 1


def test_without_outlets_nobody_is_told_and_no_window_is_looked_at() -> None:
    events: dict[Any, Any] = defaultdict(SimpleNamespace)
    unread = iter([window(HOUR_START)])
    tell_outlets({"outlet_events": events}, [], unread)
    assert (list(events), len(list(unread))) == ([], 1)
