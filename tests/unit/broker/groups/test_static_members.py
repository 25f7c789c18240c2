"""Static members (KIP-345): they rejoin with their instance id, and a client that uses the old member id is fenced."""

from __future__ import annotations

import pytest

from broker.errors import (
    FencedInstanceId,
    UnknownMember,
)
from broker.groups.messages import JoinAnswer, MemberName
from tests.support.groups import SESSION_MS, CountingMembers, GroupUnderTest, state_of


def static_pair(group: GroupUnderTest) -> tuple[JoinAnswer, JoinAnswer]:
    first = group.join("s1", instance_id="one")
    group.join("s2", instance_id="two")
    group.join("s1 again", first.member_id, "one")
    leader, follower = group.answered["s1 again"], group.answered["s2"]
    group.sync("x1", leader, {leader.member_id: b"first", follower.member_id: b"second"})
    group.sync("x2", follower)
    return leader, follower


def test_a_static_member_comes_back_without_a_rebalance(group: GroupUnderTest) -> None:
    leader, follower = static_pair(group)
    back = group.join("s2 is back", instance_id="two")
    assert back.generation == follower.generation
    assert back.member_id not in (leader.member_id, follower.member_id)
    assert state_of(group) == "Stable"
    assert group.sync("x2 is back", back).assignment == b"second"
    group.heartbeat(leader)


@pytest.mark.parametrize("may_skip", [True, False])
def test_a_static_leader_comes_back_and_does_not_assign_anew(group: GroupUnderTest, may_skip: bool) -> None:
    leader, _follower = static_pair(group)
    back = group.join("s1 is back", instance_id="one", may_skip_assignment=may_skip)
    assert back.skip_assignment is may_skip
    assert (back.leader_id == back.member_id) is may_skip
    assert len(back.members) == (2 if may_skip else 0)
    assert group.sync("x1 is back", back).assignment == b"first"
    with pytest.raises(FencedInstanceId):
        group.heartbeat(leader, instance_id="one")


def test_a_static_member_that_was_replaced_while_it_waited_is_fenced(group: GroupUnderTest) -> None:
    leader, follower = static_pair(group)
    group.join("c")
    assert group.join("s2 waits", follower.member_id, "two") is None
    group.join("s2 is back", instance_id="two")
    assert isinstance(group.answered["s2 waits"], FencedInstanceId)
    group.join("s1 waits", leader.member_id, "one")
    assert group.answered["s2 is back"].generation == leader.generation + 1


def test_a_replaced_static_member_starts_over_an_unfinished_generation(group: GroupUnderTest) -> None:
    first = group.join("s1", instance_id="one")
    assert state_of(group) == "CompletingRebalance"
    back = group.join("s1 is back", instance_id="one")
    assert back.generation == first.generation + 1


def test_the_old_process_of_a_static_member_is_fenced_everywhere(group: GroupUnderTest) -> None:
    _leader, follower = static_pair(group)
    group.join("s2 is back", instance_id="two")
    old = MemberName(member_id=follower.member_id, instance_id="two")
    for action in (
        lambda: group.join("x", follower.member_id, "two"),
        lambda: group.sync("x", follower, name=old),
        lambda: group.heartbeat(follower, instance_id="two"),
        lambda: group.leave(follower.member_id, "two"),
        lambda: group.group.check_commit(old, follower.generation, group.now),
    ):
        with pytest.raises(FencedInstanceId):
            action()


def test_a_static_member_is_not_put_out_by_a_rebalance_but_by_its_session(group: GroupUnderTest) -> None:
    leader, follower = static_pair(group)
    group.join("c", rebalance_timeout_ms=1_000)
    group.join("s1 again again", leader.member_id, "one", rebalance_timeout_ms=1_000)
    group.join("s2 once more", follower.member_id, "two", rebalance_timeout_ms=1_000, session_timeout_ms=30_000)
    assert len(group.answered["s1 again again"].members) == 3
    newest = group.answered["s1 again again"]
    group.sync("x1 again", newest)
    for ticket in ("c", "s2 once more"):
        group.sync((ticket, "sync"), group.answered[ticket])
    group.join("d", rebalance_timeout_ms=1_000)
    group.join("s1 third", leader.member_id, "one", rebalance_timeout_ms=1_000)
    group.join("c third", group.answered["c"].member_id, rebalance_timeout_ms=1_000)
    group.wait_ms(1_000)
    assert len(group.answered["s1 third"].members) == 4  # the silent static member stays in the group


def test_a_group_of_absent_static_members_waits_for_one_of_them(group: GroupUnderTest) -> None:
    _leader, follower = static_pair(group)
    group.join("s2 asks", follower.member_id, "two", protocols=(("range", b"other"),))
    group.leave(follower.member_id, "two")
    assert state_of(group) == "PreparingRebalance"
    group.wait_ms(SESSION_MS)
    assert state_of(group) == "Empty"


def test_an_administrator_removes_a_static_member_by_its_instance_id(group: GroupUnderTest) -> None:
    static_pair(group)
    group.leave("", "two")
    assert state_of(group) == "PreparingRebalance"
    with pytest.raises(UnknownMember):
        group.leave("", "two")


def test_a_static_member_that_comes_back_costs_the_same_in_a_large_group(group: GroupUnderTest) -> None:
    """All of them may come back within moments, when their machines are restarted. While the group is being written, those who come
    share the next write."""
    members = group.group.members = CountingMembers()
    static_pair(group)
    members.visits, group.stores_at_once = 0, False
    for number in range(50):
        group.join(("s1", number), instance_id="one", may_skip_assignment=False)
        group.join(("s2", number), instance_id="two")
    assert members.visits == 1
    group.end_store()
    assert ("s2", 49) not in group.answered
    group.end_store()
    assert members.visits == 2
    assert [group.answered[name, 49].member_id for name in ("s1", "s2")] == [one.member_id for one in group.log[-1].members]
    assert state_of(group) == "Stable"


def test_a_static_member_that_comes_back_and_prefers_what_is_chosen_already_changes_nothing(group: GroupUnderTest) -> None:
    static_pair(group)
    group.join("s2 is back", instance_id="two", protocols=(("range", b"topics"), ("sticky", b"topics")))
    assert state_of(group) == "Stable"
    group.join("s1 is back", instance_id="one", protocols=(("sticky", b"topics"), ("range", b"topics")))
    assert state_of(group) == "Stable"  # a tie
    group.join("s2 is back again", instance_id="two", protocols=(("sticky", b"topics"),))
    assert state_of(group) == "PreparingRebalance"
