"""JoinGroup, SyncGroup, Heartbeat, LeaveGroup and FindCoordinator: the wire protocol around the group state machine; and how
groups move to and from this broker with the leadership of their partition of `__consumer_offsets`.

A join waits until its generation begins, a sync until the leader has sent the assignments: their Pending is the ticket that the
state machine hands back; what has to be in the log before is written by `store_group`. Requests pipelined after one of them
wait unread, as with Apache Kafka: a heartbeat that overtook its join would be answered as if the member had not joined.

A standalone broker coordinates every group. In a cluster, a group's coordinator is the leader of the group's partition of
`__consumer_offsets`. The first request has that topic created; until then clients get COORDINATOR_NOT_AVAILABLE and retry.

A new coordinator reads committed offsets and members before it serves a group, as a background task: the loop continues. Logs are
read one after another, however many are won at once. The end of a log may be newer than what the last coordinator had
acknowledged, and other replicas may not have it yet. So the coordinator waits until they do, but only for a limited time: a
consumer that was given an offset should not be given an older one later, but neither should it stall for as long as a replica is
down. The groups are restored last, so that their sessions begin when their members can be heard.

A standalone broker has all groups from the start.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from logbus_broker import errors, logs
from logbus_broker.api import authorization, error_codes, handler, internal_topics, purgatory
from logbus_broker.cluster.topic_registry import OFFSETS_TOPIC
from logbus_broker.groups import committed_offsets, members
from logbus_broker.groups.committed_offsets import CommittedOffsets
from logbus_broker.groups.coordinator import check_group_id
from logbus_broker.groups.group import Group
from logbus_broker.log.background_tasks import Steps
from logbus_broker.log.partition import Partition
from logbus_broker.protocol import api, codec, framing

_CLIENT_ID_LENGTH_MAX = 255  # shown to administrators, whose request version may allow less than this one

Outcome = members.JoinAnswer | members.SyncAnswer | errors.RequestError


@dataclass(frozen=True, slots=True, eq=False)
class _WaitingMember:
    """The ticket of a join or sync: the pending response, and how to encode the answer in the request's version."""

    pending: handler.Pending
    encode: Callable[[Any], handler.Parts]


def deliver(answers: Iterable[members.Answer]) -> None:
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
            code = yield from internal_topics.write_group(group.group_id, stored, admit, context)
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
    ask: Callable[[_WaitingMember], Iterable[members.Answer]],
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


def _name(message: Any) -> members.MemberName:
    return members.MemberName(member_id=message.member_id, instance_id=message.group_instance_id)


# -- JoinGroup -------------------------------------------------------------------------------------------------------------------


def handle_join_group(request: framing.Request, context: handler.Context) -> handler.Parts | handler.Pending:
    message = codec.decode_request(request.api_key, request.version, request.body)
    join = members.JoinRequest(
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


def _encode_join(outcome: members.JoinAnswer | errors.RequestError, member_id: str, version: int) -> bytes:
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
    sync = members.SyncRequest(
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


def _encode_sync(outcome: members.SyncAnswer | errors.RequestError, version: int) -> bytes:
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
            code = _leave(message.group_id, members.MemberName(member_id=message.member_id), context)
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


def _leave(group_id: str, name: members.MemberName, context: handler.Context) -> int:
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
            internal_topics.request_topic(context)
        code, text = error_codes.code_of(error), error_codes.text_of(error)
        return {"error_code": code, "error_message": text, "node_id": -1, "port": -1}
    return {"error_message": None, "node_id": broker_id, "host": host, "port": port}


# Groups move to and from this broker with the leadership of their partition of `__consumer_offsets`.


_REPLICATION_MS_MAX = 5_000


class GroupLoader:
    """Notified of every change of leadership; ignores partitions other than those of `__consumer_offsets`."""

    def __init__(self, context: handler.Context) -> None:
        self._context = context
        self._to_load: deque[tuple[Partition, CommittedOffsets]] = deque()
        self._is_loading = False

    def own_all(self) -> None:
        """There are no other brokers. Called once, at startup."""
        offsets = self._context.offsets.own_all()
        if self._context.offsets.has_topic:
            for _ in self._load(offsets):
                pass
        for _ in self._restore(offsets):
            pass

    def won(self, partition: Partition) -> None:
        """This broker leads the partition from now on."""
        if partition.topic != OFFSETS_TOPIC:
            return
        self._to_load.append((partition, self._context.offsets.begin(partition.index)))
        if not self._is_loading:
            self._is_loading = True
            self._context.tasks.begin(self._load_all(), self._failed)

    def lost(self, partition: Partition) -> None:
        """This broker no longer leads the partition: requests that wait for one of its groups are answered at once."""
        if partition.topic != OFFSETS_TOPIC:
            return
        offsets, index = self._context.offsets, partition.index
        offsets.drop(index)
        deliver(self._context.groups.lose(lambda group_id: offsets.index_of(group_id) == index))

    def _load_all(self) -> Steps:
        while self._to_load:
            partition, offsets = self._to_load.popleft()
            yield from self._load(offsets)
            if not offsets.is_dropped:
                _Load(partition, self._context, partial(self._context.tasks.begin, self._restore(offsets), self._failed)).begin()
        self._is_loading = False

    def _load(self, offsets: CommittedOffsets) -> Steps:
        try:
            yield from offsets.load(self._context.partitions.get(OFFSETS_TOPIC, offsets.index).log)
        except Exception as error:  # affects the groups of this partition, not those of the next
            offsets.give_up(str(error) or type(error).__name__)
            if not isinstance(error, (errors.BrokerError, OSError)):
                self._context.health.defect(f"reading {OFFSETS_TOPIC}-{offsets.index}", error)

    def _restore(self, offsets: CommittedOffsets) -> Steps:
        for group_id, stored in offsets.take_groups():
            try:
                self._context.groups.restore(group_id, stored, self._context.clock.monotonic())
            except Exception as error:  # affects this group: its members join again
                self._context.health.defect(f"restoring group {group_id}", error)
            yield None
        if not offsets.is_dropped:
            self._context.offsets.loaded(offsets)

    def _failed(self) -> None:
        """Called inside an exception handler."""
        self._is_loading = False
        logs.log_bug("loading committed offsets failed")


class _Load(purgatory.Deadline):
    """A log that was read, waiting until the other replicas have it; then `go_on` is called."""

    __slots__ = ("_context", "_go_on", "_partition")

    def __init__(self, partition: Partition, context: handler.Context, go_on: Callable[[], None]) -> None:
        super().__init__(context.clock.monotonic() + _REPLICATION_MS_MAX / 1000)
        self._partition = partition
        self._context = context
        self._go_on = go_on

    def begin(self) -> None:
        partition = self._partition
        self._context.high_watermark.when_replicated(partition, partition.end_offset, self._replicated, self)
        if not self.is_over:
            self._context.deadlines.add_in_order(self, _REPLICATION_MS_MAX)

    def _replicated(self, error: errors.BrokerError | None) -> None:
        if self.is_over:
            return
        self._context.deadlines.cancel(self)
        if error is None:
            self._go_on()

    def expire(self) -> None:
        self._go_on()
