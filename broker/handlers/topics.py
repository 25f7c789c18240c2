"""CreateTopics and DeleteTopics."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

from broker.coordination.local import INTERNAL_TOPICS, NO_TOPIC_ID, Topic
from broker.errors import BrokerError, InvalidConfig, InvalidReplicaAssignment, InvalidRequest, InvalidTopic
from broker.handlers.commits import remove_offsets_of_topics
from broker.handlers.configs import settings_of_topic
from broker.handlers.context import Context
from broker.handlers.error_codes import code_of, refuse, refusing, text_of
from broker.handlers.repeated import by_name, only_one
from broker.handlers.slices import Answering, answered_in_turn, encode_in_slices
from broker.partitions.topic_admin import DEFAULT, NewTopic
from broker.protocol.api import ApiKey, ErrorCode
from broker.protocol.control import response_class

_NameOrId = tuple[str | None, uuid.UUID | None]


@answered_in_turn
def handle_create_topics(message: Any, version: int, context: Context) -> Answering:
    named = by_name(message.topics, attrgetter("name"))
    wanted: list[NewTopic | BrokerError] = []
    for name, entries in named.items():
        try:
            wanted.append(_wanted(only_one(entries, f"topic {name!r}"), context))
        except BrokerError as error:
            wanted.append(error)
    changes = context.topic_changes
    outcomes = yield from changes.validate(wanted) if message.validate_only else changes.create(wanted, message.timeout_ms)
    rows, configs_of = [], _ConfigRows(context)
    for name, outcome in zip(named, outcomes, strict=True):
        rows.append(_made(outcome, configs_of) if isinstance(outcome, Topic) else _refused(name, outcome))
        yield None
    response = response_class(ApiKey.CREATE_TOPICS)(throttle_time_ms=0, topics=rows)
    return (yield from encode_in_slices(response, version, *(row.configs or () for row in rows)))


def _wanted(asked: Any, context: Context) -> NewTopic:
    if asked.name in INTERNAL_TOPICS:
        raise InvalidTopic(f"{asked.name} is internal: the broker makes it when it is needed")
    overrides = {item.name: item.value for item in asked.configs or ()}
    if any(value is None for value in overrides.values()):
        raise InvalidConfig("a topic configuration without a value")
    if asked.assignments and (asked.num_partitions, asked.replication_factor) != (DEFAULT, DEFAULT):
        raise InvalidRequest(f"{asked.name} has assignments: leave the numbers of its partitions and replicas at -1")
    return NewTopic(
        name=asked.name,
        partition_count=asked.num_partitions,
        replication_factor=asked.replication_factor,
        overrides=overrides,
        assignments=_assignments(asked.assignments) if asked.assignments else None,
    )


def _assignments(rows: Sequence[Any]) -> Mapping[int, Sequence[int]]:
    assigned = {row.partition_index: row.broker_ids for row in rows}
    if len(assigned) < len(rows):
        raise InvalidReplicaAssignment("the assignments name a partition twice")
    return assigned


def _refused(name: str, error: BrokerError) -> Any:
    return response_class(ApiKey.CREATE_TOPICS).CreatableTopicResult(
        name=name,
        topic_id=NO_TOPIC_ID,
        error_code=code_of(error),
        error_message=text_of(error),
        topic_config_error_code=0,
        num_partitions=-1,
        replication_factor=-1,
        configs=None,
    )


class _ConfigRows:
    """All settings of a topic as rows of the answer (KIP-525): built once for all topics with the same overrides."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._rows: dict[frozenset[tuple[str, str]], list[Any]] = {}

    def of(self, topic: Topic) -> list[Any]:
        key = frozenset(topic.overrides.items())
        if key not in self._rows:
            row = response_class(ApiKey.CREATE_TOPICS).CreatableTopicResult.CreatableTopicConfigs
            self._rows[key] = [
                row(name=s.name, value=s.value, read_only=False, config_source=s.source, is_sensitive=False)
                for s in settings_of_topic(topic, self._context)
            ]
        return self._rows[key]


def _made(topic: Topic, configs_of: _ConfigRows) -> Any:
    """The row of a topic that was created, or would be (validate_only)."""
    return response_class(ApiKey.CREATE_TOPICS).CreatableTopicResult(
        name=topic.name,
        topic_id=topic.topic_id,
        error_code=ErrorCode.NONE,
        error_message=None,
        topic_config_error_code=0,
        num_partitions=topic.partition_count,
        replication_factor=topic.replication_factor,
        configs=configs_of.of(topic),
    )


@answered_in_turn
def handle_delete_topics(message: Any, version: int, context: Context) -> Answering:
    entries: list[_NameOrId]
    if version >= 6:
        entries = [(state.name, state.topic_id) for state in message.topics]
    else:
        entries = [(name, None) for name in message.topic_names]
    named: dict[str | _NameOrId, list[_NameOrId]] = {}
    for entry in entries:
        named.setdefault(_identity(entry, context), []).append(entry)  # the same topic by name, and by id
        yield None
    response = response_class(ApiKey.DELETE_TOPICS)
    rows: list[Any] = []
    doomed: dict[str, Topic] = {}
    rows_of_doomed: dict[str, Any] = {}
    for same in named.values():
        name = next((name for name, _ in same if name is not None), None)
        topic_id = next((topic_id for _, topic_id in same if topic_id is not None), NO_TOPIC_ID)
        row = response.DeletableTopicResult(name=name, topic_id=topic_id, error_code=ErrorCode.NONE, error_message=None)
        rows.append(row)
        with refusing(row):
            topic = _named_topic(only_one(same, f"topic {topic_id if name is None else repr(name)}"), context)
            row.name, row.topic_id = topic.name, topic.topic_id
            _check_may_go(topic, context)
            doomed[topic.name] = topic
            rows_of_doomed[topic.name] = row
        yield None
    if doomed:
        failed = yield from context.topic_changes.delete(list(doomed.values()), message.timeout_ms)
        if len(failed) < len(doomed) and context.cluster is None:  # in a cluster, coordinators see it in the image
            yield from remove_offsets_of_topics({name for name in doomed if name not in failed}.__contains__, context)
        for name, failure in failed.items():
            refuse(rows_of_doomed[name], failure)
    return (yield from encode_in_slices(response(throttle_time_ms=0, responses=rows), version, rows))


def _identity(entry: _NameOrId, context: Context) -> str | _NameOrId:
    """The name of the topic, or the entry itself if there is none."""
    try:
        return _named_topic(entry, context).name
    except BrokerError:
        return entry


def _named_topic(entry: _NameOrId, context: Context) -> Topic:
    name, topic_id = entry
    registry = context.partitions.registry
    if name is not None and topic_id is None:
        return registry.get(name)
    if topic_id is not None and name is None:
        return registry.get_by_id(topic_id)
    raise InvalidRequest("name each topic to delete by its name or by its id, not by both")


def _check_may_go(topic: Topic, context: Context) -> None:
    if topic.is_internal:
        raise InvalidTopic(f"{topic.name} is internal and cannot be deleted")
    if not context.config.delete_topic_enable:
        raise InvalidRequest("delete.topic.enable=false")
