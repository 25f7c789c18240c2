from __future__ import annotations

from types import SimpleNamespace

import pytest
from logbus.errors import UserError
from logbus.model import instant_text
from logbus.operators.take_windows import windows_of_events

TEN, ELEVEN = "2015-05-17T10:00:00Z", "2015-05-17T11:00:00Z"


def test_windows_of_triggers_and_of_tasks_are_told_alike() -> None:
    of_trigger = {"from_trigger": True, "payload": {"watcher": "w", "pipeline": "p", "stage": "audited", "start": TEN}}
    of_task = {"pipeline": "p", "windows": [{"pipeline": "p", "start": start} for start in (TEN, ELEVEN)]}
    told = windows_of_events([SimpleNamespace(extra=extra) for extra in (of_trigger, of_task)])
    assert [instant_text(start) for start in told["p"]] == [TEN, TEN, ELEVEN]


def test_events_that_tell_of_no_window_are_a_clear_error() -> None:
    with pytest.raises(UserError, match="no event"):
        windows_of_events([SimpleNamespace(extra={})])
