"""CreateTopics, DeleteTopics, CreatePartitions and DescribeTopicPartitions.

The number of partitions only grows: records are never moved from one partition to another.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

from logbus_broker.api import authorization, configs, error_codes, handler, internal_topics
from logbus_broker.cluster import metadata_image, topic_registry
from logbus_broker.errors import (
    BrokerError,
    InvalidConfig,
    InvalidReplicaAssignment,
    InvalidRequest,
    InvalidTopic,
    ThrottlingQuotaExceeded,
)
from logbus_broker.log.topic_admin import DEFAULT, Growth, NewTopic
from logbus_broker.protocol import api, codec

_NameOrId = tuple[str | None, uuid.UUID | None]


@handler.answered_in_turn
def handle_create_topics(message: Any, version: int, caller: authorization.Caller, context: handler.Context) -> handler.Answering:
    named = handler.by_name(message.topics, attrgetter("name"))
    requests: list[NewTopic | BrokerError] = []
    for name, entries in named.items():
        try:
            caller.check_create(name)
            topic = _new_topic(handler.only_one(entries, f"topic {name!r}"), context)
            if not message.validate_only:
                _take_mutations(_partition_count(topic, context), caller, context, strict=version >= _STRICT_FROM[caller.api_key])
            requests.append(topic)
        except BrokerError as error:
            requests.append(error)
    changes = context.topic_changes
    outcomes = yield from changes.validate(requests) if message.validate_only else changes.create(requests, message.timeout_ms)
    rows, configs_of, describer = [], _ConfigRows(context), caller.as_api(api.ApiKey.DESCRIBE_CONFIGS)
    for name, outcome in zip(named, outcomes, strict=True):
        if not isinstance(outcome, topic_registry.Topic):
            rows.append(_failed_row(name, outcome))
        elif describer.allows(authorization.TOPIC, name):
            rows.append(_created_row(outcome, configs_of))
        else:
            rows.append(_undescribed_row(outcome))
        yield None
    response = codec.response_class(api.ApiKey.CREATE_TOPICS)(topics=rows)
    return (yield from handler.encode_in_slices(response, version, *(row.configs or () for row in rows)))


# Older clients do not know the error: all that they ask for is done, and they are held up afterwards (KIP-599).
_STRICT_FROM: dict[int, int] = {api.ApiKey.CREATE_TOPICS: 6, api.ApiKey.DELETE_TOPICS: 5, api.ApiKey.CREATE_PARTITIONS: 3}


def _take_mutations(count: int, caller: authorization.Caller, context: handler.Context, *, strict: bool) -> None:
    """Count partitions that are to be created or deleted; ThrottlingQuotaExceeded if the client's quota is used up."""
    if context.quotas.is_active:
        now = context.clock.monotonic()
        seconds = context.quotas.take_mutations(caller.origin.principal, caller.client_id, count, now, strict=strict)
        if seconds is None:
            raise ThrottlingQuotaExceeded("the client has used up its controller_mutation_rate: later")


def _partition_count(topic: NewTopic, context: handler.Context) -> int:
    if topic.assignments is not None:
        return len(topic.assignments)
    return context.config.num_partitions if topic.partition_count == DEFAULT else max(topic.partition_count, 0)


def _new_topic(requested: Any, context: handler.Context) -> NewTopic:
    if requested.name in topic_registry.INTERNAL_TOPICS:
        raise InvalidTopic(f"{requested.name} is internal: the broker creates it when it is needed")
    overrides = {item.name: item.value for item in requested.configs or ()}
    if any(value is None for value in overrides.values()):
        raise InvalidConfig("a topic setting without a value")
    if requested.assignments and (requested.num_partitions, requested.replication_factor) != (DEFAULT, DEFAULT):
        raise InvalidRequest(f"{requested.name} has assignments: leave the numbers of its partitions and replicas at -1")
    return NewTopic(
        name=requested.name,
        partition_count=requested.num_partitions,
        replication_factor=requested.replication_factor,
        overrides=overrides,
        assignments=_assignments(requested.assignments) if requested.assignments else None,
    )


def _assignments(rows: Sequence[Any]) -> Mapping[int, Sequence[int]]:
    assigned = {row.partition_index: row.broker_ids for row in rows}
    if len(assigned) < len(rows):
        raise InvalidReplicaAssignment("the assignments name a partition twice")
    return assigned


def _failed_row(name: str, error: BrokerError) -> Any:
    return codec.response_class(api.ApiKey.CREATE_TOPICS).CreatableTopicResult(
        name=name, error_code=error_codes.code_of(error), error_message=error_codes.text_of(error), configs=None
    )


class _ConfigRows:
    """All settings of a topic as rows of the answer (KIP-525): built once for all topics with the same overrides."""

    def __init__(self, context: handler.Context) -> None:
        self._context = context
        self._rows: dict[frozenset[tuple[str, str]], list[Any]] = {}

    def of(self, topic: topic_registry.Topic) -> list[Any]:
        key = frozenset(topic.overrides.items())
        if key not in self._rows:
            row = codec.response_class(api.ApiKey.CREATE_TOPICS).CreatableTopicResult.CreatableTopicConfigs
            self._rows[key] = [
                row(name=s.name, value=s.value, config_source=s.source) for s in configs.settings_of_topic(topic, self._context)
            ]
        return self._rows[key]


def _created_row(topic: topic_registry.Topic, configs_of: _ConfigRows) -> Any:
    """The row of a topic that was created, or would be (validate_only)."""
    return codec.response_class(api.ApiKey.CREATE_TOPICS).CreatableTopicResult(
        name=topic.name,
        topic_id=topic.topic_id,
        error_message=None,
        num_partitions=topic.partition_count,
        replication_factor=topic.replication_factor,
        configs=configs_of.of(topic),
    )


def _undescribed_row(topic: topic_registry.Topic) -> Any:
    """The row for somebody who may create the topic but not see how it is configured."""
    code = api.ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return codec.response_class(api.ApiKey.CREATE_TOPICS).CreatableTopicResult(
        name=topic.name, topic_id=topic.topic_id, error_message=None, topic_config_error_code=code, configs=None
    )


@handler.answered_in_turn
def handle_delete_topics(message: Any, version: int, caller: authorization.Caller, context: handler.Context) -> handler.Answering:
    entries: list[_NameOrId]
    if version >= 6:
        entries = [(state.name, state.topic_id) for state in message.topics]
    else:
        entries = [(name, None) for name in message.topic_names]
    named: dict[str | _NameOrId, list[_NameOrId]] = {}
    for entry in entries:
        named.setdefault(_identity(entry, context), []).append(entry)  # the same topic by name, and by id
        yield None
    response = codec.response_class(api.ApiKey.DELETE_TOPICS)
    rows: list[Any] = []
    doomed: dict[str, topic_registry.Topic] = {}
    rows_of_doomed: dict[str, Any] = {}
    for same in named.values():
        name = next((name for name, _ in same if name is not None), None)
        topic_id = next((topic_id for _, topic_id in same if topic_id is not None), topic_registry.NO_TOPIC_ID)
        row = response.DeletableTopicResult(name=name, topic_id=topic_id)
        rows.append(row)
        with error_codes.refusing(row):
            if name is not None:
                caller.check(authorization.TOPIC, name)
            topic = _named_topic(handler.only_one(same, f"topic {topic_id if name is None else repr(name)}"), context)
            if name is None:
                if caller.as_api(api.ApiKey.METADATA).allows(authorization.TOPIC, topic.name):
                    row.name = topic.name  # else its name stays unknown
                caller.check(authorization.TOPIC, topic.name)
            row.name, row.topic_id = topic.name, topic.topic_id
            _validate_deletable(topic, context)
            _take_mutations(topic.partition_count, caller, context, strict=version >= _STRICT_FROM[caller.api_key])
            doomed[topic.name] = topic
            rows_of_doomed[topic.name] = row
        yield None
    if doomed:
        failed = yield from context.topic_changes.delete(list(doomed.values()), message.timeout_ms)
        if len(failed) < len(doomed) and context.cluster is None:  # in a cluster, coordinators see it in the image
            yield from internal_topics.remove_offsets_of_topics(
                {name for name in doomed if name not in failed}.__contains__, context
            )
        for name, failure in failed.items():
            error_codes.refuse(rows_of_doomed[name], failure)
    return (yield from handler.encode_in_slices(response(responses=rows), version, rows))


def _identity(entry: _NameOrId, context: handler.Context) -> str | _NameOrId:
    """The name of the topic, or the entry itself if there is none."""
    try:
        return _named_topic(entry, context).name
    except BrokerError:
        return entry


def _named_topic(entry: _NameOrId, context: handler.Context) -> topic_registry.Topic:
    name, topic_id = entry
    registry = context.partitions.registry
    if name is not None and topic_id is None:
        return registry.get(name)
    if topic_id is not None and name is None:
        return registry.get_by_id(topic_id)
    raise InvalidRequest("name each topic to delete by its name or by its id, not by both")


def _validate_deletable(topic: topic_registry.Topic, context: handler.Context) -> None:
    if topic.is_internal:
        raise InvalidTopic(f"{topic.name} is internal and cannot be deleted")
    if not context.config.delete_topic_enable:
        raise InvalidRequest("delete.topic.enable=false")


_PARTITIONS_PER_ANSWER_MAX = 2000  # Kafka's max.request.partition.size.limit: a large cluster is described in pages


@handler.answered_in_turn
def handle_create_partitions(
    message: Any, version: int, caller: authorization.Caller, context: handler.Context
) -> handler.Answering:
    response = codec.response_class(api.ApiKey.CREATE_PARTITIONS)
    rows: dict[str, Any] = {}
    growths: dict[str, Growth] = {}
    added = 0
    for name, entries in handler.by_name(message.topics, attrgetter("name")).items():
        row = rows[name] = response.CreatePartitionsTopicResult(name=name)
        with error_codes.refusing(row):
            caller.check(authorization.TOPIC, name)
            growth = _growth(handler.only_one(entries, f"topic {name!r}"))
            more = context.topic_changes.check_growth(growth, planned=added)
            if not message.validate_only:
                _take_mutations(more, caller, context, strict=version >= _STRICT_FROM[caller.api_key])
            added += more
            growths[name] = growth
        yield None
    if growths and not message.validate_only:
        failed = yield from context.topic_changes.grow(growths, message.timeout_ms)
        for name, failure in failed.items():
            error_codes.refuse(rows[name], failure)
    results = list(rows.values())
    return (yield from handler.encode_in_slices(response(results=results), version, results))


def _growth(requested: Any) -> Growth:
    if requested.name == topic_registry.OFFSETS_TOPIC:
        raise InvalidTopic(f"{requested.name} is internal: the broker alone says how many partitions it has")
    assignments = None if requested.assignments is None else [row.broker_ids for row in requested.assignments]
    return Growth(name=requested.name, count=requested.count, assignments=assignments)


@handler.answered_in_slices
def handle_describe_topic_partitions(
    message: Any, version: int, caller: authorization.Caller, context: handler.Context
) -> handler.Answering:
    """Topics in order of name, from the cursor on, until the limit is reached; the returned cursor is where to continue."""
    response = codec.response_class(api.ApiKey.DESCRIBE_TOPIC_PARTITIONS)
    left = max(1, min(message.response_partition_limit, _PARTITIONS_PER_ANSWER_MAX))
    rows, cursor = [], None
    for name, start in _from_cursor(message, context):
        if left == 0:
            cursor = response.Cursor(topic_name=name, partition_index=start)
            break
        yield None
        if not message.topics and not caller.allows(authorization.TOPIC, name):
            continue
        try:
            caller.check(authorization.TOPIC, name)
            topic_registry.check_topic_name(name)
            topic = context.partitions.registry.get(name)
            end = min(topic.partition_count, start + left)
            rows.append(_topic_row(topic, range(start, end), caller, context))
        except BrokerError as error:
            rows.append(response.DescribeTopicPartitionsResponseTopic(name=name, error_code=error_codes.code_of(error)))
            continue
        left -= max(0, end - start)
        if end < topic.partition_count:
            cursor = response.Cursor(topic_name=name, partition_index=end)
            break
    answer = response(topics=rows, next_cursor=cursor)
    return (yield from handler.encode_in_slices(answer, version, rows, *(row.partitions for row in rows)))


def _from_cursor(message: Any, context: handler.Context) -> Iterator[tuple[str, int]]:
    """Each requested name (all if none is given) with the partition to start at."""
    names = sorted({row.name for row in message.topics}) or context.partitions.registry.names()
    cursor = message.cursor
    if cursor is None:
        yield from ((name, 0) for name in names)
        return
    for name in names:
        if name >= cursor.topic_name:
            yield name, max(0, cursor.partition_index) if name == cursor.topic_name else 0


def _topic_row(topic: topic_registry.Topic, indexes: range, caller: authorization.Caller, context: handler.Context) -> Any:
    row = codec.response_class(api.ApiKey.DESCRIBE_TOPIC_PARTITIONS).DescribeTopicPartitionsResponseTopic
    partitions = [
        row.DescribeTopicPartitionsResponsePartition(
            error_code=api.ErrorCode.NONE if partition.leader != metadata_image.NO_LEADER else api.ErrorCode.LEADER_NOT_AVAILABLE,
            partition_index=index,
            leader_id=partition.leader,
            leader_epoch=partition.leader_epoch,
            replica_nodes=partition.replicas,
            isr_nodes=partition.isr,
            eligible_leader_replicas=partition.eligible,
            last_known_elr=[],
            offline_replicas=partition.offline,
        )
        for index, partition in zip(indexes, context.view.partitions(topic, indexes), strict=True)
    ]
    return row(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=partitions,
        topic_authorized_operations=caller.operations(authorization.TOPIC, topic.name),
    )
