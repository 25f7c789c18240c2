"""Records sent to a topic: success only once the broker has acknowledged all of them; and the committed offsets of a consumer
group: they show existing Kafka tools what is loaded, or move consumers to a window.

Windows and tables are never touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from airflow.sdk import BaseOperator, Context

from logbus import errors, model, task_context
from logbus.hooks.broker import BrokerHook
from logbus.operators.window_operator import WindowOperator
from logbus.status import group_offsets
from logbus.status.group_offsets import Target, TopicChoice, commit_ends, lock_group

Records = Iterable[Any] | Callable[..., Iterable[Any]]


class ProduceOperator(BaseOperator):
    """Send `records` to `topic`, in order, with an idempotent producer and acks=all.

    A retried task sends everything again, so what a failed try stored is then in the topic twice. Give records a key or an id by
    which readers recognize duplicates (`{{ run_id }}` in a header), or use `logbus ship`, which resumes where the topic ends.

    Returns how many records each partition took, and their first and last offsets. The first record that fails fails the task,
    and the error names it.

    :param topic: must exist; templated.
    :param records: a list (templated), or a function that is called with `op_kwargs` and returns records. Each is a value (text,
        bytes, or anything that JSON can hold) or a mapping with `value` and any of `key`, `headers`, `timestamp`, `partition`.
    """

    template_fields: Sequence[str] = ("topic", "records", "op_kwargs", "kafka_conn_id")
    ui_color = "#e4e0f4"

    def __init__(
        self,
        *,
        topic: str,
        records: Records,
        op_kwargs: Mapping[str, Any] | None = None,
        kafka_conn_id: str = BrokerHook.default_conn_name,
        kafka_config_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if isinstance(records, Iterator):
            raise errors.UserError(
                "records is an iterator, which a retry would find exhausted: pass a list, or the function that creates it"
            )
        self.topic = topic
        # Airflow calls a function that it finds in a templated attribute, with arguments of its own.
        self._make_records = records if callable(records) else None
        self.records = None if callable(records) else records
        self.op_kwargs = op_kwargs
        self.kafka_conn_id = kafka_config_id or kafka_conn_id

    @cached_property
    def broker(self) -> BrokerHook:
        return BrokerHook(self.kafka_conn_id)

    def execute(self, context: Context) -> dict[str, Any]:
        self.broker.log_offsets().topic(self.topic)  # a producer would wait half a minute for one that does not exist
        records = self.records if self._make_records is None else self._make_records(**(self.op_kwargs or {}))
        if isinstance(records, (str, bytes, Mapping)):
            raise errors.UserError("records is one record: put it into a list")
        if records is None:
            raise errors.UserError("records is None: the function or task that provides them returned nothing, or was skipped")
        done = self.broker.produce(self.topic, records)
        self.log.info("%d records stored in topic %s: %s", done["records"], self.topic, done["partitions"])
        return task_context.bounded_details([done])[0]


# The committed offsets of a consumer group: they show existing Kafka tools what is loaded, or move consumers to a window.


class CommitOffsetsOperator(WindowOperator):
    """Commit the end offsets of the run's window, or of all `windows`, to a consumer group without consumers.

    Lag then shows in kafka-consumer-groups and in dashboards. The offsets are exclusive, as usual in Kafka, and only move
    forward: a rerun of an older hour leaves them alone (RewindOffsetsOperator moves them back). Windows are never touched.

    Returns by partition which offsets were committed, and where the group was already ahead.

    :param group: templated; by default `logbus-<pipeline>`.
    """

    template_fields: Sequence[str] = (*WindowOperator.template_fields, "group")
    ui_color = "#e4e0f4"

    def __init__(self, *, group: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.group = group or f"logbus-{self.pipeline.name}"

    def execute(self, context: Context) -> dict[str, Any]:
        ledger, groups, log = self.warehouse.ledger(), self.broker.group_offsets(), self.broker.log_offsets()
        windows = ledger.windows_at(self.pipeline.name, self._starts(context))
        with task_context.fail_without_retry():
            done = commit_ends(ledger.engine, groups, log, self.group, windows)
        for partition, offset in done.ahead.items():
            self.log.info("%s-%d: group %s is already at %d and stays there", done.topic, partition, self.group, offset)
        self.log.info("Group %s of %s: committed %s", self.group, done.topic, done.committed or "nothing")
        return task_context.bounded_details([done.summary()])[0]


WINDOW = "window"
TARGETS: Mapping[str, Callable[[str], Target]] = {
    "earliest": lambda value: group_offsets.earliest,
    "latest": lambda value: group_offsets.latest,
    "offset": lambda value: group_offsets.offset(int(value)),
    "shift": lambda value: group_offsets.shift(int(value)),
    "datetime": lambda value: group_offsets.instant(model.parse_instant(value)),
}


class RewindOffsetsOperator(WindowOperator):
    """Move the committed offsets of a group that has no members at the moment, so that its consumers read again, or skip.

    Returns for each partition the group's offset before and after.

    :param group: templated; by default `logbus-<pipeline>`, which CommitOffsetsOperator writes.
    :param to: the target: "window" (default) is the first record of the run's window, or of the first of `windows`; "earliest",
        "latest", "offset", "shift" and "datetime" have the same meaning as in kafka-consumer-groups.
    :param value: the offset, the number of records or the instant; templated.
    :param partitions: partitions of the pipeline's topic; by default all.
    """

    template_fields: Sequence[str] = (*WindowOperator.template_fields, "group", "value")
    ui_color = "#e4e0f4"

    def __init__(
        self,
        *,
        group: str | None = None,
        to: str = WINDOW,
        value: str | None = None,
        partitions: Sequence[int] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if to not in (WINDOW, *TARGETS):
            raise errors.UserError(f"a group can be moved to one of {', '.join((WINDOW, *TARGETS))}, not to {to!r}")
        self.group = group or f"logbus-{self.pipeline.name}"
        self.to = to
        self.value = value
        self.partitions = partitions

    def execute(self, context: Context) -> dict[str, Any]:
        ledger, groups, log = self.warehouse.ledger(), self.broker.group_offsets(), self.broker.log_offsets()
        choice = TopicChoice(topic=self.pipeline.topic, partitions=None if self.partitions is None else tuple(self.partitions))
        with task_context.fail_without_retry(), ledger.engine.begin() as connection:
            lock_group(connection, self.group)
            moves = group_offsets.plan(groups, log, self.group, [choice], self._target(context))
            group_offsets.execute(groups, moves, f"logbus rewind to {self.to}")
        for move in moves:
            self.log.info("%s-%d: %s -> %d", move.topic, move.partition, move.current, move.new)
        done = {"group": self.group, "topic": self.pipeline.topic}
        return task_context.bounded_details(
            [{**done, "moves": {str(move.partition): [move.current, move.new] for move in moves}}]
        )[0]

    def _target(self, context: Context) -> Target:
        if self.to == WINDOW:
            first = min(self._starts(context))
            return group_offsets.window(self.warehouse.ledger().window(self.pipeline.name, first))
        try:
            return TARGETS[self.to](self.value or "")
        except ValueError as error:
            raise errors.UserError(f"cannot move a group to {self.to} {self.value!r}: {error}") from None
