"""The committed offsets of a consumer group: they show existing Kafka tools what is loaded, or move consumers to a window.

Windows and tables are never touched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from airflow.sdk import Context

from logbus import errors, model, task_context
from logbus.operators.window_operator import WindowOperator
from logbus.status import group_offsets
from logbus.status.group_offsets import Target, TopicChoice, commit_ends, lock_group


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
