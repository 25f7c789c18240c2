"""The rules of the group protocol, one by one. The names are Kafka's; time is a number."""

from __future__ import annotations

from typing import Any

import pytest
from logbus_broker.errors import (
    FencedInstanceId,
    GroupMaxSizeReached,
    IllegalGeneration,
    InconsistentGroupProtocol,
    RebalanceInProgress,
    UnknownMember,
)
from logbus_broker.groups.members import JoinAnswer, MemberName
from logbus_broker.groups.rebalance import GroupState

from tests.support.groups import DELAY_MS, REBALANCE_MS, SESSION_MS, CountingMembers, GroupUnderTest, state_of

# -- joining ---------------------------------------------------------------------------------------------------------------------


def test_the_first_member_leads_and_is_told_who_else_is_there(group: GroupUnderTest) -> None:
    joined = group.join("a")
    assert joined == JoinAnswer(
        member_id="client-1",
        generation=1,
        protocol_type="consumer",
        protocol_name="range",
        leader_id="client-1",
        members=joined.members,
    )
    assert [(row.member_id, row.metadata) for row in joined.members] == [("client-1", b"topics")]
    assert state_of(group) == "CompletingRebalance"


def test_a_new_member_is_told_its_id_and_joins_with_it(group: GroupUnderTest) -> None:
    member_id = group.ask_for_id()
    assert state_of(group) == "Empty"
    assert group.join("a", member_id, id_comes_first=True).member_id == member_id


def test_an_id_that_was_given_out_is_good_for_one_session_timeout(group: GroupUnderTest) -> None:
    member_id = group.ask_for_id()
    group.wait_ms(SESSION_MS)
    with pytest.raises(UnknownMember):
        group.join("a", member_id)


def test_a_rebalance_waits_for_those_who_were_given_an_id(group: GroupUnderTest) -> None:
    (first,) = group.stable(1)
    group.ask_for_id()
    second = group.ask_for_id()
    group.join("b", second)
    assert group.join("a2", first.member_id) is None
    group.wait_ms(SESSION_MS)
    assert group.answered["a2"].generation == group.answered["b"].generation == 2


def test_an_id_that_nobody_gave_out_is_unknown(group: GroupUnderTest) -> None:
    with pytest.raises(UnknownMember):
        group.join("a", "somebody")
    group.stable(1)
    with pytest.raises(UnknownMember):
        group.join("a", "somebody")


def test_a_second_member_starts_a_rebalance_and_all_are_answered_at_once(group: GroupUnderTest) -> None:
    (first,) = group.stable(1)
    assert group.join("b") is None
    assert state_of(group) == "PreparingRebalance"
    with pytest.raises(RebalanceInProgress):
        group.heartbeat(first)
    again = group.join("a2", first.member_id)
    other = group.answered["b"]
    assert again.generation == other.generation == 2
    assert again.leader_id == other.leader_id == first.member_id
    assert len(again.members) == 2
    assert other.members == ()


def test_the_first_members_of_an_empty_group_wait_for_others() -> None:
    group = GroupUnderTest(delay_ms=DELAY_MS)
    assert group.join("a") is None
    group.wait_ms(DELAY_MS - 1)
    assert group.join("b") is None
    group.wait_ms(DELAY_MS)
    assert group.join("c") is None  # each new member extends the wait
    group.wait_ms(DELAY_MS)
    assert not group.answered
    group.wait_ms(1)
    assert {outcome.generation for outcome in group.answered.values()} == {1}
    assert len(group.answered) == 3


def test_newcomers_do_not_delay_the_first_generation_beyond_the_rebalance_timeout() -> None:
    group = GroupUnderTest(delay_ms=DELAY_MS)
    for number in range(100):
        group.join(number, rebalance_timeout_ms=4 * DELAY_MS)
        if group.answered:
            break
        group.wait_ms(DELAY_MS // 2)
    assert group.now == 1_000 + 4 * DELAY_MS / 1000


def test_who_does_not_join_again_in_time_is_out(group: GroupUnderTest) -> None:
    first, second = group.stable(2)
    group.join("c")
    group.join("a2", first.member_id)
    for _ in range(REBALANCE_MS // 5_000 - 1):
        group.wait_ms(5_000)
        with pytest.raises(RebalanceInProgress):
            group.heartbeat(second)  # alive, but it does not rejoin
    group.wait_ms(5_000)
    assert {row.member_id for row in group.answered["a2"].members} == {first.member_id, group.answered["c"].member_id}
    with pytest.raises(UnknownMember):
        group.heartbeat(second)


def test_the_slowest_members_rebalance_timeout_counts(group: GroupUnderTest) -> None:
    (first,) = group.stable(1, session_timeout_ms=10 * REBALANCE_MS)
    group.join("b", rebalance_timeout_ms=2 * REBALANCE_MS, session_timeout_ms=10 * REBALANCE_MS)
    group.wait_ms(2 * REBALANCE_MS - 1)
    assert "b" not in group.answered
    group.wait_ms(1)
    assert group.answered["b"].leader_id != first.member_id


def test_a_member_that_missed_the_answer_gets_it_again(group: GroupUnderTest) -> None:
    first, second = group.stable(2)
    assert group.join("b again", second.member_id) == second
    assert state_of(group) == "Stable"
    third = group.join("c")
    assert third is None
    group.join("a2", first.member_id)
    group.join("b2", second.member_id)
    assert state_of(group) == "CompletingRebalance"
    assert group.join("a3", first.member_id) == group.answered["a2"]
    assert group.group.generation == group.answered["c"].generation


@pytest.mark.parametrize("leads", [True, False])
def test_a_member_with_new_metadata_starts_a_rebalance(group: GroupUnderTest, leads: bool) -> None:
    members = group.stable(2)
    changed, other = members if leads else members[::-1]
    assert group.join("new topics", changed.member_id, protocols=(("range", b"other topics"),)) is None
    group.join("other", other.member_id)
    assert group.answered["new topics"].generation == changed.generation + 1


def test_a_leader_that_joins_again_starts_a_rebalance(group: GroupUnderTest) -> None:
    leader, _ = group.stable(2)
    assert group.join("the topics have changed", leader.member_id) is None
    assert state_of(group) == "PreparingRebalance"


def test_joining_twice_answers_the_first_request_too(group: GroupUnderTest) -> None:
    first, _second = group.stable(2)
    group.join("a2", first.member_id)
    group.join("a3", first.member_id)
    assert isinstance(group.answered["a2"], RebalanceInProgress)


def test_a_full_group_takes_nobody_else_but_its_members_back() -> None:
    group = GroupUnderTest(size_max=2)
    first, _second = group.stable(2)
    with pytest.raises(GroupMaxSizeReached):
        group.join("c")
    with pytest.raises(GroupMaxSizeReached):
        group.ask_for_id()
    assert group.join("a2", first.member_id) is None


# -- protocols -------------------------------------------------------------------------------------------------------------------


def test_the_protocol_with_most_votes_among_those_that_all_support_is_chosen() -> None:
    sticky, range_, robin = ("sticky", b"s"), ("range", b"r"), ("roundrobin", b"o")
    group = GroupUnderTest(delay_ms=DELAY_MS)
    group.join("a", protocols=(range_, sticky))
    group.join("b", protocols=(sticky, range_))
    group.join("c", protocols=(robin, sticky, range_))
    group.wait_ms(3 * DELAY_MS)
    assert {outcome.protocol_name for outcome in group.answered.values()} == {"sticky"}
    assert [row.metadata for row in group.answered["a"].members] == [b"s"] * 3


def test_a_member_without_a_protocol_in_common_is_refused(group: GroupUnderTest) -> None:
    group.stable(1)
    for changes in ({"protocols": (("sticky", b""),)}, {"protocols": ()}, {"protocol_type": "connect"}, {"protocol_type": ""}):
        with pytest.raises(InconsistentGroupProtocol):
            group.join("b", **changes)
    assert state_of(group) == "Stable"


def test_an_empty_group_may_change_its_protocol_type(group: GroupUnderTest) -> None:
    (only,) = group.stable(1)
    group.leave(only.member_id)
    assert group.join("b", protocol_type="connect").protocol_type == "connect"


# -- assignments -----------------------------------------------------------------------------------------------------------------


def rejoined(group: GroupUnderTest) -> tuple[JoinAnswer, JoinAnswer]:
    """The leader and the other member of a generation that waits for its assignments."""
    first, second = group.stable(2)
    group.join("a2", first.member_id)
    group.join("b2", second.member_id)
    return group.answered["a2"], group.answered["b2"]


def test_members_wait_for_the_leaders_assignments(group: GroupUnderTest) -> None:
    leader, follower = rejoined(group)
    assert group.sync("b", follower) is None
    assert group.sync("a", leader, {leader.member_id: b"0,1"}).assignment == b"0,1"
    assert group.answered["b"].assignment == b""  # the leader assigned it nothing
    assert state_of(group) == "Stable"
    assert group.sync("b late", follower).assignment == b""


def test_a_sync_is_refused_with_what_is_wrong(group: GroupUnderTest) -> None:
    first, second = group.stable(2)
    with pytest.raises(IllegalGeneration):
        group.sync("x", first, generation=first.generation - 1)
    with pytest.raises(UnknownMember):
        group.sync("x", first, name=MemberName(member_id="somebody"))
    for changes in ({"protocol_name": "sticky"}, {"protocol_type": "connect"}):
        with pytest.raises(InconsistentGroupProtocol):
            group.sync("x", first, **changes)
    group.join("b2", second.member_id, protocols=(("range", b"other"),))
    with pytest.raises(RebalanceInProgress):
        group.sync("x", first)


def test_a_rebalance_ends_the_wait_for_assignments(group: GroupUnderTest) -> None:
    _, follower = rejoined(group)
    assert group.sync("b", follower) is None
    group.join("c")
    assert isinstance(group.answered["b"], RebalanceInProgress)


def test_a_leader_that_dies_before_it_assigns_is_replaced(group: GroupUnderTest) -> None:
    _, follower = rejoined(group)
    assert group.sync("b", follower) is None
    group.wait_ms(SESSION_MS)
    assert isinstance(group.answered["b"], RebalanceInProgress)
    assert group.join("b3", follower.member_id).leader_id == follower.member_id


def test_a_leader_that_lives_but_never_assigns_is_out_after_the_rebalance_timeout(group: GroupUnderTest) -> None:
    leader, follower = rejoined(group)
    group.sync("b", follower)
    for _ in range(REBALANCE_MS // 5_000):
        group.heartbeat(leader)
        group.wait_ms(5_000)
    assert isinstance(group.answered["b"], RebalanceInProgress)
    with pytest.raises(UnknownMember):
        group.heartbeat(leader)


# -- staying, leaving, dying -----------------------------------------------------------------------------------------------------


def test_heartbeats_keep_a_member_and_silence_ends_it(group: GroupUnderTest) -> None:
    first, second = group.stable(2)
    for _ in range(10):
        group.wait_ms(SESSION_MS - 1)
        group.heartbeat(first)
        group.heartbeat(second)
    group.wait_ms(SESSION_MS - 1)
    group.heartbeat(first)
    group.wait_ms(1)
    assert state_of(group) == "PreparingRebalance"
    with pytest.raises(UnknownMember):
        group.heartbeat(second)


def test_a_heartbeat_is_refused_with_what_is_wrong(group: GroupUnderTest) -> None:
    (only,) = group.stable(1)
    with pytest.raises(IllegalGeneration):
        group.heartbeat(only, generation=7)
    with pytest.raises(UnknownMember):
        group.heartbeat(only, instance_id="static")


def test_who_waits_is_alive(group: GroupUnderTest) -> None:
    first, second = group.stable(2, session_timeout_ms=6_000)
    group.join("c", session_timeout_ms=6_000)
    group.join("a2", first.member_id, session_timeout_ms=6_000)
    for _ in range(10):
        group.wait_ms(5_000)
        with pytest.raises(RebalanceInProgress):
            group.heartbeat(second)
    group.join("b2", second.member_id, session_timeout_ms=6_000)
    assert len(group.answered["a2"].members) == 3


def test_the_last_member_leaves_an_empty_group_of_a_later_generation(group: GroupUnderTest) -> None:
    first, second = group.stable(2)
    group.leave(first.member_id)
    assert state_of(group) == "PreparingRebalance"
    group.leave(second.member_id)
    assert state_of(group) == "Empty"
    assert group.group.generation == second.generation + 1
    assert group.group.next_deadline() is None


def test_who_leaves_while_it_waits_is_answered(group: GroupUnderTest) -> None:
    first, _second = group.stable(2)
    group.join("a2", first.member_id, protocols=(("range", b"other"),))
    group.leave(first.member_id)
    assert isinstance(group.answered["a2"], UnknownMember)


def test_an_id_that_was_given_out_can_be_given_back(group: GroupUnderTest) -> None:
    member_id = group.ask_for_id()
    group.leave(member_id)
    with pytest.raises(UnknownMember):
        group.leave(member_id)


def test_leaving_while_others_prepare_lets_them_go_on(group: GroupUnderTest) -> None:
    first, second = group.stable(2)
    assert group.join("a2", first.member_id) is None
    group.leave(second.member_id)
    assert group.answered["a2"].generation == first.generation + 1


# -- commits ---------------------------------------------------------------------------------------------------------------------

SIMPLE = MemberName(member_id="")


def test_simple_commits_are_taken_while_nobody_is_a_member(group: GroupUnderTest) -> None:
    group.group.check_commit(SIMPLE, -1, group.now)
    (only,) = group.stable(1)
    with pytest.raises(UnknownMember):
        group.group.check_commit(SIMPLE, -1, group.now)
    group.leave(only.member_id)
    group.group.check_commit(SIMPLE, -1, group.now)


def test_members_commit_in_their_generation_and_stay_alive_by_it(group: GroupUnderTest) -> None:
    (only,) = group.stable(1)
    name = MemberName(member_id=only.member_id)
    for _ in range(3):
        group.wait_ms(SESSION_MS - 1)
        group.group.check_commit(name, only.generation, group.now)
    with pytest.raises(IllegalGeneration):
        group.group.check_commit(name, only.generation - 1, group.now)
    with pytest.raises(UnknownMember):
        group.group.check_commit(MemberName(member_id="somebody"), only.generation, group.now)


def test_commits_are_taken_while_members_join_and_refused_while_assignments_are_made(group: GroupUnderTest) -> None:
    first, second = group.stable(2)
    name = MemberName(member_id=second.member_id)
    group.join("a2", first.member_id)
    group.group.check_commit(name, second.generation, group.now)
    group.join("b2", second.member_id)
    with pytest.raises(RebalanceInProgress):
        group.group.check_commit(name, group.answered["b2"].generation, group.now)


# -- what administrators see -----------------------------------------------------------------------------------------------------


def test_metadata_and_assignments_are_shown_while_they_hold(group: GroupUnderTest) -> None:
    first, second = group.stable(2)
    shown = group.group.describe()
    assert (shown.state, shown.protocol_type, shown.protocol_name) == ("Stable", "consumer", "range")
    assert {(row.member_id, row.metadata, row.assignment, row.client_host) for row in shown.members} == {
        (one.member_id, b"topics", one.member_id.encode(), "/127.0.0.1") for one in (first, second)
    }
    group.join("a2", first.member_id)
    shown = group.group.describe()
    assert (shown.state, shown.protocol_name) == ("PreparingRebalance", "")
    assert {(row.metadata, row.assignment) for row in shown.members} == {(b"", b"")}


def test_only_an_empty_group_can_be_removed(group: GroupUnderTest) -> None:
    (only,) = group.stable(1)
    with pytest.raises(AssertionError):
        group.group.die()
    group.leave(only.member_id)
    group.group.die()
    assert group.group.state is GroupState.DEAD


# -- size ------------------------------------------------------------------------------------------------------------------------


def test_what_a_request_costs_does_not_depend_on_the_size_of_the_group() -> None:
    """A thousand members rejoin within moments: each request may visit one of them, and each phase of the rebalance all."""
    size = 200
    group = GroupUnderTest(delay_ms=DELAY_MS, size_max=size)
    members = group.group.members = CountingMembers()

    def ask(request: Any, *args: Any) -> None:
        request(*args)
        assert group.group.next_deadline() is None or members.held_bytes >= 0  # the coordinator asks after each request

    for number in range(size):
        ask(group.join, number)
    assert members.visits < 5
    group.wait_ms(3 * DELAY_MS)
    for round_number in (1, 2):
        joined = group._joined_last()
        leader = next(one for one in joined if one.leader_id == one.member_id)
        followers = [one for one in joined if one is not leader]
        members.visits = 0
        for one in followers[: size // 2]:
            ask(group.sync, ("early", round_number, one.member_id), one)
        ask(group.sync, ("leader", round_number), leader)
        for one in followers[size // 2 :]:
            ask(group.sync, ("late", round_number, one.member_id), one)
        assert state_of(group) == "Stable"
        for one in joined:
            ask(group.heartbeat, one)
        assert members.visits < 10
        for one in joined:
            ask(group.join, ("again", round_number, one.member_id), one.member_id)
        assert members.visits < 30
    members.visits = 0
    for one in group._joined_last():
        ask(group.leave, one.member_id)
    assert state_of(group) == "Empty"
    assert members.visits < 10


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
