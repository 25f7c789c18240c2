"""Streams in a DAG: bring one up to where its topic ends, with one Spark application that then ends (`logbus.streams.run`); prove
it after audits: what it has counted of an hour of arrival is what the hour's load brought; define a join of two pipelines.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from logbus import assets, errors, model, spark_submit, task_context
from logbus.hooks.warehouse import WarehouseHook
from logbus.operators.spark_submit_window import SparkWindowOperator
from logbus.streams import listing, proof, run, stream_ledger
from logbus.streams.definition import Stream
from logbus.streams.joins import Join


class StreamOnceOperator(SparkWindowOperator):
    """Compute `stream` up to what its topic held when the application began. It takes the stream over from a driver that is at
    work on it; if another one takes it over meanwhile, the task fails without a retry.

    A stream that is not defined yet is defined, and begins at the newest frozen hour of its pipeline. Returns how many
    offsets it went on by, and where it is in each partition.

    :param stream: what `logbus.streams.definition.define_stream` returns
    """

    template_fields: Sequence[str] = SparkWindowOperator.template_fields
    operator_extra_links = ()  # type: ignore[assignment]  # of windows
    ui_color = "#e6e0f5"

    def __init__(self, *, stream: Stream, application: str | None = None, name: str | None = None, **kwargs: Any) -> None:
        if not isinstance(stream, Stream):
            raise errors.UserError(f"StreamOnceOperator takes a Stream, not {stream!r}: pass what define_stream(...) returns")
        super().__init__(application=application or run.program_path(), name=name or f"logbus stream {stream.name}", **kwargs)
        self.stream = stream

    def execute(self, context: Context) -> dict[str, Any]:
        engine, run_id = self.warehouse.ledger().engine, str(context["run_id"])
        environment: dict[str, str] = {}
        if self.credentials_in_environment:
            environment = spark_submit.environment(self.warehouse.url, self.broker.client_config())
        self._validate_connection(environment)
        with task_context.fail_without_retry():
            stream_ledger.define(engine, self.stream, self._now())
            before = stream_ledger.positions(engine, self.stream.name)
            self.application_args = run.arguments(self.stream.name, run_id, once=True)
            try:
                self._submit(context, environment)
            except errors.LoadFailed as failure:
                with engine.connect() as connection:
                    owner_run = stream_ledger.row_of(connection, self.stream.name)["owner_run"]
                if owner_run not in (None, run_id):
                    raise errors.AttemptSuperseded(f"{owner_run} has taken over stream {self.stream.name}") from failure
                raise
            positions = stream_ledger.positions(engine, self.stream.name)
        offsets = sum(positions.values()) - sum(before.values())
        self.log.info("The stream has gone on by %d offset(s)", offsets)
        return {
            "stream": self.stream.name,
            "offsets": offsets,
            "positions": {str(partition): end for partition, end in positions.items()},
        }


# Prove a stream after audits: what it has counted of an hour of arrival is what the hour's load brought.


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


# Define a join of two pipelines as their records arrive: two streams of rows, and a view over both.


class JoinStreamsOperator(BaseOperator):
    """Puts `join` and its two streams into the ledger, if they are not there yet; computing and proving these is for
    StreamOnceOperator and ProveStreamOperator. The view is made here, or by the first run of the second stream if the table of a
    pipeline is not there before. Returns the names of the streams.

    :param join: what `logbus.streams.joins.define_join` returns
    :param warehouse_conn_id: the connection of the warehouse (templated)
    :param now: the clock; tests pass another one
    """

    template_fields: Sequence[str] = ("warehouse_conn_id",)
    ui_color = "#e6e0f5"

    def __init__(
        self,
        *,
        join: Join,
        warehouse_conn_id: str = WarehouseHook.default_conn_name,
        now: Callable[[], datetime] = model.utc_now,
        **kwargs: Any,
    ) -> None:
        if not isinstance(join, Join):
            raise errors.UserError(f"JoinStreamsOperator takes a Join, not {join!r}: pass what define_join(...) returns")
        super().__init__(**kwargs)
        self.join = join
        self.warehouse_conn_id = warehouse_conn_id
        self._now = now

    def execute(self, context: Context) -> dict[str, Any]:
        with task_context.fail_without_retry():
            stream_ledger.define_join(WarehouseHook(self.warehouse_conn_id).ledger().engine, self.join, self._now())
        return {"view": self.join.table, "streams": [side.name for side in self.join.sides]}
