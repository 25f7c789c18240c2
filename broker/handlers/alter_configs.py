"""AlterConfigs and IncrementalAlterConfigs: the settings of topics and of the broker's logs, changed while it runs.

AlterConfigs names all settings that a resource shall have; IncrementalAlterConfigs changes those that it names. Either way a
resource is checked as a whole, then stored, then applied to its open logs; one that is refused changes nothing.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from broker.config_catalog import describe_broker, list_settings
from broker.coordination.local import Topic
from broker.errors import BrokerError, InvalidRequest
from broker.handlers.configs import ResourceType, scope_of, settings_of_topic
from broker.handlers.context import Context
from broker.handlers.errors import code_of
from broker.handlers.reply import Parts
from broker.partitions.log_settings import ConfigChange, Operation, apply_changes
from broker.protocol.api import ErrorCode
from broker.protocol.control import decode_request, encode_response, response_class
from broker.protocol.framing import Request

logger = logging.getLogger("broker.configs")

Change = Callable[[Any, Context], Callable[[], None]]  # checks what a resource asks for; the result does it


def handle_alter_configs(request: Request, context: Context) -> Parts:
    """Everything that is not named goes back to the setting below it."""
    return _alter(request, context, lambda asked, context: _checked(asked, _replacements(asked), context, keeps=False))


def handle_incremental_alter_configs(request: Request, context: Context) -> Parts:
    return _alter(request, context, lambda asked, context: _checked(asked, _changes(asked), context, keeps=True))


def _replacements(asked: Any) -> list[ConfigChange]:
    return [ConfigChange(name=item.name, operation=Operation.SET, value=item.value) for item in asked.configs]


def _changes(asked: Any) -> list[ConfigChange]:
    return [ConfigChange(name=item.name, operation=item.config_operation, value=item.value) for item in asked.configs]


def _alter(request: Request, context: Context, check: Change) -> Parts:
    message = decode_request(request.api_key, request.version, request.body)
    response = response_class(request.api_key)
    named = Counter((asked.resource_type, asked.resource_name) for asked in message.resources)
    rows = []
    for asked in message.resources:
        code, text = ErrorCode.NONE, None
        try:
            if named[asked.resource_type, asked.resource_name] > 1:
                raise InvalidRequest(f"{asked.resource_name!r} is named twice in one request")
            store = check(asked, context)
            if not message.validate_only:
                store()
        except BrokerError as error:
            code, text = code_of(error), str(error)
        rows.append(
            response.AlterConfigsResourceResponse(
                error_code=code, error_message=text, resource_type=asked.resource_type, resource_name=asked.resource_name
            )
        )
    return [encode_response(response(throttle_time_ms=0, responses=rows), request.version)]


def _checked(asked: Any, changes: Sequence[ConfigChange], context: Context, *, keeps: bool) -> Callable[[], None]:
    if asked.resource_type == ResourceType.TOPIC:
        return _topic_change(context.partitions.registry.get(asked.resource_name), changes, context, keeps=keeps)
    return _broker_change(asked, changes, context, keeps=keeps)


def _topic_change(topic: Topic, changes: Sequence[ConfigChange], context: Context, *, keeps: bool) -> Callable[[], None]:
    def effective(name: str) -> str | None:
        return next(setting.value for setting in settings_of_topic(topic, context) if setting.name == name)

    def store() -> None:
        context.partitions.change_topic(topic, overrides)
        logger.info("topic %s now sets %s", topic.name, overrides or "nothing itself")

    before = topic.overrides if keeps else {}
    overrides = apply_changes(before, changes, lists=list_settings(of_topic=True), effective=effective)
    context.partitions.settings.of_topic(overrides)
    return store


def _broker_change(asked: Any, changes: Sequence[ConfigChange], context: Context, *, keeps: bool) -> Callable[[], None]:
    settings = context.partitions.settings
    scope = scope_of(asked.resource_type, asked.resource_name, context)

    def effective(name: str) -> str | None:
        return next(one.value for one in describe_broker(context.config, settings.layers()) if one.name == name)

    def store() -> None:
        context.partitions.change_broker(scope, values)
        logger.info("%s now sets %s", scope.name.lower().replace("_", " "), values or "nothing itself")

    before = settings.of_scope(scope) if keeps else {}
    values = apply_changes(before, changes, lists=list_settings(of_topic=False), effective=effective)
    settings.check(scope, values)
    return store
