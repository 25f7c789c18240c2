"""`logbus replay`: load windows again, from the same records; `plan` shows beforehand what that would do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from logbus import loading, model
from logbus.cli import options, output, signals
from logbus.cli.load import show_reports, with_spark
from logbus.formatting import many
from logbus.kafka import client, exact_reader, topics
from logbus.loads import comparison
from logbus.loads.comparison import WindowReading
from logbus.loads.ledger import Ledger
from logbus.status import replay
from logbus.status.replay import ReplayPlan, ReplayWindow, Span

if TYPE_CHECKING:
    from confluent_kafka import Consumer


@click.group("replay")
def command() -> None:
    """Load windows again, from exactly the same records; look at the plan first."""


def of_span(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options that plan and run share."""
    shared = (
        options.json_option,
        options.with_client,
        options.warehouse_option,
        click.option(
            "--read/--no-read",
            default=None,
            help="Read what the broker holds, and say whether it is what is loaded. By default, up to a million records.",
        ),
        click.option("--window", "starts", type=options.Instant(), multiple=True, help="The start of a window; may be repeated."),
        click.option("--until", type=options.Instant(), help="Windows that begin before this instant."),
        click.option("--since", type=options.Instant(), help="Windows that end after this instant."),
        options.pipeline_option,
    )
    for option in shared:
        function = option(function)
    return function


@command.command("plan")
@of_span
def show_plan(
    pipeline_name: str, warehouse_url: str, config: Mapping[str, Any], read: bool | None, as_json: bool, **span_of: Any
) -> None:
    """Show windows, records, bytes, whether they are still retained and the same, rows to be replaced, and which runs are
    working on them."""
    span = Span(**span_of)
    replay_plan = made_plan(options.open_ledger(warehouse_url), config, pipeline_name, span, read)
    if as_json:
        output.show_json(replay_plan.summary())
        return
    output.show(plan_table(replay_plan))
    for line in (*totals(replay_plan), *replay_plan.notes):
        output.echo(line)


@command.command("run")
@of_span
@click.option("--skip-lost", is_flag=True, help="Leave out windows that have lost records to retention.")
@options.supersede_option
@click.option(
    "--accept-other-records",
    is_flag=True,
    help="Replace what is loaded with what the log holds now, even if these are other records. The window shows it forever.",
)
@with_spark
def run(
    pipeline_name: str,
    warehouse_url: str,
    config: Mapping[str, Any],
    read: bool | None,
    as_json: bool,
    skip_lost: bool,
    supersede: bool,
    accept_other_records: bool,
    spark: Mapping[str, Any],
    **span_of: Any,
) -> None:
    """Load the windows again with one Spark application, and audit each. All or nothing, except with --skip-lost."""
    span = Span(**span_of)
    compares = False if accept_other_records and read is None else read  # the comparison would change nothing
    replay_plan = made_plan(options.open_ledger(warehouse_url), config, pipeline_name, span, compares)
    chosen = replay_plan.starts(skip_lost=skip_lost, supersede=supersede, accept_other_records=accept_other_records)
    for line in (*totals(replay_plan), *replay_plan.notes):
        output.echo_err(line)
    loader = loading.Loader(warehouse_url=warehouse_url, client_config=config, now=options.clock, say=output.echo_err)
    load = loading.Load(
        pipeline=pipeline_name,
        run_id="logbus replay",
        supersede=supersede,
        accept_other_records=accept_other_records,
        **spark,
    )
    with signals.raising():
        reports = loader.reload(load, chosen)
    show_reports(reports, as_json)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerReader:
    """Reads windows with one consumer, and shows its progress."""

    consumer: Consumer
    log: topics.Topics

    def begin(self, windows: int, records: int) -> None:
        output.echo_err(
            f"reading the {many(records, 'record')} of {many(windows, 'window')}, to compare them with what is loaded"
        )

    def window(self, window: model.FrozenWindow) -> WindowReading:
        return comparison.broker_reading(window, self.log, self.records)

    def records(self, part: model.OffsetRange) -> Iterable[comparison.ComparedRecord]:
        messages = exact_reader.read_with(
            self.consumer, part.topic, part.partition, part.start_offset, part.end_offset, say=output.echo_err
        )
        return output.tracked(messages, f"reading {part.topic}-{part.partition}", part.count)


def made_plan(ledger: Ledger, config: Mapping[str, Any], name: str, span: Span, read: bool | None) -> ReplayPlan:
    """`read` None: read only if it is not too much."""
    log, now = topics.Topics(client.Client.for_command(config)), options.clock()
    if read is False:
        return replay.plan(ledger, log, name, span, now)
    with exact_reader.exact_consumer(config, ledger.pipeline(name).isolation_level) as consumer:
        reader, most = BrokerReader(consumer=consumer, log=log), None if read else replay.RECORDS_READ_DEFAULT_MAX
        return replay.plan(ledger, log, name, span, now, reader=reader, records_max=most)


def plan_table(plan: ReplayPlan) -> output.Table:
    table = output.Table("window", "state", "records", "bytes", "rows replaced", "can be loaded again")
    for replayed in plan.windows:
        size = "-" if replayed.bytes is None else str(replayed.bytes)
        values = (str(replayed.window.state), str(replayed.window.record_count), size, str(replayed.rows_replaced))
        table.add_row(model.instant_text(replayed.start), *values, verdict(replayed))
    return table


def verdict(replayed: ReplayWindow) -> str:
    if replayed.lost:
        return f"no: deleted {', '.join(replayed.lost)}"
    if replayed.differs:
        return f"other records: {replayed.differs}"
    if replayed.busy:
        return f"busy: {replayed.busy}"
    return "yes, the same records" if replayed.is_read else "yes"


def totals(plan: ReplayPlan) -> list[str]:
    summary = plan.summary()
    lost = f"; {many(summary['lost_windows'], 'window')} lost" if summary["lost_windows"] else ""
    others = f"; {many(summary['differing_windows'], 'window')} with other records now" if summary["differing_windows"] else ""
    count = many(len(plan.windows) - summary["lost_windows"], "window")
    rows = many(summary["rows_replaced"], "row")
    return [f"{count}, {many(summary['records'], 'record')}, {rows} to be replaced{lost}{others}"]
