"""Show what is loaded to existing Kafka tools, as the committed offsets of a consumer group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow.sdk import Context

from logbus.operators.window_operator import WindowOperator, fail_without_retry
from logbus.status.group_checkpoint import commit_ends


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
        windows = [ledger.window(self.pipeline.name, start) for start in self._starts(context)]
        with fail_without_retry():
            done = commit_ends(ledger.engine, groups, log, self.group, windows)
        for partition, offset in done.ahead.items():
            self.log.info("%s-%d: group %s is at %d already, and stays there", done.topic, partition, self.group, offset)
        self.log.info("Group %s of %s: committed %s", self.group, done.topic, done.committed or "nothing")
        return done.summary()
