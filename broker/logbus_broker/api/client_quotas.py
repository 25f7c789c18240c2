"""DescribeClientQuotas and AlterClientQuotas: the limits of users, client ids and addresses (KIP-546)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from logbus_broker.api import authorization, error_codes, handler
from logbus_broker.errors import BrokerError, InvalidRequest
from logbus_broker.protocol import api, codec
from logbus_broker.security import quotas
from logbus_broker.security.state import QuotaEntity, SecurityState

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
