"""`logbus load`: the closed hours of a pipeline into the warehouse, exactly once, with the proof."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import click

from logbus import errors, loading, model, spark_submit
from logbus.cli import options, output, signals, window_views
from logbus.windows.catch_up import WINDOWS_UNCONFIRMED_MAX, LoadPlan


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
    with signals.raising():
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
    for windows in window_views.folded((report.window for report in reports), lambda window: verdicts[window.id]):
        counts, verdict = windows[0].counts or model.WindowCounts(), verdicts[windows[0].id]
        table.add_row(
            window_views.span_text(windows),
            *map(str, (counts.read, counts.loaded, counts.dead_lettered)),
            windows[0].fingerprint or "-",
            verdict if len(windows) == 1 else f"{verdict}, {len(windows)} windows",
        )
    return table
