"""One group: the requests of its members, and of those that want to join. `rebalance.py` has what follows from them.

A request that fails changes nothing, except MemberIdRequired, which remembers the id that it hands out. Requests that have to
wait leave a ticket; each method returns all answers that have become possible, possibly including its own caller's.
"""

from __future__ import annotations

from collections.abc import Callable

from logbus_broker import errors
from logbus_broker.groups import members, rebalance

_CLIENT_ID_LENGTH_MAX = 255  # of a client id, in the member ids generated from it
_NAME_BYTES_MAX = 249  # the protocol is sent to members of every version, and older ones cannot encode more than 32,767 bytes
_PROTOCOLS_MAX = 64  # clients send one to four; a join compares them with those of every member


class Group(rebalance.Generations):
    """The state machine. `now` is always the monotonic clock, in seconds; `new_id` returns a unique string."""

    def __init__(self, group_id: str, rules: rebalance.GroupRules, new_id: Callable[[], str], now: float) -> None:
        super().__init__(rules, now)
        self.group_id = group_id
        self._new_id = new_id

    # -- joining -----------------------------------------------------------------------------------------------------------------

    def join(self, request: members.JoinRequest, ticket: members.Ticket, now: float) -> list[members.Answer]:
        """Join, or rejoin. Raises the error for the member; MemberIdRequired gives a new member its id."""
        name = request.name
        # All checks that can fail come before any change: a failed join must not affect the other members' generation.
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

    def _check_protocols(self, request: members.JoinRequest) -> None:
        if not request.protocol_type or not request.protocols:
            raise errors.InconsistentGroupProtocol("JoinGroup needs a protocol type and at least one protocol")
        if len(request.protocols) > _PROTOCOLS_MAX:
            raise errors.InvalidRequest(f"{len(request.protocols)} protocols: at most {_PROTOCOLS_MAX} are taken")
        if (
            max(len(name.encode()) for name in (request.protocol_type, *(name for name, _ in request.protocols)))
            > _NAME_BYTES_MAX
        ):
            raise errors.InvalidRequest(f"a protocol's type and names have at most {_NAME_BYTES_MAX} bytes")
        if len(self.members) and (request.protocol_type != self.protocol_type or not self.members.support(request.protocols)):
            raise errors.InconsistentGroupProtocol(f"no protocol in common with the other members of {self.group_id!r}")

    def _check_room(self, name: members.MemberName) -> None:
        has_seat = name.member_id in self.members or name.member_id in self.members.expected
        if name.instance_id is not None:
            has_seat = has_seat or self.members.find_instance(name.instance_id) is not None
        if not has_seat and len(self.members) + len(self.members.expected) >= self._rules.size_max:
            raise errors.GroupMaxSizeReached(f"group {self.group_id!r} is full: group.max.size={self._rules.size_max}")

    def _make_id(self, prefix: str) -> str:
        return f"{prefix[:_CLIENT_ID_LENGTH_MAX]}-{self._new_id()}"

    def _join_new(self, request: members.JoinRequest, ticket: members.Ticket, now: float) -> None:
        member_id = self._make_id(request.client_id)
        if request.id_comes_first:
            self.members.expect(member_id, now + request.session_timeout_ms / 1000)
            # KIP-394: a client that never returns with its id costs a table entry until its session times out, not a rebalance of
            # the whole group.
            raise errors.MemberIdRequired(member_id)
        self._add(member_id, request, ticket, now)

    def _join_static(self, instance_id: str, request: members.JoinRequest, ticket: members.Ticket, now: float) -> None:
        member_id = self._make_id(instance_id)
        member = self.members.find_instance(instance_id)
        if member is None:
            self._add(member_id, request, ticket, now)
        else:
            self._replace(member, member_id, request, ticket, now)

    def _add(self, member_id: str, request: members.JoinRequest, ticket: members.Ticket, now: float) -> None:
        if not len(self.members):
            self.protocol_type = request.protocol_type
        member = members.Member(member_id, request)
        member.joining = ticket
        member.touch(now)
        self.members.add(member)
        # The first rebalance of a group is extended as long as new members joined during the last wait; later rebalances are not
        # (KIP-134).
        self._has_newcomer = self.state is rebalance.PREPARING
        self._rebalance(now)

    def _join_again(self, member: members.Member, request: members.JoinRequest, ticket: members.Ticket, now: float) -> None:
        """A member that joins again without changes has only missed the answer: it gets it again. Any change is a rebalance.

        The leader of a stable group always causes one: it rejoins when it has noticed that the topics changed.
        """
        is_news = member.protocols != request.protocols or (
            self.state is rebalance.STABLE and member.member_id == self.members.leader_id
        )
        if self.state is rebalance.PREPARING or is_news:
            self._update(member, request, ticket, now)
            self._rebalance(now)
        else:
            self.members.touch(member, now)
            self._answer(ticket, self._join_answer(member))

    def _replace(
        self, member: members.Member, member_id: str, request: members.JoinRequest, ticket: members.Ticket, now: float
    ) -> None:
        """A static member has returned under a new id: a process that still uses the old id is fenced (KIP-345)."""
        former_leader_id = self.members.leader_id
        # Before the rename: the former process's waiting requests are answered under the id that it knows.
        self._refuse(member, errors.FencedInstanceId(f"instance {member.instance_id!r} is now member {member_id!r}"))
        self.members.rename(member, member_id)
        former_names = member.protocol_names
        self._update(member, request, ticket, now)
        # The point of static membership: if the chosen protocol stays the same, the member's assignment still holds and the
        # others notice nothing. Members that vote as before need no count of all votes: a thousand may return together.
        if self.state is not rebalance.STABLE or (
            member.protocol_names != former_names and self.members.choose_protocol() != self.protocol_name
        ):
            self._rebalance(now)
            return
        if request.may_skip_assignment:
            answer = self._join_answer(member, skip_assignment=self.members.leader_id == member_id)
        else:  # a client without skip_assignment would assign again as leader: the answer names its former id as leader
            answer = self._join_answer(member, leader_id=former_leader_id)
        self._returned[member_id], self._has_news = answer, True

    def _update(self, member: members.Member, request: members.JoinRequest, ticket: members.Ticket, now: float) -> None:
        if member.joining is not None:
            self._answer(member.joining, errors.RebalanceInProgress("the member has joined again since"))
        self.members.update(member, request)
        self.members.wait_to_join(member, ticket)
        self.members.touch(member, now)

    # -- being a member ----------------------------------------------------------------------------------------------------------

    def sync(self, request: members.SyncRequest, ticket: members.Ticket, now: float) -> list[members.Answer]:
        """Request the member's assignment; the leader sends everyone's. Raises the error for the member."""
        member = self.members.find(request.name)
        self._check_generation(request.generation)
        if request.protocol_type not in (None, self.protocol_type) or request.protocol_name not in (None, self.protocol_name):
            raise errors.InconsistentGroupProtocol(
                f"generation {self.generation} uses {self.protocol_type}, {self.protocol_name}"
            )
        if self.state is rebalance.PREPARING:
            raise errors.RebalanceInProgress("members are joining")
        self.members.touch(member, now)
        self._answer_sync(member, errors.RebalanceInProgress("the member has sent another SyncGroup since"))
        self.members.wait_to_sync(member, ticket)
        if self.state is rebalance.COMPLETING and member.member_id == self.members.leader_id:
            # A leader may omit a member: that member gets an empty assignment, rather than waiting for an answer.
            for other in self.members:
                self.members.assign(other, request.assignments.get(other.member_id, b""))
            self._has_news = True  # `stored` hands them out
        elif self.state is rebalance.STABLE:
            self._hand_out((member,), now)
        return self._take_answers()

    def heartbeat(self, name: members.MemberName, generation: int, now: float) -> None:
        """Keep the session alive. Raises RebalanceInProgress if the member should rejoin."""
        member = self.members.find(name)
        self._check_generation(generation)
        self.members.touch(member, now)
        if self.state is rebalance.PREPARING:
            raise errors.RebalanceInProgress("members are joining")

    def leave(self, name: members.MemberName, now: float) -> list[members.Answer]:
        """A member leaves, named by id or (by an administrator) by instance id only. Raises UnknownMember, FencedInstanceId."""
        if name.member_id in self.members.expected and name.instance_id is None:
            del self.members.expected[name.member_id]
            self._maybe_complete_join(now)
        else:
            by_instance = self.members.find_instance(name.instance_id) if name.instance_id and not name.member_id else None
            self._lose([by_instance or self.members.find(name)], now)
        return self._take_answers()

    def check_commit(self, name: members.MemberName, generation: int, now: float) -> None:
        """Check that this commit is allowed: without a generation only while the group is empty. Raises the error if not."""
        if self.state is rebalance.EMPTY and generation < 0:
            return
        if generation < 0 and not name.member_id and name.instance_id is None:
            raise errors.UnknownMember(f"group {self.group_id!r} has members: only they commit its offsets")
        member = self.members.find(name)
        self._check_generation(generation)
        # The assignments of this generation do not exist yet, so the commit is for the member's previous one, which another
        # member may have by now.
        if self.state is rebalance.COMPLETING:
            raise errors.RebalanceInProgress("the leader is computing the assignments")
        self.members.touch(member, now)

    def _check_generation(self, generation: int) -> None:
        if generation != self.generation:
            raise errors.IllegalGeneration(f"generation {generation} is not the current one, {self.generation}")

    # -- administration ----------------------------------------------------------------------------------------------------------

    def die(self) -> None:
        """The group was removed; only an empty one can be."""
        assert self.state is rebalance.EMPTY, self.state
        self._enter(rebalance.DEAD)

    def move(self, error: errors.RequestError) -> list[members.Answer]:
        """Another broker coordinates the group now: waiting members get `error`, and rejoin there."""
        for member in self.members:
            self._refuse(member, error)
        self._enter(rebalance.DEAD)
        return self._take_answers()

    def describe(self) -> members.GroupDescription:
        """The administrators' view; metadata and assignments are included only while they are valid, in a stable group."""
        is_stable = self.state is rebalance.STABLE
        return members.GroupDescription(
            group_id=self.group_id,
            state=self.state.value,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name if is_stable else "",
            members=tuple(
                members.MemberDescription(
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
