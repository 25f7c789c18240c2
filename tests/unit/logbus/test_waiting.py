from __future__ import annotations

from dataclasses import dataclass

import pytest
from logbus import waiting
from logbus.errors import NotInTime
from logbus.waiting import announced, wait_until


@dataclass
class Program:
    """A process that ends after so many looks."""

    looks_left: int

    def raise_if_ended(self) -> None:
        self.looks_left -= 1
        if self.looks_left < 0:
            raise ChildProcessError("the broker ended with status 3")

    def report(self) -> str:
        return "the broker is alive; the end of broker.log:\nrecovering"


def test_the_answer_that_ends_a_wait_is_returned_and_errors_before_it_are_a_no() -> None:
    answers = iter([TimeoutError("slow"), None, False, "yes"])

    def ask() -> object:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert wait_until(ask, what="an answer", poll_seconds=0, not_yet=TimeoutError) == "yes"


def test_any_other_error_ends_the_wait() -> None:
    def ask() -> bool:
        raise PermissionError("no such user")

    with pytest.raises(PermissionError):
        wait_until(ask, what="an answer", not_yet=TimeoutError)


def test_a_process_that_ends_ends_the_wait() -> None:
    with pytest.raises(ChildProcessError, match="status 3"):
        wait_until(lambda: False, what="the broker", poll_seconds=0, processes=[Program(looks_left=5)])


def test_a_deadline_says_the_last_error_what_is_alive_what_it_wrote_and_what_to_type() -> None:
    def ask() -> bool:
        raise TimeoutError("no answer in 5 s")

    remedy = "to see more: logbus doctor"
    with pytest.raises(NotInTime) as late:
        wait_until(
            ask, what="the broker", timeout_seconds=0, not_yet=TimeoutError, processes=[Program(looks_left=5)], remedy=remedy
        )
    gave_up = "gave up waiting for the broker after 0 s: no answer in 5 s"
    assert str(late.value).splitlines() == [gave_up, *Program(5).report().splitlines(), "to see more: logbus doctor"]


def test_a_long_wait_is_announced_while_a_single_call_holds_it_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "SILENCE_SECONDS_MAX", 0.01)
    said: list[str] = []
    with announced("the broker", said.append):
        wait_until(lambda: len(said) >= 2, what="two announcements")
    assert all(text.startswith("waiting for the broker: ") for text in said)


def test_a_short_wait_is_not_announced() -> None:
    said: list[str] = []
    assert wait_until(lambda: True, what="the broker", say=said.append)
    assert not said
