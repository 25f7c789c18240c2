from __future__ import annotations

from types import SimpleNamespace

import pytest
from logbus.assets import event_extra
from logbus.errors import UserError
from logbus.model import HOUR, instant_text
from logbus.operators.take_windows import windows_of_events

from tests.support.airflow_context import HOUR_START
from tests.support.fake_ledger import window

TEN, ELEVEN = "2015-05-17T10:00:00Z", "2015-05-17T11:00:00Z"


def test_windows_of_triggers_and_of_tasks_are_told_alike() -> None:
    of_trigger = {"from_trigger": True, "payload": {"watcher": "w", "pipeline": "p", "stage": "audited", "start": TEN}}
    of_task = {"pipeline": "p", "starts": [TEN, ELEVEN]}
    told = windows_of_events([SimpleNamespace(extra=extra) for extra in (of_trigger, of_task)])
    assert [instant_text(start) for start in told["p"]] == [TEN, TEN, ELEVEN]


def test_an_event_of_very_many_windows_tells_of_all() -> None:
    windows = [window(HOUR_START + number * HOUR, attempt=1) for number in range(150)]
    told = windows_of_events([SimpleNamespace(extra=event_extra(windows))])
    assert told == {"access_log": [one.interval.start for one in windows]}


def test_events_that_tell_of_no_window_are_a_clear_error() -> None:
    with pytest.raises(UserError, match="no event"):
        windows_of_events([SimpleNamespace(extra={})])
