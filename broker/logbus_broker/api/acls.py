"""DescribeAcls, CreateAcls and DeleteAcls: who may do what, as administrators see and change it.

Only super users, those whom an ACL allows to describe or alter the cluster, and a user NAME for its own users `NAME/...`. What
takes effect is stored first, all of a request with one write; it is in effect for requests that arrive after the answer, at the
other brokers some milliseconds later.
"""

from __future__ import annotations

from dataclasses import replace
from enum import IntEnum
from typing import Any, TypeVar

from logbus_broker.api import authorization, error_codes, handler
from logbus_broker.errors import BrokerError, InvalidRequest, SecurityDisabled
from logbus_broker.protocol import api, codec
from logbus_broker.security import acls
from logbus_broker.security.state import Acl, AclOperation, AclPermission, AclResourceType, PatternType, SecurityState

# Each change writes all of them. Kafka's limit for one request; prefixes keep it far below this even with thousands of topics.
_ACLS_MAX = 10_000

_Pattern = tuple[AclResourceType, PatternType, str]
_Kind = TypeVar("_Kind", bound=IntEnum)


def _admit(caller: authorization.Caller, context: handler.Context, principal: str | None = None) -> None:
    """Raises SecurityDisabled or ClusterAuthorizationFailed; `principal`: of the ACLs, if they are one's. What is allowed is not
    logged by this, but ACL by ACL."""
    if context.authorizer is None:
        raise SecurityDisabled("no ACLs are enforced: set authorizer.class.name and super.users, and restart the broker")
    if not caller.may_change(principal or ""):
        caller.check(authorization.CLUSTER)


def _number(kind: type[_Kind], number: int) -> _Kind:
    try:
        return kind(number)
    except ValueError:
        raise InvalidRequest(f"there is no {kind.__name__} {number}") from None


def _filter(requested: Any) -> acls.AclFilter:
    return acls.AclFilter(
        resource_type=_number(AclResourceType, requested.resource_type_filter),
        resource_name=requested.resource_name_filter,
        pattern_type=_number(PatternType, requested.pattern_type_filter),
        principal=requested.principal_filter,
        host=requested.host_filter,
        operation=_number(AclOperation, requested.operation),
        permission=_number(AclPermission, requested.permission_type),
    )


def _new_acl(requested: Any) -> Acl:
    acl = Acl(
        resource_type=_number(AclResourceType, requested.resource_type),
        pattern_type=_number(PatternType, requested.resource_pattern_type),
        resource_name=requested.resource_name,
        principal=requested.principal,
        host=requested.host,
        operation=_number(AclOperation, requested.operation),
        permission=_number(AclPermission, requested.permission_type),
    )
    acls.check_new(acl)
    return acl


@handler.answered_in_slices
def handle_describe_acls(message: Any, version: int, caller: authorization.Caller, context: handler.Context) -> handler.Answering:
    response = codec.response_class(api.ApiKey.DESCRIBE_ACLS)
    answer = response(error_message=None)
    rows_by_pattern: dict[_Pattern, list[Any]] = {}
    with error_codes.refusing(answer):
        _admit(caller, context, message.principal_filter)
        chosen = _filter(message)
        row = response.DescribeAclsResource.AclDescription
        for acl in context.security.state.acls:
            if chosen.matches(acl):
                rows_by_pattern.setdefault((acl.resource_type, acl.pattern_type, acl.resource_name), []).append(
                    row(principal=acl.principal, host=acl.host, operation=acl.operation, permission_type=acl.permission)
                )
            yield None
    answer.resources = [
        response.DescribeAclsResource(resource_type=kind, pattern_type=pattern, resource_name=name, acls=rows)
        for (kind, pattern, name), rows in sorted(rows_by_pattern.items(), key=lambda item: item[0])
    ]
    return (yield from handler.encode_in_slices(answer, version, *rows_by_pattern.values()))


@handler.answered_in_turn
def handle_create_acls(message: Any, version: int, caller: authorization.Caller, context: handler.Context) -> handler.Answering:
    response = codec.response_class(api.ApiKey.CREATE_ACLS)
    rows: list[Any] = []
    new: set[Acl] = set()
    for creation in message.creations:
        row = response.AclCreationResult(error_message=None)
        rows.append(row)
        with error_codes.refusing(row):
            _admit(caller, context, creation.principal)
            acl = _new_acl(creation)
            caller.check_acl(acl, f"create {acls.as_text(acl)}", gains=True)
            new.add(acl)
        yield None

    def with_new(state: SecurityState) -> SecurityState:
        changed = state.acls | new
        if len(changed) > _ACLS_MAX:
            raise InvalidRequest(
                f"there would be {len(changed)} ACLs; at most {_ACLS_MAX} are kept: use prefixes, or delete some"
            )
        return replace(state, acls=changed)

    try:
        yield from context.security.change(with_new)
    except BrokerError as error:
        for row in rows:
            if not row.error_code:
                error_codes.refuse(row, error)
    return (yield from handler.encode_in_slices(response(results=rows), version, rows))


@handler.answered_in_turn
def handle_delete_acls(message: Any, version: int, caller: authorization.Caller, context: handler.Context) -> handler.Answering:
    """An ACL that several filters match is a row of the first of them."""
    response = codec.response_class(api.ApiKey.DELETE_ACLS)
    rows: list[Any] = []
    left = sorted(context.security.state.acls, key=acls.order)
    doomed: set[Acl] = set()
    for requested in message.filters:
        row = response.DeleteAclsFilterResult(error_message=None)
        rows.append(row)
        with error_codes.refusing(row):
            _admit(caller, context, requested.principal_filter)
            chosen = _filter(requested)
            matching = [acl for acl in left if chosen.matches(acl)]
            for acl in matching:
                caller.check_acl(acl, f"delete {acls.as_text(acl)}", gains=False)
            left = [acl for acl in left if not chosen.matches(acl)]
            row.matching_acls = list(map(_deleted_row, matching))
            doomed.update(matching)
        yield None
    try:
        yield from context.security.change(lambda state: replace(state, acls=state.acls - doomed))
    except BrokerError as error:
        for row in rows:
            if row.matching_acls:
                row.matching_acls = []
                error_codes.refuse(row, error)
    return (yield from handler.encode_in_slices(response(filter_results=rows), version, *(row.matching_acls for row in rows)))


def _deleted_row(acl: Acl) -> Any:
    return codec.response_class(api.ApiKey.DELETE_ACLS).DeleteAclsFilterResult.DeleteAclsMatchingAcl(
        error_message=None,
        resource_type=acl.resource_type,
        resource_name=acl.resource_name,
        pattern_type=acl.pattern_type,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.permission,
    )
