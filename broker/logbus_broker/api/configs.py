"""The settings of topics and of the broker's logs: described, and changed at run time.

DescribeConfigs returns every setting with its value, its source and its documentation, so that user interfaces and admin tools
show the truth. ListConfigResources lists what has settings.

AlterConfigs names all settings that a resource should have; IncrementalAlterConfigs changes only those it names. Either way a
resource is checked as a whole, then stored, then applied to its open logs; a rejected one changes nothing. All topics of a
request are stored with one write.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Any

from logbus_broker.api import authorization, error_codes, handler
from logbus_broker.cluster import dynamic_config, topic_registry
from logbus_broker.errors import BrokerError, InvalidConfig, InvalidRequest
from logbus_broker.log import background_tasks, topic_admin
from logbus_broker.protocol import api, codec, framing
from logbus_broker.settings_catalog import (
    ConfigSource,
    ConfigType,
    DescribedSetting,
    describe_broker,
    describe_layer,
    describe_topic,
    list_settings,
)

logger = logging.getLogger("broker.configs")


class ResourceType(IntEnum):
    """Kafka's numbers for what has settings; the last three have none here."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


_WITHOUT_SETTINGS = (ResourceType.BROKER_LOGGER, ResourceType.CLIENT_METRICS, ResourceType.GROUP)


class _Operation(IntEnum):
    """Kafka's numbers for what an incremental change does."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class _ConfigChange:
    """A change of one setting; `operation` is the number from the wire."""

    name: str
    operation: int
    value: str | None = None


def _apply_changes(
    current: Mapping[str, str],
    changes: Iterable[_ConfigChange],
    *,
    lists: Collection[str],
    settings: Callable[[], Iterable[DescribedSetting]],
) -> dict[str, str]:
    """What `current` becomes, before it is checked as a whole. `settings` are those in effect: APPEND and SUBTRACT change a list
    without an override."""
    result = dict(current)
    changed: set[str] = set()
    for change in changes:
        if change.name in changed:
            raise InvalidRequest(f"{change.name} is changed twice in one request")
        changed.add(change.name)
        if change.operation == _Operation.DELETE:
            result.pop(change.name, None)
        elif change.value is None:
            raise InvalidRequest(f"{change.name} has no value: use DELETE to fall back to the default")
        elif change.operation == _Operation.SET:
            result[change.name] = change.value
        elif change.operation in (_Operation.APPEND, _Operation.SUBTRACT):
            if change.name not in lists:
                raise InvalidConfig(f"{change.name} is not a list: set it instead of appending to it or subtracting from it")
            before = result.get(change.name)
            if before is None:
                before = next(setting.value for setting in settings() if setting.name == change.name)
            result[change.name] = _changed_list(before or "", change.value, add=change.operation == _Operation.APPEND)
        else:
            raise InvalidRequest(f"unknown operation {change.operation}: use SET, DELETE, APPEND or SUBTRACT")
    return result


def _changed_list(before: str, items: str, *, add: bool) -> str:
    had = [part.strip() for part in before.split(",") if part.strip()]
    named = [part.strip() for part in items.split(",")]
    if add:
        return ",".join([*had, *(part for part in dict.fromkeys(named) if part not in had)])
    return ",".join(part for part in had if part not in named)


def _resource(entry: Any) -> tuple[int, str]:
    return entry.resource_type, entry.resource_name


@handler.answered_in_slices
def handle_describe_configs(
    message: Any, version: int, caller: authorization.Caller, context: handler.Context
) -> handler.Answering:
    response = codec.response_class(api.ApiKey.DESCRIBE_CONFIGS)
    results = []
    for (resource_type, name), entries in handler.by_name(message.resources, _resource).items():
        rows: list[Any] = []
        code, text = 0, None
        try:
            is_all = any(not entry.configuration_keys for entry in entries)  # none at all, or an empty list
            names = () if is_all else frozenset(key for entry in entries for key in entry.configuration_keys)
            _check(resource_type, name, caller)
            settings = _settings_of(resource_type, name, context)
            rows = [_row(setting, message, version) for setting in settings if is_all or setting.name in names]
        except BrokerError as error:
            code, text = error_codes.code_of(error), error_codes.text_of(error)
        results.append(
            response.DescribeConfigsResult(
                error_code=code, error_message=text, resource_type=resource_type, resource_name=name, configs=rows
            )
        )
        yield None
    return (yield from handler.encode_in_slices(response(results=results), version, *(row.configs for row in results)))


def _check(resource_type: int, name: str, caller: authorization.Caller) -> None:
    """Settings of topics and groups are their own; all others are the cluster's."""
    if resource_type == ResourceType.TOPIC:
        caller.check(authorization.TOPIC, name)
    elif resource_type == ResourceType.GROUP:
        caller.check(authorization.GROUP, name)
    else:
        caller.check(authorization.CLUSTER)


def _settings_of(resource_type: int, name: str, context: handler.Context) -> Iterable[DescribedSetting]:
    layers = context.partitions.settings.layers()
    if resource_type == ResourceType.TOPIC:
        return settings_of_topic(_topic(name, context), context)
    if resource_type in _WITHOUT_SETTINGS:
        if not name:
            raise InvalidRequest("a resource without a name")
        if resource_type == ResourceType.BROKER_LOGGER:
            _scope_of(ResourceType.BROKER, name, context)
        return ()
    if _scope_of(resource_type, name, context) is dynamic_config.Scope.EVERY_BROKER:
        return describe_layer(next(layer for layer in layers if layer[0] is ConfigSource.DYNAMIC_DEFAULT_BROKER))
    return describe_broker(context.config, layers)


def _topic(name: str, context: handler.Context) -> topic_registry.Topic:
    topic_registry.check_topic_name(name)
    return context.partitions.registry.get(name)


def settings_of_topic(topic: topic_registry.Topic, context: handler.Context) -> Iterable[DescribedSetting]:
    """Every setting of a topic, including those that it does not set itself."""
    return describe_topic(context.config.log, context.partitions.settings.layers(), topic.overrides)


def _scope_of(resource_type: int, name: str, context: handler.Context) -> dynamic_config.Scope:
    """Which brokers a resource of type BROKER refers to: an empty name means every broker of the cluster."""
    if resource_type != ResourceType.BROKER:
        raise InvalidRequest(f"resource type {resource_type} has no settings here: name a topic (2) or a broker (4)")
    if name == "":
        return dynamic_config.Scope.EVERY_BROKER
    if name != str(context.config.broker_id):
        raise InvalidRequest(f"no broker {name!r}: this is broker {context.config.broker_id}, an empty name is every broker")
    return dynamic_config.Scope.THIS_BROKER


def _row(setting: DescribedSetting, message: Any, version: int) -> Any:
    result = codec.response_class(api.ApiKey.DESCRIBE_CONFIGS).DescribeConfigsResult.DescribeConfigsResourceResult
    synonyms = setting.synonyms if message.include_synonyms else ()
    explains = version >= 3 and message.include_documentation
    return result(
        name=setting.name,
        value=setting.value,
        read_only=setting.read_only,
        is_sensitive=setting.config_type is ConfigType.PASSWORD,
        config_source=setting.source,
        synonyms=[result.DescribeConfigsSynonym(name=s.name, value=s.value, source=s.source) for s in synonyms],
        config_type=setting.config_type,
        documentation=setting.documentation if explains else None,
    )


@handler.answered_in_slices
def handle_list_config_resources(
    message: Any, version: int, caller: authorization.Caller, context: handler.Context
) -> handler.Answering:
    """Version 0 requests client metrics, of which there are none; version 1 the types it names, or all."""
    response = codec.response_class(api.ApiKey.LIST_CONFIG_RESOURCES)
    try:
        caller.check(authorization.CLUSTER)
    except BrokerError as refusal:
        return [codec.encode_response(response(error_code=error_codes.code_of(refusal)), version)]
    types = set(message.resource_types or ResourceType) if version >= 1 else set()
    resources = [(ResourceType.TOPIC, name) for name in context.partitions.registry.names()]
    resources += [(ResourceType.BROKER, str(broker.broker_id)) for broker in context.view.brokers(caller.origin.listener)]
    rows = []
    for kind, name in resources:
        if kind in types:
            rows.append(response.ConfigResource(resource_name=name, resource_type=kind))
            yield None
    error = (
        api.ErrorCode.UNSUPPORTED_VERSION if types - set(ResourceType) else api.ErrorCode.NONE
    )  # types that Kafka does not have
    answer = response(error_code=error, config_resources=[] if error else rows)
    return (yield from handler.encode_in_slices(answer, version, rows))


# -- changing --------------------------------------------------------------------------------------------------------------------

# Changes of one resource in one request, all of which are checked in one step. There are some forty settings.
_CHANGES_MAX = 500


def handle_alter_configs(request: framing.Request, context: handler.Context) -> handler.Parts | handler.Pending:
    """AlterConfigs, after which every setting that it does not name falls back to the next layer below, and
    IncrementalAlterConfigs."""
    message = codec.decode_request(request.api_key, request.version, request.body)
    return handler.in_turn(_alter(message, request, context), context)


def _alter(message: Any, request: framing.Request, context: handler.Context) -> handler.Answering:
    response, keeps = codec.response_class(request.api_key), request.api_key == api.ApiKey.INCREMENTAL_ALTER_CONFIGS
    named = handler.by_name(message.resources, _resource)
    rows: list[Any] = []
    caller = handler.caller_of(request, context)
    of_topics: list[topic_admin.NewSettings] = []
    rows_of_topics: dict[str, Any] = {}
    for resource in message.resources:
        row = response.AlterConfigsResourceResponse(
            error_message=None, resource_type=resource.resource_type, resource_name=resource.resource_name
        )
        rows.append(row)
        with error_codes.refusing(row):
            _check(resource.resource_type, resource.resource_name, caller)
            if len(resource.configs) > _CHANGES_MAX:
                raise InvalidRequest(
                    f"{len(resource.configs)} settings of {resource.resource_name!r} at once: at most {_CHANGES_MAX}"
                )
            handler.only_one(named[_resource(resource)], repr(resource.resource_name))
            changes = [
                _ConfigChange(name=item.name, operation=item.config_operation if keeps else _Operation.SET, value=item.value)
                for item in resource.configs
            ]
            if resource.resource_type == ResourceType.TOPIC:
                topic = _topic(resource.resource_name, context)
                rewrite = partial(_rewritten, topic, changes, context, keeps)
                rewrite(topic.overrides)
                of_topics.append(topic_admin.NewSettings(topic=topic, rewrite=rewrite))
                rows_of_topics[topic.name] = row
            else:
                yield from _change_broker(resource, changes, context, keeps=keeps, stores=not message.validate_only)
        yield None
    if of_topics and not message.validate_only:
        failed = yield from context.topic_changes.change_topics(of_topics)
        for name, failure in failed.items():
            error_codes.refuse(rows_of_topics[name], failure)
    return (yield from handler.encode_in_slices(response(responses=rows), request.version, rows))


def _rewritten(
    topic: topic_registry.Topic, changes: Sequence[_ConfigChange], context: handler.Context, keeps: bool, now: Mapping[str, str]
) -> Mapping[str, str]:
    """The topic's new overrides in place of `now`; raises if they are invalid."""
    in_effect = partial(settings_of_topic, topic, context)
    overrides = _apply_changes(now if keeps else {}, changes, lists=list_settings(of_topic=True), settings=in_effect)
    context.partitions.check_settings(topic, overrides)
    return overrides


def _change_broker(
    resource: Any, changes: Sequence[_ConfigChange], context: handler.Context, *, keeps: bool, stores: bool
) -> background_tasks.Steps:
    settings = context.partitions.settings
    scope = _scope_of(resource.resource_type, resource.resource_name, context)

    def in_effect() -> Iterable[DescribedSetting]:
        return describe_broker(context.config, settings.layers())

    def rewritten(now: Mapping[str, str]) -> Mapping[str, str]:
        values = _apply_changes(now if keeps else {}, changes, lists=list_settings(of_topic=False), settings=in_effect)
        settings.check(scope, values)
        return values

    values = rewritten(settings.of_scope(scope))
    if stores:
        yield from context.topic_changes.change_broker(scope, rewritten)
        logger.info("%s now sets %s", scope.name.lower().replace("_", " "), values or "nothing itself")
