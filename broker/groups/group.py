"""One group: what its members, and those who would be, may ask of it. `rebalance.py` has what follows from it.

A request that is refused has changed nothing, MemberIdRequired excepted, which notes the id that it gives out. Requests that
have to wait leave a ticket; each method returns the answers that it made possible, its own caller's among them or not.
"""

from __future__ import annotations

from collections.abc import Callable

from broker.errors import (
    FencedInstanceId,
    GroupMaxSizeReached,
    IllegalGeneration,
    InconsistentGroupProtocol,
    InvalidRequest,
    MemberIdRequired,
    RebalanceInProgress,
    RequestError,
    UnknownMember,
)
from broker.groups.members import Member
from broker.groups.messages import Answer, GroupDescription, JoinRequest, MemberDescription, MemberName, SyncRequest, Ticket
from broker.groups.rebalance import COMPLETING, DEAD, EMPTY, PREPARING, STABLE, Generations, GroupRules

_CLIENT_ID_LENGTH_MAX = 255  # of a client's name, in the ids that are made from it
_NAME_BYTES_MAX = 249  # members of every version are told the protocol, and older ones cannot carry more than 32,767
_PROTOCOLS_MAX = 64  # clients bring one to four; a join compares them with those of every member


class Group(Generations):
    """The machine. `now` is always the monotonic clock, in seconds; `new_id` gives a text that nobody had before."""

    def __init__(self, group_id: str, rules: GroupRules, new_id: Callable[[], str], now: float) -> None:
        super().__init__(rules, now)
        self.group_id = group_id
        self._new_id = new_id

    # -- joining -----------------------------------------------------------------------------------------------------------------

    def join(self, request: JoinRequest, ticket: Ticket, now: float) -> list[Answer]:
        """Join, or join again. Raises what the member is refused with; MemberIdRequired gives a new one its id."""
        name = request.name
        # All that can refuse comes before anything changes: a refused join must leave the others' generation alone.
        self._check_protocols(request)
        self._check_room(name)
        if name.member_id in self.members.expected and name.instance_id is None:
            self._add(name.member_id, request, ticket, now)
        elif name.member_id:
            self._join_again(self.members.find(name), request, ticket, now)
        elif name.instance_id is None:
            self._join_new(request, ticket, now)
        else:
            self._join_static(name.instance_id, request, ticket, now)
        return self._take_answers()

    def _check_protocols(self, request: JoinRequest) -> None:
        if not request.protocol_type or not request.protocols:
            raise InconsistentGroupProtocol("a member brings a protocol type and at least one protocol")
        if len(request.protocols) > _PROTOCOLS_MAX:
            raise InvalidRequest(f"{len(request.protocols)} protocols: at most {_PROTOCOLS_MAX} are taken")
        if (
            max(len(name.encode()) for name in (request.protocol_type, *(name for name, _ in request.protocols)))
            > _NAME_BYTES_MAX
        ):
            raise InvalidRequest(f"a protocol's type and names have at most {_NAME_BYTES_MAX} bytes")
        if len(self.members) and (request.protocol_type != self.protocol_type or not self.members.support(request.protocols)):
            raise InconsistentGroupProtocol(f"no protocol in common with the other members of {self.group_id!r}")

    def _check_room(self, name: MemberName) -> None:
        has_seat = name.member_id in self.members or name.member_id in self.members.expected
        if name.instance_id is not None:
            has_seat = has_seat or self.members.find_instance(name.instance_id) is not None
        if not has_seat and len(self.members) + len(self.members.expected) >= self._rules.size_max:
            raise GroupMaxSizeReached(f"group {self.group_id!r} is full: group.max.size={self._rules.size_max}")

    def _make_id(self, prefix: str) -> str:
        return f"{prefix[:_CLIENT_ID_LENGTH_MAX]}-{self._new_id()}"

    def _join_new(self, request: JoinRequest, ticket: Ticket, now: float) -> None:
        member_id = self._make_id(request.client_id)
        if request.id_comes_first:
            self.members.expected[member_id] = now + request.session_timeout_ms / 1000
            # KIP-394: a client that never comes back with its id costs an entry of a table until its session is over, and not a
            # rebalance of everybody.
            raise MemberIdRequired(member_id)
        self._add(member_id, request, ticket, now)

    def _join_static(self, instance_id: str, request: JoinRequest, ticket: Ticket, now: float) -> None:
        member_id = self._make_id(instance_id)
        member = self.members.find_instance(instance_id)
        if member is None:
            self._add(member_id, request, ticket, now)
        else:
            self._replace(member, member_id, request, ticket, now)

    def _add(self, member_id: str, request: JoinRequest, ticket: Ticket, now: float) -> None:
        if not len(self.members):
            self.protocol_type = request.protocol_type
        member = Member(member_id, request)
        member.joining = ticket
        member.touch(now)
        self.members.add(member)
        # The first rebalance of a group waits for more to come as long as somebody new came during the last wait; later ones do
        # not (KIP-134).
        self._has_newcomer = self.state is PREPARING
        self._rebalance(now)

    def _join_again(self, member: Member, request: JoinRequest, ticket: Ticket, now: float) -> None:
        """A member that brings nothing new has only missed the answer: it gets it again. Anything else is a rebalance.

        The leader of a stable group always brings something: it joins again when it has seen that the topics changed.
        """
        is_news = member.protocols != request.protocols or (self.state is STABLE and member.member_id == self.members.leader_id)
        if self.state is PREPARING or is_news:
            self._update(member, request, ticket, now)
            self._rebalance(now)
        else:
            member.touch(now)
            self._answer(ticket, self._join_answer(member))

    def _replace(self, member: Member, member_id: str, request: JoinRequest, ticket: Ticket, now: float) -> None:
        """A static member is back under a new id: whoever still uses the old one is fenced (KIP-345)."""
        former_leader_id = self.members.leader_id
        # Before the rename: what the former process still waits for is answered under the id that it knows.
        self._refuse(member, FencedInstanceId(f"instance {member.instance_id!r} is now member {member_id!r}"))
        self.members.rename(member, member_id)
        self._update(member, request, ticket, now)
        # The point of a static member: where it brings what it brought before, its assignment still holds and the others notice
        # nothing.
        if self.state is not STABLE or self.members.choose_protocol() != self.protocol_name:
            self._rebalance(now)
            return
        member.joining = None
        if request.may_skip_assignment:
            answer = self._join_answer(member, skip_assignment=self.members.leader_id == member_id)
        else:  # a client that knows no skipping would assign anew if it were told that it leads: it is told that another does
            answer = self._join_answer(member, leader_id=former_leader_id)
        self._answer(ticket, answer)

    def _update(self, member: Member, request: JoinRequest, ticket: Ticket, now: float) -> None:
        if member.joining is not None:
            self._answer(member.joining, RebalanceInProgress("the member has joined again since"))
        member.update(request)
        member.joining = ticket
        member.touch(now)

    # -- being a member ----------------------------------------------------------------------------------------------------------

    def sync(self, request: SyncRequest, ticket: Ticket, now: float) -> list[Answer]:
        """Ask for one's assignment; the leader brings everybody's. Raises what the member is refused with."""
        member = self.members.find(request.name)
        self._check_generation(request.generation)
        if request.protocol_type not in (None, self.protocol_type) or request.protocol_name not in (None, self.protocol_name):
            raise InconsistentGroupProtocol(f"generation {self.generation} speaks {self.protocol_type}, {self.protocol_name}")
        if self.state is PREPARING:
            raise RebalanceInProgress("members are joining")
        member.touch(now)
        self._answer_sync(member, RebalanceInProgress("the member has asked again since"))
        member.syncing, member.has_synced = ticket, True
        if self.state is COMPLETING and member.member_id == self.members.leader_id:
            # A leader may leave somebody out: that one is assigned nothing, which is an answer, and not left waiting for one.
            for one in self.members:
                one.assignment = request.assignments.get(one.member_id, b"")
            self._enter(STABLE)
        if self.state is STABLE:
            self._hand_out(now)
        return self._take_answers()

    def heartbeat(self, name: MemberName, generation: int, now: float) -> None:
        """A sign of life. Raises RebalanceInProgress where the member should join again."""
        member = self.members.find(name)
        self._check_generation(generation)
        member.touch(now)
        if self.state is PREPARING:
            raise RebalanceInProgress("members are joining")

    def leave(self, name: MemberName, now: float) -> list[Answer]:
        """A member goes: by id, or (an administrator's request) by instance id alone. Raises UnknownMember, FencedInstanceId."""
        if name.member_id in self.members.expected and name.instance_id is None:
            del self.members.expected[name.member_id]
            self._maybe_complete_join(now)
        else:
            by_instance = self.members.find_instance(name.instance_id) if name.instance_id and not name.member_id else None
            self._lose([by_instance or self.members.find(name)], now)
        return self._take_answers()

    def check_commit(self, name: MemberName, generation: int, now: float) -> None:
        """Check that this commit is allowed: without a generation only while the group has no member. Raises the refusal."""
        if self.state is EMPTY and generation < 0:
            return
        if generation < 0 and not name.member_id and name.instance_id is None:
            raise UnknownMember(f"group {self.group_id!r} has members: only they commit its offsets")
        member = self.members.find(name)
        self._check_generation(generation)
        # The assignment that the member reads with is not made yet, so what it commits is of its former one, which another may
        # have by now.
        if self.state is COMPLETING:
            raise RebalanceInProgress("assignments are being made")
        member.touch(now)

    def _check_generation(self, generation: int) -> None:
        if generation != self.generation:
            raise IllegalGeneration(f"generation {generation} is not the current one, {self.generation}")

    # -- administration ----------------------------------------------------------------------------------------------------------

    def die(self) -> None:
        """The group was removed; only an empty one can be."""
        assert self.state is EMPTY, self.state
        self._enter(DEAD)

    def move(self, error: RequestError) -> list[Answer]:
        """Another broker coordinates the group: whoever waits is told `error`, and joins there."""
        for member in self.members:
            self._refuse(member, error)
        self._enter(DEAD)
        return self._take_answers()

    def describe(self) -> GroupDescription:
        """What administrators see; metadata and assignments are shown while they hold, in a stable group."""
        is_stable = self.state is STABLE
        return GroupDescription(
            group_id=self.group_id,
            state=self.state.value,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name if is_stable else "",
            members=tuple(
                MemberDescription(
                    member_id=member.member_id,
                    instance_id=member.instance_id,
                    client_id=member.client_id,
                    client_host=f"/{member.client_host}",
                    metadata=member.metadata(self.protocol_name) if is_stable else b"",
                    assignment=member.assignment if is_stable else b"",
                )
                for member in self.members
            ),
        )
