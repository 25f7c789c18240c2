"""What a starting broker changes in the state of partitions for which it is listed as in sync or eligible."""

from __future__ import annotations

from dataclasses import replace

import pytest

from broker.coordination.image import NO_LEADER, PartitionState
from broker.replication.vouching import Kept, state_at_start

ME = 1
LED = PartitionState(leader=ME, leader_epoch=4, isr=(1, 2, 3), version=9)
FOLLOWED = replace(LED, leader=2)
LAST = replace(LED, isr=(ME,))


def at_start(state: PartitionState, kept: Kept, minimum: int = 1) -> PartitionState:
    return state_at_start(ME, state, kept, minimum)


@pytest.mark.parametrize("kept", [Kept.WHOLE, Kept.PERHAPS_LESS])
def test_no_process_leads_in_an_epoch_that_an_earlier_one_led_in(kept: Kept) -> None:
    assert at_start(LAST, kept) == replace(LAST, leader_epoch=5)
    assert at_start(LED, Kept.WHOLE) == replace(LED, leader_epoch=5)


def test_a_member_that_kept_everything_changes_nothing() -> None:
    assert at_start(FOLLOWED, Kept.WHOLE) == FOLLOWED


@pytest.mark.parametrize("kept", [Kept.PERHAPS_LESS, Kept.GONE])
def test_a_member_that_cannot_vouch_leaves_while_others_are_there(kept: Kept) -> None:
    assert at_start(FOLLOWED, kept) == replace(FOLLOWED, isr=(2, 3))
    assert at_start(LED, kept) == replace(LED, leader=NO_LEADER, leader_epoch=5, isr=(2, 3))


@pytest.mark.parametrize("kept", [Kept.PERHAPS_LESS, Kept.GONE])
def test_who_cannot_vouch_is_not_eligible_either(kept: Kept) -> None:
    two = replace(FOLLOWED, isr=(1, 2), eligible=(3,))
    assert at_start(two, kept, minimum=3) == replace(two, isr=(2,))
    outside = replace(FOLLOWED, isr=(2,), eligible=(1, 3))
    assert at_start(outside, kept) == replace(outside, eligible=(3,))
    assert at_start(outside, Kept.WHOLE) == outside


def test_nobody_leads_what_the_last_member_has_lost() -> None:
    assert at_start(LAST, Kept.GONE) == replace(LAST, leader=NO_LEADER, leader_epoch=5, is_lost=True)
    nobody = replace(LAST, leader=NO_LEADER)
    assert at_start(nobody, Kept.GONE) == replace(nobody, is_lost=True)


def test_a_log_that_is_found_again_is_not_lost() -> None:
    lost = replace(LAST, leader=NO_LEADER, is_lost=True)
    assert at_start(lost, Kept.PERHAPS_LESS) == replace(lost, is_lost=False)


def test_a_hand_over_to_an_earlier_process_is_withdrawn() -> None:
    asked = replace(FOLLOWED, handover_to=ME)
    assert at_start(asked, Kept.PERHAPS_LESS).handover_to is None
    assert at_start(replace(LED, handover_to=2), Kept.WHOLE).handover_to is None


@pytest.mark.parametrize("kept", list(Kept))
@pytest.mark.parametrize("state", [LED, FOLLOWED, LAST, replace(FOLLOWED, isr=(2,), eligible=(1,))])
def test_the_set_is_never_empty_and_epochs_never_fall(state: PartitionState, kept: Kept) -> None:
    new = at_start(state, kept, minimum=2)
    assert new.isr
    assert set(new.isr) <= set(state.isr)
    assert new.leader_epoch >= state.leader_epoch
    assert new.version == state.version
