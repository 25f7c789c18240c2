from __future__ import annotations

from logbus_broker.clock import UnhurriedClock

from tests.support.manual_clock import ManualClock

DAY_MS = 86_400_000


def test_the_unhurried_clock_agrees_with_one_that_does_not_jump() -> None:
    clock = ManualClock()
    unhurried = UnhurriedClock(clock)
    for _ in range(100):
        clock.advance_ms(1_234)
        assert unhurried.now_ms() == clock.now_ms()


def test_a_jump_ahead_is_followed_at_twice_the_speed_of_time_and_a_jump_back_at_once() -> None:
    clock = ManualClock()
    unhurried = UnhurriedClock(clock)
    began = clock.now_ms()
    clock.jump_ms(365 * DAY_MS)
    assert unhurried.now_ms() == began
    clock.advance_ms(1_000)
    assert unhurried.now_ms() == began + 2_000
    clock.jump_ms(-365 * DAY_MS)
    assert unhurried.now_ms() == clock.now_ms() == began + 1_000
    clock.jump_ms(DAY_MS)
    clock.advance_ms(DAY_MS)
    assert unhurried.now_ms() == clock.now_ms()
