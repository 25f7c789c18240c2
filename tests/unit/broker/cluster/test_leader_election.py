from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from logbus_broker.cluster.leader_election import ElectionRequests, HandoverRequest, Presence, handovers, out_of_balance, presence
from logbus_broker.cluster.metadata_image import NO_LEADER, BrokerNode, MetadataImage, PartitionState

from tests.unit.broker.cluster.cases import apply, changed, decided, decisions, named, present, state, topic

REPLICAS = (1, 2, 3)
KEY = ("t", 0)


def facts(new: PartitionState) -> tuple[Any, ...]:
    return new.leader, new.leader_epoch, new.isr, new.eligible


# Elections

MINIMUM = {"minimum": 2}
UNCLEAN = {"minimum": 2, "is_unclean_allowed": True}
SHORT = state(1, (1,), eligible=(2, 3))


def lost(eligible: tuple[int, ...] = ()) -> PartitionState:
    """The log of the only member is gone."""
    return state(NO_LEADER, (1,), is_lost=True, eligible=eligible)


ELECTIONS: dict[str, tuple[PartitionState, Presence, dict[str, Any], tuple[Any, ...] | None]] = {
    "all is well": (state(1, (1, 2, 3)), present(1, 2, 3), {}, None),
    "the first of the assignment that is in sync is elected": (state(1, (3, 2, 1)), present(2, 3), {}, (2, 8, (3, 2), ())),
    "for a suspect too": (state(1, (3, 2, 1)), present(2, 3, registered=(1,)), {}, (2, 8, (3, 2), ())),
    "also while settling": (state(1, (3, 2, 1)), present(2, 3, registered=(1,), is_settling=True), {}, (2, 8, (3, 2), ())),
    "who has not come back yet is waited for": (state(1, (1, 2, 3)), present(2, 3, is_settling=True), {}, None),
    # No session, and no process that could get one: it died while ZooKeeper was away.
    "but not where its port refuses": (
        state(1, (3, 2, 1)),
        replace(present(2, 3, is_settling=True), suspects=frozenset({1})),
        {},
        (2, 8, (3, 2), ()),
    ),
    "nobody outside of the set is elected": (state(1, (1, 3)), present(2, 3), {}, (3, 8, (3,), ())),
    "a member that is back is elected": (state(NO_LEADER, (1,)), present(1, 2), {}, (1, 8, (1,), ())),
    "who leaves a set that is too small stays eligible": (state(1, (1, 2)), present(2, 3), MINIMUM, (2, 8, (2,), (1,))),
    "an eligible one is not elected while a member is there": (SHORT, present(1, 2, 3), MINIMUM, None),
    "an eligible one is elected where no member is there": (SHORT, present(2, 3), MINIMUM, (2, 8, (2,), (1, 3))),
    "nobody stays eligible where the set is large enough": (SHORT, present(2, 3), {}, (2, 8, (2,), ())),
    # The elected broker may lose its disk before the dead return, and they have everything.
    "dead members stay eligible": (state(1, (1,), eligible=(2,)), present(2), MINIMUM, (2, 8, (2,), (1,))),
    "who is being stopped is elected last": (state(1, (1, 2, 3)), present(2, 3, leaving=(2,)), {}, (3, 8, (2, 3), ())),
    "of all members": (state(1, (1, 2), eligible=(3,)), present(2, 3, leaving=(2,)), {}, (2, 8, (2,), ())),
    "dead members are taken out": (state(1, (1, 2, 3)), present(1, 3), {}, (1, 7, (1, 3), ())),
    "and stay eligible where too few are left": (state(1, (1, 2, 3)), present(1), MINIMUM, (1, 7, (1,), (2, 3))),
    "suspects stay in sets that others lead": (state(1, (1, 2, 3)), present(1, 3, registered=(2,)), {}, None),
    "a member whose log is gone does not lead": (lost(), present(1, 2, 3), {}, None),
    "an eligible one does instead": (lost((3,)), present(1, 2, 3), MINIMUM, (3, 8, (3,), ())),
    "and was a member": (state(NO_LEADER, (2,), is_lost=True, eligible=(1,)), present(1, 2), MINIMUM, (1, 8, (1,), ())),
    # An eligible one has everything that was acknowledged, and its process may just be restarting.
    "no unclean election while an eligible one has a session": (
        state(NO_LEADER, (1,), eligible=(2,)),
        present(3, registered=(2,)),
        UNCLEAN,
        None,
    ),
    "nor where the member's log is gone": (lost((2,)), present(1, 3, registered=(2,)), UNCLEAN, None),
    "it is held once that has none": (lost((2,)), present(1, 3), UNCLEAN, (3, 8, (3,), ())),
    "an empty log comes after all others": (
        lost(),
        present(1, 3),
        {"requests": ElectionRequests(unclean={KEY})},
        (3, 8, (3,), ()),
    ),
    "and before nobody": (lost(), present(1), {"requests": ElectionRequests(unclean={KEY})}, (1, 8, (1,), ())),
}


@pytest.mark.parametrize("name", ELECTIONS)
def test_who_leads_and_who_is_in_sync(name: str) -> None:
    before, live, settings, after = ELECTIONS[name]
    new = decided(topic(REPLICAS, before), live, **settings)
    assert (None if new is None else facts(new)) == after


def test_nothing_is_lost_any_more_once_an_eligible_one_leads() -> None:
    new = changed(topic(REPLICAS, lost((3,))), present(1, 2, 3), minimum=2)
    assert not new.is_lost


def test_without_a_candidate_nobody_leads_in_a_new_epoch_and_the_set_stays() -> None:
    new = changed(topic(REPLICAS, state(1, (1,))), present(2, 3))
    assert facts(new) == (NO_LEADER, 8, (1,), ())
    assert decided(topic(REPLICAS, new), present(2, 3)) is None, "once is enough"


def test_a_process_that_was_replaced_does_not_lead_any_more() -> None:
    brokers = {number: BrokerNode(broker_id=number, incarnation=1, endpoints={}) for number in REPLICAS}
    image = MetadataImage(brokers=brokers, incarnations={1: 2, 2: 1, 3: 1})
    live = presence(image, (), is_settling=False)
    assert facts(changed(topic(REPLICAS, state(1, (1, 2, 3))), live)) == (2, 8, (2, 3), ())


def test_nobody_is_dead_while_the_own_connection_is_young() -> None:
    live = present(2, is_settling=True)
    assert decided(topic(REPLICAS, state(1, (1, 2, 3))), live) is None
    assert decided(topic(REPLICAS, state(2, (1, 2, 3))), live) is None
    kept = changed(topic(REPLICAS, state(3, (1, 2, 3))), present(2, registered=(3,), is_settling=True))
    assert facts(kept) == (2, 8, (1, 2), ()), "the suspect goes, the absent one may only be late"


# Unclean elections


def test_an_unclean_election_needs_the_setting_and_a_set_without_any_session() -> None:
    partition = topic(REPLICAS, state(NO_LEADER, (1,)))
    assert decided(partition, present(2, 3)) is None
    new = changed(partition, present(2, 3), is_unclean_allowed=True)
    assert facts(new) == (2, 8, (2,), ())
    assert new.is_recovering
    assert decided(partition, present(2, 3, registered=(1,)), is_unclean_allowed=True) is None, "it may only be restarting"
    assert decided(partition, present(2, 3, is_settling=True), is_unclean_allowed=True) is None


def test_an_unclean_election_that_is_asked_for_is_held_where_there_is_no_clean_one() -> None:
    requests = ElectionRequests(unclean={KEY})
    assert facts(changed(topic(REPLICAS, state(NO_LEADER, (1,))), present(3), requests=requests)) == (3, 8, (3,), ())
    clean = changed(topic(REPLICAS, state(NO_LEADER, (3,))), present(2, 3), requests=requests)
    assert (clean.leader, clean.is_recovering) == (3, False)
    assert decided(topic(REPLICAS, state(1, (1,))), present(1, 2, 3), requests=requests) is None


# Members


# Handing over


def test_a_leader_that_is_being_stopped_is_asked_to_hand_over() -> None:
    new = changed(topic(REPLICAS, state(1, (1, 2, 3))), present(1, 2, 3, leaving=(1, 2)))
    assert facts(new) == (1, 7, (1, 2, 3), ())
    assert new.handover_to == 3
    assert decided(topic(REPLICAS, state(1, (1,))), present(1, 2, 3, leaving=(1,))) is None, "nobody to hand it to"


def test_a_leader_that_is_being_stopped_and_does_not_answer_loses_the_lead() -> None:
    partition = topic(REPLICAS, state(1, (1, 2), handover_to=2))
    requests = ElectionRequests(handovers={KEY: HandoverRequest(to=2, epoch=7, at=100.0)})
    live = present(1, 2, leaving=(1,))
    assert decided(partition, live, now=104.9, requests=requests) is None
    new = changed(partition, live, now=105.0, requests=requests)
    assert facts(new) == (2, 8, (1, 2), ())
    assert new.handover_to is None


def test_the_preferred_leader_is_asked_for_only_where_it_is_in_sync() -> None:
    requests = ElectionRequests(preferred={KEY})
    new = changed(topic(REPLICAS, state(2, (1, 2))), present(1, 2, 3), requests=requests)
    assert (new.leader, new.handover_to) == (2, 1)
    assert decided(topic(REPLICAS, state(2, (2, 3))), present(1, 2, 3), requests=requests) is None
    assert decided(topic(REPLICAS, state(2, (1, 2))), present(1, 2, 3)) is None, "nobody asked"


def test_a_living_leader_that_does_not_hand_over_in_time_keeps_the_lead_and_is_not_asked_for_a_minute() -> None:
    live, asked = present(1, 2, 3), {KEY: HandoverRequest(to=1, epoch=7, at=100.0)}
    waiting = topic(REPLICAS, state(2, (1, 2), handover_to=1))
    again = ElectionRequests(preferred={KEY}, handovers=asked)
    assert decided(waiting, live, now=104.9, requests=again) is None
    new = changed(waiting, live, now=105.0, requests=again)
    assert (new.leader, new.leader_epoch, new.handover_to) == (2, 7, None)
    withdrawn = topic(REPLICAS, state(2, (1, 2)))
    assert decided(withdrawn, live, now=159.0, requests=again) is None
    assert decided(withdrawn, live, now=160.0, requests=again) is not None


def test_a_request_whose_target_is_gone_is_withdrawn() -> None:
    new = changed(topic(REPLICAS, state(2, (1, 2), handover_to=1)), present(2, 3))
    assert (new.isr, new.handover_to) == ((2,), None)


def test_the_time_of_a_request_is_kept_while_it_stands() -> None:
    image = MetadataImage(topics=named([topic(REPLICAS, state(2, (1, 2), handover_to=1))]))
    first = handovers(image.topics.values(), {}, 100.0)
    assert first == {KEY: HandoverRequest(to=1, epoch=7, at=100.0)}
    assert handovers(image.topics.values(), first, 103.0) == first
    withdrawn = MetadataImage(topics=named([topic(REPLICAS, state(2, (1, 2)))]))
    assert handovers(withdrawn.topics.values(), first, 105.0) == first
    assert handovers(withdrawn.topics.values(), first, 160.0) == {}
    other = MetadataImage(topics=named([topic(REPLICAS, state(2, (1, 2), handover_to=3))]))
    assert handovers(other.topics.values(), first, 104.0) == {KEY: HandoverRequest(to=3, epoch=7, at=104.0)}


# Balance, and the rest


def test_only_brokers_that_lack_more_than_a_share_of_their_leads_are_out_of_balance() -> None:
    well, away = state(1, REPLICAS), state(2, REPLICAS)
    a_tenth = MetadataImage(topics=named([topic(REPLICAS, *[well] * 9, away)]))
    assert (out_of_balance(a_tenth, 10), out_of_balance(a_tenth, 9)) == ([], [("t", 9)])
    assert out_of_balance(MetadataImage(topics=named([topic(REPLICAS, *[well] * 8, away, away)])), 10) == [("t", 8), ("t", 9)]
    assert out_of_balance(MetadataImage(topics=named([topic(REPLICAS, away)]), deleting=frozenset({"t"})), 10) == []


def test_partitions_whose_znode_is_gone_are_left_alone() -> None:
    assert decided(topic(REPLICAS, state(NO_LEADER, (), epoch=-1, version=-1)), present(1, 2, 3)) is None


def test_ten_thousand_partitions_of_a_dead_broker_are_all_elected() -> None:
    topics = [topic(REPLICAS, *[state(1, (1, 2, 3))] * 100, name=f"t{number}") for number in range(100)]
    found = decisions(topics, present(2, 3))
    assert len(found) == 10_000
    assert decisions(list(apply(named(topics), found).values()), present(2, 3)) == []
