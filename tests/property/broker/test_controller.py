"""What the controller decides, from any state that a cluster can be in."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st
from logbus_broker.cluster.assignment import finish, moving, originals, place_replicas, reassign, targets
from logbus_broker.cluster.leader_election import ElectionRequests, HandoverRequest, Presence, decide, handovers
from logbus_broker.cluster.metadata_image import NO_LEADER, ClusterTopic, PartitionState

from tests.unit.broker.cluster.cases import apply

BROKERS = range(1, 7)
NAME = "t"
TOPIC_ID = UUID(int=1)

some = st.sets(st.sampled_from(BROKERS))


@st.composite
def states(draw: st.DrawFn, replicas: tuple[int, ...]) -> PartitionState:
    isr = draw(st.lists(st.sampled_from(replicas), min_size=1, unique=True))
    others = [broker for broker in replicas if broker not in isr]
    return PartitionState(
        leader=draw(st.sampled_from([*isr, NO_LEADER])),
        leader_epoch=draw(st.integers(0, 9)),
        isr=tuple(isr),
        version=draw(st.integers(0, 9)),
        eligible=tuple(draw(st.lists(st.sampled_from(others), unique=True)) if others else ()),
        handover_to=draw(st.sampled_from([*replicas, None])),
        is_lost=len(isr) == 1 and draw(st.booleans()),
    )


@st.composite
def topics(draw: st.DrawFn) -> ClusterTopic:
    """One topic with one to three partitions, any of which may be under reassignment to other brokers."""
    lists = draw(st.lists(st.lists(st.sampled_from(BROKERS), min_size=1, max_size=4, unique=True), min_size=1, max_size=3))
    replicas = tuple(tuple(one) for one in lists)
    found = [replace(draw(states(one)), eligible=()) for one in replicas]
    topic = ClusterTopic(name=NAME, topic_id=TOPIC_ID, replicas=replicas, states=tuple(found), version=0)
    for _ in range(draw(st.integers(0, 2))):
        wanted = {
            index: tuple(draw(st.lists(st.sampled_from(BROKERS), min_size=1, max_size=4, unique=True)))
            for index in draw(st.sets(st.sampled_from(range(len(replicas)))))
        }
        step = reassign(topic, wanted)
        topic = step.topic if step else topic
    return replace(topic, states=tuple(draw(states(one)) for one in topic.replicas))


@st.composite
def presences(draw: st.DrawFn) -> Presence:
    registered = draw(some)
    return Presence(
        registered=frozenset(registered),
        able=frozenset(registered - draw(some)),
        leaving=frozenset(draw(some)),
        is_settling=draw(st.booleans()),
    )


@st.composite
def requests_for(draw: st.DrawFn, topic: ClusterTopic) -> ElectionRequests:
    keys = [(NAME, index) for index in range(topic.partition_count)]
    asked = {
        key: HandoverRequest(
            to=draw(st.sampled_from(topic.replicas[key[1]])),
            epoch=topic.states[key[1]].leader_epoch,
            at=draw(st.sampled_from([0.0, -6.0, -70.0])),
        )
        for key in keys
        if draw(st.booleans())
    }
    some_of = st.sets(st.sampled_from(keys))
    return ElectionRequests(preferred=draw(some_of), unclean=draw(some_of), handovers=asked)


@given(st.data(), topics(), presences(), st.integers(1, 3), st.booleans())
def test_decisions_keep_the_rules_of_a_state_and_converge(
    data: st.DataObject, topic: ClusterTopic, there: Presence, minimum: int, is_unclean_allowed: bool
) -> None:
    requests = data.draw(requests_for(topic))

    def decisions_on(one: ClusterTopic, asked: ElectionRequests) -> list[object]:
        return list(
            decide(
                [one],
                there,
                minimum_of=lambda _: minimum,
                is_unclean_allowed=lambda _: is_unclean_allowed,
                now=0.0,
                requests=asked,
            )
        )

    found = decide(
        [topic], there, minimum_of=lambda _: minimum, is_unclean_allowed=lambda _: is_unclean_allowed, now=0.0, requests=requests
    )
    for decision in found:
        old, new = topic.states[decision.index], decision.state
        replicas = topic.replicas[decision.index]
        assert new.version == old.version + 1
        assert new.isr
        assert {*new.isr, *new.eligible} <= {*replicas}
        assert not {*new.isr} & {*new.eligible}
        assert new.leader == NO_LEADER or new.leader in new.isr
        assert new.handover_to is None or (new.handover_to in new.isr and new.handover_to != new.leader)
        assert not new.eligible or len(new.isr) < minimum or new.eligible == old.eligible
        assert (new.leader_epoch - old.leader_epoch) == (1 if new.leader != old.leader else 0)
        if new.leader not in (old.leader, NO_LEADER):
            assert new.leader in there.able
            is_clean = new.leader in ({*old.eligible} if old.is_lost else {*old.isr, *old.eligible})
            assert is_clean != new.is_recovering or old.is_recovering
            assert is_clean or is_unclean_allowed or (NAME, decision.index) in requests.unclean
        gone = {*old.isr} - {*new.isr}
        if not new.is_recovering and not old.is_lost and old.leader in there.able:
            assert gone <= {broker for broker in BROKERS if there.is_dead(broker)}
    after = apply({NAME: topic}, found)[NAME]
    asked = handovers([after], requests.handovers, 0.0)
    assert decisions_on(after, replace(requests, handovers=asked)) == []


@given(topics(), st.integers(1, 3))
def test_the_last_step_of_a_move_writes_list_and_set_together(topic: ClusterTopic, minimum: int) -> None:
    step = finish(topic, minimum)
    if step is None:
        return
    assert step.topic.version == topic.version + 1
    for index in step.moved:
        state = step.topic.states[index]
        assert state.version == topic.states[index].version + 1
        assert step.topic.replicas[index] == targets(topic, index)
        assert index not in step.topic.adding
        assert index not in step.topic.removing
        assert state.isr
        assert {*state.isr, *state.eligible} <= {*step.topic.replicas[index]}
        assert state.leader in state.isr
        assert len(state.isr) >= min(minimum, len(step.topic.replicas[index]))
        assert state.leader_epoch == topic.states[index].leader_epoch
    assert finish(step.topic, minimum) is None


@given(st.data(), topics())
def test_a_move_can_be_changed_and_taken_back_at_any_time(data: st.DataObject, topic: ClusterTopic) -> None:
    before = [originals(topic, index) for index in range(topic.partition_count)]
    wanted = {
        index: tuple(data.draw(st.lists(st.sampled_from(BROKERS), min_size=1, max_size=4, unique=True)))
        for index in data.draw(st.sets(st.sampled_from(range(topic.partition_count))))
    }
    step = reassign(topic, wanted)
    moved = step.topic if step else topic
    for index, target in wanted.items():
        assert targets(moved, index) == target
    assert [{*originals(moved, index)} for index in range(topic.partition_count)] == [{*one} for one in before]
    for index, replicas in enumerate(moved.replicas):
        assert len({*replicas}) == len(replicas)
        assert {*topic.replicas[index]} <= {*replicas}, "nobody stops being a replica but in the last step"
    back = reassign(moved, dict(enumerate(before)))
    restored = back.topic if back else moved
    assert [targets(restored, index) for index in range(topic.partition_count)] == before


@given(topics(), some, st.integers(1, 3))
def test_at_most_so_many_partitions_move_and_none_that_waits_for_a_broker(
    topic: ClusterTopic, registered: set[int], limit: int
) -> None:
    chosen = moving([topic], registered, limit)
    assert len(chosen) <= limit
    for _, index in chosen:
        assert index in topic.adding
        missing = {*topic.adding[index]} - {*topic.states[index].isr} - {*topic.removing.get(index, ())}
        assert missing
        assert missing <= registered


@given(st.dictionaries(st.integers(0, 40), st.sampled_from("abc"), min_size=1, max_size=9), st.data())
def test_replicas_are_spread_over_brokers_and_racks(racks: dict[int, str], data: st.DataObject) -> None:
    factor = data.draw(st.integers(1, len(racks)))
    rounds = data.draw(st.integers(1, 4))
    seed = data.draw(st.integers(0, 1000))
    found = place_replicas(rounds * len(racks), factor, racks, seed=seed)
    for replicas in found:
        assert len({*replicas}) == factor
        assert {*replicas} <= {*racks}
        assert len({racks[broker] for broker in replicas}) == min(factor, len({*racks.values()}))
    leads = [replicas[0] for replicas in found]
    assert all(leads.count(broker) == rounds for broker in racks)
    assert place_replicas(len(racks), factor, racks, seed=seed) == found[: len(racks)]
