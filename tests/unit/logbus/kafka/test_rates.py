from __future__ import annotations

from datetime import timedelta

from logbus.kafka.rates import LOOKS_MAX, RATE_WINDOW, TOPICS_MAX, Rates

from tests.support.ledgers import NOW

SECOND = timedelta(seconds=1)


def test_a_rate_takes_two_looks() -> None:
    rates = Rates()
    rates.put_down("t", {0: 100, 1: 50}, NOW)
    assert rates.per_second("t") is None
    rates.put_down("t", {0: 160, 1: 90}, NOW + 10 * SECOND)
    assert rates.per_second("t") == 10.0


def test_what_is_long_ago_does_not_count() -> None:
    rates = Rates()
    for number in range(LOOKS_MAX * 2):
        rates.put_down("t", {0: 1000 if number else 0}, NOW + number * RATE_WINDOW / 10)
    assert rates.per_second("t") == 0.0


def test_two_looks_at_once_are_one_and_a_log_that_shrank_is_none() -> None:
    rates = Rates()
    rates.put_down("t", {0: 100}, NOW)
    rates.put_down("t", {0: 999}, NOW + SECOND)
    rates.put_down("t", {0: 1}, NOW + 10 * SECOND)
    assert rates.per_second("t") is None


def test_what_is_kept_is_bounded_and_the_oldest_topic_goes() -> None:
    rates = Rates()
    for number in range(TOPICS_MAX + 1):
        rates.put_down(str(number), {0: 1}, NOW)
    last = str(TOPICS_MAX)
    rates.put_down(last, {0: 11}, NOW + 10 * SECOND)
    rates.put_down("0", {0: 11}, NOW + 10 * SECOND)
    assert (rates.per_second("0"), rates.per_second(last)) == (None, 1.0)
