"""Load past windows again, as a task: the plan of `logbus replay`, then the load of LoadWindowOperator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow.sdk import Context

from logbus.model import instant_text
from logbus.operators.catch_up import optional_instant
from logbus.operators.load_window import LoadWindowOperator
from logbus.operators.window_operator import fail_without_retry, is_true, window_starts
from logbus.status import replay
from logbus.status.replay import Span


class ReplayOperator(LoadWindowOperator):
    """Load the frozen windows between `since` and `until` again (or those of `windows`), with one Spark application.

    Logs what it replaces. Fails before it loads anything if records of a window are gone, or another run is at work on one.

    Returns what LoadWindowOperator returns, and `starts` for downstream tasks.

    :param since: windows that end after this instant; templated, as is `until`: windows that begin before it.
    :param skip_lost: leave out windows of which retention has deleted records.
    :param supersede: take over from other runs, whose attempts can then no longer commit.
    """

    template_fields: Sequence[str] = (*LoadWindowOperator.template_fields, "since", "until")
    verb = "replay"

    def __init__(
        self,
        *,
        since: str | None = None,
        until: str | None = None,
        skip_lost: bool = False,
        supersede: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(multiple_outputs=True, **kwargs)
        self.since = since
        self.until = until
        self.skip_lost = skip_lost
        self.supersede = supersede

    def execute(self, context: Context) -> dict[str, Any]:
        ledger, log = self.warehouse.ledger(), self.broker.log_offsets()
        with fail_without_retry():
            plan = replay.plan(ledger, log, self.pipeline.name, self._span(), self._now(), str(context["run_id"]))
            accepted = is_true(self.accept_other_records)
            starts = plan.starts(skip_lost=self.skip_lost, supersede=self.supersede, accept_other_records=accepted)
        for one in plan.windows:
            lost = f"; left out, deleted: {', '.join(one.lost)}" if one.lost else ""
            self.log.info("%s: %d rows are replaced%s", instant_text(one.start), one.rows_replaced, lost)
        self.windows = [instant_text(start) for start in starts]
        return {**super().execute(context), "starts": self.windows}

    def _span(self) -> Span:
        if self.is_given_windows and not self.windows and not isinstance(self.windows, str):
            self._skip_without_windows()
        starts = tuple(window_starts(self.windows))
        return Span(since=optional_instant("since", self.since), until=optional_instant("until", self.until), starts=starts)
