"""A group under test: time is a number, tickets are names, and the answer to each ticket is kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any

from logbus_broker.errors import MemberIdRequired, RequestError
from logbus_broker.groups import members as messages
from logbus_broker.groups.group import Group
from logbus_broker.groups.members import Member, Members
from logbus_broker.groups.rebalance import GroupRules

from tests.support.group_client import assignment, subscription

SESSION_MS, REBALANCE_MS, DELAY_MS = 10_000, 60_000, 3_000
RANGE: messages.Protocols = (("range", b"topics"),)


STORED_PAIR = messages.StoredGroup(  # of static members
    protocol_type="consumer",
    generation=7,
    protocol_name="range",
    leader_id="m-0",
    members=tuple(
        messages.StoredMember(
            member_id=f"m-{number}",
            instance_id=instance,
            client_id="c",
            client_host="127.0.0.1",
            rebalance_timeout_ms=60_000,
            session_timeout_ms=45_000,
            metadata=subscription("clicks"),
            assignment=assignment(clicks=[number]),
        )
        for number, instance in enumerate(("one", "two"))
    ),
)


class CountingMembers(Members):
    """Counts how often everybody is visited."""

    visits = 0

    def __iter__(self) -> Iterator[Member]:
        self.visits += 1
        return super().__iter__()


class GroupUnderTest:
    """Drives one Group; `now` is moved by `wait_ms`, which lets every deadline on the way pass at its time."""

    def __init__(self, *, delay_ms: int = 0, size_max: int = 100) -> None:
        self.now = 1_000.0
        numbers = count(1)
        self.group = Group("g", GroupRules(initial_delay_ms=delay_ms, size_max=size_max), lambda: str(next(numbers)), self.now)
        self.answered: dict[Any, Any] = {}  # ticket to outcome
        self.stores_at_once = True  # otherwise a write ends when the test calls `end_store`
        self.log: list[messages.StoredGroup] = []
        self.is_storing = False

    def keep(self, answers: list[messages.Answer]) -> None:
        for answer in answers:
            assert answer.ticket not in self.answered, "answered twice"
            self.answered[answer.ticket] = answer.outcome
        if self.group.is_unstored:
            self.log.append(self.group.begin_store())
            self.is_storing = True
            if self.stores_at_once:
                self.end_store()

    def end_store(self, error: RequestError | None = None) -> None:
        """The write under way has ended; with an error it may have taken effect nevertheless."""
        self.is_storing = False
        self.keep(self.group.stored(self.log[-1].generation, error, self.now))

    def restart(self) -> None:
        """Another coordinator has the group, and knows what is in the log."""
        self.group = Group("g", self.group._rules, self.group._new_id, self.now)
        self.is_storing = False
        if self.log:
            self.group.restore(self.log[-1], self.now)

    def wait_ms(self, milliseconds: int) -> None:
        end = self.now + milliseconds / 1000
        while (deadline := self.group.next_deadline()) is not None and deadline <= end:
            self.now = max(self.now, deadline)
            self.keep(self.group.expire(self.now))
        self.now = end

    def join(self, ticket: Any, member_id: str = "", instance_id: str | None = None, **changes: Any) -> Any:
        """The answer, or None while it waits."""
        values: dict[str, Any] = {
            "name": messages.MemberName(member_id=member_id, instance_id=instance_id),
            "client_id": "client",
            "client_host": "127.0.0.1",
            "protocol_type": "consumer",
            "protocols": RANGE,
            "session_timeout_ms": SESSION_MS,
            "rebalance_timeout_ms": REBALANCE_MS,
            "id_comes_first": False,
            "may_skip_assignment": False,
        }
        self.keep(self.group.join(messages.JoinRequest(**{**values, **changes}), ticket, self.now))
        return self.answered.get(ticket)

    def ask_for_id(self) -> str:
        """The member id that a new client gets by its first request."""
        try:
            self.join("never answered", id_comes_first=True)
        except MemberIdRequired as told:
            return told.member_id
        raise AssertionError("a new member joined without an id")

    def sync(
        self, ticket: Any, joined: messages.JoinAnswer, assignments: Mapping[str, bytes] | None = None, **changes: Any
    ) -> Any:
        """The answer, or None while it waits."""
        values: dict[str, Any] = {
            "name": messages.MemberName(member_id=joined.member_id),
            "generation": joined.generation,
            "protocol_type": None,
            "protocol_name": None,
            "assignments": assignments or {},
        }
        self.keep(self.group.sync(messages.SyncRequest(**{**values, **changes}), ticket, self.now))
        return self.answered.get(ticket)

    def heartbeat(self, joined: messages.JoinAnswer, *, generation: int | None = None, instance_id: str | None = None) -> None:
        name = messages.MemberName(member_id=joined.member_id, instance_id=instance_id)
        self.group.heartbeat(name, joined.generation if generation is None else generation, self.now)

    def leave(self, member_id: str, instance_id: str | None = None) -> None:
        self.keep(self.group.leave(messages.MemberName(member_id=member_id, instance_id=instance_id), self.now))

    def stable(self, count_: int, **changes: Any) -> list[messages.JoinAnswer]:
        """A stable group of `count_` members, the leader first, each with its own assignment."""
        members: list[messages.JoinAnswer] = []
        for number in range(count_):
            self.join(("new", number), instance_id=None, **changes)
            for former in members:
                self.join(("again", number, former.member_id), former.member_id, **changes)
            members = self._joined_last()
        return self.settle(members)

    def settle(self, members: list[messages.JoinAnswer]) -> list[messages.JoinAnswer]:
        """Every member of a new generation syncs, the leader last."""
        plan = {one.member_id: one.member_id.encode() for one in members}
        for one in sorted(members, key=lambda each: each.member_id == each.leader_id):
            self.sync(("sync", one.generation, one.member_id), one, plan if one.member_id == one.leader_id else None)
        for one in members:
            outcome = self.answered["sync", one.generation, one.member_id]
            assert isinstance(outcome, messages.SyncAnswer)
            assert outcome.assignment == one.member_id.encode()
        return sorted(members, key=lambda each: each.member_id != each.leader_id)

    def _joined_last(self) -> list[messages.JoinAnswer]:
        return [
            outcome
            for outcome in self.answered.values()
            if isinstance(outcome, messages.JoinAnswer) and outcome.generation == self.group.generation
        ]


def state_of(group: GroupUnderTest) -> str:
    return group.group.state.value
