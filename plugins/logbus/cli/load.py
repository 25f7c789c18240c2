"""`logbus load`: the closed hours of a pipeline into the warehouse, exactly once, with the proof; `logbus replay`: load windows
again, from the same records; `plan` shows beforehand what that would do.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from logbus import errors, loading, model, spark_submit
from logbus.cli import endings, options, output
from logbus.cli.window_views import folded, span_text
from logbus.formatting import many
from logbus.kafka import client, exact_reader, topics
from logbus.loads import history
from logbus.loads.history import WindowReading
from logbus.loads.ledger import Ledger
from logbus.status import replay
from logbus.status.replay import ReplayPlan, ReplayWindow, Span
from logbus.windows.catch_up import WINDOWS_UNCONFIRMED_MAX, LoadPlan

if TYPE_CHECKING:
    from confluent_kafka import Consumer


def without_token(context: click.Context, parameter: click.Parameter, url: str | None) -> str | None:
    """As the warehouse's URL on a command line has no password."""
    is_typed = context.get_parameter_source(str(parameter.name)) is click.core.ParameterSource.COMMANDLINE
    if url is not None and is_typed and ";token=" in url:
        raise click.BadParameter(
            f"a token does not belong on a command line, which others can read: pass the URL in {spark_submit.REMOTE_VARIABLE}"
        )
    return url


SPARK_OPTIONS: Mapping[str, options.Decorator] = {
    "master": click.option("--master", default=spark_submit.LOCAL_MASTER, show_default=True, help="Where Spark runs."),
    "remote": click.option(
        "--remote",
        callback=without_token,
        envvar=spark_submit.REMOTE_VARIABLE,
        show_envvar=True,
        metavar="URL",
        help="A server of Spark Connect instead, sc://HOST:15002. If the URL holds a token, pass it in the variable.",
    ),
    "max_task_bytes": click.option(
        "--max-task-bytes",
        type=click.IntRange(min=1),
        default=spark_submit.MAX_TASK_BYTES,
        show_default=True,
        help="How much of the log one task reads at most, and repeats if it fails.",
    ),
    "warehouse_connections": click.option(
        "--warehouse-connections",
        type=click.IntRange(min=1),
        default=spark_submit.WAREHOUSE_CONNECTIONS,
        show_default=True,
        help="How many tasks append to the warehouse at once.",
    ),
}


def with_spark(command: options.Function) -> options.Function:
    """Where a load runs and what it may take, as `spark`: fields of `loading.Load`."""

    @functools.wraps(command)
    def collected(**chosen: Any) -> Any:
        return command(spark={name: chosen.pop(name) for name in SPARK_OPTIONS}, **chosen)

    wrapped: options.Function = collected
    for option in reversed(list(SPARK_OPTIONS.values())):
        wrapped = option(wrapped)
    return wrapped


@click.command("load")
@options.pipeline_option
@options.since_option
@options.until_option
@options.warehouse_option
@options.with_client
@options.json_option
@click.option("--limit", type=click.IntRange(min=1), help="At most this many windows.")
@click.option("--only-missing", is_flag=True, help="Skip windows that are loaded already.")
@options.supersede_option
@click.option("--yes", "is_agreed", is_flag=True, help=f"Begin more than {WINDOWS_UNCONFIRMED_MAX} windows without asking.")
@click.option(
    "--accept-other-records",
    is_flag=True,
    help="Replace what is loaded with what the log holds now, even if these are other records. The window shows it forever.",
)
@with_spark
def command(
    pipeline_name: str,
    warehouse_url: str,
    config: Mapping[str, Any],
    as_json: bool,
    is_agreed: bool,
    spark: Mapping[str, Any],
    **chosen: Any,
) -> None:
    """Freeze the closed hours of a pipeline, load them in one Spark application, and audit each.

    These are all hours that are not loaded and, without --only-missing, also loaded ones that the broker still holds. Hours
    that an interrupted load has left without an audit are audited, too.
    """
    loader = loading.Loader(warehouse_url=warehouse_url, client_config=config, now=options.clock, say=output.echo_err)
    load = loading.Load(pipeline=pipeline_name, **spark, **chosen)  # the other options have the names of its fields
    with endings.raising():
        reports = loader.load(load, (lambda plan: None) if is_agreed else ask)
    show_reports(reports, as_json)


def ask(plan: LoadPlan) -> None:
    """On a terminal, asks for confirmation before very many windows; a script has to confirm them with --yes."""
    if plan.to_load > WINDOWS_UNCONFIRMED_MAX and output.stdin_is_terminal():
        click.confirm(
            f"{plan.to_load} windows are to be loaded, {plan.empty} of them without any record. Begin?", abort=True, err=True
        )
    else:
        plan.refuse_more_than(WINDOWS_UNCONFIRMED_MAX, "--yes begins them all, --since, --until and --limit choose some")


def show_reports(reports: list[model.AuditReport], as_json: bool) -> None:
    """Prints the audits; `AuditMismatch` where one is not exact."""
    if as_json:
        output.show_json([report.summary() for report in reports])
    elif reports:
        output.show(report_table(reports))
    for report in reports:
        for note in report.notes:
            output.echo_err(f"note: {model.instant_text(report.window.interval.start)}: {note}")
    wrong = [report for report in reports if not report.ok]
    if wrong:
        raise errors.AuditMismatch(
            f"{len(wrong)} of {len(reports)} windows are not exact; the first: {'; '.join(wrong[0].problems)}"
        )


def report_table(reports: list[model.AuditReport]) -> output.Table:
    """A line for each window: hour, read, loaded, dead-lettered, audited; one line for many empty ones in a row."""
    table = output.Table("window", "read", "loaded", "dead-lettered", "fingerprint", "audited")
    verdicts = {report.window.id: report.verdict for report in reports}
    for windows in folded((report.window for report in reports), lambda window: verdicts[window.id]):
        counts, verdict = windows[0].counts or model.WindowCounts(), verdicts[windows[0].id]
        table.add_row(
            span_text(windows),
            *map(str, (counts.read, counts.loaded, counts.dead_lettered)),
            windows[0].fingerprint or "-",
            verdict if len(windows) == 1 else f"{verdict}, {len(windows)} windows",
        )
    return table


# `logbus replay`: load windows again, from the same records; `plan` shows beforehand what that would do.


@click.group("replay")
def replay_command() -> None:
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


@replay_command.command("plan")
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


@replay_command.command("run")
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
    with endings.raising():
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
        return history.broker_reading(window, self.log, self.records)

    def records(self, part: model.OffsetRange) -> Iterable[history.ComparedRecord]:
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
