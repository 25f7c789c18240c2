"""The group machine against its rules, for any order of events: hypothesis plays clients, well-behaved or not, and time."""

from __future__ import annotations

from itertools import count
from math import inf
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from logbus_broker.errors import CoordinatorNotAvailable, RequestError
from logbus_broker.groups.members import EXPECTED_BYTES, JoinAnswer, MemberName, Protocols
from logbus_broker.groups.rebalance import GroupState

from tests.support.examples import examples
from tests.support.groups import GroupUnderTest

PROTOCOLS: list[Protocols] = [
    (("range", b"a"),),
    (("range", b"b"), ("sticky", b"b")),
    (("sticky", b"c"), ("range", b"c")),
    (("sticky", b"d"),),
    (("range", b"e"), ("range", b"again")),
]
INSTANCES = [None, None, "one", "two"]
SIZE_MAX = 5

protocols = st.sampled_from(PROTOCOLS)
choices = st.integers(0, 1_000)


class GroupMachine(RuleBasedStateMachine):
    @initialize(delay_ms=st.sampled_from([0, 3_000]), stores_at_once=st.booleans())
    def start(self, delay_ms: int, stores_at_once: bool) -> None:
        self.test = GroupUnderTest(delay_ms=delay_ms, size_max=SIZE_MAX)
        self.test.stores_at_once = stores_at_once
        self.tickets = count()
        self.waiting: set[int] = set()
        self.ids: list[tuple[str, str | None]] = []  # every member id ever given, with its instance id
        self.generation = 0

    # -- what clients do -----------------------------------------------------------------------------------------------------------

    @rule(
        instance=st.sampled_from(INSTANCES),
        protocols=protocols,
        id_first=st.booleans(),
        may_skip=st.booleans(),
        session=st.sampled_from([6_000, 10_000]),
        rebalance=st.sampled_from([0, 5_000, 60_000]),
    )
    def somebody_new_joins(
        self, instance: str | None, protocols: Protocols, id_first: bool, may_skip: bool, session: int, rebalance: int
    ) -> None:
        self._join(
            "",
            instance,
            protocols=protocols,
            id_comes_first=id_first,
            may_skip_assignment=may_skip,
            session_timeout_ms=session,
            rebalance_timeout_ms=rebalance,
        )

    @rule(who=choices, protocols=protocols)
    def somebody_joins_again(self, who: int, protocols: Protocols) -> None:
        self._join(*self._somebody(who), protocols=protocols)

    @rule(who=choices)
    def a_member_joins_again_as_it_was(self, who: int) -> None:
        members = list(self.test.group.members)
        if members:
            member = members[who % len(members)]
            self._join(member.member_id, member.instance_id, protocols=member.protocols)

    @rule(who=choices, generation_back=st.integers(0, 1))
    def somebody_syncs(self, who: int, generation_back: int) -> None:
        self._sync(*self._somebody(who), generation_back)

    @rule(who=choices)
    def a_member_syncs(self, who: int) -> None:
        members = list(self.test.group.members)
        if members:
            member = members[who % len(members)]
            self._sync(member.member_id, member.instance_id)

    def _sync(self, member_id: str, instance: str | None, generation_back: int = 0) -> None:
        joined = JoinAnswer(
            member_id=member_id,
            generation=self.test.group.generation - generation_back,
            protocol_type="consumer",
            protocol_name="",
            leader_id="",
        )
        plan = {member.member_id: member.member_id.encode() for member in self.test.group.members}
        name = MemberName(member_id=member_id, instance_id=instance)
        self._ask(lambda ticket: self.test.sync(ticket, joined, plan, name=name))

    @rule(who=choices)
    def somebody_leaves(self, who: int) -> None:
        member_id, instance = self._somebody(who)
        self._try(lambda: self.test.leave(member_id, instance))

    @rule(who=choices)
    def somebody_sends_a_heartbeat(self, who: int) -> None:
        name = MemberName(member_id=self._somebody(who)[0])
        self._try(lambda: self.test.group.heartbeat(name, self.test.group.generation, self.test.now))

    @rule(milliseconds=st.sampled_from([1, 1_000, 3_000, 5_999, 6_000, 30_000, 60_000]))
    def time_passes(self, milliseconds: int) -> None:
        self.test.wait_ms(milliseconds)
        self._collect()

    # -- what the log does ---------------------------------------------------------------------------------------------------------

    @rule(error=st.sampled_from([None, CoordinatorNotAvailable("its disk is full")]))
    def a_write_ends(self, error: RequestError | None) -> None:
        if self.test.is_storing:
            self.test.end_store(error)
            self._collect()

    @rule()
    def another_coordinator_goes_on(self) -> None:
        """With what is in the log: clients ask it again, and a generation that was not stored may be followed by one of its number."""
        self.test.restart()
        self.test.answered.clear()
        self.waiting.clear()
        self.generation = self.test.group.generation

    def _somebody(self, who: int) -> tuple[str, str | None]:
        return self.ids[who % len(self.ids)] if self.ids else ("nobody", None)

    def _join(self, member_id: str, instance: str | None, **changes: Any) -> None:
        self._ask(lambda ticket: self.test.join(ticket, member_id, instance, **changes))
        self.ids += [(member.member_id, member.instance_id) for member in self.test.group.members]
        self.ids += [(expected, None) for expected in self.test.group.members.expected]
        self.ids = list(dict.fromkeys(self.ids))[-12:]

    def _ask(self, ask: Any) -> None:
        ticket = next(self.tickets)
        self.waiting.add(ticket)
        if not self._try(lambda: ask(ticket)):
            self.waiting.discard(ticket)
        self._collect()

    def _try(self, action: Any) -> bool:
        """Returns False if it was refused; a refusal must answer no other request."""
        try:
            action()
        except RequestError:
            assert not self.test.group._answers
            return False
        self._collect()
        return True

    def _collect(self) -> None:
        for ticket in [one for one in self.waiting if one in self.test.answered]:
            self.waiting.discard(ticket)

    # -- what always holds ---------------------------------------------------------------------------------------------------------

    @invariant()
    def the_generation_only_rises(self) -> None:
        assert self.test.group.generation >= self.generation
        self.generation = self.test.group.generation

    @invariant()
    def nobody_who_waits_is_forgotten(self) -> None:
        held = [ticket for member in self.test.group.members for ticket in (member.joining, member.syncing) if ticket is not None]
        assert sorted(held) == sorted(self.waiting)

    @invariant()
    def the_state_fits_the_members(self) -> None:
        group = self.test.group
        if group.state is GroupState.EMPTY:
            assert len(group.members) == 0
        elif group.state is not GroupState.PREPARING_REBALANCE:
            assert len(group.members) > 0
            assert self.test.is_storing or all(member.joining is None for member in group.members)
        if group.state is GroupState.STABLE:
            assert all(member.syncing is None for member in group.members)
        assert (group.members.leader_id in group.members) is (len(group.members) > 0)
        assert len(group.members) <= SIZE_MAX

    @invariant()
    def the_protocol_is_one_that_every_member_supports(self) -> None:
        group = self.test.group
        if group.state in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE):
            assert all(group.protocol_name in dict(member.protocols) for member in group.members)

    @invariant()
    def everybody_of_a_generation_gets_the_same_protocol(self) -> None:
        chosen: dict[int, str] = {}
        for outcome in self.test.answered.values():
            if isinstance(outcome, JoinAnswer):
                assert chosen.setdefault(outcome.generation, outcome.protocol_name) == outcome.protocol_name

    @invariant()
    def the_leader_learns_of_itself(self) -> None:
        for outcome in self.test.answered.values():
            if isinstance(outcome, JoinAnswer):
                names = [row.member_id for row in outcome.members]
                assert (outcome.member_id in names) is (outcome.leader_id == outcome.member_id)
                assert len(names) == len(set(names))

    @invariant()
    def the_running_figures_are_those_of_the_members(self) -> None:
        members = self.test.group.members
        everyone = list(members)
        assert members.held_bytes == sum(one.held_bytes for one in everyone) + EXPECTED_BYTES * len(members.expected)
        assert members.all_joined is (not members.expected and all(one.joining is not None for one in everyone))
        assert members.all_synced is all(one.has_synced for one in everyone)
        for offered in PROTOCOLS:
            common = set(dict(offered)).intersection(*(dict(one.protocols) for one in everyone))
            assert members.support(offered) is bool(common)
        sessions = [one.deadline for one in everyone if not one.is_waiting]
        exact = min((*sessions, *members.expected.values()), default=inf)
        assert members.deadline <= exact

    @invariant()
    def a_deadline_lies_ahead_while_anybody_is_there(self) -> None:
        deadline = self.test.group.next_deadline()
        if (len(self.test.group.members) or self.waiting) and not self.test.is_storing:
            assert deadline is not None

    @invariant()
    def what_members_go_on_with_is_in_the_log(self) -> None:
        group = self.test.group
        if group.state is GroupState.STABLE:
            written = {member.member_id: member.assignment for member in self.test.log[-1].members}
            assert self.test.log[-1].generation == group.generation
            assert all(written.get(one.member_id) == one.assignment for one in group.members if one.joining is None)

    def teardown(self) -> None:
        """Once requests stop, every pending one is answered and the group ends empty."""
        if hasattr(self, "test"):
            self.test.stores_at_once = True
            while self.test.is_storing:
                self.test.end_store()
            self.test.wait_ms(1_000_000)
            self._collect()
            assert not self.waiting
            assert self.test.group.state is GroupState.EMPTY
            assert self.test.group.next_deadline() is None


GroupMachine.TestCase.settings = settings(max_examples=examples(150), stateful_step_count=40, deadline=None)
TestGroupMachine = GroupMachine.TestCase
