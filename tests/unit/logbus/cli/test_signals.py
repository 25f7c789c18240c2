from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest
from logbus.cli.endings import Stop, Terminated, raising, stopping
from logbus.errors import ExitCode


def test_a_signal_between_two_items_ends_the_work_behind_the_first() -> None:
    taken = []
    with stopping() as stop:
        for item in stop.waiting_for(range(10)):
            taken.append(item)
            if item == 3:
                signal.raise_signal(signal.SIGINT)
    assert (taken, stop.exit_code) == ([0, 1, 2, 3], ExitCode.INTERRUPTED)


def test_a_signal_ends_the_waiting_for_the_next_item() -> None:
    def typed() -> Iterator[str]:
        yield "a line"
        signal.raise_signal(signal.SIGTERM)
        yield "never read"

    with stopping() as stop:
        assert list(stop.waiting_for(typed())) == ["a line"]
    assert stop.exit_code is ExitCode.TERMINATED


@pytest.mark.parametrize(("number", "raised"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)])
def test_a_second_signal_is_obeyed_at_once(number: signal.Signals, raised: type[BaseException]) -> None:
    with stopping() as stop:
        signal.raise_signal(signal.SIGINT)
        assert stop
        with pytest.raises(raised):
            signal.raise_signal(number)


def test_the_handlers_of_before_are_back_afterwards() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    with stopping(), raising():
        assert signal.getsignal(signal.SIGTERM) not in before
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before


@pytest.fixture(params=[signal.SIG_DFL, signal.SIG_IGN])
def hangup(request: pytest.FixtureRequest) -> Iterator[Any]:
    former = signal.signal(signal.SIGHUP, request.param)
    yield request.param
    signal.signal(signal.SIGHUP, former)


def test_a_closed_terminal_ends_work_unless_it_was_to_be_ignored(hangup: Any) -> None:
    with raising():
        if hangup == signal.SIG_IGN:
            signal.raise_signal(signal.SIGHUP)
        else:
            with pytest.raises(Terminated):
                signal.raise_signal(signal.SIGHUP)


def test_work_that_cleans_up_when_it_is_left_is_left_by_an_error() -> None:
    with raising(), pytest.raises(Terminated):
        signal.raise_signal(signal.SIGTERM)


def test_an_interrupt_that_is_not_ours_goes_on() -> None:
    stop = Stop()
    items = stop.waiting_for([1, 2])
    next(items)
    with pytest.raises(KeyboardInterrupt):
        items.throw(KeyboardInterrupt)  # type: ignore[attr-defined]
