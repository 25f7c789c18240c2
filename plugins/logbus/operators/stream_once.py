"""Bring a stream up to where its topic ends, with one Spark application that then ends (`logbus.streams.run`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow.sdk import Context

from logbus import errors, spark_submit, task_context
from logbus.operators.spark_submit_window import SparkWindowOperator
from logbus.streams import run, stream_ledger
from logbus.streams.definition import Stream


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
