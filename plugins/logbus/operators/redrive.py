"""Parse the dead letters of windows again, after the parser or the columns were fixed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow.sdk import Context

from logbus import model, task_context
from logbus.operators.window_operator import CONNECTION_FIELDS, WindowOperator


class RedriveOperator(WindowOperator):
    """Move dead letters that now parse into their windows: those of the run's interval, or of `windows`. Does not use Spark.

    A window keeps its fingerprint but must be audited again: put an AuditWindowOperator downstream. A second redrive finds less
    to do.

    Returns how many were tried, how many were loaded, and how many still do not parse; for the first hundred windows one by one,
    by error class.

    :param pipeline: a `Pipeline`, which is registered again first, so that the parser and settings are those of the DAG; or the
        name of a registered one (templated), whose parser and settings stay
    :param dry_run: only report what would become of them.
    """

    template_fields: Sequence[str] = ("pipeline_name", "windows", *CONNECTION_FIELDS)
    registers = True
    accepts_name = True
    ui_color = "#f6e3e3"

    def __init__(self, *, pipeline: model.Pipeline | str, dry_run: bool = False, **kwargs: Any) -> None:
        super().__init__(pipeline=pipeline, **kwargs)
        self.dry_run = dry_run

    def execute(self, context: Context) -> dict[str, Any]:
        from logbus.loads.redrive import Redrive, parser_of

        starts, ledger = self._starts(context), self.warehouse.ledger()
        with task_context.fail_without_retry():
            if isinstance(self.pipeline, model.Pipeline):
                self._register(ledger, context, remembers=False)
            pipeline = ledger.pipeline(self.pipeline_name)  # with the columns that loads have inferred
            windows = ledger.windows_at(pipeline.name, starts)
            redrive = Redrive(
                engine=self.warehouse.get_engine(),
                pipeline=pipeline,
                parser=parser_of(self.warehouse.get_engine(), pipeline, windows, self.broker.client_config()),
                run_id=str(context["run_id"]),
                now=self._now,
            )
            act = redrive.plan if self.dry_run else redrive.run
            outcomes = [act(window) for window in windows]
        for outcome in outcomes:
            self.log.info("%s", outcome.summary())
        return {
            "tried": sum(outcome.tried for outcome in outcomes),
            "loaded": sum(outcome.loaded for outcome in outcomes),
            "dead_lettered": sum(outcome.dead_lettered for outcome in outcomes),
            **task_context.windows_extra(starts, outcomes),
        }
