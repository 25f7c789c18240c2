"""JoinGroup, SyncGroup, Heartbeat and LeaveGroup: the wire protocol around the group state machine.

A join waits until its generation begins, a sync until the leader has sent the assignments: their Pending is the ticket that the
state machine hands back; what has to be in the log before is written by `store_group`. Requests pipelined after one of them
wait unread, as with Apache Kafka: a heartbeat that overtook its join would be answered as if the member had not joined.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from broker.chores import Steps
from broker.errors import BrokerError, CoordinatorNotAvailable, MemberIdRequired, NotCoordinator, RequestError
from broker.groups.committed_offsets import CommittedOffsets
from broker.groups.coordinator import check_group_id
from broker.groups.group import Group
from broker.groups.messages import Answer, JoinAnswer, JoinRequest, MemberName, SyncAnswer, SyncRequest
from broker.handlers.commits import write_group
from broker.handlers.context import Context
from broker.handlers.error_codes import code_of
from broker.handlers.reply import Parts, Pending
from broker.handlers.slices import Answering, encode_in_slices, in_slices
from broker.protocol.api import ApiKey, ErrorCode
from broker.protocol.control import decode_request, encode_response, response_class
from broker.protocol.framing import Request

logger = logging.getLogger("broker.groups")

_CLIENT_ID_LENGTH_MAX = 255  # shown to administrators, whose request version may allow less than this one

Outcome = JoinAnswer | SyncAnswer | RequestError


@dataclass(frozen=True, slots=True, eq=False)
class WaitingMember:
    """The ticket of a join or sync: the pending response, and how to encode the answer in the request's version."""

    pending: Pending
    encode: Callable[[Any], bytes]

    def encode_parts(self, outcome: Outcome) -> Parts:
        return [self.encode(outcome)]


def deliver(answers: Iterable[Answer]) -> None:
    """Answer the waiting members."""
    for answer in answers:
        waiting: WaitingMember = answer.ticket
        waiting.pending.complete_with(partial(waiting.encode_parts, answer.outcome))


def store_group(group: Group, context: Context) -> None:
    """Have written what the log does not have of the group yet; then those who wait for it are answered."""
    stored, groups = group.begin_store(), context.groups

    def admit() -> CommittedOffsets:
        if groups.find(group.group_id) is not group:
            raise NotCoordinator(f"group {group.group_id!r} was removed or has moved")
        return context.offsets.readable(group.group_id)

    def end(error: RequestError | None) -> None:
        deliver(groups.stored(group, stored.generation, error, context.clock.monotonic()))

    def write() -> Steps:
        try:
            code = yield from write_group(group.group_id, stored, admit, context)
        except BrokerError as error:
            code = code_of(error)
        if code:
            kind = NotCoordinator if code == ErrorCode.NOT_COORDINATOR else CoordinatorNotAvailable
            end(kind(f"the members of group {group.group_id!r} could not be written"))
        else:
            end(None)

    def failed() -> None:
        logger.exception("the members of a group could not be written; this is a defect of the broker")
        end(CoordinatorNotAvailable(f"the members of group {group.group_id!r} could not be written"))

    context.chores.begin(write(), failed)


def _ask(encode: Callable[[Any], bytes], ask: Callable[[WaitingMember], Iterable[Answer]]) -> Parts | Pending:
    """Pass a request to the state machine; an error is answered at once."""
    pending = Pending(stops_reading=True)
    try:
        deliver(ask(WaitingMember(pending, encode)))
    except RequestError as error:
        return [encode(error)]
    return pending


def _name(message: Any) -> MemberName:
    return MemberName(member_id=message.member_id, instance_id=message.group_instance_id)


# -- JoinGroup -------------------------------------------------------------------------------------------------------------------


def handle_join_group(request: Request, context: Context) -> Parts | Pending:
    message = decode_request(request.api_key, request.version, request.body)
    wanted = JoinRequest(
        name=_name(message),
        client_id=(request.client_id or "")[:_CLIENT_ID_LENGTH_MAX],
        client_host=request.origin.host,
        protocol_type=message.protocol_type,
        protocols=tuple((row.name, row.metadata) for row in message.protocols),
        session_timeout_ms=message.session_timeout_ms,
        rebalance_timeout_ms=message.session_timeout_ms if request.version == 0 else max(message.rebalance_timeout_ms, 0),
        id_comes_first=request.version >= 4,
        may_skip_assignment=request.version >= 9,
    )
    now = context.clock.monotonic()
    return _ask(
        lambda outcome: _encode_join(outcome, wanted.name.member_id, request.version),
        lambda ticket: context.groups.join(message.group_id, wanted, ticket, now),
    )


def _encode_join(outcome: JoinAnswer | RequestError, member_id: str, version: int) -> bytes:
    response = response_class(ApiKey.JOIN_GROUP)
    if isinstance(outcome, RequestError):
        return encode_response(
            response(
                throttle_time_ms=0,
                error_code=code_of(outcome),
                generation_id=-1,
                protocol_type=None,
                protocol_name=None if version >= 7 else "",
                leader="",
                skip_assignment=False,
                member_id=outcome.member_id if isinstance(outcome, MemberIdRequired) else member_id,
                members=[],
            ),
            version,
        )
    rows = [
        response.JoinGroupResponseMember(member_id=row.member_id, group_instance_id=row.instance_id, metadata=row.metadata)
        for row in outcome.members
    ]
    answer = response(
        throttle_time_ms=0,
        error_code=0,
        generation_id=outcome.generation,
        protocol_type=outcome.protocol_type,
        protocol_name=outcome.protocol_name,
        leader=outcome.leader_id,
        skip_assignment=outcome.skip_assignment,
        member_id=outcome.member_id,
        members=rows,
    )
    return encode_response(answer, version)


# -- SyncGroup -------------------------------------------------------------------------------------------------------------------


def handle_sync_group(request: Request, context: Context) -> Parts | Pending:
    message = decode_request(request.api_key, request.version, request.body)
    wanted = SyncRequest(
        name=_name(message),
        generation=message.generation_id,
        protocol_type=message.protocol_type,
        protocol_name=message.protocol_name,
        assignments={row.member_id: row.assignment for row in message.assignments},
    )
    now = context.clock.monotonic()
    return _ask(
        lambda outcome: _encode_sync(outcome, request.version),
        lambda ticket: context.groups.sync(message.group_id, wanted, ticket, now),
    )


def _encode_sync(outcome: SyncAnswer | RequestError, version: int) -> bytes:
    response = response_class(ApiKey.SYNC_GROUP)
    if isinstance(outcome, RequestError):
        answer = response(throttle_time_ms=0, error_code=code_of(outcome), protocol_type=None, protocol_name=None, assignment=b"")
    else:
        answer = response(
            throttle_time_ms=0,
            error_code=0,
            protocol_type=outcome.protocol_type,
            protocol_name=outcome.protocol_name,
            assignment=outcome.assignment,
        )
    return encode_response(answer, version)


# -- Heartbeat and LeaveGroup ----------------------------------------------------------------------------------------------------


def handle_heartbeat(request: Request, context: Context) -> Parts:
    message = decode_request(request.api_key, request.version, request.body)
    code = 0
    try:
        context.groups.heartbeat(message.group_id, _name(message), message.generation_id, context.clock.monotonic())
    except BrokerError as error:
        code = code_of(error)
    return [encode_response(response_class(ApiKey.HEARTBEAT)(throttle_time_ms=0, error_code=code), request.version)]


def handle_leave_group(request: Request, context: Context) -> Parts | Pending:
    message = decode_request(request.api_key, request.version, request.body)
    response = response_class(ApiKey.LEAVE_GROUP)
    if request.version < 3:
        code = _leave(message.group_id, MemberName(member_id=message.member_id), context)
        return [encode_response(response(throttle_time_ms=0, error_code=code), request.version)]
    try:
        context.offsets.ours(check_group_id(message.group_id))
    except BrokerError as error:
        return [encode_response(response(throttle_time_ms=0, error_code=code_of(error), members=[]), request.version)]
    return in_slices(_leave_all(message, request.version, context), context)


def _leave_all(message: Any, version: int, context: Context) -> Answering:
    response = response_class(ApiKey.LEAVE_GROUP)
    rows = []
    for row in message.members:
        code = _leave(message.group_id, _name(row), context)
        rows.append(response.MemberResponse(member_id=row.member_id, group_instance_id=row.group_instance_id, error_code=code))
        yield None
    return (yield from encode_in_slices(response(throttle_time_ms=0, error_code=0, members=rows), version, rows))


def _leave(group_id: str, name: MemberName, context: Context) -> int:
    try:
        deliver(context.groups.leave(group_id, name, context.clock.monotonic()))
    except BrokerError as error:
        return code_of(error)
    return 0
