"""Move a consumer group to a window, a time or an offset. Windows and tables are never touched."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from airflow.sdk import Context

from logbus.errors import UserError
from logbus.model import parse_instant
from logbus.operators.window_operator import WindowOperator, fail_without_retry
from logbus.status import group_seek
from logbus.status.group_checkpoint import take_turn
from logbus.status.group_seek import Target, TopicChoice

WINDOW = "window"
TARGETS: Mapping[str, Callable[[str], Target]] = {
    "earliest": lambda value: group_seek.earliest,
    "latest": lambda value: group_seek.latest,
    "offset": lambda value: group_seek.offset(int(value)),
    "shift": lambda value: group_seek.shift(int(value)),
    "datetime": lambda value: group_seek.instant(parse_instant(value)),
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
            raise UserError(f"a group is moved to one of {', '.join((WINDOW, *TARGETS))}; not to {to!r}")
        self.group = group or f"logbus-{self.pipeline.name}"
        self.to = to
        self.value = value
        self.partitions = partitions

    def execute(self, context: Context) -> dict[str, Any]:
        ledger, groups, log = self.warehouse.ledger(), self.broker.group_offsets(), self.broker.log_offsets()
        choice = TopicChoice(topic=self.pipeline.topic, partitions=None if self.partitions is None else tuple(self.partitions))
        with fail_without_retry(), ledger.engine.begin() as connection:
            take_turn(connection, self.group)
            moves = group_seek.plan(groups, log, self.group, [choice], self._target(context))
            group_seek.execute(groups, moves, f"logbus rewind to {self.to}")
        for move in moves:
            self.log.info("%s-%d: %s -> %d", move.topic, move.partition, move.current, move.new)
        return {
            "group": self.group,
            "topic": self.pipeline.topic,
            "moves": {str(move.partition): [move.current, move.new] for move in moves},
        }

    def _target(self, context: Context) -> Target:
        if self.to == WINDOW:
            first = min(self._starts(context))
            return group_seek.window(self.warehouse.ledger().window(self.pipeline.name, first))
        try:
            return TARGETS[self.to](self.value or "")
        except ValueError as error:
            raise UserError(f"cannot move a group to {self.to} {self.value!r}: {error}") from None
