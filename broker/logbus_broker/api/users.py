"""Users and their SCRAM credentials: described, added and removed by clients, and read from a file at a start; the quotas of
users, client ids and addresses (KIP-546); and ACLs: who may do what, as administrators see and change it.

Here is also what is answered to a login where there is none: on a listener that requires no login, or by a client that has logged
in, for good. Elsewhere logins do not get here (`network/gate.py`).

Asking and changing is for super users, those whom an ACL allows to describe or alter the cluster, and a user NAME for its own
users `NAME/...`. What takes effect is stored first, all of a request with one write; it is in effect for requests that arrive
after the answer, at the other brokers some milliseconds later.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from enum import IntEnum
from pathlib import Path
from typing import Any, TypeVar

from logbus_broker import errors
from logbus_broker.api import authorization, error_codes, handler
from logbus_broker.cluster.security_store import Edit
from logbus_broker.errors import BrokerError, InvalidRequest, SecurityDisabled
from logbus_broker.protocol import api, codec, framing
from logbus_broker.protocol.api import ApiKey
from logbus_broker.security import acls, quotas
from logbus_broker.security.state import (
    Acl,
    AclOperation,
    AclPermission,
    AclResourceType,
    PatternType,
    QuotaEntity,
    ScramCredential,
    ScramMechanism,
    SecurityState,
)

_SALT_BYTES_MAX = 1_024
_HASH_BYTES = {ScramMechanism.SCRAM_SHA_256: 32, ScramMechanism.SCRAM_SHA_512: 64}
_NOBODY_KEY_BYTES = 32
_OWN_USERS_MAX = 1_000  # users `NAME/...` of one NAME, who may make them without being an administrator


def handle_sasl_handshake(request: framing.Request, context: handler.Context) -> handler.Parts:
    codec.decode_request(request.api_key, request.version, request.body)
    answer = codec.response_class(ApiKey.SASL_HANDSHAKE)(error_code=error_codes.code_of(_no_login(request)))
    return [codec.encode_response(answer, request.version)]


def handle_sasl_authenticate(request: framing.Request, context: handler.Context) -> handler.Parts:
    codec.decode_request(request.api_key, request.version, request.body)
    answer = codec.response_class(ApiKey.SASL_AUTHENTICATE)()
    error_codes.refuse(answer, _no_login(request))
    return [codec.encode_response(answer, request.version)]


def _no_login(request: framing.Request) -> errors.IllegalSaslState:
    return errors.IllegalSaslState(f"listener {request.origin.listener} expects no login now", reason="state")


@handler.answered_in_slices
def handle_describe_user_scram_credentials(
    message: Any, version: int, caller: authorization.Caller, context: handler.Context
) -> handler.Answering:
    response = codec.response_class(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS)
    result = response.DescribeUserScramCredentialsResult
    answer = response(error_message=None)
    with error_codes.refusing(answer):
        caller.check(authorization.CLUSTER)
    if answer.error_code:
        return [codec.encode_response(answer, version)]
    by_user: dict[str, list[tuple[ScramMechanism, ScramCredential]]] = {}
    for (user, mechanism), credential in sorted(context.security.state.credentials.items()):
        by_user.setdefault(user, []).append((mechanism, credential))
        yield None
    requested = Counter(user.name for user in message.users) if message.users else Counter(by_user.keys())
    rows = answer.results
    for user, count in requested.items():
        row = result(user=user, error_message=None)
        with error_codes.refusing(row):
            if count > 1:
                raise errors.DuplicateResource(f"user {user!r} is named more than once in one request: name it once")
            if user not in by_user:
                raise errors.ResourceNotFound(f"there is no SCRAM credential of a user {user!r}")
            row.credential_infos = [
                result.CredentialInfo(mechanism=mechanism, iterations=credential.iterations)
                for mechanism, credential in by_user[user]
            ]
        rows.append(row)
        yield None
    return (yield from handler.encode_in_slices(answer, version, rows))


@handler.answered_in_turn
def handle_alter_user_scram_credentials(
    message: Any, version: int, caller: authorization.Caller, context: handler.Context
) -> handler.Answering:
    """All credentials of a user that the request names are changed, or none."""
    response = codec.response_class(ApiKey.ALTER_USER_SCRAM_CREDENTIALS)
    refused: dict[str, errors.BrokerError] = {}
    outcomes: dict[str, errors.BrokerError | None] = {}
    for user, _, upsertions in _by_user(message):
        try:
            caller.check_user(f"User:{user}", f"change the credentials of user {user}", gains=bool(upsertions))
        except errors.AuthorizationError as error:
            refused[user] = error
        yield None

    def edit(state: SecurityState) -> SecurityState:
        # May be called again with a newer state: what it says about each user is of the state that is stored.
        credentials: dict[Any, ScramCredential | None] = dict(state.credentials)
        outcomes.clear()
        for user, deletions, upsertions in _by_user(message):
            outcomes[user] = refused.get(user)
            try:
                if user not in refused:
                    _refuse_too_many(user, credentials, upsertions)
                    credentials.update(_changed(user, credentials, deletions, upsertions))
            except errors.RequestError as error:
                outcomes[user] = error
        left = {key: credential for key, credential in credentials.items() if credential is not None}
        return state if left == state.credentials else with_credentials(state, left)

    try:
        yield from context.security.change(edit)
    except errors.BrokerError as error:
        outcomes = {user: refusal or error for user, refusal in outcomes.items()}
    rows = []
    for user, outcome in outcomes.items():
        row = response.AlterUserScramCredentialsResult(user=user, error_message=None)
        if outcome is not None:
            error_codes.refuse(row, outcome)
        rows.append(row)
    return (yield from handler.encode_in_slices(response(results=rows), version, rows))


def _by_user(message: Any) -> Iterator[tuple[str, list[Any], list[Any]]]:
    deletions = handler.by_name(message.deletions, lambda deletion: deletion.name)
    upsertions = handler.by_name(message.upsertions, lambda upsertion: upsertion.name)
    for user in dict.fromkeys((*deletions, *upsertions)):
        yield user, deletions.get(user, []), upsertions.get(user, [])


def _refuse_too_many(user: str, credentials: Mapping[Any, Any], upsertions: list[Any]) -> None:
    owner, has_owner, _ = user.partition("/")
    if has_owner and upsertions:
        users = {name for name, _ in credentials if name.startswith(f"{owner}/")}
        if user not in users and len(users) >= _OWN_USERS_MAX:
            raise errors.UnacceptableCredential(f"there are {len(users)} users {owner}/...: delete those that nobody needs")


def _changed(
    user: str, credentials: Mapping[Any, Any], deletions: list[Any], upsertions: list[Any]
) -> dict[tuple[str, ScramMechanism], ScramCredential | None]:
    """The user's new credentials; None where one is deleted. Raises a RequestError."""
    if not user:
        raise errors.UnacceptableCredential("Username must not be empty")
    changes: dict[tuple[str, ScramMechanism], ScramCredential | None] = {}
    for count, row in enumerate((*deletions, *upsertions)):
        if row.mechanism not in tuple(ScramMechanism):
            raise errors.UnsupportedSaslMechanism("Unknown SCRAM mechanism", reason="mechanism")
        key = user, ScramMechanism(row.mechanism)
        if count < len(deletions) and credentials.get(key) is None:
            raise errors.ResourceNotFound("Attempt to delete a user credential that does not exist")
        if key in changes:
            raise errors.DuplicateResource("A user credential cannot be altered twice in the same request")
        changes[key] = None
    for row in upsertions:
        changes[user, ScramMechanism(row.mechanism)] = _credential(row)
    return changes


def _credential(row: Any) -> ScramCredential:
    from logbus_broker.security import sasl  # not needed by a broker without users

    mechanism = ScramMechanism(row.mechanism)
    if row.iterations < sasl.ITERATIONS_MIN:
        raise errors.UnacceptableCredential(f"Too few iterations: at least {sasl.ITERATIONS_MIN}")
    if row.iterations > sasl.ITERATIONS_MAX:
        raise errors.UnacceptableCredential(f"Too many iterations: at most {sasl.ITERATIONS_MAX}")
    if not 0 < len(row.salt) <= _SALT_BYTES_MAX or len(row.salted_password) != _HASH_BYTES[mechanism]:
        raise errors.UnacceptableCredential(
            f"a salt of {len(row.salt)} and a SaltedPassword of {len(row.salted_password)} bytes: they have 1 to "
            f"{_SALT_BYTES_MAX} and {_HASH_BYTES[mechanism]}"
        )
    return sasl.credential_of(mechanism, row.salted_password, row.salt, row.iterations)


def with_credentials(state: SecurityState, credentials: Mapping[tuple[str, ScramMechanism], ScramCredential]) -> SecurityState:
    """The state with these in place of its credentials."""
    return replace(state, credentials=credentials, nobody_key=state.nobody_key or os.urandom(_NOBODY_KEY_BYTES))


def read_users_file(path: Path, setting: str = "logbus.users.file") -> dict[str, str]:
    """Passwords by user from the file that the setting names: lines NAME=PASSWORD, `#` begins a comment. StartupError
    says what to do about one that cannot be read, or that others can read."""
    try:
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise errors.StartupError(f"{setting}: others may read the passwords in {path}: chmod 600 {path}")
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise errors.StartupError(f"{setting}: cannot read {path}: {error}") from None
    passwords: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        user, separator, password = line.partition("=")
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if not (separator and user.strip() and password):  # the line itself is not shown: it may be a password
            raise errors.StartupError(f"{setting}: {path}, line {number}: expected NAME=PASSWORD")
        passwords[user.strip()] = password
    return passwords


def add_users(passwords: Mapping[str, str]) -> Edit:
    """Gives each user that has no credential one for each mechanism. Who has one keeps it: the password may have been changed."""

    def edit(state: SecurityState) -> SecurityState:
        from logbus_broker.security import sasl

        existing = {user for user, _ in state.credentials}
        added = {
            (user, mechanism): sasl.credential_of_password(mechanism, password, os.urandom(sasl.SALT_BYTES))
            for user, password in passwords.items()
            if user not in existing
            for mechanism in ScramMechanism
        }
        return with_credentials(state, {**state.credentials, **added}) if added else state

    return edit


# DescribeClientQuotas and AlterClientQuotas: the limits of users, client ids and addresses (KIP-546).


_EXACT, _DEFAULT, _ANY = 0, 1, 2  # how a filter's component matches a name
_TYPES = ("user", "client-id", "ip")

Changes = Mapping[str, float | None]  # by key; None takes the limit away


@handler.answered_in_slices
def handle_describe_client_quotas(
    message: Any, version: int, caller: authorization.Caller, context: handler.Context
) -> handler.Answering:
    response = codec.response_class(api.ApiKey.DESCRIBE_CLIENT_QUOTAS)
    try:
        caller.check(authorization.CLUSTER)
        _check_filter(message.components)
    except BrokerError as error:
        answer = response(error_code=error_codes.code_of(error), error_message=error_codes.text_of(error), entries=None)
        return [codec.encode_response(answer, version)]
    rows = []
    for entity, values in context.security.state.quotas.items():
        if _matches(dict(entity), message):
            rows.append(
                response.EntryData(
                    entity=[
                        response.EntryData.EntityData(entity_type=kind, entity_name=name)
                        for kind, name in sorted(entity, key=lambda part: _TYPES.index(part[0]))
                    ],
                    values=[response.EntryData.ValueData(key=key, value=value) for key, value in sorted(values.items())],
                )
            )
        yield None
    return (yield from handler.encode_in_slices(response(error_message=None, entries=rows), version, rows))


def _check_filter(components: Any) -> None:
    for component in components:
        if component.entity_type not in _TYPES:
            raise InvalidRequest(f"unknown entity type {component.entity_type!r}: it is one of {', '.join(_TYPES)}")
        if component.match_type not in (_EXACT, _DEFAULT, _ANY):
            raise InvalidRequest(f"unknown match type {component.match_type}: 0 a name, 1 the default, 2 any")
        if component.match_type == _EXACT and component.match is None:
            raise InvalidRequest(f"a filter for one {component.entity_type} names it")
    if len({component.entity_type for component in components}) < len(components):
        raise InvalidRequest("a filter names each entity type once")


def _matches(names: dict[str, str | None], message: Any) -> bool:
    for component in message.components:
        if component.entity_type not in names:
            return False
        name = names.pop(component.entity_type)
        if component.match_type == _EXACT and name != component.match:
            return False
        if component.match_type == _DEFAULT and name is not None:
            return False
    return not (message.strict and names)


@handler.answered_in_turn
def handle_alter_client_quotas(
    message: Any, version: int, caller: authorization.Caller, context: handler.Context
) -> handler.Answering:
    """Each entry is checked by itself; those that are right are stored together."""
    response = codec.response_class(api.ApiKey.ALTER_CLIENT_QUOTAS)
    rows, accepted = [], {}
    for entry in message.entries:
        row = response.EntryData(
            error_message=None,
            entity=[
                response.EntryData.EntityData(entity_type=part.entity_type, entity_name=part.entity_name) for part in entry.entity
            ],
        )
        rows.append(row)
        with error_codes.refusing(row):
            caller.check(authorization.CLUSTER, what="alter client quotas")
            entity, changes = _entity(entry.entity), _changes(entry)
            if entity in accepted:
                raise InvalidRequest("one request names the same entity twice: name it once")
            accepted[entity] = row, changes
        yield None
    if accepted and not message.validate_only:
        try:
            yield from context.security.change(
                lambda state: _with_changes(state, {entity: changes for entity, (_, changes) in accepted.items()})
            )
        except BrokerError as error:
            for row, _ in accepted.values():
                error_codes.refuse(row, error)
    return (yield from handler.encode_in_slices(response(entries=rows), version, rows))


def _entity(parts: Any) -> QuotaEntity:
    names = {part.entity_type: part.entity_name for part in parts}
    for kind in names:
        if kind not in _TYPES:
            raise InvalidRequest(f"unknown entity type {kind!r}: it is one of {', '.join(_TYPES)}")
    if not names or len(names) < len(parts):
        raise InvalidRequest("an entity names a user, a client id, both of them, or an address, each once")
    if "ip" in names and len(names) > 1:
        raise InvalidRequest("a limit for an address applies to no user and no client id: name them apart")
    if "" in names.values():
        raise InvalidRequest("an entity without a name: leave it null for the default")
    return frozenset(names.items())


def _changes(entry: Any) -> Changes:
    keys = quotas.IP_KEYS if any(part.entity_type == "ip" for part in entry.entity) else quotas.CLIENT_KEYS
    changes: dict[str, float | None] = {}
    for operation in entry.ops:
        if operation.key not in keys:
            raise InvalidRequest(f"unknown quota {operation.key!r} here: it is one of {', '.join(sorted(keys))}")
        if not operation.remove and not 0 < operation.value < float("inf"):
            raise InvalidRequest(f"{operation.key}={operation.value}: a limit is above 0")
        changes[operation.key] = None if operation.remove else operation.value
    return changes


def _with_changes(state: SecurityState, changes_by_entity: Mapping[QuotaEntity, Changes]) -> SecurityState:
    limits = dict(state.quotas)
    for entity, changes in changes_by_entity.items():
        values = dict(_applied(limits.get(entity, {}), changes))
        if values:
            limits[entity] = values
        else:
            limits.pop(entity, None)
    return replace(state, quotas=limits)


def _applied(values: Mapping[str, float], changes: Changes) -> Iterator[tuple[str, float]]:
    for key, value in {**values, **changes}.items():
        if value is not None:
            yield key, value


# DescribeAcls, CreateAcls and DeleteAcls: who may do what, as administrators see and change it.


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
