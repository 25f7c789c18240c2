"""The first half of a load: decide which windows an application loads, and begin their attempts.

LoadWindowOperator does this before it submits the application itself. `BeginLoadOperator` does it for any other operator that
submits to Spark, where `VerifyLoadOperator` follows:

    begin = BeginLoadOperator(task_id="begin", pipeline=CLICKS)
    submit = SparkKubernetesOperator(...)  # or of EMR, Dataproc, Livy, Databricks; gets begin.output["arguments"]
    verify = VerifyLoadOperator(task_id="verify", pipeline=CLICKS, begun=begin.output)
    begin >> submit >> verify

What is passed on is no secret: names, instants and numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from airflow.sdk import Context
from airflow.sdk.bases.skipmixin import SkipMixin

from logbus import errors, model, spark_submit, task_context
from logbus.operators import verify_load, window_operator


class BeginLoadOperator(window_operator.BeginsLoad, window_operator.WindowOperator, SkipMixin):
    """Begin a load of the run's window, or of all of `windows`, that another operator submits and VerifyLoadOperator verifies.
    For Spark that LoadWindowOperator cannot submit to. From then on no earlier application can commit these windows.

    Returns `arguments`, which the other operator passes to the program `load_windows.py` (a list of words), and what
    VerifyLoadOperator takes as `begun`. If there is nothing to load (the windows hold no record, or another run's application
    has loaded them), the tasks directly after it are skipped, except VerifyLoadOperator.

    :param max_windows_per_application: how many hours one application loads at most, those of other runs that wait at this task
        included (84, half a week); 1 keeps each run to its own. Of `windows` it takes a thousand.
    :param accept_other_records: as of LoadWindowOperator (templated)
    :param fill_gaps: as of LoadWindowOperator
    :param max_task_bytes: as of LoadWindowOperator
    :param warehouse_connections: as of LoadWindowOperator
    """

    template_fields: Sequence[str] = (*window_operator.WindowOperator.template_fields, "accept_other_records")
    ui_color = "#fbe9d0"

    def __init__(
        self,
        *,
        max_windows_per_application: int = spark_submit.WINDOWS_PER_JOB_MAX,
        accept_other_records: bool | str = False,
        fill_gaps: bool = False,
        max_task_bytes: int = spark_submit.MAX_TASK_BYTES,
        warehouse_connections: int = spark_submit.WAREHOUSE_CONNECTIONS,
        **kwargs: Any,
    ) -> None:
        super().__init__(multiple_outputs=True, **kwargs)
        task_context.validate_count("max_windows_per_application", max_windows_per_application)
        self.max_windows_per_application = max_windows_per_application
        self.accept_other_records = accept_other_records
        self.fill_gaps = fill_gaps
        self.limits = spark_submit.TaskLimits(max_task_bytes=max_task_bytes, warehouse_connections=warehouse_connections)

    def execute(self, context: Context) -> Mapping[str, Any]:
        starts, ledger = self._starts(context), self.warehouse.ledger()
        with task_context.fail_without_retry():
            to_load = self._windows_to_load(ledger, starts, context)
            if len(to_load or ()) > spark_submit.WINDOWS_PER_APPLICATION_MAX:
                raise errors.TooManyWindows(
                    f"{len(to_load or ()):,} windows are more than the {spark_submit.WINDOWS_PER_APPLICATION_MAX:,} of one "
                    "application: give this task a part of them"
                )
            attempts: list[model.Attempt] = []
            waiting: list[datetime] = []
            if to_load:
                self._register(ledger, context)
                own = [interval.start for interval in to_load]
                waiting, gaps = self._windows_beside(ledger, to_load[0], context)
                accepted = own if task_context.is_true(self.accept_other_records) else ()
                attempts = self._load_run(ledger, context).begin(own, [*waiting, *gaps], accepted)
        begun = {
            "starts": [model.instant_text(start) for start in starts],
            "attempts": [attempt.token for attempt in attempts],
            "arguments": spark_submit.application_arguments(self.pipeline.name, attempts, self.limits),
            "waiting": [model.instant_text(start) for start in waiting],
            "adopted": to_load is None,
            "fills_gaps": self.fill_gaps and self._is_shared,
        }
        if not attempts:
            context["ti"].xcom_push(key="return_value", value=begun)  # what skips does not return
            after = [task for task in self.downstream_list if not isinstance(task, verify_load.VerifyLoadOperator)]
            self.skip(context["ti"], after)
        return begun
