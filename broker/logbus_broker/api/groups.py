"""JoinGroup, SyncGroup, Heartbeat, LeaveGroup and FindCoordinator: the wire protocol around the group state machine.

A join waits until its generation begins, a sync until the leader has sent the assignments: their Pending is the ticket that the
state machine hands back; what has to be in the log before is written by `store_group`. Requests pipelined after one of them
wait unread, as with Apache Kafka: a heartbeat that overtook its join would be answered as if the member had not joined.

A standalone broker coordinates every group. In a cluster, a group's coordinator is the leader of the group's partition of
`__consumer_offsets`. The first request has that topic created; until then clients get COORDINATOR_NOT_AVAILABLE and retry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from logbus_broker import errors, logs
from logbus_broker.api import authorization, error_codes, handler, offsets_topic
from logbus_broker.groups import committed_offsets, messages
from logbus_broker.groups.coordinator import check_group_id
from logbus_broker.groups.group import Group
from logbus_broker.log.background_tasks import Steps
from logbus_broker.protocol import api, codec, framing

_CLIENT_ID_LENGTH_MAX = 255  # shown to administrators, whose request version may allow less than this one

Outcome = messages.JoinAnswer | messages.SyncAnswer | errors.RequestError


@dataclass(frozen=True, slots=True, eq=False)
class _WaitingMember:
    """The ticket of a join or sync: the pending response, and how to encode the answer in the request's version."""

    pending: handler.Pending
    encode: Callable[[Any], handler.Parts]


def deliver(answers: Iterable[messages.Answer]) -> None:
    """Answer the waiting members."""
    for answer in answers:
        waiting: _WaitingMember = answer.ticket
        waiting.pending.complete_with(partial(waiting.encode, answer.outcome))


def store_group(group: Group, context: handler.Context) -> None:
    """Have written what the log does not have of the group yet; then those who wait for it are answered."""
    stored, groups = group.begin_store(), context.groups

    def admit() -> committed_offsets.CommittedOffsets:
        if groups.find(group.group_id) is not group:
            raise errors.NotCoordinator(f"group {group.group_id!r} was removed or has moved")
        return context.offsets.readable(group.group_id)

    def end(error: errors.RequestError | None) -> None:
        deliver(groups.stored(group, stored.generation, error, context.clock.monotonic()))

    def write() -> Steps:
        try:
            code = yield from offsets_topic.write_group(group.group_id, stored, admit, context)
        except errors.BrokerError as error:
            code = error_codes.code_of(error)
        if code:
            kind = errors.NotCoordinator if code == api.ErrorCode.NOT_COORDINATOR else errors.CoordinatorNotAvailable
            end(kind(f"the members of group {group.group_id!r} could not be written"))
        else:
            end(None)

    def failed() -> None:
        logs.log_bug("writing the members of a group failed")
        end(errors.CoordinatorNotAvailable(f"the members of group {group.group_id!r} could not be written"))

    context.tasks.begin(write(), failed)


def _ask(
    caller: authorization.Caller,
    group_id: str,
    encode: Callable[[Any], handler.Parts],
    ask: Callable[[_WaitingMember], Iterable[messages.Answer]],
) -> handler.Parts | handler.Pending:
    """Pass a request to the state machine; an error is answered at once. What waited is answered by the rights of then."""
    pending = handler.Pending(stops_reading=True)

    def encode_if_allowed(outcome: Any) -> handler.Parts:
        try:
            caller.check(authorization.GROUP, group_id)
        except errors.GroupAuthorizationFailed as refused:
            return encode(refused)
        return encode(outcome)

    try:
        caller.check(authorization.GROUP, group_id)
        deliver(ask(_WaitingMember(pending, encode_if_allowed)))
    except errors.RequestError as error:
        return encode(error)
    return pending


def _name(message: Any) -> messages.MemberName:
    return messages.MemberName(member_id=message.member_id, instance_id=message.group_instance_id)


# -- JoinGroup -------------------------------------------------------------------------------------------------------------------


def handle_join_group(request: framing.Request, context: handler.Context) -> handler.Parts | handler.Pending:
    message = codec.decode_request(request.api_key, request.version, request.body)
    join = messages.JoinRequest(
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
        handler.caller_of(request, context),
        message.group_id,
        lambda outcome: [_encode_join(outcome, join.name.member_id, request.version)],
        lambda ticket: context.groups.join(message.group_id, join, ticket, now),
    )


def _encode_join(outcome: messages.JoinAnswer | errors.RequestError, member_id: str, version: int) -> bytes:
    response = codec.response_class(api.ApiKey.JOIN_GROUP)
    if isinstance(outcome, errors.RequestError):
        member_id = outcome.member_id if isinstance(outcome, errors.MemberIdRequired) else member_id
        name = None if version >= 7 else ""
        answer = response(error_code=error_codes.code_of(outcome), protocol_name=name, member_id=member_id)
        return codec.encode_response(answer, version)
    rows = [
        response.JoinGroupResponseMember(member_id=row.member_id, group_instance_id=row.instance_id, metadata=row.metadata)
        for row in outcome.members
    ]
    answer = response(
        generation_id=outcome.generation,
        protocol_type=outcome.protocol_type,
        protocol_name=outcome.protocol_name,
        leader=outcome.leader_id,
        skip_assignment=outcome.skip_assignment,
        member_id=outcome.member_id,
        members=rows,
    )
    return codec.encode_response(answer, version)


# -- SyncGroup -------------------------------------------------------------------------------------------------------------------


def handle_sync_group(request: framing.Request, context: handler.Context) -> handler.Parts | handler.Pending:
    message = codec.decode_request(request.api_key, request.version, request.body)
    sync = messages.SyncRequest(
        name=_name(message),
        generation=message.generation_id,
        protocol_type=message.protocol_type,
        protocol_name=message.protocol_name,
        assignments={row.member_id: row.assignment for row in message.assignments},
    )
    now = context.clock.monotonic()
    return _ask(
        handler.caller_of(request, context),
        message.group_id,
        lambda outcome: [_encode_sync(outcome, request.version)],
        lambda ticket: context.groups.sync(message.group_id, sync, ticket, now),
    )


def _encode_sync(outcome: messages.SyncAnswer | errors.RequestError, version: int) -> bytes:
    response = codec.response_class(api.ApiKey.SYNC_GROUP)
    if isinstance(outcome, errors.RequestError):
        answer = response(error_code=error_codes.code_of(outcome))
    else:
        answer = response(
            protocol_type=outcome.protocol_type,
            protocol_name=outcome.protocol_name,
            assignment=outcome.assignment,
        )
    return codec.encode_response(answer, version)


# -- Heartbeat and LeaveGroup ----------------------------------------------------------------------------------------------------


def handle_heartbeat(request: framing.Request, context: handler.Context) -> handler.Parts:
    message = codec.decode_request(request.api_key, request.version, request.body)
    code = 0
    try:
        handler.caller_of(request, context).check(authorization.GROUP, message.group_id)
        context.groups.heartbeat(message.group_id, _name(message), message.generation_id, context.clock.monotonic())
    except errors.BrokerError as error:
        code = error_codes.code_of(error)
    return [codec.encode_response(codec.response_class(api.ApiKey.HEARTBEAT)(error_code=code), request.version)]


def handle_leave_group(request: framing.Request, context: handler.Context) -> handler.Parts | handler.Pending:
    message = codec.decode_request(request.api_key, request.version, request.body)
    response = codec.response_class(api.ApiKey.LEAVE_GROUP)
    try:
        handler.caller_of(request, context).check(authorization.GROUP, message.group_id)
        if request.version < 3:
            code = _leave(message.group_id, messages.MemberName(member_id=message.member_id), context)
            return [codec.encode_response(response(error_code=code), request.version)]
        context.offsets.ours(check_group_id(message.group_id))
    except errors.BrokerError as error:
        return [codec.encode_response(response(error_code=error_codes.code_of(error)), request.version)]
    return handler.in_slices(_leave_all(message, request.version, context), context)


def _leave_all(message: Any, version: int, context: handler.Context) -> handler.Answering:
    response = codec.response_class(api.ApiKey.LEAVE_GROUP)
    rows = []
    for row in message.members:
        code = _leave(message.group_id, _name(row), context)
        rows.append(response.MemberResponse(member_id=row.member_id, group_instance_id=row.group_instance_id, error_code=code))
        yield None
    return (yield from handler.encode_in_slices(response(members=rows), version, rows))


def _leave(group_id: str, name: messages.MemberName, context: handler.Context) -> int:
    try:
        deliver(context.groups.leave(group_id, name, context.clock.monotonic()))
    except errors.BrokerError as error:
        return error_codes.code_of(error)
    return 0


_GROUP, _TRANSACTION = 0, 1  # key types; 2 is a share group's


def handle_find_coordinator(request: framing.Request, context: handler.Context) -> handler.Parts | handler.Pending:
    message = codec.decode_request(request.api_key, request.version, request.body)
    response = codec.response_class(api.ApiKey.FIND_COORDINATOR)
    caller = handler.caller_of(request, context)
    if request.version >= 4:
        return handler.in_slices(_find_all(message, caller, request.version, context), context)
    coordinator = _coordinator_of(message.key_type if request.version >= 1 else _GROUP, message.key, caller, context)
    return [codec.encode_response(response(**coordinator), request.version)]


def _find_all(message: Any, caller: authorization.Caller, version: int, context: handler.Context) -> handler.Answering:
    response = codec.response_class(api.ApiKey.FIND_COORDINATOR)
    rows = []
    for key in message.coordinator_keys:
        rows.append(response.Coordinator(key=key, **_coordinator_of(message.key_type, key, caller, context)))
        yield None
    return (yield from handler.encode_in_slices(response(coordinators=rows), version, rows))


def _coordinator_of(key_type: int, key: str, caller: authorization.Caller, context: handler.Context) -> dict[str, Any]:
    try:
        if key_type == _TRANSACTION:
            # Every client takes this error as final and reports it at once. CoordinatorNotAvailable, the obvious choice, would be
            # retried for a minute.
            raise errors.TransactionsNotSupported("this broker does not support transactions")
        if key_type != _GROUP:
            raise errors.InvalidRequest("only groups have a coordinator here")
        caller.check(authorization.GROUP, key)
        broker_id, host, port, _ = context.view.coordinator(key, caller.origin.listener)
    except errors.BrokerError as error:
        if key_type == _GROUP and not isinstance(error, errors.AuthorizationError):
            offsets_topic.request_topic(context)
        code, text = error_codes.code_of(error), error_codes.text_of(error)
        return {"error_code": code, "error_message": text, "node_id": -1, "port": -1}
    return {"error_message": None, "node_id": broker_id, "host": host, "port": port}
