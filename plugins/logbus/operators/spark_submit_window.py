"""Any Spark program over exactly the offsets of the run's window.

The program can read them from three places: the environment variable LOGBUS_WINDOWS and the Spark setting
`spark.logbus.windows` hold the same JSON (logbus.ledger.handover); `spark.logbus.topic`, `spark.logbus.startingOffsets` and
`spark.logbus.endingOffsets` can be passed to the Kafka connector as they are. A driver in a standalone cluster gets no
environment variables, so it has the settings only. A rerun gets the same offsets; if the topic was made again since the windows
were frozen, or its log is another one, the task fails before the program begins. What the program writes is its own
responsibility: nothing here makes that exactly once.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from airflow.sdk import Context

from logbus import spark_submit
from logbus.assets import windows_extra
from logbus.kafka.topics import OffsetLog
from logbus.ledger.handover import as_text
from logbus.ledger.ledger import Ledger
from logbus.model import FrozenWindow, Interval, Pipeline
from logbus.operators.spark_window_operator import SparkWindowOperator
from logbus.operators.window_operator import fail_without_retry, no_pipeline
from logbus.pipeline_checks import check_pipeline


class SparkSubmitWindowOperator(SparkWindowOperator):
    """Freeze the run's window (or all of `windows`) unless it is frozen, and pass its offsets to your own Spark program.

    Returns the starts of the windows, and of the first hundred their ranges and how many records they hold.

    :param pipeline: the name of a registered pipeline (templated), or a `Pipeline`, which is registered if necessary
    :param application: the program, as spark-submit takes it
    :param warehouse_in_environment: also pass LOGBUS_WAREHOUSE_URL, with its password. The broker's configuration is passed
        either way, in LOGBUS_KAFKA_CONFIG: it may hold a password too, so neither is if `credentials_in_environment` is False.
    """

    template_fields: Sequence[str] = (*SparkWindowOperator.template_fields, "pipeline_name")
    ui_color = "#f3e2f7"

    def __init__(
        self, *, pipeline: Pipeline | str, application: str, warehouse_in_environment: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(application=application, **kwargs)
        if isinstance(pipeline, Pipeline):
            check_pipeline(pipeline)
        elif not isinstance(pipeline, str):
            raise no_pipeline(pipeline, type(self).__name__)
        self.pipeline_name = pipeline if isinstance(pipeline, str) else pipeline.name
        self.registered_as = None if isinstance(pipeline, str) else pipeline
        self.warehouse_in_environment = warehouse_in_environment

    def execute(self, context: Context) -> dict[str, Any]:
        ledger, log = self.warehouse.ledger(), self.broker.log_offsets()
        with fail_without_retry():
            pipeline, windows = self._frozen(ledger, log, self._starts(context), context["ti"].dag_id)
            text = as_text(content := ledger.hand_over(pipeline, windows, log))
        self.conf: dict[str, Any] = {**(self.conf or {}), **spark_settings(content, text)}
        self.log.info("Handing over %d window(s) of %s: %s", len(windows), pipeline.name, text)
        self._submit(context, self._handed_over(text))
        return {"pipeline": pipeline.name, **windows_extra([window.interval.start for window in windows], windows)}

    def _handed_over(self, windows: str) -> dict[str, str]:
        """The program's environment. The windows are no secret: anyone may see them on a command line."""
        handed = {spark_submit.WINDOWS_VARIABLE: windows}
        if not self.credentials_in_environment:
            return handed
        secrets = self.warehouse.url if self.warehouse_in_environment else None
        return {**spark_submit.environment(secrets, self.broker.client_config()), **handed}

    def _frozen(
        self, ledger: Ledger, log: OffsetLog, starts: Sequence[datetime], dag_id: str
    ) -> tuple[Pipeline, list[FrozenWindow]]:
        now = self._now()
        if self.registered_as is not None:
            ledger.define(self.registered_as, log, now, dag_id=dag_id, remembers=False)
        pipeline = ledger.pipeline(self.pipeline_name)
        intervals = [Interval(start, start + pipeline.interval) for start in starts]
        return pipeline, [ledger.freeze_or_get(pipeline.name, interval, log, now) for interval in intervals]


def spark_settings(content: dict[str, Any], text: str) -> dict[str, str]:
    """The same as Spark settings, which reach the driver on any kind of cluster."""
    names = ("topic", "startingOffsets", "endingOffsets")
    single = {f"spark.logbus.{name}": content[name] for name in names if content[name] is not None}
    return {"spark.logbus.windows": text, **single}
