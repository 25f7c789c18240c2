"""Sending to an unreachable broker with the real client: what a signal does."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest
from logbus.cli import console
from logbus.cli.endings import Stopped, stopping
from logbus.errors import ExitCode
from logbus.kafka.producing import open_sending

NOWHERE = {"bootstrap.servers": "127.0.0.1:1"}


def test_a_signal_ends_the_wait_for_a_broker_that_is_away_and_says_what_is_not_known() -> None:
    def lines() -> Iterator[dict[str, Any]]:
        yield {"value": b"one"}
        signal.raise_signal(signal.SIGTERM)

    with (
        stopping() as stop,
        pytest.raises(Stopped, match="^interrupted: 0 records stored in topic t; 1 record in flight") as stopped,
    ):
        console.send_all(open_sending(NOWHERE, "t"), lines(), stop, seconds_max=0.1)
    assert stopped.value.exit_code is ExitCode.TERMINATED


def test_settings_that_no_client_takes_are_one_line() -> None:
    with pytest.raises(console.UserError, match="No such configuration property"):
        open_sending({**NOWHERE, "no.such.thing": 1}, "t")
