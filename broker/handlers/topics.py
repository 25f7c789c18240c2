"""CreateTopics and DeleteTopics."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from broker.coordination.local import INTERNAL_TOPICS, NO_TOPIC_ID, Topic
from broker.errors import BrokerError, InvalidConfig, InvalidReplicaAssignment, InvalidRequest, InvalidTopic
from broker.handlers.commits import remove_offsets_of_topics
from broker.handlers.configs import settings_of_topic
from broker.handlers.context import Context
from broker.handlers.error_codes import check_named_once, code_of, refuse, refusing, text_of
from broker.handlers.slices import Answering, answered_in_turn, encode_in_slices
from broker.partitions.topic_admin import NewTopic
from broker.protocol.api import ApiKey, ErrorCode
from broker.protocol.control import response_class


@answered_in_turn
def handle_create_topics(message: Any, version: int, context: Context) -> Answering:
    names = Counter(asked.name for asked in message.topics)
    wanted: list[NewTopic | BrokerError] = []
    for asked in message.topics:
        try:
            check_named_once(names[asked.name], f"topic {asked.name!r}")
            wanted.append(_wanted(asked, context))
        except BrokerError as error:
            wanted.append(error)
    changes = context.topic_changes
    outcomes = yield from changes.validate(wanted) if message.validate_only else changes.create(wanted, message.timeout_ms)
    rows, configs_of = [], _ConfigRows(context)
    for asked, outcome in zip(message.topics, outcomes, strict=True):
        rows.append(_made(outcome, configs_of) if isinstance(outcome, Topic) else _refused(asked.name, outcome))
        yield None
    response = response_class(ApiKey.CREATE_TOPICS)(throttle_time_ms=0, topics=rows)
    return (yield from encode_in_slices(response, version, *(row.configs or () for row in rows)))


def _wanted(asked: Any, context: Context) -> NewTopic:
    if asked.name in INTERNAL_TOPICS:
        raise InvalidTopic(f"{asked.name} is internal: the broker makes it when it is needed")
    overrides = {item.name: item.value for item in asked.configs or ()}
    if any(value is None for value in overrides.values()):
        raise InvalidConfig("a topic configuration without a value")
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
    asked: list[tuple[str | None, uuid.UUID | None]]
    if version >= 6:
        asked = [(state.name, state.topic_id) for state in message.topics]
    else:
        asked = [(name, None) for name in message.topic_names]
    response = response_class(ApiKey.DELETE_TOPICS)
    rows: list[Any] = []
    doomed: dict[str, Topic] = {}
    rows_of_doomed: dict[str, Any] = {}
    for name, topic_id in asked:
        row = response.DeletableTopicResult(
            name=name, topic_id=topic_id or NO_TOPIC_ID, error_code=ErrorCode.NONE, error_message=None
        )
        rows.append(row)
        with refusing(row):
            topic = context.partitions.topic_of(name, topic_id)
            row.name, row.topic_id = topic.name, topic.topic_id
            _check_may_go(topic, context)
            check_named_once(1 + (topic.name in doomed), f"topic {topic.name!r}")
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


def _check_may_go(topic: Topic, context: Context) -> None:
    if topic.is_internal:
        raise InvalidTopic(f"{topic.name} is internal and cannot be deleted")
    if not context.config.delete_topic_enable:
        raise InvalidRequest("delete.topic.enable=false")
