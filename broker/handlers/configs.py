"""DescribeConfigs: every setting with its value and where it comes from, so that user interfaces and admin tools show
something true.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from broker.config import BrokerConfig, LogConfig
from broker.errors import BrokerError, InvalidRequest
from broker.handlers.context import Context
from broker.handlers.errors import code_of
from broker.handlers.reply import Parts
from broker.protocol.api import ApiKey
from broker.protocol.control import decode_request, encode_response, response_class
from broker.protocol.framing import Request

TOPIC, BROKER = 2, 4  # resource types
_FROM_TOPIC, _FROM_STATIC, _FROM_DEFAULT = 1, 4, 5  # config sources
_TYPES = {bool: 1, str: 2, int: 5}  # BOOLEAN, STRING, LONG


def handle_describe_configs(request: Request, context: Context) -> Parts:
    message = decode_request(request.api_key, request.version, request.body)
    response = response_class(ApiKey.DESCRIBE_CONFIGS)
    results = []
    for asked in message.resources:
        rows: list[Any] = []
        code, text = 0, None
        try:
            found = _settings_of(asked, context)
            wanted = asked.configuration_keys
            rows = [_row(name, *value) for name, value in found.items() if wanted is None or name in wanted]
        except BrokerError as error:
            code, text = code_of(error), str(error)
        results.append(
            response.DescribeConfigsResult(
                error_code=code,
                error_message=text,
                resource_type=asked.resource_type,
                resource_name=asked.resource_name,
                configs=rows,
            )
        )
    return [encode_response(response(throttle_time_ms=0, results=results), request.version)]


def _settings_of(asked: Any, context: Context) -> dict[str, tuple[Any, int]]:
    """Name to (value, source)."""
    if asked.resource_type == TOPIC:
        topic = context.partitions.registry.get(asked.resource_name)
        config = context.partitions.log_config(topic.overrides)
        return {
            item.metadata["topic"]: (
                getattr(config, item.name),
                _FROM_TOPIC if item.metadata["topic"] in topic.overrides else _FROM_DEFAULT,
            )
            for item in fields(LogConfig)
        }
    if asked.resource_type == BROKER and asked.resource_name in (str(context.config.broker_id), ""):
        own = {i.metadata["name"]: _with_source(context.config, BrokerConfig(), i) for i in fields(BrokerConfig) if i.metadata}
        log = {i.metadata["name"]: _with_source(context.config.log, LogConfig(), i) for i in fields(LogConfig)}
        return own | log
    raise InvalidRequest(
        f"no resource of type {asked.resource_type} named {asked.resource_name!r}; this broker is {context.config.broker_id}"
    )


def _with_source(config: object, defaults: object, item: Any) -> tuple[Any, int]:
    value = getattr(config, item.name)
    return value, _FROM_DEFAULT if value == getattr(defaults, item.name) else _FROM_STATIC


def _row(name: str, value: Any, source: int) -> Any:
    result = response_class(ApiKey.DESCRIBE_CONFIGS).DescribeConfigsResult.DescribeConfigsResourceResult
    text = _as_text(value)
    return result(
        name=name,
        value=text,
        read_only=source != _FROM_TOPIC,
        is_default=source == _FROM_DEFAULT,
        config_source=source,
        is_sensitive=False,
        synonyms=[result.DescribeConfigsSynonym(name=name, value=text, source=source)],
        config_type=_TYPES.get(type(value), 2),
        documentation=None,
    )


def _as_text(value: Any) -> str | None:
    if value is None:
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)
