"""A leader hands leadership over to another broker once that one has everything."""

from __future__ import annotations

from dataclasses import replace

from broker.replication.handover import propose_handover, takes_records
from broker.replication.progress import PartitionProgress
from tests.unit.broker.replication.test_isr import STATE, led_partition

ASKED = replace(STATE, isr=(0, 1, 2), handover_to=1)


def asked(*, end: int = 20) -> PartitionProgress:
    progress = led_partition(state=ASKED).progress
    progress.written(end, 0.0)
    return progress


def test_producers_are_served_until_the_heir_keeps_up() -> None:
    progress = asked()
    progress.fetched(1, 3, 12, 12, 5.0)
    assert takes_records(progress, 5.0)
    progress.fetched(1, 3, 20, 12, 6.0)
    assert not takes_records(progress, 6.0)


def test_no_records_are_taken_once_the_heir_has_everything() -> None:
    progress = asked()
    progress.fetched(1, 3, 20, 20, 5.0)
    assert not takes_records(progress, 500.0)


def test_the_lead_is_given_to_the_process_that_has_everything() -> None:
    progress = asked()
    progress.fetched(1, 3, 19, 19, 5.0)
    assert propose_handover(progress) is None
    progress.fetched(1, 3, 20, 10, 6.0)
    proposal = propose_handover(progress)
    assert proposal is not None
    assert proposal.state == replace(ASKED, leader=1, leader_epoch=2, handover_to=None, version=1)
    assert (proposal.additions, proposal.incarnations) == ({}, {1: 3})


def test_the_lead_is_not_given_to_one_that_is_not_in_sync() -> None:
    progress = led_partition(state=replace(ASKED, isr=(0, 2))).progress
    progress.fetched(1, 3, 10, 10, 5.0)
    assert propose_handover(progress) is None
    assert takes_records(progress, 5.0)


def test_who_is_asked_for_nothing_gives_nothing() -> None:
    progress = led_partition().progress
    progress.fetched(1, 3, 10, 10, 5.0)
    assert propose_handover(progress) is None
    assert takes_records(progress, 5.0)
