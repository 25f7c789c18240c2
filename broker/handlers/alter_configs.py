"""AlterConfigs and IncrementalAlterConfigs: the settings of topics and of the broker's logs, changed while it runs.

AlterConfigs names all settings that a resource shall have; IncrementalAlterConfigs changes those that it names. Either way a
resource is checked as a whole, then stored, then applied to its open logs; one that is refused changes nothing. All topics of a
request are stored with one write.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from broker.chores import Steps
from broker.config_catalog import describe_broker, list_settings
from broker.coordination.local import Topic
from broker.errors import BrokerError, InvalidRequest
from broker.handlers.configs import ResourceType, scope_of, settings_of_topic
from broker.handlers.context import Context
from broker.handlers.errors import code_of, text_of
from broker.handlers.reply import Parts, Pending
from broker.handlers.slices import Answering, encode_in_slices, in_turn
from broker.partitions.log_settings import ConfigChange, Operation, apply_changes
from broker.partitions.topic_admin import NewSettings
from broker.protocol.api import ErrorCode
from broker.protocol.control import decode_request, response_class
from broker.protocol.framing import Request

logger = logging.getLogger("broker.configs")

ChangesOf = Callable[[Any], list[ConfigChange]]


def handle_alter_configs(request: Request, context: Context) -> Parts | Pending:
    """Everything that is not named goes back to the setting below it."""
    message = decode_request(request.api_key, request.version, request.body)
    return in_turn(_alter(message, request, _replacements, context, keeps=False), context)


def handle_incremental_alter_configs(request: Request, context: Context) -> Parts | Pending:
    message = decode_request(request.api_key, request.version, request.body)
    return in_turn(_alter(message, request, _changes, context, keeps=True), context)


def _replacements(asked: Any) -> list[ConfigChange]:
    return [ConfigChange(name=item.name, operation=Operation.SET, value=item.value) for item in asked.configs]


def _changes(asked: Any) -> list[ConfigChange]:
    return [ConfigChange(name=item.name, operation=item.config_operation, value=item.value) for item in asked.configs]


def _alter(message: Any, request: Request, changes_of: ChangesOf, context: Context, *, keeps: bool) -> Answering:
    response = response_class(request.api_key)
    named = Counter((asked.resource_type, asked.resource_name) for asked in message.resources)
    rows: list[Any] = []
    of_topics: list[NewSettings] = []
    rows_of_topics: dict[str, Any] = {}
    for asked in message.resources:
        row = response.AlterConfigsResourceResponse(
            error_code=ErrorCode.NONE, error_message=None, resource_type=asked.resource_type, resource_name=asked.resource_name
        )
        rows.append(row)
        try:
            if named[asked.resource_type, asked.resource_name] > 1:
                raise InvalidRequest(f"{asked.resource_name!r} is named twice in one request")
            if asked.resource_type == ResourceType.TOPIC:
                topic = context.partitions.registry.get(asked.resource_name)
                rewrite = partial(_rewritten, topic, changes_of(asked), context, keeps)
                rewrite(topic.overrides)
                of_topics.append(NewSettings(topic=topic, rewrite=rewrite))
                rows_of_topics[topic.name] = row
            else:
                yield from _change_broker(asked, changes_of(asked), context, keeps=keeps, stores=not message.validate_only)
        except BrokerError as error:
            _refuse(row, error)
        yield None
    if of_topics and not message.validate_only:
        failed = yield from context.topic_changes.change_topics(of_topics)
        for name, failure in failed.items():
            _refuse(rows_of_topics[name], failure)
    return (yield from encode_in_slices(response(throttle_time_ms=0, responses=rows), request.version, rows))


def _refuse(row: Any, error: BrokerError) -> None:
    row.error_code, row.error_message = code_of(error), text_of(error)


def _rewritten(
    topic: Topic, changes: Sequence[ConfigChange], context: Context, keeps: bool, now: Mapping[str, str]
) -> Mapping[str, str]:
    """What the topic would set instead of what it sets `now`; raises what is wrong with it."""

    def effective(name: str) -> str | None:
        return next(setting.value for setting in settings_of_topic(topic, context) if setting.name == name)

    overrides = apply_changes(now if keeps else {}, changes, lists=list_settings(of_topic=True), effective=effective)
    context.partitions.check_settings(topic, overrides)
    return overrides


def _change_broker(asked: Any, changes: Sequence[ConfigChange], context: Context, *, keeps: bool, stores: bool) -> Steps:
    settings = context.partitions.settings
    scope = scope_of(asked.resource_type, asked.resource_name, context)

    def effective(name: str) -> str | None:
        return next(one.value for one in describe_broker(context.config, settings.layers()) if one.name == name)

    def rewritten(now: Mapping[str, str]) -> Mapping[str, str]:
        values = apply_changes(now if keeps else {}, changes, lists=list_settings(of_topic=False), effective=effective)
        settings.check(scope, values)
        return values

    values = rewritten(settings.of_scope(scope))
    if stores:
        yield from context.topic_changes.change_broker(scope, rewritten)
        logger.info("%s now sets %s", scope.name.lower().replace("_", " "), values or "nothing itself")
