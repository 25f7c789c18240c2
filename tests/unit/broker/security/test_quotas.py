"""Whose limit applies, and how long a client is held up; the figures are those that an Apache Kafka 4.1 answered."""

from __future__ import annotations

import pytest
from logbus_broker.security.quotas import (
    CONTROLLER_MUTATIONS,
    PRODUCER_BYTES,
    REQUEST_PERCENTAGE,
    ClientQuotas,
    Limit,
    limit_of,
)
from logbus_broker.security.state import QuotaEntity, SecurityState

ANN = "User:ann"


def entity(**names: str | None) -> QuotaEntity:
    return frozenset((name.replace("_", "-"), value) for name, value in names.items())


# From the most particular to the least, as Kafka chooses; with the usage that the clients of a limit share.
CHOICES = [
    (entity(user="ann", client_id="app"), ("ann", "app")),
    (entity(user="ann", client_id=None), ("ann", "app")),
    (entity(user="ann"), ("ann", None)),
    (entity(user=None, client_id="app"), ("ann", "app")),
    (entity(user=None, client_id=None), ("ann", "app")),
    (entity(user=None), ("ann", None)),
    (entity(client_id="app"), (None, "app")),
    (entity(client_id=None), (None, "app")),
]


@pytest.mark.parametrize("index", range(len(CHOICES)))
def test_the_most_particular_limit_is_chosen(index: int) -> None:
    quotas = {chosen: {PRODUCER_BYTES: float(rate)} for rate, (chosen, _) in enumerate(CHOICES[index:], 1)}
    assert limit_of(quotas, PRODUCER_BYTES, "ann", "app") == Limit(1.0, CHOICES[index][1])
    assert limit_of(quotas, REQUEST_PERCENTAGE, "ann", "app") is None, "a limit of another kind"


def test_a_limit_for_one_kind_leaves_the_others_to_less_particular_limits() -> None:
    quotas = {entity(user="ann"): {REQUEST_PERCENTAGE: 5.0}, entity(user=None): {PRODUCER_BYTES: 7.0}}
    assert limit_of(quotas, PRODUCER_BYTES, "ann", "app") == Limit(7.0, ("ann", None))


def quotas_of(limits: dict[QuotaEntity, dict[str, float]]) -> ClientQuotas:
    state = SecurityState(quotas=limits)
    return ClientQuotas(lambda: state, 11, 1.0)


def test_the_pauses_of_a_producer_are_those_of_kafka() -> None:
    quotas = quotas_of({entity(user="ann"): {PRODUCER_BYTES: 20_000.0}})
    pauses = [round(quotas.record(PRODUCER_BYTES, ANN, "app", 60_000, now), 3) for now in (0.0, 0.05, 0.1, 0.143, 2.0, 7.0)]
    assert pauses == [0.0, 0.0, 0.0, 1.857, 5.0, 8.0]
    assert quotas.record(PRODUCER_BYTES, "User:bob", "app", 1e9, 7.0) == 0.0, "another user has no limit"


def test_half_a_minute_at_the_limit_is_the_limit() -> None:
    quotas = quotas_of({entity(client_id=None): {PRODUCER_BYTES: 20_000.0}})
    sent, now = [], 0.0
    while now < 90.0:
        sent.append(now)
        now += 0.01 + quotas.record(PRODUCER_BYTES, ANN, "app", 60_000, now)
    assert sum(20.0 <= at < 80.0 for at in sent) * 60_000 / 60.0 == pytest.approx(20_000, rel=0.1), "behind the first window"


def test_partitions_are_created_while_the_bucket_holds_something() -> None:
    quotas = quotas_of({entity(user="ann"): {CONTROLLER_MUTATIONS: 0.5}})

    def take(count: int, now: float) -> list[float | None]:
        return [quotas.take_mutations(ANN, "admin", 1, now, strict=True) for _ in range(count)]

    assert take(4, 0.0) == [0.0] * 4
    assert take(4, 0.0) == [0.0, 1.0, None, None], "the bucket holds 5.5, and may have debts"
    assert quotas.seconds_without_mutations(ANN, "admin", 0.5) == 0.5
    assert take(2, 1.5) == [pytest.approx(1.5), None], "a quarter of a partition was left"
    assert quotas.take_mutations(ANN, "admin", 10, 2.0, strict=False) == pytest.approx(21.0), "older clients wait afterwards"


def test_a_limit_that_was_taken_away_holds_nobody_up() -> None:
    states = [SecurityState(quotas={entity(user="ann"): {PRODUCER_BYTES: 1.0}})]
    quotas = ClientQuotas(lambda: states[-1], 11, 1.0)
    assert quotas.is_active
    assert quotas.record(PRODUCER_BYTES, ANN, None, 1_000, 0.0) > 900
    states.append(SecurityState())
    assert not quotas.is_active
    assert quotas.record(PRODUCER_BYTES, ANN, None, 1_000, 1.0) == 0.0
