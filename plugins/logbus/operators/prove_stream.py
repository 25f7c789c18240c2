"""Prove a stream after audits: what it has counted of an hour of arrival is what the hour's load brought."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from logbus import assets, model, task_context
from logbus.hooks.warehouse import WarehouseHook
from logbus.streams import listing, proof, stream_ledger
from logbus.streams.definition import Stream


class ProveStreamOperator(BaseOperator):
    """Compare the hours of a stream that were audited since with what their loads brought: offsets, records, and every value.
    Its success is an event of its outlets, for which there is `logbus.assets.stream_outlets`. A stream that is not defined yet is
    defined, if it is more than a name: `logbus stream run` finds it there.

    An hour that differs fails the task, without a retry: by then the load's values have taken the place of the stream's, so a
    retry would find nothing. An hour that the stream has not read to its end is left to the next run; without one that is proven
    the task is skipped. Returns which hours are proven, and which are behind.

    :param stream: the stream, or its name (templated)
    :param warehouse_conn_id: the connection of the warehouse (templated)
    :param now: the clock; tests pass another one
    """

    template_fields: Sequence[str] = ("stream_name", "warehouse_conn_id")
    ui_color = "#ddf1de"

    def __init__(
        self,
        *,
        stream: Stream | str,
        warehouse_conn_id: str = WarehouseHook.default_conn_name,
        now: Callable[[], datetime] = model.utc_now,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.stream = None if isinstance(stream, str) else stream
        self.stream_name = stream if isinstance(stream, str) else stream.name
        self.warehouse_conn_id = warehouse_conn_id
        self._now = now

    def execute(self, context: Context) -> dict[str, Any]:
        engine = WarehouseHook(self.warehouse_conn_id).ledger().engine
        with task_context.fail_without_retry():
            if self.stream is not None:
                stream_ledger.define(engine, self.stream, self._now())
            report = proof.prove_due(engine, self.stream_name, self._now())
        for hour in report.hours:
            for problem in hour.problems:
                self.log.info("%s %s", model.instant_text(hour.hour), problem)
        if report.of(listing.DIFFERENT):
            raise AirflowFailException(report.failure())
        hours = {verdict: [model.instant_text(hour) for hour in report.of(verdict)] for verdict in proof.VERDICTS}
        if not hours[listing.PROVEN]:
            raise AirflowSkipException(f"no hour was proven; {len(hours[listing.BEHIND])} are not read to their ends yet")
        assets.tell_of_proven_hours(context, self.outlets, self.stream_name, report.of(listing.PROVEN))
        return {"proven": len(hours[listing.PROVEN]), "hours": hours[listing.PROVEN], "behind": hours[listing.BEHIND]}
